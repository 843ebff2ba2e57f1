"""Markov chains on all data."""
