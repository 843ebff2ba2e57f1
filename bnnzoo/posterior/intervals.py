"""Log probabilities that a random number lies between two bounds, accurate in both tails, with finite gradients.

Float32 is the usual precision, in which a probability below 1e-38 underflows to 0. All computations therefore use
logarithms throughout.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import betainc, betaln, gammainc, gammaincc, log_ndtr, xlogy
from jaxtyping import Array, Float

from bnnzoo.errors import UsageError

_FAR = -10.0
"""Standard deviations below which the tail of a normal comes from its asymptotic series."""
_NARROW = 0.02
"""Width, in standard deviations, below which an interval's probability is the density at its middle times its width.
For a normal the width is multiplied by |middle| where that exceeds one standard deviation.
"""
_SMALL = 1e-30
"""Probability below which a tail is computed from a series of logarithms."""
_TERMS = 64


def log_likelihood(
    law: dist.Distribution, low: Float[Array, "*target"], high: Float[Array, "*target"]
) -> Float[Array, "..."]:
    """Return the log density where `low` equals `high`, else the log probability of the values strictly between.

    Raises:
        UsageError: if interval probabilities of the law are not implemented.
    """
    if isinstance(law, dist.Independent):
        each = log_likelihood(law.base_dist, low, high)
        return each.sum(tuple(range(-law.reinterpreted_batch_ndims, 0)))
    if isinstance(law, dist.MixtureSameFamily):
        parts = law.component_distribution
        if not parts.event_shape:
            low, high = low[..., None], high[..., None]
        mixing: Any = law.mixing_distribution
        weights = jax.nn.log_softmax(mixing.logits)
        return jax.nn.logsumexp(weights + log_likelihood(parts, low, high), axis=-1)
    observed = low == high
    value = jnp.where(observed, low, 0.0)
    # The arguments of the branch not taken are replaced by harmless ones; otherwise its gradient would be NaN.
    low, high = jnp.where(observed, -1.0, low), jnp.where(observed, 1.0, high)
    return jnp.where(observed, _log_density(law, value), _log_interval(law, low, high))


def _log_density(law: dist.Distribution, value: Float[Array, "*target"]) -> Float[Array, "..."]:
    if isinstance(law, dist.Poisson):
        return xlogy(value, law.rate) - law.rate - jax.scipy.special.gammaln(value + 1)
    return jnp.asarray(law.log_prob(value))


def _log_interval(
    law: dist.Distribution, low: Float[Array, "*target"], high: Float[Array, "*target"]
) -> Float[Array, "..."]:
    if isinstance(law, dist.Normal):
        return log_normal_interval(_standardised(law, low), _standardised(law, high))
    if isinstance(law, dist.StudentT):
        return log_t_interval(_standardised(law, low), _standardised(law, high), jnp.asarray(law.df))
    if isinstance(law, dist.Poisson):
        return log_poisson_interval(low, high, jnp.asarray(law.rate))
    raise UsageError(
        f"censored targets: {type(law).__name__} has no probabilities of intervals; use "
        "[[likelihood=gaussian]], heteroscedastic, student-t, mixture or poisson"
    )


def _standardised(law: Any, end: Float[Array, "*target"]) -> Float[Array, "..."]:
    """Return an end in the law's units of scale. The gradient of an infinite end is 0, not infinity times 0."""
    infinite = jnp.isinf(end)
    return jnp.where(infinite, end, (jnp.where(infinite, 0.0, end) - law.loc) / law.scale)


def log_normal_interval(low: Float[Array, "*a"], high: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """Return log P(low < Z < high) for a standard normal Z; either end may be infinite."""
    # Reflect the interval to the left of 0, where tails are small and differences of logarithms keep their digits.
    flip = low + high > 0
    low, high = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    one_sided, width = jnp.isinf(low), high - low
    low = jnp.where(one_sided, high - 1.0, low)
    whole = jnp.isinf(high)
    high, low = jnp.where(whole, 0.0, high), jnp.where(whole, -1.0, low)
    # The log ratio of the tails beyond both ends, computed without subtracting their squares from one another.
    ratio = -(low - high) * (low + high) / 2 + _tail_factor(low) - _tail_factor(high)
    middle = (low + high) / 2
    left, narrow = high <= 0, width * jnp.maximum(jnp.abs(middle), 1.0) < _NARROW
    narrow = narrow & ~one_sided & ~whole
    both_left = _log_tail(high) + _log1mexp(jnp.where(left & ~narrow, ratio, -1.0))
    used = ~(left | narrow | one_sided | whole)
    outside = jnp.exp(_log_tail(jnp.where(used, low, -1.0))) + jnp.exp(_log_tail(jnp.where(used, -high, -1.0)))
    thin = jnp.where(narrow, width, 1e-3)
    density = -(middle**2) / 2 - jnp.log(2 * jnp.pi) / 2 + jnp.log(thin) + (middle**2 - 1) * thin**2 / 24
    found = jnp.where(narrow, density, jnp.where(left, both_left, jnp.log1p(-outside)))
    return jnp.where(whole, 0.0, jnp.where(one_sided, _log_tail(high), found))


def _log_tail(x: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """Return log P(Z < x). Far to the left it comes from a series, because the gradient otherwise loses all digits."""
    return jnp.where(x < _FAR, -(x**2) / 2 + _series(jnp.minimum(x, _FAR)), log_ndtr(jnp.maximum(x, _FAR)))


def _tail_factor(x: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """Return log P(Z < x) + x^2 / 2."""
    near = jnp.maximum(x, _FAR)
    return jnp.where(x < _FAR, _series(jnp.minimum(x, _FAR)), log_ndtr(near) + near**2 / 2)


def _series(x: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """Return log P(Z < x) + x^2 / 2 for x below -10, by the asymptotic series of Mills' ratio."""
    square = 1 / x**2
    return jnp.log1p(-square * (1 - 3 * square * (1 - 5 * square))) - jnp.log(-x) - jnp.log(2 * jnp.pi) / 2


def _log1mexp(x: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """Return log(1 - e^x) for x below 0."""
    x = jnp.minimum(x, -1e-30)
    near = x > -0.7
    return jnp.where(near, jnp.log(-jnp.expm1(jnp.where(near, x, -0.5))), jnp.log1p(-jnp.exp(jnp.where(near, -1.0, x))))


def log_t_interval(low: Float[Array, "*a"], high: Float[Array, "*a"], df: Float[Array, "*#a"]) -> Float[Array, "*a"]:
    """Return log P(low < T < high) for Student's t with `df` degrees of freedom; either end may be infinite."""
    df = jnp.broadcast_to(df, jnp.shape(low))
    flip = low + high < 0
    low, high = jnp.where(flip, -high, low), jnp.where(flip, -low, high)  # now to the right of 0
    one_sided, whole = jnp.isinf(high), jnp.isinf(low)
    low, high = jnp.where(whole, 0.0, low), jnp.where(one_sided, 1.0 + jnp.abs(low), high)
    width, right = high - low, low >= 0
    narrow = width * (1 + jnp.sqrt(df)) < 2 * _NARROW
    upper, lower = _log_t_tail(jnp.abs(high), df), _log_t_tail(jnp.abs(low), df)
    tails = lower + _log1mexp(jnp.where(right & ~narrow, upper - lower, -1.0))
    used = ~(narrow | right | one_sided | whole)
    straddling = jnp.log1p(-jnp.where(used, jnp.exp(lower) + jnp.exp(upper), 0.5))
    density = jnp.asarray(dist.StudentT(df).log_prob((low + high) / 2)) + jnp.log(jnp.where(narrow, width, 1.0))
    found = jnp.where(narrow, density, jnp.where(right, tails, straddling))
    # A lower end to the left of 0 leaves out the tail on that side.
    beyond = jnp.where(right, lower, jnp.log1p(-jnp.where(right, 0.5, jnp.exp(lower))))
    return jnp.where(whole, 0.0, jnp.where(one_sided, beyond, found))


def _log_t_tail(t: Float[Array, "*a"], df: Float[Array, "*#a"]) -> Float[Array, "*a"]:
    """Return log P(T > t) for t >= 0."""
    half, near, still = df / 2, t < 1.0, t < 1e-4
    # Each form of the incomplete beta function is used where its argument keeps its digits.
    inner = jnp.where(near & ~still, t, 0.5)
    below = betainc(0.5, half, inner**2 / (df + inner**2))
    density = jnp.exp(dist.StudentT(df).log_prob(jnp.zeros_like(t)))
    central = jnp.log1p(-jnp.where(still, 2 * density * t, below)) - jnp.log(2.0)
    outer = jnp.where(near, 2.0, t)
    x = df / (df + outer**2)
    direct = betainc(half, 0.5, x)
    small = direct < _SMALL
    terms = jnp.cumprod((half[..., None] + 0.5 + _steps(x)) / (half[..., None] + 1 + _steps(x)) * x[..., None], -1)
    log_x = -jnp.log1p(outer**2 / df)
    series = half * log_x + jnp.log1p(-x) / 2 - jnp.log(half) - betaln(half, 0.5) + jnp.log1p(terms.sum(-1))
    tail = jnp.where(small, series, jnp.log(jnp.where(small, 1.0, direct))) - jnp.log(2.0)
    return jnp.where(near, central, tail)


def log_poisson_interval(
    low: Float[Array, "*a"], high: Float[Array, "*a"], rate: Float[Array, "*a"]
) -> Float[Array, "*a"]:
    """Return log P(low < Y < high) for a Poisson count Y; either end may be infinite."""
    first = jnp.where(jnp.isinf(low), 0.0, jnp.maximum(jnp.floor(low) + 1, 0.0))
    last = jnp.where(jnp.isinf(high), first, jnp.ceil(high) - 1)
    up_to_last, from_first = _log_poisson_cdf(jnp.maximum(last, 0.0), rate), _log_poisson_sf(first - 1, rate)
    beyond = _log_poisson_sf(jnp.maximum(last, 0.0), rate)
    before = _log_poisson_cdf(jnp.maximum(first - 1, 0.0), rate)
    # Subtract on the side where both tails are small.
    by_right = from_first + _log1mexp(beyond - from_first)
    by_left = up_to_last + _log1mexp(jnp.where(first > 0, before - up_to_last, -jnp.inf))
    found = jnp.where(first > rate, by_right, by_left)
    found = jnp.where(jnp.isinf(high), from_first, jnp.where(first == 0, up_to_last, found))
    return jnp.where(jnp.isinf(low) & jnp.isinf(high), 0.0, jnp.where(last < first, -jnp.inf, found))


def _log_poisson_cdf(count: Float[Array, "*a"], rate: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """Return log P(Y <= count)."""
    value = gammaincc(count + 1, rate)
    small = value < _SMALL
    at = jnp.where(small, rate, count + 1)
    terms = jnp.cumprod(jnp.maximum(count[..., None] - _steps(count), 0.0) / at[..., None], -1)
    series = _log_density(dist.Poisson(at), count) + jnp.log1p(terms.sum(-1))
    return jnp.where(small, series, jnp.log(jnp.where(small, 1.0, value)))


def _log_poisson_sf(count: Float[Array, "*a"], rate: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """Return log P(Y > count), which is 0 for a count below 0."""
    whole, count = count < 0, jnp.maximum(count, 0.0)
    value = gammainc(count + 1, rate)
    small = value < _SMALL
    at = jnp.where(small, rate, 1.0)
    terms = jnp.cumprod(at[..., None] / (count[..., None] + 2 + _steps(count)), -1)
    series = _log_density(dist.Poisson(at), count + 1) + jnp.log1p(terms.sum(-1))
    found = jnp.where(small, series, jnp.log(jnp.where(small, 1.0, value)))
    return jnp.where(whole, 0.0, found)


def _steps(like: Array) -> Float[Array, " term"]:
    return jnp.arange(_TERMS, dtype=like.dtype)
