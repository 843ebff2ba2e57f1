"""Log probabilities of intervals, for censored targets.

The log probabilities are accurate in both tails and have finite gradients.

In float32, the usual precision, a probability below 1e-38 underflows to 0. Therefore all computations use logarithms.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import betainc, betaln, gammainc, gammaincc, log_ndtr
from jaxtyping import Array, Float

from bnnzoo.errors import UsageError
from bnnzoo.posterior import poisson

_FAR = -10.0
"""Below this number of standard deviations from the mean, a normal tail is computed by its asymptotic series."""
_NARROW = 0.02
"""Largest width of a narrow interval, in standard deviations.

The probability of a narrow interval is computed as the width times the density in the middle of the interval. For a
normal distribution, a correction of second order is added. A normal interval is narrow if the width times
max(|middle|, 1) is below this limit. An interval of Student's t is narrow if the width times (1 + sqrt(df)) is below
twice this limit.
"""
_SMALL = 1e-30
"""Below this probability, the logarithm of a tail is computed by a series, because the direct value underflows."""
_TERMS = 64
"""Number of terms of a series."""


def log_likelihood(
    distribution: dist.Distribution, low: Float[Array, "*target"], high: Float[Array, "*target"]
) -> Float[Array, "..."]:
    """Return the log-likelihood of each target: a log density or the log probability of an open interval.

    If `low` equals `high`, the value is known, and its log density is returned. The independent targets of a datum are
    summed.

    Raises:
        UsageError: if the probabilities of intervals are not implemented for this distribution.
    """
    if isinstance(distribution, dist.Independent):
        base_values = log_likelihood(distribution.base_dist, low, high)
        return base_values.sum(tuple(range(-distribution.reinterpreted_batch_ndims, 0)))
    if isinstance(distribution, dist.MixtureSameFamily):
        components = distribution.component_distribution
        if not components.event_shape:
            low, high = low[..., None], high[..., None]
        mixing: Any = distribution.mixing_distribution
        weights = jax.nn.log_softmax(mixing.logits)
        return jax.nn.logsumexp(weights + log_likelihood(components, low, high), axis=-1)
    is_known = low == high
    value = jnp.where(is_known, low, 0.0)
    # `where` also differentiates the branch that is not selected. Replace the arguments of this branch, so that its
    # gradient is not NaN.
    low, high = jnp.where(is_known, -1.0, low), jnp.where(is_known, 1.0, high)
    return jnp.where(is_known, _log_density(distribution, value), _log_interval(distribution, low, high))


def _log_density(distribution: dist.Distribution, value: Float[Array, "*target"]) -> Float[Array, "..."]:
    if isinstance(distribution, dist.Poisson):
        rate = jnp.asarray(distribution.rate)
        return poisson.log_probability(jnp.log(jnp.maximum(rate, jnp.finfo(rate.dtype).tiny)), value)
    return jnp.asarray(distribution.log_prob(value))


def _log_interval(
    distribution: dist.Distribution, low: Float[Array, "*target"], high: Float[Array, "*target"]
) -> Float[Array, "..."]:
    if isinstance(distribution, dist.Normal):
        return log_normal_interval(_standardise(distribution, low), _standardise(distribution, high))
    if isinstance(distribution, dist.StudentT):
        return log_t_interval(
            _standardise(distribution, low), _standardise(distribution, high), jnp.asarray(distribution.df)
        )
    if isinstance(distribution, dist.Poisson):
        return log_poisson_interval(low, high, jnp.asarray(distribution.rate))
    raise UsageError(
        f"censored targets: not supported for the distribution {type(distribution).__name__}; use "
        "[[likelihood=gaussian]], heteroscedastic, student-t, mixture or poisson"
    )


def _standardise(distribution: Any, end: Float[Array, "*target"]) -> Float[Array, "..."]:
    """Return an end of the interval, standardised by the location and the scale of the distribution.

    The gradient at an infinite end is 0 instead of NaN.
    """
    is_infinite = jnp.isinf(end)
    return jnp.where(is_infinite, end, (jnp.where(is_infinite, 0.0, end) - distribution.loc) / distribution.scale)


def log_normal_interval(low: Float[Array, "*a"], high: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """Return log P(low < Z < high) for a standard normal Z; either end may be infinite."""
    # Reflect an interval with a positive middle to the left of 0. There the tails are small, and differences of
    # logarithms are accurate.
    is_reflected = low + high > 0
    low, high = jnp.where(is_reflected, -high, low), jnp.where(is_reflected, -low, high)
    is_one_sided, width = jnp.isinf(low), high - low
    low = jnp.where(is_one_sided, high - 1.0, low)
    is_unbounded = jnp.isinf(high)
    high, low = jnp.where(is_unbounded, 0.0, high), jnp.where(is_unbounded, -1.0, low)
    # Log ratio of the two tail probabilities P(Z < low) and P(Z < high). The difference of the squares is factorised.
    ratio = -(low - high) * (low + high) / 2 + _tail_factor(low) - _tail_factor(high)
    middle = (low + high) / 2
    is_left, is_narrow = high <= 0, width * jnp.maximum(jnp.abs(middle), 1.0) < _NARROW
    is_narrow = is_narrow & ~is_one_sided & ~is_unbounded
    left_interval = _log_tail(high) + _log1mexp(jnp.where(is_left & ~is_narrow, ratio, -1.0))
    is_straddling = ~(is_left | is_narrow | is_one_sided | is_unbounded)
    tail_mass = jnp.exp(_log_tail(jnp.where(is_straddling, low, -1.0))) + jnp.exp(
        _log_tail(jnp.where(is_straddling, -high, -1.0))
    )
    safe_width = jnp.where(is_narrow, width, 1e-3)
    density = -(middle**2) / 2 - jnp.log(2 * jnp.pi) / 2 + jnp.log(safe_width) + (middle**2 - 1) * safe_width**2 / 24
    two_sided = jnp.where(is_narrow, density, jnp.where(is_left, left_interval, jnp.log1p(-tail_mass)))
    return jnp.where(is_unbounded, 0.0, jnp.where(is_one_sided, _log_tail(high), two_sided))


def _log_tail(x: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """Return log P(Z < x) for a standard normal Z.

    Below x = -10 a series is used, because the gradient of the direct formula is inaccurate.
    """
    return jnp.where(x < _FAR, -(x**2) / 2 + _series(jnp.minimum(x, _FAR)), log_ndtr(jnp.maximum(x, _FAR)))


def _tail_factor(x: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """Return log P(Z < x) + x^2 / 2 for a standard normal Z."""
    clipped = jnp.maximum(x, _FAR)
    return jnp.where(x < _FAR, _series(jnp.minimum(x, _FAR)), log_ndtr(clipped) + clipped**2 / 2)


def _series(x: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """Return log P(Z < x) + x^2 / 2 for a standard normal Z and x below -10, by the series of Mills' ratio."""
    square = 1 / x**2
    return jnp.log1p(-square * (1 - 3 * square * (1 - 5 * square))) - jnp.log(-x) - jnp.log(2 * jnp.pi) / 2


def _log1mexp(x: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """Return log(1 - e^x) for x below 0."""
    x = jnp.minimum(x, -1e-30)
    is_near_zero = x > -0.7
    return jnp.where(
        is_near_zero,
        jnp.log(-jnp.expm1(jnp.where(is_near_zero, x, -0.5))),
        jnp.log1p(-jnp.exp(jnp.where(is_near_zero, -1.0, x))),
    )


def log_t_interval(low: Float[Array, "*a"], high: Float[Array, "*a"], df: Float[Array, "*#a"]) -> Float[Array, "*a"]:
    """Return log P(low < T < high) for Student's t with `df` degrees of freedom; either end may be infinite."""
    df = jnp.broadcast_to(df, jnp.shape(low))
    is_reflected = low + high < 0
    low, high = jnp.where(is_reflected, -high, low), jnp.where(is_reflected, -low, high)  # middle >= 0
    is_one_sided, is_unbounded = jnp.isinf(high), jnp.isinf(low)
    low, high = jnp.where(is_unbounded, 0.0, low), jnp.where(is_one_sided, 1.0 + jnp.abs(low), high)
    width, is_right = high - low, low >= 0
    is_narrow = width * (1 + jnp.sqrt(df)) < 2 * _NARROW
    upper, lower = _log_t_tail(jnp.abs(high), df), _log_t_tail(jnp.abs(low), df)
    tails = lower + _log1mexp(jnp.where(is_right & ~is_narrow, upper - lower, -1.0))
    is_straddling = ~(is_narrow | is_right | is_one_sided | is_unbounded)
    straddling = jnp.log1p(-jnp.where(is_straddling, jnp.exp(lower) + jnp.exp(upper), 0.5))
    density = jnp.asarray(dist.StudentT(df).log_prob((low + high) / 2)) + jnp.log(jnp.where(is_narrow, width, 1.0))
    two_sided = jnp.where(is_narrow, density, jnp.where(is_right, tails, straddling))
    # If the lower end is left of 0, the probability is 1 minus the mass to the left of this end.
    one_sided_mass = jnp.where(is_right, lower, jnp.log1p(-jnp.where(is_right, 0.5, jnp.exp(lower))))
    return jnp.where(is_unbounded, 0.0, jnp.where(is_one_sided, one_sided_mass, two_sided))


def _log_t_tail(t: Float[Array, "*a"], df: Float[Array, "*#a"]) -> Float[Array, "*a"]:
    """Return log P(T > t) for Student's t with `df` degrees of freedom and t >= 0."""
    half_df, is_near, is_tiny = df / 2, t < 1.0, t < 1e-4
    # Each of the two incomplete beta functions is used in the range of t in which its argument is accurate.
    safe_inner = jnp.where(is_near & ~is_tiny, t, 0.5)
    central_mass = betainc(0.5, half_df, safe_inner**2 / (df + safe_inner**2))
    density = jnp.exp(dist.StudentT(df).log_prob(jnp.zeros_like(t)))
    central = jnp.log1p(-jnp.where(is_tiny, 2 * density * t, central_mass)) - jnp.log(2.0)
    safe_outer = jnp.where(is_near, 2.0, t)
    x = df / (df + safe_outer**2)
    direct = betainc(half_df, 0.5, x)
    is_underflow = direct < _SMALL
    terms = jnp.cumprod(
        (half_df[..., None] + 0.5 + _steps(x)) / (half_df[..., None] + 1 + _steps(x)) * x[..., None], -1
    )
    log_x = -jnp.log1p(safe_outer**2 / df)
    series = half_df * log_x + jnp.log1p(-x) / 2 - jnp.log(half_df) - betaln(half_df, 0.5) + jnp.log1p(terms.sum(-1))
    tail = jnp.where(is_underflow, series, jnp.log(jnp.where(is_underflow, 1.0, direct))) - jnp.log(2.0)
    return jnp.where(is_near, central, tail)


def log_poisson_interval(
    low: Float[Array, "*a"], high: Float[Array, "*a"], rate: Float[Array, "*a"]
) -> Float[Array, "*a"]:
    """Return log P(low < Y < high) for a Poisson count Y; either end may be infinite.

    The probability of an interval of at most `_TERMS` counts is the sum of their probabilities.
    """
    first = jnp.where(jnp.isinf(low), 0.0, jnp.maximum(jnp.floor(low) + 1, 0.0))
    last = jnp.where(jnp.isinf(high), first, jnp.ceil(high) - 1)
    log_up_to_last, log_from_first = _log_poisson_cdf(jnp.maximum(last, 0.0), rate), _log_poisson_sf(first - 1, rate)
    log_above = _log_poisson_sf(jnp.maximum(last, 0.0), rate)
    log_below = _log_poisson_cdf(jnp.maximum(first - 1, 0.0), rate)
    # Subtract on the side where both tails are small.
    from_right = log_from_first + _log1mexp(log_above - log_from_first)
    from_left = log_up_to_last + _log1mexp(jnp.where(first > 0, log_below - log_up_to_last, -jnp.inf))
    log_probability = jnp.where(first > rate, from_right, from_left)
    counts = first[..., None] + _steps(first)
    log_terms = _log_density(dist.Poisson(rate[..., None]), counts)
    is_inside = counts <= last[..., None]
    # An interval without counts has no finite logarithm, whose gradient would be NaN. It gets one term here.
    log_sum = jax.nn.logsumexp(jnp.where(is_inside, log_terms, -jnp.inf).at[..., 0].set(log_terms[..., 0]), -1)
    log_probability = jnp.where(last - first < _TERMS, log_sum, log_probability)
    log_probability = jnp.where(jnp.isinf(high), log_from_first, jnp.where(first == 0, log_up_to_last, log_probability))
    return jnp.where(jnp.isinf(low) & jnp.isinf(high), 0.0, jnp.where(last < first, -jnp.inf, log_probability))


def _log_poisson_cdf(count: Float[Array, "*a"], rate: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """Return log P(Y <= count) for a Poisson count Y."""
    value = gammaincc(count + 1, rate)
    is_underflow = value < _SMALL
    safe_rate = jnp.where(is_underflow, rate, count + 1)
    terms = jnp.cumprod(jnp.maximum(count[..., None] - _steps(count), 0.0) / safe_rate[..., None], -1)
    series = _log_density(dist.Poisson(safe_rate), count) + jnp.log1p(terms.sum(-1))
    return jnp.where(is_underflow, series, jnp.log(jnp.where(is_underflow, 1.0, value)))


def _log_poisson_sf(count: Float[Array, "*a"], rate: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """Return log P(Y > count) for a Poisson count Y. The result is 0 for a negative `count`."""
    is_certain, count = count < 0, jnp.maximum(count, 0.0)
    value = gammainc(count + 1, rate)
    is_underflow = value < _SMALL
    safe_rate = jnp.where(is_underflow, rate, 1.0)
    terms = jnp.cumprod(safe_rate[..., None] / (count[..., None] + 2 + _steps(count)), -1)
    series = _log_density(dist.Poisson(safe_rate), count + 1) + jnp.log1p(terms.sum(-1))
    log_survival = jnp.where(is_underflow, series, jnp.log(jnp.where(is_underflow, 1.0, value)))
    return jnp.where(is_certain, 0.0, log_survival)


def _steps(template: Array) -> Float[Array, " term"]:
    return jnp.arange(_TERMS, dtype=template.dtype)
