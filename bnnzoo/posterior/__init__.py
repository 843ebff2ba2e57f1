"""Posteriors. A posterior has a prior, a likelihood of each datum, and the data; it also draws mini-batches."""

from bnnzoo.posterior.base import AbstractPosterior, Data
from bnnzoo.posterior.network import NetworkPosterior

__all__ = ["AbstractPosterior", "Data", "NetworkPosterior"]
