"""Exact draws of a noise scale s, whose square has a generalised inverse Gaussian distribution.

The method is rejection sampling. The envelope consists of tangents to the log density of log s.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

_MAX_TRIES = 1000
"""Largest number of proposals. A proposal is rejected with probability 1/e or less, so the probability that all are
rejected is at most e^-1000."""
_HALVINGS = 20
"""Number of bisections in the search for a tangent point. An inexact point affects only the efficiency."""


def draw_log_scale(
    power: Float[Array, ""], rate: Float[Array, ""], *, key: PRNGKeyArray
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """Draw u = log s from the density proportional to exp(-power u - rate e^(-2u) - e^(2u) / 2).

    Let m be the mode, w = 2 (u - m), a = rate e^(-2m) and b = e^(2m) / 2. Up to a constant, the log density is

        psi(w) = -a (e^-w - 1 + w) - b (e^w - 1 - w)

    psi is concave, and its maximum is psi(0) = 0. The density of the proposals is proportional to e^hat. Here hat is
    the minimum of three functions: 0 and the tangents to psi at the two points where psi is about -1. A proposal is
    accepted with probability 1 - 1/e or more, whatever the parameters (Devroye 2014, Statistics and Computing 24, 239).

    Returns:
        The draw and the number of proposals. The draw is NaN if the density has no mode or is not finite. This happens
        if the residuals are all 0 or not finite. If there are no data (rate = 0, power < 0), s^2 / 2 has a gamma
        distribution. The draw is then made directly from this distribution.
    """
    # v = e^(2m) solves v^2 + power v = 2 rate. Each root is written in the form that avoids cancellation.
    root = jnp.hypot(power, jnp.sqrt(8 * rate))
    square = jnp.where(power > 0, 4 * rate / (power + root), (root - power) / 2)
    a, b = rate / square, square / 2
    is_proper = jnp.isfinite(a + b) & (a > 0) & (b > 0)
    right_tangent, left_tangent = _tangent(a, b), _tangent(b, a)
    # The tangents reach 0 at these distances from the mode. Further out the proposal density falls exponentially.
    right_edge, left_edge = (place - level / slope for place, level, slope in (right_tangent, left_tangent))
    tail_right, tail_left = -1 / right_tangent[2], -1 / left_tangent[2]
    middle_width = right_edge + left_edge
    total = middle_width + tail_right + tail_left

    def propose(carry: tuple[Array, Array, Array]) -> tuple[Int[Array, ""], Bool[Array, ""], Float[Array, ""]]:
        num_tries, _, _ = carry
        key_part, key_tail, key_accept = jax.random.split(jax.random.fold_in(key, num_tries), 3)
        place = total * jax.random.uniform(key_part, dtype=rate.dtype)
        tail_exponential, accept_exponential = (
            jax.random.exponential(k, dtype=rate.dtype) for k in (key_tail, key_accept)
        )
        is_in_middle, is_in_right_tail = place < middle_width, place < middle_width + tail_right
        w = jnp.where(
            is_in_middle,
            place - left_edge,
            jnp.where(
                is_in_right_tail, right_edge + tail_exponential * tail_right, -left_edge - tail_exponential * tail_left
            ),
        )
        log_envelope = jnp.where(is_in_middle, 0.0, -tail_exponential)
        is_accepted = accept_exponential > log_envelope - _psi(w, a, b)
        return num_tries + 1, is_accepted, (jnp.log(square) + w) / 2

    def is_searching(carry: tuple[Array, Array, Array]) -> Bool[Array, ""]:
        num_tries, is_accepted, _ = carry
        return is_proper & ~is_accepted & (num_tries < _MAX_TRIES)

    start = (jnp.zeros((), jnp.int32), jnp.zeros((), bool), jnp.full((), jnp.nan, rate.dtype))
    num_tries, is_accepted, value = jax.lax.while_loop(is_searching, propose, start)
    value = jnp.where(is_accepted, value, jnp.nan)
    without_data = jnp.log(2 * jax.random.gamma(key, jnp.maximum(-power, 1e-3) / 2, dtype=rate.dtype)) / 2
    return jnp.where((rate == 0) & (power < 0), without_data, value), num_tries


def _tangent(a: Float[Array, ""], b: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Return the point w > 0 where psi is about -1, and psi and its derivative at w.

    For a point w < 0 the caller exchanges a and b.
    """
    # Beyond each of these two bounds, one of the two terms of psi alone is below -1.
    bound_from_b, bound_from_a = jnp.sqrt(2 / b), jnp.maximum(jnp.sqrt(3 / a), 3 / a)
    interval = (jnp.zeros_like(a), jnp.minimum(bound_from_b, bound_from_a))

    def halve(_: Int[Array, ""], interval: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = interval
        half = (low + high) / 2
        is_beyond = _psi(half, a, b) < -1
        return jnp.where(is_beyond, low, half), jnp.where(is_beyond, half, high)

    _, place = jax.lax.fori_loop(0, _HALVINGS, halve, interval)
    return place, _psi(place, a, b), a * jnp.expm1(-place) - b * jnp.expm1(place)


def _psi(w: Float[Array, ""], a: Float[Array, ""], b: Float[Array, ""]) -> Float[Array, ""]:
    return -a * _exp_minus_linear(-w) - b * _exp_minus_linear(w)


def _exp_minus_linear(w: Float[Array, ""]) -> Float[Array, ""]:
    """Return e^w - 1 - w. For small w the formula loses digits by cancellation, so its series is used instead."""
    series = w * w / 2 * (1 + w / 3 * (1 + w / 4 * (1 + w / 5 * (1 + w / 6))))
    return jnp.where(jnp.abs(w) < 0.25, series, jnp.expm1(w) - w)
