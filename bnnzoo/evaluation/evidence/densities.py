"""Log-likelihood of the training rows and log prior density of a run's draws, for estimates of the evidence."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.posterior import NetworkPosterior, backend


def kept_draws(predictor: Predictor) -> Int[np.ndarray, " kept"]:
    """Return every k-th draw of a chain, so that one number per draw and training row fits into memory."""
    return predictor.record.kept_draws(int(predictor.record.attributes["rows"]))


def log_likelihoods(
    predictor: Predictor, draw_numbers: Int[np.ndarray, " kept"], *, linearised: bool = True
) -> Float[np.ndarray, "chain kept"]:
    """Return log p(D | theta) of each kept draw, in original units, by the linearised network or the original one."""
    rows = predictor.record.training_rows()
    return predictor.log_likelihoods(*rows, draw_numbers, linearised=linearised).sum(2, dtype=np.float64)


def log_priors(predictor: Predictor, draw_numbers: Int[np.ndarray, " kept"]) -> Float[np.ndarray, "chain kept"]:
    """Return the log prior density of each kept draw on the sampled scale, which is logarithmic for scales."""
    posterior, (chains, count) = predictor.posterior, predictor.record.shape
    assert isinstance(posterior, NetworkPosterior)  # a model with a name has no other posterior
    draws = predictor.draws[(count * np.arange(chains)[:, None] + draw_numbers).reshape(-1)]
    thetas = np.stack([posterior.unconstrained(draw) for draw in draws])
    with backend.arithmetic(predictor.precision):
        densities = np.asarray(_densities(posterior, jnp.asarray(thetas)), np.float64)
    return densities.reshape(chains, -1)


@eqx.filter_jit
def _densities(posterior: NetworkPosterior, thetas: Float[Array, "draw dim"]) -> Float[Array, " draw"]:
    return jax.lax.map(posterior.log_prior, thetas)
