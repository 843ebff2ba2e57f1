"""Posteriors: a prior, a per-datum likelihood and the data. Mini-batches are drawn here."""

from bnnzoo.posterior.base import AbstractPosterior, Data
from bnnzoo.posterior.network import NetworkPosterior

__all__ = ["AbstractPosterior", "Data", "NetworkPosterior"]
