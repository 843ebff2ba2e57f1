"""Formats of data: delimited text, data frames and binary files."""
