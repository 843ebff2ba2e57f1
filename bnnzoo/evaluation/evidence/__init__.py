"""Estimates of the evidence log p(D)."""
