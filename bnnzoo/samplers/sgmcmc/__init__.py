"""Markov chains that follow mini-batch gradients, without an accept step."""
