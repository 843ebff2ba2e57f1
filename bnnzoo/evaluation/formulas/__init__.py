"""Formulas on arrays, independent of runs and models."""
