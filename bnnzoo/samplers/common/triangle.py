"""Triangular factors of sums of squares.

R'R in float32 loses quantities that are small relative to its largest eigenvalue, such as a prior next to many data.
Householder reflections give T with T'T = R'R and keep these digits, because their rounding errors are relative to R,
not to its square (Golub and Van Loan 2013, section 5.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from bnnzoo.posterior import AbstractPosterior


def triangle(rows: Float[Array, "row column"]) -> Float[Array, "column column"]:
    """Return the upper triangular T with T'T = rows' rows. The signs of its rows are arbitrary."""
    upper = jnp.linalg.qr(rows, mode="r")
    return jnp.pad(upper, ((0, rows.shape[1] - upper.shape[0]), (0, 0)))


def join_factors(
    rows: Float[Array, "row column"], added_rows: Float[Array, "more column"]
) -> Float[Array, "column column"]:
    """Return the triangular factor of both sets of rows together."""
    return triangle(jnp.concatenate([rows, added_rows]))


def factor_over_data(
    posterior: AbstractPosterior,
    rows: Callable[[Any, Float[Array, " batch"]], Float[Array, "row column"]],
    *,
    size: int,
) -> Float[Array, "column column"]:
    """Return the triangular factor of all data, processed in blocks of `size` data.

    Args:
        posterior: the target distribution.
        rows: function of a batch and its weights that returns the rows. Rows of a datum with weight 0 must be 0.
        size: number of data in a block.
    """
    return posterior.sum_over_data(lambda batch, weights: triangle(rows(batch, weights)), rows=size, add=join_factors)
