"""The number of rows that a step of the penalty needs: K1, with which the variance of its log ratio is 1.

With differences e_i of the log-likelihoods, or what a control variate leaves of them, K rows drawn with replacement
give sigma2 = K1 / K, where K1 = beta^2 N^2 Var_i(e_i).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers._control_variate import Anchor

_PAIRS, _ROWS = 16, 4096
"""Pairs of positions, and rows at which their differences are evaluated."""


def near_centre(
    posterior: AbstractPosterior, is_sampled: Bool[Array, " dim"], *, key: PRNGKeyArray
) -> Float[Array, ""]:
    """Predict K1 of a second-order control variate at the posterior's centre, for independent proposals.

    Args:
        posterior: a posterior of a subspace, whose coordinates are in standard deviations.
        is_sampled: the coordinates that move; the others stay at the centre.
        key: random key.
    """
    centre = posterior.centre()
    assert centre is not None
    key_rows, key_pairs = jax.random.split(key)
    batch = posterior.minibatch(min(_ROWS, posterior.num_data), replace=False, key=key_rows)
    # Only the rows' own polynomials are used, so the sums over all rows are placeholders.
    anchor = Anchor(centre, jnp.zeros_like(centre), jnp.zeros((1, 1), centre.dtype))

    def variance(key: PRNGKeyArray) -> Float[Array, ""]:
        start, end = centre + jnp.where(is_sampled, jax.random.normal(key, (2, *centre.shape), centre.dtype), 0.0)
        differences = posterior.log_likelihood(end, batch) - posterior.log_likelihood(start, batch)
        return jnp.var(differences - anchor.batch_part(posterior, start, end, batch))

    scale = posterior.likelihood_power * float(posterior.num_data)
    return scale**2 * jnp.mean(jax.lax.map(variance, jax.random.split(key_pairs, _PAIRS)))
