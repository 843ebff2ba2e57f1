"""Posteriors of a line, for tests of posteriors and samplers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bnnzoo.models.linear import Linear
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal


def linear_posterior(rows: int = 10, **more: Any) -> NetworkPosterior:
    """Return the posterior of a linear model of random rows with two inputs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2)).astype(np.float32)
    y = rng.normal(size=(rows, 1)).astype(np.float32)
    network = Linear().build((2,), 1, key=jax.random.key(0))
    return NetworkPosterior.of(network, more.pop("likelihood", Gaussian(0.5)), Normal(2.0), x, y, **more)
