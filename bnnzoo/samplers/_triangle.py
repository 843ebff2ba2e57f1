"""Triangular factors of sums of squares.

R'R in float32 loses what is small beside its largest eigenvalue, a prior beside many data first of all. T with
T'T = R'R, by Householder's reflections, keeps it: its errors are those of R, not of R's square (Golub and Van Loan
2013, section 5.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from bnnzoo.posterior import AbstractPosterior


def triangle(rows: Float[Array, "row column"]) -> Float[Array, "column column"]:
    """T, upper triangular, with T'T = rows' rows; signs of its rows are anything."""
    upper = jnp.linalg.qr(rows, mode="r")
    return jnp.pad(upper, ((0, rows.shape[1] - upper.shape[0]), (0, 0)))


def joined(rows: Float[Array, "row column"], more: Float[Array, "more column"]) -> Float[Array, "column column"]:
    """The triangle of both."""
    return triangle(jnp.concatenate([rows, more]))


def over_data(
    posterior: AbstractPosterior, rows: Callable[[Any, Float[Array, " batch"]], PyTree[Array]], *, size: int
) -> PyTree[Array]:
    """The triangles of all data, `size` of them at a time.

    Args:
        rows: of a batch and the weight of each datum, 0 or 1, matrices whose rows are to be taken together.
    """

    def triangles(batch: Any, weights: Float[Array, " batch"]) -> PyTree[Array]:
        return jax.tree.map(triangle, rows(batch, weights))

    return posterior.sum_over_data(triangles, rows=size, add=joined)
