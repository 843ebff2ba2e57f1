"""K1, the number of rows per step with which the noise of the log acceptance ratio has variance 1.

Let e_i be the change of the log-likelihood of row i in a step, minus the change of its control variate if there is one.
With K rows drawn with replacement, the noise has the variance sigma2 = K1 / K, where K1 = beta^2 N^2 Var_i(e_i). N is
the number of all rows, and beta is the likelihood power.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bnnzoo.errors import UsageError
from bnnzoo.finding import setting
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior
from bnnzoo.posterior.subspace import normal_moments
from bnnzoo.samplers.common.control_variate import Anchor

_PAIRS, _ROWS = 16, 4096
"""Number of pairs of positions, and largest number of rows, from which `near_centre` predicts K1."""


def describe(sampler: Any, posterior: AbstractPosterior, rows_needed: float) -> str:
    """Return a sentence that compares K1 with the number of rows that a step uses.

    K1 is the number of rows per step with which the noise of the log acceptance ratio has variance 1. If mini-batches
    save no time, the sentence recommends another sampler.

    Args:
        sampler: a sampler with the methods of `AbstractPenalty`.
        posterior: the target distribution.
        rows_needed: K1 for the sampler's proposals.
    """
    num_data = posterior.num_data
    sizes, proposal = sampler.plan(num_data), sampler.resolved_proposal(num_data)
    text = (
        f"with {rows_needed:.3g} rows per step, drawn with replacement, the noise of the log acceptance ratio would "
        f"have variance sigma2 = 1; a step uses {sizes.num_used} of the {num_data} rows"
    )
    if rows_needed >= num_data / 4:
        can_restrict = _has_normal_prior(posterior) and posterior.centre() is None and sampler.order == "none"
        remedy = f", or use {setting('stochastic', 'identified')} to sample only directions that the data determine"
        return f"{text}; mini-batches save no time here: use the sampler hmc or nuts{remedy if can_restrict else ''}"
    if sizes.disjoint and sizes.num_used == num_data:
        return text
    # A gradient costs twice as much as a likelihood. A step with all rows needs one gradient for each leapfrog step.
    num_gradients = {"hmc": (1 + sampler.num_steps) / 2}.get(proposal, 1.0)
    cost = sampler.evaluations(posterior, {"n_steps": num_gradients})
    return f"{text}; a step with all rows would cost about {2 * num_data * num_gradients / cost:.2g} times as much"


def _has_normal_prior(posterior: AbstractPosterior) -> bool:
    """Whether the prior of a network is normal with fixed scales, as `--stochastic identified` requires."""
    if not isinstance(posterior, NetworkPosterior):
        return False
    try:
        normal_moments(posterior.prior, posterior.layout.network)
    except UsageError:
        return False
    return True


def near_centre(
    posterior: AbstractPosterior, is_sampled: Bool[Array, " dim"], *, key: PRNGKeyArray
) -> Float[Array, ""]:
    """Predict K1 (see the module) for steps that move from one posterior draw to an independent posterior draw.

    Both draws are from the normal approximation of the posterior at its centre. The control variate is of second order,
    at the centre.

    Args:
        posterior: the posterior of a subspace. Each coordinate is in units of its posterior standard deviation.
        is_sampled: mask of the coordinates that are sampled. The other coordinates stay at the centre.
        key: random key.
    """
    centre = posterior.centre()
    assert centre is not None
    key_rows, key_pairs = jax.random.split(key)
    batch = posterior.minibatch(min(_ROWS, posterior.num_data), replace=False, key=key_rows)
    # Only `batch_part` is used. It does not use the anchor's sums over all rows, so zeros take their place.
    anchor = Anchor(centre, jnp.zeros_like(centre), jnp.zeros((len(centre), len(centre)), centre.dtype))

    def variance(key: PRNGKeyArray) -> Float[Array, ""]:
        start, end = centre + jnp.where(is_sampled, jax.random.normal(key, (2, *centre.shape), centre.dtype), 0.0)
        differences = posterior.log_likelihood(end, batch) - posterior.log_likelihood(start, batch)
        return jnp.var(differences - anchor.batch_part(posterior, start, end, batch))

    scale = posterior.likelihood_power * float(posterior.num_data)
    return scale**2 * jnp.mean(jax.lax.map(variance, jax.random.split(key_pairs, _PAIRS)))
