"""Convergence diagnostics of a run, problems found in the run, and the verdict in words."""
