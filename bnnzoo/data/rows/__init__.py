"""Rows as arrays: the data set, its signature, split and scaling."""
