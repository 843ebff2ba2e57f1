"""The log-likelihood of the training rows and the log prior density of a run's draws, as its evidence needs them."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bnnzoo.evaluation.predictor import Predictor
from bnnzoo.posterior import NetworkPosterior, backend


def kept_draws(predictor: Predictor) -> Int[np.ndarray, " kept"]:
    """Every k-th draw of a chain, where a number a draw and training row would be many."""
    return predictor.record.kept(int(predictor.record.attributes["rows"]))


def log_likelihoods(
    predictor: Predictor, kept: Int[np.ndarray, " kept"], *, linearised: bool = True
) -> Float[np.ndarray, "chain kept"]:
    """log p(D | theta) of each kept draw, in original units; by the linearised network where there is one, or not."""
    rows = predictor.record.training_rows()
    return predictor.log_likelihoods(*rows, kept, linearised=linearised).sum(2, dtype=np.float64)


def log_priors(predictor: Predictor, kept: Int[np.ndarray, " kept"]) -> Float[np.ndarray, "chain kept"]:
    """The log prior density of each kept draw as it was sampled: of log scales where the file has scales."""
    posterior, (chains, count) = predictor.posterior, predictor.record.shape
    assert isinstance(posterior, NetworkPosterior)  # a model that has a name is no other
    draws = predictor.draws[(count * np.arange(chains)[:, None] + kept).reshape(-1)]
    thetas = np.stack([posterior.unconstrained(draw) for draw in draws])
    with backend.arithmetic(predictor.precision):
        found = np.asarray(_densities(posterior, jnp.asarray(thetas)), np.float64)
    return found.reshape(chains, -1)


@eqx.filter_jit
def _densities(posterior: NetworkPosterior, thetas: Float[Array, "draw dim"]) -> Float[Array, " draw"]:
    return jax.lax.map(posterior.log_prior, thetas)
