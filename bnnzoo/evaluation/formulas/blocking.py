"""Blocks of rows and of draws that fit into memory, with few different shapes, so that few programs are compiled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

ELEMENTS = 2**22
"""Largest number of samples, and of numbers of inputs, in a block."""


def blocks(count: int, numbers_per_element: int) -> Iterator[slice]:
    """Yield blocks of rows, or draws, such that a block with `numbers_per_element` numbers per element stays small."""
    length = max(1, ELEMENTS // max(1, numbers_per_element))
    for start in range(0, count, length):
        yield slice(start, min(count, start + length))


def row_blocks(num_rows: int, row_size: int) -> Iterator[tuple[Int[np.ndarray, " block"], int]]:
    """Yield equal blocks of rows with `row_size` numbers per row, and their number of real rows.

    The last row pads the last block.
    """
    pieces = -(-num_rows // max(1, ELEMENTS // max(1, row_size)))
    length = -(-num_rows // max(1, pieces))
    for start in range(0, num_rows, max(1, length)):
        yield np.minimum(np.arange(start, start + length), num_rows - 1), min(length, num_rows - start)


def round_up_size(count: int) -> int:
    """Round up to three significant binary digits, by at most a quarter, to limit the number of compiled programs."""
    step = 1 << max(0, count.bit_length() - 3)
    return -(-count // step) * step
