"""Predictions from the draws of a run."""
