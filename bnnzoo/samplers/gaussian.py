"""Gaussian noise from hashed counters, at a fraction of the cost of `jax.random.normal` on a CPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

_LOG2 = (1.44269477, -0.721310723, 0.480073749, -0.353454683, 0.256179705, -0.155599968, 0.063787596, -0.0123706428)
"""Coefficients of a polynomial in t that approximates log2(1 + t) / t for t in [0, 1], with errors of at most 2e-7."""
_NUMERATOR = (0.868729182, 0.776701334, 0.150229322, 0.00571915948, 1.9447233e-05)
_DENOMINATOR = (1.0, 1.24054884, 0.397562891, 0.0322136545, 0.000431396834)
"""Coefficients of a rational function of l = -log2 p that approximates x / l, with errors of at most 2.5e-6.

x is the value that a draw from N(0, 1) exceeds with probability p / 2.
"""


def standard_normal(shape: tuple[int, ...], dtype: Any, *, key: PRNGKeyArray) -> Float[Array, "..."]:
    """Draw independent N(0, 1) values. In float32 their absolute values are at most 6.34.

    Value i is computed from a 32-bit hash of i and the key. One bit is the sign. The other 31 bits are an integer k,
    which gives p = (k + 1/2) / 2^31. The absolute value is the number that |eps| exceeds with probability p, where
    eps ~ N(0, 1). Floats represent a small p precisely, so the tails have float32 resolution. For every other dtype,
    such as float64, `jax.random.normal` is used, because speed matters less there.
    """
    if dtype != jnp.float32:
        return jax.random.normal(key, shape, dtype)
    word = hash_counters(int(np.prod(shape)), key=key).reshape(shape)
    # Use signed integers, because every vector unit can convert them to floats.
    scaled = lax.bitcast_convert_type(word >> 1, jnp.int32).astype(jnp.float32) + np.float32(0.5)
    bits = lax.bitcast_convert_type(scaled, jnp.int32)
    exponent = ((bits >> 23) - (127 + 31)).astype(jnp.float32)
    t = lax.bitcast_convert_type((bits & 0x007FFFFF) | 0x3F800000, jnp.float32) - 1
    level = -(exponent + t * _polynomial(_LOG2, t))
    size = level * _polynomial(_NUMERATOR, level) / _polynomial(_DENOMINATOR, level)
    return lax.bitcast_convert_type(lax.bitcast_convert_type(size, jnp.uint32) ^ (word << 31), jnp.float32)


def hash_counters(count: int, *, key: PRNGKeyArray) -> UInt32[Array, " count"]:
    """Return a hash of each number 0, 1, ..., count - 1. For a given key, different numbers have different hashes.

    The hash is Wellons' `triple32`, which has three multiplications. Two random words are added to the hashed value:
    one before the first multiplication, the other after this multiplication. JAX's generator Threefry computes both
    words from the key. So JAX can detect a key that is used twice, and keys that differ in one bit have unrelated
    words.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    x = lax.iota(jnp.uint32, count) + first
    x = (x ^ (x >> 17)) * jnp.uint32(0xED5AD4BB) + second
    x = (x ^ (x >> 11)) * jnp.uint32(0xAC4C1B51)
    x = (x ^ (x >> 15)) * jnp.uint32(0x31848BAB)
    return x ^ (x >> 14)


def _polynomial(coefficients: tuple[float, ...], x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Evaluate a polynomial by Horner's rule, with the constant coefficient first."""
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + np.float32(coefficient)
    return value
