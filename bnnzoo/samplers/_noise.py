"""The noise of a log ratio that is estimated on batches, and the penalty that makes up for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Difference(NamedTuple):
    """An estimate of L(theta') - L(theta) from a batch of per-datum differences."""

    delta: Float[Array, ""]
    sigma2: Float[Array, ""]
    dof: int
    skewness: Float[Array, ""]


def noise_penalty(sigma2: Float[Array, ""], dof: Any, terms: int) -> Float[Array, ""]:
    """u = -log of the function of an estimated variance whose mean is exp(-sigma^2/2), to `terms` terms.

    Ceperley and Dewing 1999, equation 42: -log 0F1(; dof/2; -dof sigma2 / 4). Beyond sigma2 = dof/4 the closed form
    is meaningless and the truncated series, positive and finite, is used as it stands.
    """
    m = dof + 1.0
    series = (sigma2 / 2, sigma2**2 / (4 * (m + 1)), sigma2**3 / (3 * (m + 1) * (m + 3)))
    return sum(series[:terms], start=jnp.zeros_like(sigma2))
