"""Sampling methods, one per file, in a folder per family. The package exports the class of every built-in sampler."""

from importlib import import_module
from typing import Any

from bnnzoo.plugins.builtin import bnnzoo_samplers
from bnnzoo.posterior.hyperparameter import number
from bnnzoo.samplers.base import AbstractSampler, Stats
from bnnzoo.samplers.kernel import choose, metropolis, replace, standard_normal
from bnnzoo.samplers.statistics import Statistic

__all__ = ["AbstractSampler", "Statistic", "Stats", "choose", "metropolis", "number", "replace", "standard_normal"]


def __getattr__(name: str) -> Any:
    for entry in bnnzoo_samplers():
        module, _, attribute = entry.target.partition(":")
        if attribute == name:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'bnnzoo.samplers' has no attribute {name!r}")
