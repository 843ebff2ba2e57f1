"""Estimates of the evidence log p(D), the log marginal likelihood of the data."""
