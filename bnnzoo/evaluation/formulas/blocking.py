"""Blocks of rows and of draws that fit into memory.

The blocks have few different shapes, so that few programs are compiled.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

ELEMENTS = 2**22
"""Largest number of array elements in a block."""


def blocks(count: int, numbers_per_element: int) -> Iterator[slice]:
    """Yield blocks of rows or draws whose arrays have at most `ELEMENTS` elements.

    Args:
        count: number of rows or draws.
        numbers_per_element: array elements per row or draw.
    """
    length = max(1, ELEMENTS // max(1, numbers_per_element))
    for start in range(0, count, length):
        yield slice(start, min(count, start + length))


def row_blocks(num_rows: int, row_size: int) -> Iterator[tuple[Int[np.ndarray, " block"], int]]:
    """Yield blocks of rows that all have the same length, each with its number of real rows.

    The last block is filled up with copies of the last row. The copies are not counted as real rows.

    Args:
        num_rows: number of all rows.
        row_size: array elements per row.
    """
    pieces = -(-num_rows // max(1, ELEMENTS // max(1, row_size)))
    length = -(-num_rows // max(1, pieces))
    for start in range(0, num_rows, max(1, length)):
        yield np.minimum(np.arange(start, start + length), num_rows - 1), min(length, num_rows - start)


def round_up_size(count: int) -> int:
    """Round up to three significant binary digits, so that few different sizes occur and few programs are compiled.

    The result exceeds `count` by at most a quarter.
    """
    step = 1 << max(0, count.bit_length() - 3)
    return -(-count // step) * step
