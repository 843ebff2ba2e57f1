"""Columns of a table: notations of cells, types, levels, and doubtful values."""
