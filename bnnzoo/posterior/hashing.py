"""Random keys that are a function of the values of an array."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def hash_key(values: Float[Array, " value"]) -> PRNGKeyArray:
    """Return a random key that is a hash of the bits of an array."""
    words = jax.lax.bitcast_convert_type(values, jnp.uint32).ravel()
    factors = 2 * jax.lax.iota(jnp.uint32, len(words)) + 1
    sums = [jnp.sum(words * (factors * jnp.uint32(odd))) for odd in (0x9E3779B1, 0x85EBCA6B)]
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(0), sums[0]), sums[1])
