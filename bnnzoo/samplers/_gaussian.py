"""Gaussian noise from hashed counters, at a fraction of the price of `jax.random.normal` on a CPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

_LOG2 = (1.44269477, -0.721310723, 0.480073749, -0.353454683, 0.256179705, -0.155599968, 0.063787596, -0.0123706428)
"""log2(1 + t) / t for t in [0, 1] by powers of t, to 2e-7."""
_NUMERATOR = (0.868729182, 0.776701334, 0.150229322, 0.00571915948, 1.9447233e-05)
_DENOMINATOR = (1.0, 1.24054884, 0.397562891, 0.0322136545, 0.000431396834)
"""x / l of the upper quantile x of N(0, 1) at p/2, where l = -log2 p: a rational function of l, to 2.5e-6 of x."""


def standard_normal(shape: tuple[int, ...], dtype: Any, *, key: PRNGKeyArray) -> Float[Array, "..."]:
    """Independent draws of N(0, 1), up to 6.2 in absolute value, on a grid of 2^-31 in probability.

    Number i of a key is a hash of i: one bit is the sign, 31 are the probability of a larger absolute value.
    Small probabilities keep their digits as floats, so that the tails are as fine as their float32.
    In double precision, where speed is not what was asked for, it is `jax.random.normal`.
    """
    if dtype != jnp.float32:
        return jax.random.normal(key, shape, dtype)
    word = hashed(int(np.prod(shape)), key=key).reshape(shape)
    # Signed integers, which every vector unit turns into floats.
    scaled = lax.bitcast_convert_type(word >> 1, jnp.int32).astype(jnp.float32) + np.float32(0.5)
    bits = lax.bitcast_convert_type(scaled, jnp.int32)
    exponent = ((bits >> 23) - (127 + 31)).astype(jnp.float32)
    t = lax.bitcast_convert_type((bits & 0x007FFFFF) | 0x3F800000, jnp.float32) - 1
    level = -(exponent + t * _polynomial(_LOG2, t))
    size = level * _polynomial(_NUMERATOR, level) / _polynomial(_DENOMINATOR, level)
    return lax.bitcast_convert_type(lax.bitcast_convert_type(size, jnp.uint32) ^ (word << 31), jnp.float32)


def hashed(count: int, *, key: PRNGKeyArray) -> UInt32[Array, " count"]:
    """A word for each of 0, 1, ..., count - 1: different ones, as a key's function of them can be undone.

    Wellons' `triple32`, an avalanche of three products, with a word of the key added before the first and one after it.
    The words of the key are Threefry's: JAX's own checks see that the key is used, and keys that differ in one bit have
    unrelated ones.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    x = lax.iota(jnp.uint32, count) + first
    x = (x ^ (x >> 17)) * jnp.uint32(0xED5AD4BB) + second
    x = (x ^ (x >> 11)) * jnp.uint32(0xAC4C1B51)
    x = (x ^ (x >> 15)) * jnp.uint32(0x31848BAB)
    return x ^ (x >> 14)


def _polynomial(coefficients: tuple[float, ...], x: Float[Array, "..."]) -> Float[Array, "..."]:
    """By Horner's rule, the constant first."""
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + np.float32(coefficient)
    return value
