"""Triangular factors T of products R'R.

The rounding errors of R'R in float32 exceed quantities that are small relative to the largest eigenvalue of R'R. An
example is the prior's precision if there are many data. Householder reflections of R give T with T'T = R'R and lose
fewer digits, because their rounding errors are relative to R, not to R'R (Golub and Van Loan 2013, section 5.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from bnnzoo.posterior import AbstractPosterior


def triangle(rows: Float[Array, "row column"]) -> Float[Array, "column column"]:
    """Return the upper triangular T with T'T = rows' rows. The signs of the rows of T are arbitrary."""
    upper = jnp.linalg.qr(rows, mode="r")
    return jnp.pad(upper, ((0, rows.shape[1] - upper.shape[0]), (0, 0)))


def join_factors(
    rows: Float[Array, "row column"], added_rows: Float[Array, "more column"]
) -> Float[Array, "column column"]:
    """Return the triangular factor of the matrix that consists of `rows` and `added_rows`."""
    return triangle(jnp.concatenate([rows, added_rows]))


def factor_over_data(
    posterior: AbstractPosterior,
    rows: Callable[[Any, Float[Array, " batch"]], Float[Array, "row column"]],
    *,
    size: int,
) -> Float[Array, "column column"]:
    """Return the triangular factor of the matrix that contains the rows of all data.

    Args:
        posterior: the target distribution.
        rows: function of a batch of data and their weights that returns the rows of these data. If a datum has the
            weight 0, its rows must be 0.
        size: number of data that are processed together.
    """
    return posterior.sum_over_data(lambda batch, weights: triangle(rows(batch, weights)), rows=size, add=join_factors)
