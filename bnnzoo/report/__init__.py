"""HTML report of a run, and its pictures."""
