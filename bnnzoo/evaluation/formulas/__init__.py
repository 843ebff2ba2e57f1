"""Formulas on arrays, with NumPy and SciPy. They know neither runs nor models."""
