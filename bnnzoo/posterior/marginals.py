"""Marginal distribution functions (CDFs) of the targets of one datum.

NumPyro defines `cdf` for most univariate distributions. This module adds independent targets, mixtures, zero inflation,
and values outside the support. Call its functions in float64. In float32, the errors of the incomplete gamma and beta
functions are up to 0.03 for large counts, and 0.04 for Student's t with a million degrees of freedom.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float
from numpyro.distributions.discrete import ZeroInflatedProbs

_POISSON_SIZE = 1e8
"""Size parameter above which the CDF of a negative binomial is computed as that of a Poisson distribution.

The incomplete beta function of the negative binomial is inaccurate there."""


def marginal_cdf(distribution: Any, value: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return P(Y_t <= value_t) of each target t.

    Args:
        distribution: the joint distribution of one datum's targets, with event shape [target], or a batch of such
            distributions.
        value: one value for each target; values may be infinite.

    Raises:
        NotImplementedError: if NumPyro has no distribution function for this distribution.
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
        counted = marginal_cdf(distribution.base_dist, value)
        gate: Any = distribution.gate
        return jnp.where(value < 0, 0.0, gate + (1 - gate) * counted)
    if isinstance(distribution, dist.GammaPoisson):
        return _cdf_of_gamma_poisson(distribution, value)
    if hasattr(distribution, "marginal_cdf"):  # a distribution that wraps another one
        return distribution.marginal_cdf(value)
    if distribution.event_shape:
        raise NotImplementedError(f"{type(distribution).__name__} has no distribution function of single targets")
    return _cdf_on_support(distribution, value)


def in_support(distribution: Any, value: Float[Array, "..."]) -> Bool[Array, "..."]:
    """Whether each value is in the support of the distribution of its target."""
    if isinstance(distribution, dist.Independent):
        return in_support(distribution.base_dist, value)
    if isinstance(distribution, dist.MixtureSameFamily):
        parts = distribution.component_distribution
        return in_support(parts, jnp.expand_dims(value, -1 - len(parts.event_shape))).any(-1 - len(parts.event_shape))
    if hasattr(distribution, "in_support"):  # a distribution that wraps another one
        return distribution.in_support(value)
    inside = jnp.asarray(distribution.support(value))
    return jnp.broadcast_to(inside.reshape(*inside.shape, *[1] * (value.ndim - inside.ndim)), value.shape)


def is_discrete(distribution: Any) -> bool:
    """Whether the targets are whole numbers."""
    if isinstance(distribution, dist.Independent):
        return is_discrete(distribution.base_dist)
    if isinstance(distribution, dist.MixtureSameFamily):
        return is_discrete(distribution.component_distribution)
    return bool(distribution.is_discrete)


def _cdf_of_mixture(distribution: Any, value: Float[Array, "..."]) -> Float[Array, "..."]:
    parts, mixing = distribution.component_distribution, distribution.mixing_distribution
    event_dims = len(parts.event_shape)
    weights = jnp.asarray(mixing.probs)
    cdf = marginal_cdf(parts, jnp.expand_dims(value, -1 - event_dims))
    return jnp.sum(weights.reshape(*weights.shape, *[1] * event_dims) * cdf, -1 - event_dims)


def _cdf_on_support(distribution: Any, value: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the distribution function at each value: 0 below the support and 1 above it."""
    if distribution.is_discrete:
        value = jnp.floor(value)
    largest = jnp.finfo(jnp.result_type(float)).max
    # Clip the value to the support, because `cdf` gives NaN outside it. The bounds may depend on the parameters.
    low = getattr(distribution.support, "lower_bound", -largest)
    high = getattr(distribution.support, "upper_bound", largest)
    inside = jnp.clip(value, jnp.maximum(low, -largest), jnp.minimum(high, largest))
    return jnp.where(value < low, 0.0, jnp.where(value >= high, 1.0, distribution.cdf(inside)))


def _cdf_of_gamma_poisson(distribution: dist.GammaPoisson, value: Float[Array, "..."]) -> Float[Array, "..."]:
    size, rate = jnp.asarray(distribution.concentration), jnp.asarray(distribution.rate)
    is_poisson = size > _POISSON_SIZE
    moderate = dist.GammaPoisson(jnp.where(is_poisson, 1.0, size), jnp.where(is_poisson, 1.0, rate))
    poisson = dist.Poisson(size / rate)
    return jnp.where(is_poisson, _cdf_on_support(poisson, value), _cdf_on_support(moderate, value))
