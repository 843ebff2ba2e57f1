"""A run: its start, its warm-up, the loop, and where chains are placed."""
