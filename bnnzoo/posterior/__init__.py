"""Posteriors: each consists of a prior, a likelihood of each datum, and the data. Mini-batches are drawn here."""

from bnnzoo.posterior.base import AbstractPosterior, Data
from bnnzoo.posterior.network import NetworkPosterior

__all__ = ["AbstractPosterior", "Data", "NetworkPosterior"]
