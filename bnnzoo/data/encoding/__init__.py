"""Encoding of columns as the inputs and targets of a network."""
