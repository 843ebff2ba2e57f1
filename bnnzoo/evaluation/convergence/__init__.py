"""Diagnostics of a run, its findings and its outcome in words."""
