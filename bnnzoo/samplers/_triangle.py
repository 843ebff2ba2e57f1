"""Triangular factors of sums of squares.

R'R in float32 loses what is small beside its largest eigenvalue, a prior beside many data first of all. T with
T'T = R'R, by Householder's reflections, keeps it: its errors are those of R, not of R's square (Golub and Van Loan
2013, section 5.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from bnnzoo.posterior import AbstractPosterior


def triangle(rows: Float[Array, "row column"]) -> Float[Array, "column column"]:
    """T, upper triangular, with T'T = rows' rows; signs of its rows are anything."""
    upper = jnp.linalg.qr(rows, mode="r")
    return jnp.pad(upper, ((0, rows.shape[1] - upper.shape[0]), (0, 0)))


def joined(rows: Float[Array, "row column"], more: Float[Array, "more column"]) -> Float[Array, "column column"]:
    """The triangle of both."""
    return triangle(jnp.concatenate([rows, more]))


def over_data(
    posterior: AbstractPosterior,
    rows: Callable[[Any, Float[Array, " batch"]], Float[Array, "row column"]],
    *,
    size: int,
) -> Float[Array, "column column"]:
    """The triangle of all data, `size` of them at a time.

    Args:
        rows: those of a batch; of a datum with weight 0 they must be 0.
    """
    return posterior.sum_over_data(lambda batch, weights: triangle(rows(batch, weights)), rows=size, add=joined)
