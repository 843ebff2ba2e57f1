"""Loading of a data source into checked rows."""
