"""Posteriors: a prior, a likelihood per datum, and the data, with the mini-batches drawn inside."""

from bnnzoo.posterior.base import AbstractPosterior, Data
from bnnzoo.posterior.network import NetworkPosterior

__all__ = ["AbstractPosterior", "Data", "NetworkPosterior"]
