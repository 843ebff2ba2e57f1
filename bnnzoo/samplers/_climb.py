"""Ascent to a mode of the posterior from a position near it, using all data."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bnnzoo.posterior import AbstractPosterior

_STEPS = 10
_LEAST_SHARE = 2.0**-10
"""Smallest fraction of a step that is tried. If none of the halvings before it is uphill, no step is made."""
_NEAR = 1e-4
"""Squared distance per parameter, in standard deviations, below which another pass over the data is not worthwhile."""


@runtime_checkable
class Factor(Protocol):
    """The factor F of a Gaussian N(0, F F')."""

    def draw(self, eps: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return F eps."""
        ...

    def project(self, gradient: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return F' g."""
        ...


class _Climb(NamedTuple):
    theta: Float[Array, " dim"]
    slope: Float[Array, " dim"]
    direction: Float[Array, " dim"]
    steps: Int[Array, ""]
    moved: Bool[Array, ""]


def slope(posterior: AbstractPosterior, theta: Float[Array, " dim"], factor: Factor) -> Float[Array, " dim"]:
    """Return F' grad log p, the distance to the mode in standard deviations if F F' matches the curvature."""
    return factor.project(jax.grad(posterior.log_density)(theta))


def climbed(posterior: AbstractPosterior, theta: Float[Array, " dim"], factor: Factor) -> Float[Array, " dim"]:
    """Return the mode above theta, or a position ten steps nearer to it.

    The method is conjugate gradients (Polak and Ribiere 1969) in units of F. If F F' is the inverse of minus the
    Hessian, the first step is Newton's. A step goes to the maximum of the density's parabola along its direction, or to
    the first halving of that which is uphill. The rise is summed over per-datum differences, because the difference of
    two float32 totals over many data would be dominated by rounding.
    """

    def ascend(now: _Climb) -> _Climb:
        along = factor.draw(now.direction)
        here = posterior.log_likelihoods(now.theta)

        def rise(share: Float[Array, ""]) -> Float[Array, ""]:
            there = now.theta + share * along
            change = jnp.sum(posterior.log_likelihoods(there) - here)
            return posterior.log_prior(there) - posterior.log_prior(now.theta) + posterior.likelihood_power * change

        bend = -along @ jax.jvp(jax.grad(posterior.log_density), (now.theta,), (along,))[1]
        towards = now.slope @ now.direction
        best = jnp.where(bend > 0, towards / bend, 1.0)
        # Require a quarter of the rise that the slope promises; at the maximum of a parabola it is a half.
        share = jax.lax.while_loop(
            lambda s: (s > _LEAST_SHARE * best) & ~(rise(s) >= s * towards / 4), lambda s: s / 2, best
        )
        moved = share > _LEAST_SHARE * best
        theta = jnp.where(moved, now.theta + share * along, now.theta)
        new = slope(posterior, theta, factor)
        kept = jnp.maximum(new @ (new - now.slope) / (now.slope @ now.slope), 0.0)
        direction = new + kept * now.direction
        direction = jnp.where(direction @ new > 0, direction, new)
        return _Climb(theta, new, direction, now.steps + 1, moved)

    def more(now: _Climb) -> Bool[Array, ""]:
        return (now.steps < _STEPS) & now.moved & (now.slope @ now.slope > _NEAR * len(theta))

    first = slope(posterior, theta, factor)
    start = _Climb(theta, first, first, jnp.zeros((), jnp.int32), jnp.ones((), bool))
    return jax.lax.while_loop(more, ascend, start).theta
