"""Prediction intervals and sets, Bayesian and conformal."""
