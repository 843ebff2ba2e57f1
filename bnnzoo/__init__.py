"""A zoo of Bayesian neural networks on JAX: any model with any sampler.

Names are resolved on first use: importing bnnzoo imports no JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bnnzoo.comparison import compare
    from bnnzoo.data import Dataset
    from bnnzoo.errors import BnnzooError, BnnzooWarning, UsageError
    from bnnzoo.hookspecs import Entry, hookimpl
    from bnnzoo.models import AbstractModel
    from bnnzoo.posterior import AbstractPosterior, Data, NetworkPosterior
    from bnnzoo.posterior.hyperparameter import number
    from bnnzoo.posterior.layout import Layout
    from bnnzoo.posterior.likelihoods import AbstractLikelihood
    from bnnzoo.posterior.numpyro import NumpyroPosterior
    from bnnzoo.posterior.priors import AbstractPrior
    from bnnzoo.run import Run
    from bnnzoo.samplers import (
        AbstractSampler,
        Batched,
        Bbb,
        Dropout,
        Ensemble,
        Gibbs,
        Hmc,
        Importance,
        Laplace,
        Mala,
        Nuts,
        Penalty,
        Psgld,
        RandomWalk,
        Rejection,
        Sghmc,
        Sgld,
        SmsUbu,
        Statistic,
        Stats,
        Swag,
        choose,
        metropolis,
        replace,
        standard_normal,
    )
    from bnnzoo.zoo import open, resume, sample

_HOMES = {
    "bnnzoo.comparison": ("compare",),
    "bnnzoo.data": ("Dataset",),
    "bnnzoo.errors": ("BnnzooError", "BnnzooWarning", "UsageError"),
    "bnnzoo.hookspecs": ("Entry", "hookimpl"),
    "bnnzoo.posterior.hyperparameter": ("number",),
    "bnnzoo.posterior.layout": ("Layout",),
    "bnnzoo.posterior.likelihoods": ("AbstractLikelihood",),
    "bnnzoo.models": ("AbstractModel",),
    "bnnzoo.posterior.numpyro": ("NumpyroPosterior",),
    "bnnzoo.posterior": ("AbstractPosterior", "Data", "NetworkPosterior"),
    "bnnzoo.posterior.priors": ("AbstractPrior",),
    "bnnzoo.run": ("Run",),
    "bnnzoo.samplers": (
        "AbstractSampler",
        "Batched",
        "Bbb",
        "Dropout",
        "Ensemble",
        "Gibbs",
        "Hmc",
        "Importance",
        "Laplace",
        "Mala",
        "Nuts",
        "Penalty",
        "Psgld",
        "RandomWalk",
        "Rejection",
        "Sghmc",
        "Sgld",
        "SmsUbu",
        "Statistic",
        "Stats",
        "Swag",
        "choose",
        "metropolis",
        "replace",
        "standard_normal",
    ),
    "bnnzoo.zoo": ("open", "resume", "sample"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AbstractLikelihood",
    "AbstractModel",
    "AbstractPosterior",
    "AbstractPrior",
    "AbstractSampler",
    "Batched",
    "Bbb",
    "BnnzooError",
    "BnnzooWarning",
    "Data",
    "Dataset",
    "Dropout",
    "Ensemble",
    "Entry",
    "Gibbs",
    "Hmc",
    "Importance",
    "Laplace",
    "Layout",
    "Mala",
    "NetworkPosterior",
    "NumpyroPosterior",
    "Nuts",
    "Penalty",
    "Psgld",
    "RandomWalk",
    "Rejection",
    "Run",
    "Sghmc",
    "Sgld",
    "SmsUbu",
    "Statistic",
    "Stats",
    "Swag",
    "UsageError",
    "choose",
    "compare",
    "hookimpl",
    "metropolis",
    "number",
    "open",
    "replace",
    "resume",
    "sample",
    "standard_normal",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bnnzoo' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value  # the second access meets the same object, whatever was imported in between
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
