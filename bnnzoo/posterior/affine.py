"""Numerical test of whether outputs are affine in some parameters. It works for any network."""

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
    """Whether outputs at some rows are affine on the line through `theta` along `move`, by a second difference."""
    ahead, middle, behind = (posterior.outputs(theta + step * move, rows) for step in (1.0, 0.0, -1.0))
    size = 1 + jnp.max(jnp.abs(jnp.stack([ahead, middle, behind])))
    return jnp.max(jnp.abs(ahead - 2 * middle + behind)) < _TOLERANCE * size
