"""Chains that were left behind begin again where the others are: between the windows of warm-up, never later."""

from __future__ import annotations

from typing import TypeVar

import equinox as eqx
import jax
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
    if not behind.any():
        return carry
    others = np.flatnonzero(~behind)
    drawn = np.asarray(jax.random.choice(key, others, behind.shape))
    source = np.where(behind, drawn, np.arange(len(behind)))
    count = known.restarted  # type: ignore[attr-defined]
    carry = jax.tree.map(lambda leaf: leaf[source], carry)
    return eqx.tree_at(lambda c: c.restarted, carry, count + behind.astype(np.int32))


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
