"""Checks of data, and faults that are reported together."""
