"""Posteriors. A posterior has a prior, a likelihood of each datum, and the data, and draws mini-batches of the data."""

from bnnzoo.posterior.base import AbstractPosterior, Data
from bnnzoo.posterior.network import NetworkPosterior

__all__ = ["AbstractPosterior", "Data", "NetworkPosterior"]
