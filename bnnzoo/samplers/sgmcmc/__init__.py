"""Markov chains on gradients of mini-batches, without an accept step."""
