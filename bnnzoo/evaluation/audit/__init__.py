"""Audit of a run by exact chains that start at its draws."""
