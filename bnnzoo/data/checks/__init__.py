"""Checks of column names and of numbers."""
