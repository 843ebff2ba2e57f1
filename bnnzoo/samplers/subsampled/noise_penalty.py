"""The noise of a log ratio that is estimated on mini-batches, and the penalty that corrects for it."""

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


def estimate_difference(
    d: Float[Array, " used"],
    known_change: Float[Array, ""],
    *,
    scale: Float[Array, ""],
    unused_fraction: float,
    groups: int | None,
) -> Difference:
    """Return delta and its variance from the per-datum differences of a step's K data.

    All batches have the same size. With replacement Var(delta) = beta^2 N^2 s^2 / K. Disjoint batches multiply it by
    1 - K/N, and the third cumulant by (1 - K/N) (1 - 2 K/N), as for means over subsets of size K. All data, each used
    once, have no noise. Differences drawn with probabilities p_i must be divided by N p_i and need no other change.

    Args:
        d: the differences, [K].
        known_change: change of the log prior and of the control variate, which has no noise.
        scale: beta N.
        unused_fraction: remaining fraction of the variance, 1 - K/N if no datum is used twice.
        groups: number of batches if the variance is taken over batch means; None for single data.
    """
    num_used, mean = d.shape[0], jnp.mean(d)
    centred = d - mean
    second_moment = jnp.mean(centred**2)
    # Scaled before the cube is taken, because the cube of a small spread underflows float32.
    spread = jnp.sqrt(jnp.maximum(second_moment, jnp.finfo(d.dtype).tiny))
    skewness = jnp.mean((centred / spread) ** 3) / num_used**0.5
    if groups is None:
        sigma2, dof = scale**2 / num_used * second_moment * (num_used / (num_used - 1)), num_used - 1
    else:
        means = jnp.mean(centred.reshape(groups, -1), 1)
        sigma2, dof = scale**2 / groups * jnp.var(means, ddof=1), groups - 1
    # Set to 0 rather than multiplied by 0: the variance over batches of a single batch is NaN.
    if unused_fraction <= 0:
        sigma2, skewness = jnp.zeros_like(sigma2), jnp.zeros_like(skewness)
    elif unused_fraction < 1:
        sigma2, skewness = sigma2 * unused_fraction, skewness * (2 * unused_fraction - 1) / unused_fraction**0.5
    return Difference(-known_change - scale * mean, sigma2, dof, skewness)


def noise_penalty(sigma2: Float[Array, ""], dof: Any, terms: int) -> Float[Array, ""]:
    """Return the penalty u of an estimated variance `sigma2`, from the first `terms` terms of its series.

    The expectation of exp(-u) over the estimates is exp(-sigma^2 / 2), where sigma^2 is the true variance.

    Ceperley and Dewing 1999, equation 42: -log 0F1(; dof/2; -dof sigma2 / 4). Beyond sigma2 = dof/4 the closed form is
    meaningless; the truncated series remains positive and finite and is used unchanged.
    """
    m = dof + 1.0
    series = (sigma2 / 2, sigma2**2 / (4 * (m + 1)), sigma2**3 / (3 * (m + 1) * (m + 3)))
    return sum(series[:terms], start=jnp.zeros_like(sigma2))
