"""Loading: a source of data becomes checked rows."""
