"""Marginal distribution functions (CDFs) of the targets of one datum.

NumPyro defines `cdf` for most univariate distributions. This module adds independent targets, mixtures, zero inflation,
and values outside the support. Call the functions of this module in float64. In float32, the errors of the incomplete
gamma and beta functions are up to 0.03 for large counts, and 0.04 for Student's t with a million degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float
from numpyro.distributions.discrete import ZeroInflatedProbs

_POISSON_SIZE = 1e8
"""Largest size parameter for which the CDF of a negative binomial is computed by the incomplete beta function.

For larger values the incomplete beta function is inaccurate, and the CDF of a Poisson distribution is used.
"""
_MAX_SUMMED = 32
"""Limit below which the CDF of a count is computed as a sum of probabilities.

A sum of 32 terms takes about a tenth of the time of JAX's incomplete gamma and beta functions.
"""


def marginal_cdf(distribution: Any, value: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return P(Y_t <= value_t) of each target t.

    Args:
        distribution: the joint distribution of one datum's targets, with event shape [target], or a batch of such
            distributions.
        value: one value for each target; values may be infinite.

    Raises:
        NotImplementedError: if the marginal distribution functions of this distribution are not implemented.
    """
    if isinstance(distribution, dist.Independent):
        return marginal_cdf(distribution.base_dist, value)
    if isinstance(distribution, dist.MixtureSameFamily):
        return _cdf_of_mixture(distribution, value)
    if isinstance(distribution, dist.MultivariateNormal):
        covariance: Any = distribution.covariance_matrix
        sd = jnp.sqrt(jnp.diagonal(covariance, axis1=-2, axis2=-1))
        return marginal_cdf(dist.Normal(distribution.loc, sd), value)
    if isinstance(distribution, ZeroInflatedProbs):
        base_cdf = marginal_cdf(distribution.base_dist, value)
        gate: Any = distribution.gate
        return jnp.where(value < 0, 0.0, gate + (1 - gate) * base_cdf)
    if isinstance(distribution, dist.GammaPoisson):
        return _cdf_of_gamma_poisson(distribution, value)
    if isinstance(distribution, dist.Poisson):
        return _cdf_of_poisson(jnp.asarray(distribution.rate), value)
    if isinstance(distribution, dist.StudentT):
        return _cdf_of_student_t(distribution, value)
    if hasattr(distribution, "marginal_cdf"):  # a distribution that wraps another one
        return distribution.marginal_cdf(value)
    if distribution.event_shape:
        raise NotImplementedError(f"{type(distribution).__name__}: the CDF of a single target is not implemented")
    return _cdf_on_support(distribution, value)


def in_support(distribution: Any, value: Float[Array, "..."]) -> Bool[Array, "..."]:
    """Whether each value is in the support of the distribution of its target."""
    if isinstance(distribution, dist.Independent):
        return in_support(distribution.base_dist, value)
    if isinstance(distribution, dist.MixtureSameFamily):
        components = distribution.component_distribution
        component_axis = -1 - len(components.event_shape)
        return in_support(components, jnp.expand_dims(value, component_axis)).any(component_axis)
    if hasattr(distribution, "in_support"):  # a distribution that wraps another one
        return distribution.in_support(value)
    is_inside = jnp.asarray(distribution.support(value))
    return jnp.broadcast_to(is_inside.reshape(*is_inside.shape, *[1] * (value.ndim - is_inside.ndim)), value.shape)


def is_discrete(distribution: Any) -> bool:
    """Whether the targets of the distribution are whole numbers."""
    if isinstance(distribution, dist.Independent):
        return is_discrete(distribution.base_dist)
    if isinstance(distribution, dist.MixtureSameFamily):
        return is_discrete(distribution.component_distribution)
    return bool(distribution.is_discrete)


def _cdf_of_mixture(distribution: Any, value: Float[Array, "..."]) -> Float[Array, "..."]:
    components, mixing = distribution.component_distribution, distribution.mixing_distribution
    event_dims = len(components.event_shape)
    weights = jnp.asarray(mixing.probs)
    cdf = marginal_cdf(components, jnp.expand_dims(value, -1 - event_dims))
    return jnp.sum(weights.reshape(*weights.shape, *[1] * event_dims) * cdf, -1 - event_dims)


def _cdf_on_support(distribution: Any, value: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the distribution function at each value: 0 below the support and 1 above it."""
    if distribution.is_discrete:
        value = jnp.floor(value)
    largest = jnp.finfo(jnp.result_type(float)).max
    # Clip the value to the support, because `cdf` gives NaN outside it. The bounds may depend on the parameters.
    low = getattr(distribution.support, "lower_bound", -largest)
    high = getattr(distribution.support, "upper_bound", largest)
    clipped_value = jnp.clip(value, jnp.maximum(low, -largest), jnp.minimum(high, largest))
    return jnp.where(value < low, 0.0, jnp.where(value >= high, 1.0, distribution.cdf(clipped_value)))


def _cdf_of_poisson(rate: Float[Array, "..."], value: Float[Array, "..."]) -> Float[Array, "..."]:
    def evaluate(is_summed: Bool[Array, "..."], count: Float[Array, "..."]) -> Float[Array, "..."]:
        return _cdf_on_support(dist.Poisson(jnp.where(is_summed, 0.0, rate)), count)

    # The probability of no event must not underflow before it is multiplied by the sum.
    bounded_rate = jnp.minimum(rate, -jnp.log(jnp.finfo(rate.dtype).tiny))
    return _cdf_of_counts(value, jnp.exp(-bounded_rate), lambda count: bounded_rate / count, evaluate)


def _cdf_of_gamma_poisson(distribution: dist.GammaPoisson, value: Float[Array, "..."]) -> Float[Array, "..."]:
    size, rate = jnp.asarray(distribution.concentration), jnp.asarray(distribution.rate)
    is_poisson = size > _POISSON_SIZE

    def evaluate(is_summed: Bool[Array, "..."], count: Float[Array, "..."]) -> Float[Array, "..."]:
        is_trivial = is_summed | is_poisson
        return _cdf_on_support(
            dist.GammaPoisson(jnp.where(is_trivial, 1.0, size), jnp.where(is_trivial, 1.0, rate)), count
        )

    zero_probability = jnp.exp(size * (jnp.log(rate) - jnp.log1p(rate)))
    cdf = _cdf_of_counts(value, zero_probability, lambda count: (size + count - 1) / (count * (1 + rate)), evaluate)
    return jnp.where(is_poisson, _cdf_of_poisson(size / rate, value), cdf)


def _cdf_of_counts(
    value: Float[Array, "..."],
    zero_probability: Float[Array, "..."],
    ratio: Callable[[int], Float[Array, "..."]],
    evaluate: Callable[[Bool[Array, "..."], Float[Array, "..."]], Float[Array, "..."]],
) -> Float[Array, "..."]:
    """Return the CDF of counts: a sum for counts below `_MAX_SUMMED`, and a special function for larger counts.

    Args:
        value: the values.
        zero_probability: the probability of the count 0.
        ratio: function that returns the probability of a count, divided by the probability of the previous count.
        evaluate: function that computes the CDF by a special function, given a mask and the counts. Where the mask is
            true, the count is 0 and the result is not used. There `evaluate` should use parameters for which the
            special function converges fast, because it iterates until all elements have converged.
    """
    count = jnp.floor(value)
    is_summed = (count >= 0) & (count < _MAX_SUMMED) & (zero_probability > 0)
    total = jnp.ones_like(zero_probability)
    for number in range(_MAX_SUMMED - 1, 0, -1):
        total = jnp.where(number <= count, 1 + ratio(number) * total, 1.0)
    summed_cdf = jnp.minimum(zero_probability * total, 1.0)
    return jnp.where(is_summed, summed_cdf, evaluate(is_summed, jnp.where(is_summed, 0.0, count)))


def _cdf_of_student_t(distribution: dist.StudentT, value: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the CDF. For 4 degrees of freedom (the default of the likelihood `student-t`), use the closed form."""
    df, loc, scale = (jnp.asarray(number) for number in (distribution.df, distribution.loc, distribution.scale))
    t = (value - loc) / scale
    is_four = df == 4
    squares = t**2
    sine = jnp.where(jnp.isinf(squares), jnp.sign(t), t / jnp.sqrt(4 + squares))
    # Probability beyond |t|, without the cancellation of 1 - P(|T| <= |t|), which would remove the tails.
    tail = (4 / (4 + squares)) ** 2 * (2 + jnp.abs(sine)) / (2 * (1 + jnp.abs(sine))) ** 2
    closed = jnp.where(t < 0, tail, 1 - tail)
    general = _cdf_on_support(dist.StudentT(jnp.where(is_four, 1.0, df)), jnp.where(is_four, 0.0, t))
    return jnp.where(is_four, closed, general)
