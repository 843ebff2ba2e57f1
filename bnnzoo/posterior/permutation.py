"""Random indices of a mini-batch, with and without replacement. The cost depends on the number of indices drawn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, UInt32

_SORT_BELOW = 64
"""Largest `total` for which random bits are sorted to obtain a permutation.

For larger values a Feistel network computes the permutation. For few bits, such a network is not random enough.
"""
_ROUNDS = 8


def uniform_indices(size: int, total: int, *, key: PRNGKeyArray) -> Int[Array, " size"]:
    """Draw `size` independent indices out of `0..total-1`, equally likely up to a relative error of total / 2^32.

    An index is the high word of a 32 x 32 bit product (Lemire 2019), at a quarter of the cost of `jax.random.randint`.
    """
    return integers_below(total, size, key=key).astype(jnp.int32)


def integers_below(total: int | UInt32[Array, ""], size: int, *, key: PRNGKeyArray) -> UInt32[Array, " size"]:
    """Draw `size` independent integers out of `0..total-1`, equally likely up to a relative error of total / 2^32."""
    bits = jax.random.bits(key, (size,), jnp.uint32)
    low, high = jnp.uint32(total & 0xFFFF), jnp.uint32(total >> 16)
    bits_low, bits_high = bits & 0xFFFF, bits >> 16
    middle = bits_high * low + ((bits_low * low) >> 16)
    carry = (middle & 0xFFFF) + bits_low * high
    return bits_high * high + (middle >> 16) + (carry >> 16)


def distinct_indices(
    size: int, total: int, *, start: int | UInt32[Array, ""] = 0, key: PRNGKeyArray
) -> Int[Array, " size"]:
    """Draw `size` different indices out of `0..total-1`, uniformly and in random order.

    The key determines a permutation of `0..total-1`. The result is the part of the permutation that begins at position
    `start`. For a large `total`, a Feistel network with this key permutes `0..2^bits-1`, where 2^bits is the smallest
    power of 2 that is at least `total`. The network is applied to a value repeatedly, until the value is below `total`
    (Black and Rogaway 2002). The cost depends on `size`, not on `total`.

    Raises:
        ValueError: if `size` exceeds `total`, or if the part goes beyond the end of the permutation. The end is tested
            only if `start` is a Python integer; a traced value is unknown here.
    """
    first = start if isinstance(start, int) else 0
    if first + size > total:
        raise ValueError(f"cannot draw {size} distinct indices out of {total}, beginning at position {first}")
    if total <= _SORT_BELOW:
        count = size if isinstance(start, int) and start == 0 else total
        _, order = jax.lax.top_k(jax.random.bits(key, (total,), jnp.uint32), count)
        return jax.lax.dynamic_slice_in_dim(order, start, size).astype(jnp.int32)
    return permuted(jnp.arange(size, dtype=jnp.uint32) + jnp.uint32(start), total, key=key)


def permuted(positions: UInt32[Array, " size"], total: int, *, key: PRNGKeyArray) -> Int[Array, " size"]:
    """Return the values of a random permutation of `0..total-1` at some positions. The key determines the permutation.

    The permutation is not stored. A Feistel network computes each value from the bits of its position, see
    `distinct_indices`. `total` must be at least 65.
    """
    bits = (total - 1).bit_length()
    low = bits // 2
    low_mask, high_mask = jnp.uint32(2**low - 1), jnp.uint32(2 ** (bits - low) - 1)
    round_keys = jax.random.bits(key, (_ROUNDS,), jnp.uint32)

    def permute(value: UInt32[Array, " size"]) -> UInt32[Array, " size"]:
        left, right = value >> low, value & low_mask
        for i in range(0, _ROUNDS, 2):
            left = left ^ (_mix(right ^ round_keys[i]) & high_mask)
            right = right ^ (_mix(left ^ round_keys[i + 1]) & low_mask)
        return (left << low) | right

    def walk(value: UInt32[Array, " size"]) -> UInt32[Array, " size"]:
        return jnp.where(value < total, value, permute(value))

    return jax.lax.while_loop(lambda v: jnp.any(v >= total), walk, permute(positions)).astype(jnp.int32)


def _mix(value: UInt32[Array, " size"]) -> UInt32[Array, " size"]:
    """Mix the bits by the finaliser of MurmurHash3, in which every input bit affects every output bit."""
    value = (value ^ (value >> 16)) * jnp.uint32(0x85EBCA6B)
    value = (value ^ (value >> 13)) * jnp.uint32(0xC2B2AE35)
    return value ^ (value >> 16)
