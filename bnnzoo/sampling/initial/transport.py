"""Movement of chains from prior draws to the posterior with Adam, before warm-up.

Far from the posterior, a Metropolis step with mini-batches rejects nearly all proposals, because the noise of the log
acceptance ratio grows with the residuals. Before sampling, steps need not satisfy detailed balance. Therefore the
chains first follow gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, PyTree

from bnnzoo.errors import UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.sampling.devices.placement import Placement
from bnnzoo.sampling.keys import keys_by_chain

_STEPS_PER_WARMUP_STEP, _MAX_STEPS = 10, 2000
"""Number of gradient steps per step of warm-up, and the largest number of gradient steps."""
_BATCH = 128
_FIRST, _LAST = 0.1, 1e-4
"""First and last learning rate, in units of the standard deviation of a parameter over the draws of `_SPREAD_DRAWS`.

Every step reduces the rate by the same factor."""
_SPREAD_DRAWS = 64
"""Number of draws of `posterior.start` from which the standard deviation of a parameter is estimated."""
_STEPS_PER_CALL = 200
# Gradients become smaller by orders of magnitude during the movement. With Adam's usual b2 = 0.999, the large gradients
# at the start would keep the later steps too small.
_ADAM = optax.scale_by_adam(b1=0.9, b2=0.95)


class _Moving(NamedTuple):
    """Position of a chain and state of Adam, between two gradient steps."""

    theta: Float[Array, " dim"]
    optimiser: PyTree


def transport(
    posterior: AbstractPosterior,
    thetas: Float[Array | np.ndarray, "chain dim"],
    *,
    placement: Placement,
    num_warmup: int,
    key: PRNGKeyArray,
) -> Iterator[tuple[int, Float[Array, "chain dim"]]]:
    """Move each chain with Adam (Kingma and Ba 2015), with decreasing steps and mini-batches of 128 rows.

    A posterior without mini-batches uses all rows in each step. The step of a parameter is in units of its standard
    deviation over draws of `posterior.start`. Chains therefore cross a wide prior as fast as a narrow prior. If the
    log posterior density of a chain has not increased at the end, the chain keeps its initial position.

    Args:
        posterior: the posterior of the run.
        thetas: initial positions.
        placement: the placement of the chains.
        num_warmup: number of steps of warm-up; it determines the number of gradient steps.
        key: random key of the mini-batches and of the draws of `posterior.start`.

    Yields:
        the number of gradient steps so far and the positions, every 200 steps. The last positions are the result.
    """
    posterior = placement.put_posterior(posterior)
    start: Any = placement.put(jnp.asarray(thetas), 0)
    keys = placement.put(keys_by_chain(key, len(thetas)), 0)
    spread = placement.put(_spread(posterior, jax.random.fold_in(key, 2**32 - 1)), None)
    total = num_steps(num_warmup)
    state = placement.put_process_part(jax.vmap(lambda theta: _Moving(theta, _ADAM.init(theta)))(start), 0)
    for first in range(0, total, _STEPS_PER_CALL):
        end = min(total, first + _STEPS_PER_CALL)
        state = _advance(posterior, spread, placement, state, keys, np.int32(first), np.int32(end), np.int32(total))
        theta = state.theta if end < total else _keep_better(posterior, placement, start, state.theta)
        yield end, jax.block_until_ready(theta)


def num_steps(num_warmup: int) -> int:
    """Return the number of gradient steps before `num_warmup` steps of warm-up."""
    return min(_MAX_STEPS, _STEPS_PER_WARMUP_STEP * num_warmup)


def evaluations(posterior: AbstractPosterior, num_warmup: int) -> int:
    """Return the number of likelihood evaluations of `transport` per chain.

    Each step uses a mini-batch, or all rows if the posterior has no mini-batches. At the end, the log densities of two
    positions are compared, which uses all rows twice.
    """
    rows = min(_BATCH, posterior.num_data)
    try:
        eqx.filter_eval_shape(lambda: posterior.minibatch(rows, key=jax.random.key(0)))
    except UsageError:
        rows = posterior.num_data
    return num_steps(num_warmup) * rows + 2 * posterior.num_data


@eqx.filter_jit
def _spread(posterior: AbstractPosterior, key: PRNGKeyArray) -> Float[Array, " dim"]:
    draws = jax.vmap(lambda k: posterior.start(key=k))(jax.random.split(key, _SPREAD_DRAWS))
    return jnp.std(draws, 0)


@eqx.filter_jit
def _advance(
    posterior: AbstractPosterior,
    spread: Float[Array, " dim"],
    placement: Placement,
    states: _Moving,
    keys: Key[Array, " chain"],
    first: Int[Array, ""] | np.int32,
    end: Int[Array, ""] | np.int32,
    total: Int[Array, ""] | np.int32,
) -> _Moving:
    def advance_chain(shared: Any, state: _Moving, key: PRNGKeyArray) -> _Moving:
        posterior, spread, first, end, total = shared

        def step(i: Int[Array, ""], state: _Moving) -> _Moving:
            gradient = jax.grad(lambda theta: _loss(posterior, theta, key=jax.random.fold_in(key, i)))(state.theta)
            gradient = jnp.where(jnp.isfinite(gradient), gradient, 0.0)
            change, optimiser = _ADAM.update(gradient, state.optimiser)
            rate = _FIRST * (_LAST / _FIRST) ** (i / total).astype(spread.dtype)
            return _Moving(state.theta - rate * spread * jnp.asarray(change), optimiser)

        return jax.lax.fori_loop(first, end, step, state)

    return placement.all_chains(advance_chain, (posterior, spread, first, end, total), states, keys)


def _loss(posterior: AbstractPosterior, theta: Float[Array, " dim"], *, key: PRNGKeyArray) -> Float[Array, ""]:
    """Return minus the log posterior density per datum, estimated on a mini-batch if the posterior supports it."""
    try:
        batch = posterior.minibatch(min(_BATCH, posterior.num_data), key=key)
    except UsageError:
        return -posterior.log_density(theta) / posterior.num_data
    mean = jnp.mean(posterior.log_likelihood(theta, batch))
    return -posterior.likelihood_power * mean - posterior.log_prior(theta) / posterior.num_data


@eqx.filter_jit
def _keep_better(
    posterior: AbstractPosterior,
    placement: Placement,
    old_positions: Float[Array, "chain dim"],
    new_positions: Float[Array, "chain dim"],
) -> Float[Array, "chain dim"]:
    def better_position(
        posterior: AbstractPosterior, before: Float[Array, " dim"], after: Float[Array, " dim"]
    ) -> Array:
        return jnp.where(posterior.log_density(after) > posterior.log_density(before), after, before)

    return placement.all_chains(better_position, posterior, old_positions, new_positions)
