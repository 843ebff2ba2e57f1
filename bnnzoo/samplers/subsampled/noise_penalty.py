"""The noise of a log ratio that is estimated on mini-batches, and the penalty that corrects for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Difference(NamedTuple):
    """An estimate of delta = L(theta') - L(theta) from the data of a step; L is minus the log posterior density."""

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

    All batches have the same size. Let s^2 be the variance of the differences, N the number of all data and beta the
    likelihood power. With replacement Var(delta) = beta^2 N^2 s^2 / K. If no datum is used twice, the variance is
    multiplied by 1 - K/N, and the third cumulant by (1 - K/N) (1 - 2 K/N), as for means over subsets of size K. If all
    data are used once, there is no noise. If data are drawn with probabilities p_i, the caller must divide their
    differences by N p_i.

    Args:
        d: the differences, [K].
        known_change: change of the log prior and of the control variate's sum over all data. It has no noise.
        scale: beta N.
        unused_fraction: factor of the variance: 1 - K/N if no datum is used twice, else 1.
        groups: number of batches, to estimate the variance from batch means; None to estimate it from single data.
    """
    num_used, mean = d.shape[0], jnp.mean(d)
    centred = d - mean
    second_moment = jnp.mean(centred**2)
    # Divide by the spread before the cube is taken, because the cube of a small number underflows float32.
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

    The whole series is -log 0F1(; dof/2; -dof sigma2 / 4) (Ceperley and Dewing 1999, equation 42). With it, the
    expectation of exp(-u) over the estimates is exp(-sigma^2 / 2), where sigma^2 is the true variance. For sigma2 above
    dof/4 this closed form is meaningless. The first terms remain positive and finite, and are used there too.
    """
    m = dof + 1.0
    series = (sigma2 / 2, sigma2**2 / (4 * (m + 1)), sigma2**3 / (3 * (m + 1) * (m + 3)))
    return sum(series[:terms], start=jnp.zeros_like(sigma2))
