"""Threefry on a CPU with its twenty rounds written out: JAX's numbers, bit for bit, in less time."""

from __future__ import annotations

import functools

import numpy as np
from jax.extend.random import threefry2x32_p
from jax.interpreters import mlir
from jaxtyping import Array, UInt32

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)

Words = UInt32[Array, "..."]


@functools.cache
def write_out_rounds() -> None:
    """Have every program of this process that is compiled for a CPU make its random bits by `threefry2x32`.

    JAX makes them there in a loop of five turns, so that little is compiled. Nothing is joined with a loop: each turn
    reads and writes all words, and the few of a small step, a key or a uniform number, wait for its counter. Written
    out it is one pass together with what is made of the bits, and is compiled in half the time besides. Other devices
    do so anyway.
    """
    mlir.register_lowering(threefry2x32_p, mlir.lower_fun(threefry2x32, multiple_results=True), platform="cpu")


def threefry2x32(key_0: Words, key_1: Words, count_0: Words, count_1: Words) -> tuple[Words, Words]:
    """Threefry-2x32 of twenty rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

    Shapes: of keys and counts, which are broadcast; two words of 32 bits for each.
    """
    keys = (key_0, key_1, key_0 ^ key_1 ^ _PARITY)
    x, y = count_0 + keys[0], count_1 + keys[1]
    for four in range(5):
        for distance in _ROTATIONS[four % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(distance)) | (y >> np.uint32(32 - distance)))
        x, y = x + keys[(four + 1) % 3], y + keys[(four + 2) % 3] + np.uint32(four + 1)
    return x, y
