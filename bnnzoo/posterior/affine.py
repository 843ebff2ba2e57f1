"""Numerical test whether the outputs of a network are an affine function of some of its parameters."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from bnnzoo.posterior.network import NetworkPosterior

_TOLERANCE = 1e-3


def is_affine_along(
    posterior: NetworkPosterior,
    theta: Float[Array, " dim"],
    move: Float[Array, " dim"],
    rows: Shaped[Array, "row ..."],
) -> Bool[Array, ""]:
    """Whether the outputs at the given rows are affine functions of s along the line `theta` + s `move`.

    The test computes the second difference of the outputs at s = -1, 0 and 1, which is 0 for an affine function.
    """
    ahead, middle, behind = (posterior.outputs(theta + step * move, rows) for step in (1.0, 0.0, -1.0))
    size = 1 + jnp.max(jnp.abs(jnp.stack([ahead, middle, behind])))
    return jnp.max(jnp.abs(ahead - 2 * middle + behind)) < _TOLERANCE * size
