"""Approximate methods that train networks: fitted distributions and ensembles."""
