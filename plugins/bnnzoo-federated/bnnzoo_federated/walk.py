"""The part of a step that the coordinator computes: proposals and acceptance."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers.kernel import choose, metropolis, standard_normal
from bnnzoo.samplers.minibatch import noise_penalty


class Decision(NamedTuple):
    """The new position, the acceptance, and the change of the log prior to the proposal, for each chain."""

    positions: Float[Array, "chain dim"]
    accepted: Bool[Array, " chain"]
    rate: Float[Array, " chain"]
    diverging: Bool[Array, " chain"]
    log_prior_change: Float[Array, " chain"]


@eqx.filter_jit
def propose(
    positions: Float[Array, "chain dim"],
    step_size: Float[Array, ""],
    factor: Float[Array, "dim dim"],
    keys: Key[Array, " chain"],
    step: Array,
) -> Float[Array, "chain dim"]:
    """Propose theta + eta F eps for each chain, where eta is `step_size`, F is `factor`, and eps is standard normal."""

    def propose_one(position: Array, key: Array) -> Array:
        key_propose, _ = jax.random.split(jax.random.fold_in(key, step))
        return position + step_size * (factor @ standard_normal(position, key=key_propose))

    return jax.vmap(propose_one)(positions, keys)


@eqx.filter_jit
def penalties(
    variances: Float[Array | np.ndarray, "party chain"], dofs: Float[Array | np.ndarray, " party"], terms: int
) -> Float[Array, "party chain"]:
    """Return the penalty for each party's estimated variance: the sum of the first `terms` terms of a series."""

    def penalty_of_one(variance: Array, dof: Array) -> Array:
        return noise_penalty(variance, dof, terms)

    return jax.vmap(jax.vmap(penalty_of_one, (0, None)))(
        jnp.asarray(variances, jnp.float32), jnp.asarray(dofs, jnp.float32)
    )


@eqx.filter_jit
def decide(
    posterior: AbstractPosterior,
    positions: Float[Array, "chain dim"],
    proposals: Float[Array, "chain dim"],
    gain: Float[Array | np.ndarray, " chain"],
    keys: Key[Array, " chain"],
    step: Array,
) -> Decision:
    """Accept each proposal theta' with probability min(1, p(theta')/p(theta) e^gain), where p is the prior density.

    `gain` is the estimated change of the log-likelihood minus the penalty.
    """

    def decide_one(here: Array, there: Array, gain: Array, key: Array) -> Decision:
        _, key_accept = jax.random.split(jax.random.fold_in(key, step))
        prior = posterior.log_prior(there) - posterior.log_prior(here)
        accepted, rate, diverging = metropolis(prior + gain, key=key_accept)
        return Decision(choose(accepted, there, here), accepted, rate, diverging, prior)

    return jax.vmap(decide_one)(positions, proposals, jnp.asarray(gain, positions.dtype), keys)
