"""What a kernel is written with: the Metropolis step, a choice of states, noise, new values, a density by its parts."""

from __future__ import annotations

from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers import _gaussian

S = TypeVar("S")


def metropolis(
    log_ratio: Float[Array, ""], *, key: PRNGKeyArray
) -> tuple[Bool[Array, ""], Float[Array, ""], Bool[Array, ""]]:
    """Accept with probability min(1, exp(log_ratio)); a ratio that is not a number rejects.

    Returns:
        accepted, the acceptance probability, diverging (the ratio was not a number, or infinite). A ratio of 0 is that
        of a proposal without density, beyond a bound, say: a rejection like others.
    """
    diverging = jnp.isnan(log_ratio) | (log_ratio == jnp.inf)
    # exp of the minimum, not the minimum of exp: a large ratio would overflow, and its gradient be NaN.
    rate = jnp.where(jnp.isnan(log_ratio), 0.0, jnp.exp(jnp.minimum(log_ratio, 0.0)))
    return jax.random.uniform(key, dtype=rate.dtype) < rate, rate, diverging


def choose(accepted: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """`new` if accepted, else `old`, leaf by leaf; both are computed, so give it only what differs."""
    return jax.tree.map(lambda a, b: jnp.where(accepted, a, b), new, old)


def density(
    posterior: AbstractPosterior, theta: Float[Array, " dim"]
) -> tuple[Float[Array, ""], Float[Array, " num_data"], Float[Array, " dim"]]:
    """log prior, log-likelihood by datum, gradient of the log posterior density.

    A difference of two densities is summed from those of the data: of two float32 totals it would be rounding.
    """
    log_prior, slope = jax.value_and_grad(posterior.log_prior)(theta)
    log_likelihoods, rise = posterior.log_likelihoods_and_gradient(theta)
    gradient = slope + posterior.likelihood_power * rise
    return log_prior, log_likelihoods, gradient


def standard_normal(like: Float[Array, " dim"], *, key: PRNGKeyArray) -> Float[Array, " dim"]:
    """eps ~ N(0, I), shaped like a position and of its type."""
    return _gaussian.standard_normal(like.shape, like.dtype, key=key)


def replace(state: S, **values: Any) -> S:
    """The state with other values under these names: `replace(state, step_size=eta)`, whatever kind of tree it is.

    A NamedTuple, an Equinox module or a registered dataclass. Unlike `dataclasses.replace` it runs no `__init__`, whose
    checks of shapes the states of all chains together would not pass, and it reaches through properties.

    Raises:
        AttributeError: for a name that the state does not have.
    """
    return eqx.tree_at(
        lambda tree: [getattr(tree, name) for name in values],
        state,
        list(values.values()),
        is_leaf=lambda node: node is None,
    )
