"""Restart of stragglers at the positions of other chains, between the windows of warm-up."""

from __future__ import annotations

from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bnnzoo.posterior import AbstractPosterior

C = TypeVar("C")


def restart_stragglers(posterior: AbstractPosterior, carry: C, *, key: PRNGKeyArray) -> C:
    """Return the state of all chains (`carry`), with each straggler replaced by a copy of a random other chain.

    The carry counts the restarts. The copy and the original later move apart, because their random keys differ.
    """
    typed_carry = carry
    is_straggler = find_stragglers(np.asarray(_densities(posterior, typed_carry.states.position)), posterior.layout.dim)  # type: ignore
    # Always compute the copies, so that a run with a straggler compiles nothing new.
    copies = _copy_over_stragglers(carry, jnp.asarray(is_straggler), key)
    return copies if is_straggler.any() else carry


def find_stragglers(log_density: Float[np.ndarray, " chain"], dim: int) -> Bool[np.ndarray, " chain"]:
    """Whether each chain is a straggler: its log density is more than 10 + 2 d below the best quarter's.

    Here d is the number of parameters. The best quarter has at least two chains, and its lowest log density is the
    reference. A draw from the posterior is practically never so far below the reference. Near one mode, the log density
    of a draw is about d / 2 below its maximum, and varies by a few sqrt(d / 2). A wide mode can have as much mass as a
    narrow mode although its log density is a few d lower. The limit is larger than the variation within a mode, and
    larger than the difference between two such modes.
    """
    ordered = np.sort(np.where(np.isnan(log_density), -np.inf, log_density))
    reference = ordered[3 * (len(ordered) - 1) // 4]
    return ~(log_density >= reference - (10 + 2 * dim))


@eqx.filter_jit
def _densities(posterior: AbstractPosterior, positions: Float[Array, "chain dim"]) -> Float[Array, " chain"]:
    return jax.vmap(posterior.log_density)(positions)


@eqx.filter_jit
def _copy_over_stragglers(carry: C, is_straggler: Bool[Array, " chain"], key: PRNGKeyArray) -> C:
    """Replace each straggler by a random chain that is no straggler, and increase the straggler's count `restarted`."""
    drawn_chains = jax.random.categorical(key, jnp.where(is_straggler, -jnp.inf, 0.0), shape=is_straggler.shape)
    source = jnp.where(is_straggler, drawn_chains, jnp.arange(is_straggler.shape[0]))
    count = carry.restarted + is_straggler  # type: ignore[attr-defined]
    copied_carry = jax.tree.map(lambda leaf: leaf[source], carry)
    return eqx.tree_at(lambda c: c.restarted, copied_carry, count.astype(jnp.int32))
