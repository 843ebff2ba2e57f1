"""Metropolis-Hastings on mini-batches: the penalty method, and its form without the penalty."""
