"""The log probability of Poisson counts, accurate in float32 also for large counts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped


def log_probability(log_rate: Shaped[Array, "*#count"], count: Shaped[Array, "*#count"]) -> Shaped[Array, "..."]:
    """Return y f - e^f - log y! for counts y and log rates f.

    The value is computed as its maximum over f, minus the distance from this maximum. The result is then accurate for
    large counts, and no gradient is NaN.
    """
    is_zero, positive_count = count == 0, jnp.maximum(count, 1.0)
    log_ratio = jnp.where(is_zero, 0.0, log_rate) - jnp.log(positive_count)
    of_positive_counts = peak(count) - (positive_count * jnp.expm1(log_ratio) - count * log_ratio)
    # For a count of 0, the log probability is -e^f, which is accurate for any rate.
    return jnp.where(is_zero, -jnp.exp(jnp.where(is_zero, log_rate, 0.0)), of_positive_counts)


def peak(count: Shaped[Array, "*count"]) -> Shaped[Array, "*count"]:
    """Return the largest log probability y log m - m - log y! of a count y >= 1 over all means m.

    The maximum is at m = y. For y >= 10 Stirling's series is used, because the large terms would cancel. The error of
    the series is below 1e-10.
    """
    mean = jnp.maximum(count, 1.0)
    series = jnp.log(2 * jnp.pi * mean) / 2 + (1 / 12 - (1 / 360 - 1 / 1260 / mean**2) / mean**2) / mean
    direct = jax.scipy.special.xlogy(count, mean) - mean - jax.scipy.special.gammaln(count + 1)
    return jnp.where(count < 10, direct, -series)
