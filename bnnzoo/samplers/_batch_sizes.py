"""How many data a step of the penalty should look at, from what a window of warm-up has seen."""

from __future__ import annotations

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import ndtri

from bnnzoo.samplers.base import Stats

START = (50, 20)
"""n and M before warm-up has chosen, and without warm-up."""

_NUM_BATCHES = 20
_FEWEST = 2 * _NUM_BATCHES
"""Fewer data a step save nothing, and their variance has too few degrees of freedom."""

_SKEW_BIAS = 0.005
"""Mean bias by the skewness of the noise that asks for more data, a third of what the run's guard allows."""


class Seen(eqx.Module):
    """Means over a window of one chain's warm-up, a step weighted by its number: the step size is still moving."""

    count: Float[Array, ""]
    sigma2: Float[Array, ""]
    acceptance: Float[Array, ""]
    skew_bias: Float[Array, ""]

    @classmethod
    def nothing(cls, like: Float[Array, " dim"]) -> Seen:
        zero = jnp.zeros((), like.dtype)
        return cls(zero, zero, zero, zero)

    def with_step(self, stats: Stats, largest_sigma2: Float[Array, ""]) -> Seen:
        """With one more step. `largest_sigma2` bounds what a single step can say."""
        count = self.count + 1
        weight = 2 / (count + 1)

        def mean(old: Float[Array, ""], new: Array) -> Float[Array, ""]:
            return old + (new - old) * weight

        sigma2 = jnp.minimum(jnp.nan_to_num(stats["sigma2"], nan=jnp.inf), largest_sigma2)
        return Seen(
            count,
            mean(self.sigma2, sigma2),
            mean(self.acceptance, stats["acceptance_rate"]),
            mean(self.skew_bias, stats["skew_bias"]),
        )


def resized(
    used: int, seen: Seen, *, target_acceptance: float, target_sigma2: float, least_factor: float, largest: int
) -> int:
    """The number of data a step, K, at which acceptance and sigma2 reach their targets at the same step size.

    The step size is the largest that keeps both limits. Where sigma2 stops it, more data allow a larger step; where
    acceptance does, fewer data would do. For a proposal whose noise-free log ratio has variance l^2 the acceptance is
    2 Phi(-sqrt(l^2 + sigma2) / 2), which gives l^2 now and l^2 at the targets; sigma2 is taken
    as proportional to l^2 / K. A proposal whose sigma2 grows faster comes to the same K over several windows.

    Args:
        used: K of the window.
        seen: of all chains, each [chain].
        least_factor: of the change; 2 for a proposal whose gradients come from a batch as they are, and which a larger
            batch serves twice.
        largest: K at most: the budget and the number of data.
    """
    sigma2, acceptance, skew_bias = (float(np.mean(v)) for v in (seen.sigma2, seen.acceptance, seen.skew_bias))
    at_target = max((2 * ndtri(target_acceptance / 2)) ** 2 - target_sigma2, 0.1)
    now = max((2 * ndtri(np.clip(acceptance, 1e-3, 1 - 1e-3) / 2)) ** 2 - sigma2, 0.05)
    factor = max(sigma2 / target_sigma2 * at_target / now, least_factor, 2.0 if skew_bias > _SKEW_BIAS else 0.0)
    wanted = used * float(np.clip(factor, 1 / 16, 4.0))
    # Powers of two: every size is a program of its own to compile.
    steps = math.floor(math.log2(max(wanted, _FEWEST) / _FEWEST) + 0.75)
    return min(_FEWEST * 2**steps, largest)


def split(used: int) -> tuple[int, int]:
    """n and M with n M <= K, as near as twenty batches allow."""
    num_batches = min(_NUM_BATCHES, used)
    return used // num_batches, num_batches
