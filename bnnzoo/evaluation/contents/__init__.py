"""The contents of a run file: its draws, statistics and rows."""
