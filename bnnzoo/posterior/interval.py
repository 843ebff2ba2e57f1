"""The probability of an interval under one datum's distribution: a score of rounded targets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import log_ndtr, logsumexp
from jaxtyping import Array, Float


def log_interval(law: dist.Distribution, low: Float[Array, "*target"], high: Float[Array, "*target"]) -> Array:
    """Return log P(low < Y < high) of all targets together, in the shape of the law's log density."""
    if isinstance(law, dist.Independent):
        inner = log_interval(law.base_dist, low, high)
        return jnp.sum(inner, tuple(range(-law.reinterpreted_batch_ndims, 0)))
    if isinstance(law, dist.MixtureSameFamily):
        axis = law.mixture_dim
        inner = log_interval(law.component_distribution, jnp.expand_dims(low, axis), jnp.expand_dims(high, axis))
        return logsumexp(jax.nn.log_softmax(law.mixing_distribution.logits) + inner, -1)
    if isinstance(law, dist.Normal):
        return _of_normal((low - law.loc) / law.scale, (high - law.loc) / law.scale)
    # In the left half, where a distribution function has digits to lose.
    if isinstance(law, dist.StudentT):
        a, b = _in_left_half((low - law.loc) / law.scale, (high - law.loc) / law.scale)
        law, low, high = dist.StudentT(law.df), a, b
    probability = jnp.asarray(law.cdf(high)) - jnp.asarray(law.cdf(low))
    return jnp.log(jnp.maximum(probability, jnp.finfo(probability.dtype).tiny))


def _in_left_half(low: Array, high: Array) -> tuple[Array, Array]:
    """The interval or its mirror image about 0, whichever has its middle on the left."""
    is_right = low + high > 0
    return jnp.where(is_right, -high, low), jnp.where(is_right, -low, high)


def _of_normal(low: Array, high: Array) -> Array:
    """log of the standard normal probability of an interval, however far out or narrow."""
    a, b = _in_left_half(low, high)
    middle, width = (a + b) / 2, b - a
    narrow = -(middle**2) / 2 - jnp.log(2 * jnp.pi) / 2 + jnp.log(width)
    below = jnp.minimum(log_ndtr(a) - log_ndtr(b), -jnp.finfo(a.dtype).tiny)
    wide = log_ndtr(b) + jnp.log(-jnp.expm1(below))
    return jnp.where(width * (1 + jnp.abs(middle)) < 1e-3, narrow, wide)
