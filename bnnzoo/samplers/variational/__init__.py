"""Approximations by training: fitted distributions and ensembles."""
