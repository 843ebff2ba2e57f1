"""Markov chains whose steps use all data."""
