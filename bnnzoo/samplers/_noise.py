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


def estimated(
    d: Float[Array, " used"],
    known_change: Float[Array, ""],
    *,
    scale: Float[Array, ""],
    left: float,
    groups: int | None,
) -> Difference:
    """delta and its variance from the differences of the K data of a step, the same number in each of its batches.

    With replacement Var(delta) = beta^2 N^2 / K s^2; disjoint batches have 1 - K/N of it, and (1 - K/N) (1 - 2 K/N) of
    the third cumulant, as means over subsets of K have; all data, none twice, have no noise. Differences that were
    drawn with probabilities p_i come divided by N p_i, and need nothing else.

    Args:
        known_change: of the log prior, and of what a control variate knows: without noise.
        scale: beta N.
        left: the share of the variance that is left, 1 - K/N where no datum comes twice.
        groups: batches whose means the variance is taken of; None: of single data.
    """
    used, mean = d.shape[0], jnp.mean(d)
    centred = d - mean
    second = jnp.mean(centred**2)
    # Scaled before it is cubed: the cube of a small spread is no longer a float32.
    spread = jnp.sqrt(jnp.maximum(second, jnp.finfo(d.dtype).tiny))
    skewness = jnp.mean((centred / spread) ** 3) / used**0.5
    if groups is None:
        sigma2, dof = scale**2 / used * second * (used / (used - 1)), used - 1
    else:
        means = jnp.mean(centred.reshape(groups, -1), 1)
        sigma2, dof = scale**2 / groups * jnp.var(means, ddof=1), groups - 1
    # Without multiplying where nothing is left out: of one batch the variance over batches is not a number.
    if left <= 0:
        sigma2, skewness = jnp.zeros_like(sigma2), jnp.zeros_like(skewness)
    elif left < 1:
        sigma2, skewness = sigma2 * left, skewness * (2 * left - 1) / left**0.5
    return Difference(-known_change - scale * mean, sigma2, dof, skewness)


def noise_penalty(sigma2: Float[Array, ""], dof: Any, terms: int) -> Float[Array, ""]:
    """u = -log of the function of an estimated variance whose mean is exp(-sigma^2/2), to `terms` terms.

    Ceperley and Dewing 1999, equation 42: -log 0F1(; dof/2; -dof sigma2 / 4). Beyond sigma2 = dof/4 the closed form
    is meaningless and the truncated series, positive and finite, is used as it stands.
    """
    m = dof + 1.0
    series = (sigma2 / 2, sigma2**2 / (4 * (m + 1)), sigma2**3 / (3 * (m + 1) * (m + 3)))
    return sum(series[:terms], start=jnp.zeros_like(sigma2))
