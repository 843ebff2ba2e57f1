"""Audit of a run: tests with exact Markov chains that start at the draws of the run."""
