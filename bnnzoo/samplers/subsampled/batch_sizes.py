"""Choice of the batch sizes of the sampler `penalty` from the statistics of a warm-up window."""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import ndtri

from bnnzoo.samplers.base import Stats

START = (50, 20)
"""Batch size n and number of batches M until warm-up selects other values. Runs without warm-up keep these values.

If `sampling` is `auto` and there are at most `FULL_BATCH_UP_TO` data, a step uses all data instead.
"""

FULL_BATCH_UP_TO = 2000
"""Largest number of data for which a step uses all data once. With half of the data a step would cost half as much, but
the noise of the log-likelihood ratio would make the chain move more slowly."""

_NUM_BATCHES = 20
_FEWEST = 2 * _NUM_BATCHES
"""Smallest number of data per step. Fewer data hardly save time, and their variance has too few degrees of freedom."""

_SKEW_BIAS = 0.005
"""Limit of the mean of the statistic `skew_bias`: a third of `regime.MAX_SKEW_BIAS`. If a window exceeds the limit,
each step uses more data in the next window."""


class WarmupMeans(eqx.Module):
    """Means over the steps of a warm-up window of one chain.

    Step k has weight k, because the step size is adapted during the window and later steps are more representative.
    """

    count: Float[Array, ""]
    sigma2: Float[Array, ""]
    acceptance: Float[Array, ""]
    skew_bias: Float[Array, ""]

    @classmethod
    def empty(cls, like: Float[Array, " dim"]) -> WarmupMeans:
        """Return the means at the beginning of a window, with weight 0."""
        zero = jnp.zeros((), like.dtype)
        return cls(zero, zero, zero, zero)

    def with_step(self, stats: Stats, largest_sigma2: Float[Array, ""]) -> WarmupMeans:
        """Return the means with one more step. A larger sigma2 than `largest_sigma2` is replaced by this limit."""
        count = self.count + 1
        weight = 2 / (count + 1)

        def mean(old: Float[Array, ""], new: Array) -> Float[Array, ""]:
            return old + (new - old) * weight

        sigma2 = jnp.minimum(jnp.nan_to_num(stats["sigma2"], nan=jnp.inf), largest_sigma2)
        # `skew_bias` contains the acceptance rate as a factor. A step that is not finite is rejected, so its
        # `skew_bias` counts as 0.
        skew_bias = jnp.where(jnp.isfinite(stats["skew_bias"]), stats["skew_bias"], 0.0)
        return WarmupMeans(
            count,
            mean(self.sigma2, sigma2),
            mean(self.acceptance, stats["acceptance_rate"]),
            mean(self.skew_bias, skew_bias),
        )


class Sizes(NamedTuple):
    """The batches of a step: M = `batches` batches of n = `size` data. If `disjoint`, no datum is used twice."""

    size: int
    batches: int
    disjoint: bool

    @property
    def num_used(self) -> int:
        """Number of data that a step uses, K = M n."""
        return self.size * self.batches

    def fields(self) -> dict[str, int | str]:
        """Return the values of the sampler's fields `batch_size`, `num_batches` and `sampling`."""
        sampling = "disjoint" if self.disjoint else "replacement"
        return {"batch_size": self.size, "num_batches": self.batches, "sampling": sampling}


def full_batch(num_data: int) -> Sizes:
    """Return the sizes with which a step uses all data. Such a step has no noise: it is an ordinary Metropolis step."""
    batches = max(m for m in range(1, _NUM_BATCHES + 1) if num_data % m == 0)
    return Sizes(num_data // batches, batches, True)


def initial_sizes(size: int | str, batches: int | str, sampling: str, num_data: int) -> Sizes:
    """Return n and M for the first warm-up window: the values that the user gave, or initial values for `auto`.

    If `sampling` is `disjoint`, the initial values are so small that no datum is used twice. If `size`, `batches` and
    `sampling` are all `auto`, a step uses at most as many rows as there are data.
    """
    number = START[1] if isinstance(batches, str) else batches
    disjoint = sampling == "disjoint"
    if not isinstance(size, str):
        is_limited = disjoint and isinstance(batches, str)
        return Sizes(size, max(1, min(number, num_data // size)) if is_limited else number, disjoint)
    if sampling in ("replacement", "importance") or START[0] * number <= num_data:
        return Sizes(START[0], number, disjoint)
    number = min(number, num_data) if isinstance(batches, str) else number
    return Sizes(max(1, num_data // number), number, disjoint)


def resize_batches(
    current: Sizes,
    means: WarmupMeans,
    *,
    num_data: int,
    sampling: str,
    target_acceptance: float,
    target_sigma2: float,
    least_factor: float,
    budget: int,
    size: int | None = None,
    batches: int | None = None,
    fewest: int = 1,
) -> Sizes:
    """Return batch sizes with which acceptance rate and sigma2 reach their targets at the same step size.

    Warm-up selects the largest step size for which the acceptance rate is not below its target and sigma2 is not above
    its target. If sigma2 limits the step size, more data allow a larger step. If the acceptance rate limits it, fewer
    data suffice.

    Let l^2 be the variance of the log ratio without mini-batch noise. The acceptance rate is then
    2 Phi(-sqrt(l^2 + sigma2) / 2). This equation gives the present l^2, and the l^2 at the targets. Let K be the number
    of data per step. sigma2 is assumed to be proportional to l^2 / K, or to l^2 (1 / K - 1 / N) if no datum is used
    twice. For some proposals sigma2 grows faster than l^2. K then converges over several windows.

    Args:
        current: batch sizes of the window that has ended.
        means: means over the window, one value per chain.
        num_data: number of data, N.
        sampling: value of the sampler's field. `auto` means: if K exceeds N / 2, no datum is used twice, and a step
            uses all N data if `budget` allows it.
        target_acceptance: target of the acceptance rate.
        target_sigma2: target of the mean sigma2.
        least_factor: smallest factor by which K changes. It is 2 for a proposal with mini-batch gradients and without
            a control variate, because larger batches also improve these gradients.
        budget: largest K. If the user's n or M requires more data, K is larger.
        size: n if the user gave it; then only M changes.
        batches: M if the user gave it; then only n changes.
        fewest: smallest number of batches from which the variance can be estimated, if a step does not use all data.
    """
    sigma2, acceptance, skew_bias = (float(np.mean(v)) for v in (means.sigma2, means.acceptance, means.skew_bias))
    # l^2 at the targets, and the present l^2.
    target_l2 = max((2 * ndtri(target_acceptance / 2)) ** 2 - target_sigma2, 0.1)
    current_l2 = max((2 * ndtri(np.clip(acceptance, 1e-3, 1 - 1e-3) / 2)) ** 2 - sigma2, 0.05)
    factor = max(sigma2 / target_sigma2 * target_l2 / current_l2, least_factor, 2.0 if skew_bias > _SKEW_BIAS else 0.0)
    floor = 1 / num_data if current.disjoint else 0.0
    wanted_data = 1 / (floor + (1 / current.num_used - floor) / float(np.clip(factor, 1 / 16, 4.0)))
    # Every K needs its own compiled program. With powers of two there are only a few of them.
    steps = math.floor(math.log2(max(wanted_data, _FEWEST) / _FEWEST) + 0.75)
    num_used = min(_FEWEST * 2**steps, budget, num_data)
    disjoint = sampling == "disjoint" or (sampling == "auto" and 2 * num_used > num_data)
    if sampling == "auto" and disjoint and num_data <= budget:
        if size is None and batches is None:
            return full_batch(num_data)
        num_used = num_data
    if size is None:
        sizes = split_batches(num_used, batches, disjoint=disjoint)
        # A single batch of all data has no noise. With fewer data, the variance needs more than one batch.
        sizes = current if sizes.batches < fewest and current.num_used == num_data else sizes
    else:
        max_batches = num_data // size if disjoint else num_used
        sizes = Sizes(size, max(1, min(max(fewest, num_used // size), max_batches)), disjoint)
        if max_batches < fewest and size != num_data:
            sizes = Sizes(size, fewest, False)
    if sizes.disjoint and sizes.num_used > num_data:
        # The user's n or M requires more distinct data than exist, so some data must be used twice.
        return sizes._replace(disjoint=False) if sampling == "auto" else current
    return sizes


def split_batches(num_used: int, batches: int | None = None, *, disjoint: bool) -> Sizes:
    """Split `num_used` data into `batches` batches of equal size, 20 batches by default. A remainder is not used."""
    batches = min(_NUM_BATCHES, num_used) if batches is None else batches
    return Sizes(max(1, num_used // batches), batches, disjoint)
