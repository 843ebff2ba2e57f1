"""The noise of a log acceptance ratio that is estimated from mini-batches, and the penalty that corrects for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Difference(NamedTuple):
    """An estimate of delta = L(theta') - L(theta) from the data of a step. L is minus the log posterior density."""

    delta: Float[Array, ""]
    sigma2: Float[Array, ""]
    """Estimated variance of delta."""
    dof: int
    """Degrees of freedom of `sigma2`."""
    skewness: Float[Array, ""]
    """Skewness of delta."""


def estimate_difference(
    d: Float[Array, " used"],
    known_change: Float[Array, ""],
    *,
    scale: Float[Array, ""],
    unused_fraction: float,
    groups: int | None,
) -> Difference:
    """Return an estimate of delta, its variance and its skewness, from the K data of a step.

    All batches have the same size. Let s^2 be the variance of the differences d, N the number of all data and beta the
    likelihood power. With replacement Var(delta) = beta^2 N^2 s^2 / K. If no datum is used twice, the variance is
    multiplied by 1 - K/N, and the third cumulant by (1 - K/N) (1 - 2 K/N), as for means over subsets of size K. If all
    data are used once, there is no noise. If data are drawn with probabilities p_i, the caller must divide their
    differences by N p_i.

    Args:
        d: for each datum of the step, the change of its log-likelihood from theta to theta', minus the change of its
            control variate if there is one.
        known_change: change of the log prior and of the control variate's sum over all data. It has no noise.
        scale: beta N.
        unused_fraction: factor of the variance: 1 - K/N if no datum is used twice, else 1.
        groups: number of batches if the variance is estimated from batch means; None if it is estimated from the data.
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
    # Set the variance to 0 and do not multiply it by 0, because for a single batch the variance over batches is NaN.
    if unused_fraction <= 0:
        sigma2, skewness = jnp.zeros_like(sigma2), jnp.zeros_like(skewness)
    elif unused_fraction < 1:
        sigma2, skewness = sigma2 * unused_fraction, skewness * (2 * unused_fraction - 1) / unused_fraction**0.5
    return Difference(-known_change - scale * mean, sigma2, dof, skewness)


def noise_penalty(sigma2: Float[Array, ""], dof: Any, terms: int) -> Float[Array, ""]:
    """Return the noise penalty u of an estimated variance `sigma2`: the sum of the first `terms` terms of its series.

    The sum of all terms is -log 0F1(; dof/2; -dof sigma2 / 4) (Ceperley and Dewing 1999, equation 42). For this u, the
    expectation of exp(-u) over the estimates is exp(-sigma^2 / 2), where sigma^2 is the true variance. If sigma2 is
    above dof/4, the formula with 0F1 is meaningless. The first terms of the series are positive and finite even then.
    """
    m = dof + 1.0
    series = (sigma2 / 2, sigma2**2 / (4 * (m + 1)), sigma2**3 / (3 * (m + 1) * (m + 3)))
    return sum(series[:terms], start=jnp.zeros_like(sigma2))
