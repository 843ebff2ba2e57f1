"""Chains that were left behind begin again where the others are: between the windows of warm-up, never later."""

from __future__ import annotations

from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bnnzoo.posterior import AbstractPosterior

C = TypeVar("C")


def restarted(posterior: AbstractPosterior, carry: C, *, key: PRNGKeyArray) -> C:
    """The carry of all chains, those left behind as copies of others drawn at random, each counted.

    Their next steps have keys of their own: the copies part.
    """
    known = carry
    behind = left_behind(np.asarray(_densities(posterior, known.states.position)), posterior.layout.dim)  # type: ignore[attr-defined]
    # Made in any case: a run in which a chain is left behind compiles nothing that the one before it did not.
    copies = _copied(carry, jnp.asarray(behind), key)
    return copies if behind.any() else carry


def left_behind(log_density: Float[np.ndarray, " chain"], dim: int) -> Bool[np.ndarray, " chain"]:
    """Which chains are so far below a quarter of the others (two at least) that the posterior has no mass there.

    Draws of a posterior of d parameters have log densities within a few sqrt(d / 2) of d / 2 below the mode; modes of
    different widths, whose volumes would make up for a density, differ by a few d. 10 + 2 d is beyond both.
    """
    ordered = np.sort(np.where(np.isnan(log_density), -np.inf, log_density))
    reference = ordered[3 * (len(ordered) - 1) // 4]
    return ~(log_density >= reference - (10 + 2 * dim))


@eqx.filter_jit
def _densities(posterior: AbstractPosterior, positions: Float[Array, "chain dim"]) -> Float[Array, " chain"]:
    return jax.vmap(posterior.log_density)(positions)


@eqx.filter_jit
def _copied(carry: C, behind: Bool[Array, " chain"], key: PRNGKeyArray) -> C:
    """Each chain that is behind as a copy of one that is not, drawn uniformly, with one more in `restarted`."""
    drawn = jax.random.categorical(key, jnp.where(behind, -jnp.inf, 0.0), shape=behind.shape)
    source = jnp.where(behind, drawn, jnp.arange(behind.shape[0]))
    count = carry.restarted + behind  # type: ignore[attr-defined]
    moved = jax.tree.map(lambda leaf: leaf[source], carry)
    return eqx.tree_at(lambda c: c.restarted, moved, count.astype(jnp.int32))
