"""Formulas on arrays, which depend neither on runs nor on models."""
