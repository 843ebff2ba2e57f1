"""Functions for the steps of samplers: Metropolis decision, log density and gradient, Gaussian noise, new states."""

from __future__ import annotations

from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers import gaussian

S = TypeVar("S")


def metropolis(
    log_ratio: Float[Array, ""], *, key: PRNGKeyArray
) -> tuple[Bool[Array, ""], Float[Array, ""], Bool[Array, ""]]:
    """Accept a proposal with probability min(1, exp(log_ratio)). If the log ratio is NaN, reject the proposal.

    Returns:
        Three values: whether the proposal is accepted, the acceptance probability, and whether the step is diverging,
        which means that the log ratio is NaN or +inf. A log ratio of -inf is an ordinary rejection: the proposal has
        density 0, for example beyond a bound.
    """
    diverging = jnp.isnan(log_ratio) | (log_ratio == jnp.inf)
    # Take the minimum before the exponential: the exponential of a large ratio would overflow, and its gradient would
    # be NaN.
    rate = jnp.where(jnp.isnan(log_ratio), 0.0, jnp.exp(jnp.minimum(log_ratio, 0.0)))
    return jax.random.uniform(key, dtype=rate.dtype) < rate, rate, diverging


def metropolis_statistics(
    posterior: AbstractPosterior, state: Any, accepted: Array, rate: Array, diverging: Array
) -> dict[str, Array]:
    """Return the statistics of a Metropolis step on all data, where `state` is the state after the step."""
    return {
        "lp": state.log_prior + posterior.likelihood_power * jnp.sum(state.log_likelihoods),
        "accepted": accepted,
        "acceptance_rate": rate,
        "diverging": diverging,
        "step_size": state.step_size,
    }


def choose(accepted: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """Return `new` if accepted, else `old`, leaf by leaf. To save time, pass only the leaves that can differ."""
    return jax.tree.map(lambda a, b: jnp.where(accepted, a, b), new, old)


def density(
    posterior: AbstractPosterior, theta: Float[Array, " dim"]
) -> tuple[Float[Array, ""], Float[Array, " num_data"], Float[Array, " dim"]]:
    """Return the log prior, each datum's log-likelihood and the gradient of the log posterior density.

    To compare two positions, sum the differences of their log-likelihoods over the data. The difference of two float32
    sums would be dominated by rounding errors.
    """
    log_prior, slope = jax.value_and_grad(posterior.log_prior)(theta)
    log_likelihoods, rise = posterior.log_likelihoods_and_gradient(theta)
    gradient = slope + posterior.likelihood_power * rise
    return log_prior, log_likelihoods, gradient


def standard_normal(like: Float[Array, " dim"], *, key: PRNGKeyArray) -> Float[Array, " dim"]:
    """Draw eps ~ N(0, I) with the shape and dtype of the position `like`."""
    return gaussian.standard_normal(like.shape, like.dtype, key=key)


def replace(state: S, **values: Any) -> S:
    """Return a state with new values for the named attributes, as in `replace(state, step_size=eta)`.

    The state may be a NamedTuple, an Equinox module or a registered dataclass. Unlike `dataclasses.replace` this runs
    no `__init__`, whose shape checks would fail for the stacked states of all chains. A name may also be a property
    that returns one of the state's arrays.

    Raises:
        AttributeError: if the state lacks one of the names.
    """
    return eqx.tree_at(
        lambda tree: [getattr(tree, name) for name in values],
        state,
        list(values.values()),
        is_leaf=lambda node: node is None,
    )
