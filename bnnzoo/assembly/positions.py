"""Initial positions of the chains before training or warm-up."""

from __future__ import annotations

import functools
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, UInt

from bnnzoo.models.building import Architecture
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior

_QUICKLY_COMPILED = {"xla_backend_optimization_level": 0}
"""Compiler options for a program that runs only once. With optimisation, the compilation could take seconds."""


# The types of Equinox do not declare that filter_jit passes compiler_options on to jax.jit.
@functools.partial(cast(Any, eqx.filter_jit), compiler_options=_QUICKLY_COMPILED)
def positions_of_chains(
    posterior: AbstractPosterior,
    architecture: Architecture | None,
    key: PRNGKeyArray,
    chains: UInt[Array, " chain"],
) -> Float[Array, "chain dim"]:
    """Return one initial position for each of the chains with the indices `chains`.

    Without `architecture`, the position is a draw from the prior. With `architecture`, it is a newly initialised
    network, or a point near the mode if a subspace is sampled.
    """

    def chain_position(chain: UInt[Array, ""]) -> Float[Array, " dim"]:
        chain_key = jax.random.fold_in(key, chain)
        if architecture is not None and (centre := posterior.centre()) is not None:
            return _near_centre(posterior, centre, key=chain_key)
        if architecture is not None and isinstance(posterior, NetworkPosterior):
            return posterior.position(architecture.build(key=chain_key))
        return posterior.start(key=chain_key)

    return jax.vmap(chain_position)(chains)


def _near_centre(
    posterior: AbstractPosterior, centre: Float[Array, " dim"], *, key: PRNGKeyArray
) -> Float[Array, " dim"]:
    """Add noise of one posterior standard deviation to the subspace coordinates of the mode `centre`."""
    is_coordinate = jnp.arange(posterior.layout.dim) < posterior.layout.network.dim
    return centre + jnp.where(is_coordinate, jax.random.normal(key, centre.shape, centre.dtype), 0.0)
