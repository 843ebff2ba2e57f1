"""A batch of rows that grows within a step, block by block, until the batch suffices for an acceptance test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.permutation import distinct_indices


class Moments(NamedTuple):
    """Moments of the differences d_i between the log-likelihoods of row i at theta' and theta, for the rows so far."""

    count: Float[Array, ""]
    mean: Float[Array, ""]
    squares: Float[Array, ""]
    cubes: Float[Array, ""]
    """Sums of the squares (`squares`) and cubes (`cubes`) of d_i minus the mean."""
    minimum: Float[Array, ""]
    maximum: Float[Array, ""]

    @classmethod
    def empty(cls, dtype: Any) -> Moments:
        """Return the moments before the first block."""
        zero = jnp.zeros((), dtype)
        return cls(zero, zero, zero, zero, zero + jnp.inf, zero - jnp.inf)

    def with_block(self, d: Float[Array, " block"], new: Bool[Array, " block"]) -> Moments:
        """Return the moments after adding those differences d of a block for which `new` is true.

        The formulas are those of Chan, Golub and LeVeque 1979.
        """
        count = jnp.sum(new).astype(d.dtype)
        mean = jnp.sum(jnp.where(new, d, 0.0)) / count
        centred = jnp.where(new, d - mean, 0.0)
        squares, cubes = jnp.sum(centred**2), jnp.sum(centred**3)
        total, mean_difference = self.count + count, mean - self.mean
        new_fraction, old_fraction = count / total, self.count / total
        return Moments(
            total,
            self.mean + mean_difference * new_fraction,
            self.squares + squares + mean_difference**2 * self.count * new_fraction,
            self.cubes
            + cubes
            + mean_difference**3 * self.count * new_fraction * (old_fraction - new_fraction)
            + 3 * mean_difference * (old_fraction * squares - new_fraction * self.squares),
            jnp.minimum(self.minimum, jnp.min(jnp.where(new, d, jnp.inf))),
            jnp.maximum(self.maximum, jnp.max(jnp.where(new, d, -jnp.inf))),
        )


class Estimate(NamedTuple):
    """An estimate of log p(theta') - log p(theta), where p is the posterior density, from the rows so far."""

    log_ratio: Float[Array, ""]
    sigma2: Float[Array, ""]
    """Estimated variance of `log_ratio`; 0 if all rows were used."""
    skewness: Float[Array, ""]
    width: Float[Array, ""]
    """Range (maximum minus minimum) of scale d_i over the rows so far, see `estimate_ratio`."""
    num_seen: Float[Array, ""]
    total: int
    num_tests: Int[Array, ""]
    """Number of batch sizes at which the test was evaluated."""


def estimate_ratio(
    moments: Moments, known_change: Float[Array, ""], num_tests: Int[Array, ""], *, scale: Float[Array, ""], total: int
) -> Estimate:
    """Return the estimated log ratio and the moments of its noise.

    Let s^2 be the sample variance of the differences of K of N rows, and scale = beta N, with the likelihood power
    beta. The log ratio is `known_change` plus scale times the mean difference. The variance of the log ratio is
    scale^2 s^2 / K (1 - K / N). The third cumulant has the factor (1 - K / N)(1 - 2 K / N).

    Args:
        moments: moments of the differences of K rows.
        known_change: the part of the log ratio that has no noise, from the log prior and the control variate.
        num_tests: number of batch sizes at which the test was evaluated.
        scale: beta N.
        total: number of rows N.
    """
    num_seen = moments.count
    unseen_fraction = 1 - num_seen / total
    variance = moments.squares / jnp.maximum(num_seen - 1, 1.0)
    # With all rows there is no noise, even if a value that is not finite makes the variance NaN.
    sigma2 = jnp.where(num_seen < total, scale**2 / num_seen * variance * unseen_fraction, 0.0)
    root = jnp.sqrt(jnp.maximum(moments.squares / num_seen, jnp.finfo(num_seen.dtype).tiny))
    # The cube of a small root underflows float32. XLA also computes it for a division by the root three times.
    third_moment = (jnp.cbrt(moments.cubes / num_seen) / root) ** 3
    # The third cumulant has the factor `unseen_fraction` once and sigma^3 has it to the power 3/2, so their ratio has
    # unseen_fraction^(-1/2).
    skewness = jnp.where(
        num_seen < total,
        third_moment * (1 - 2 * num_seen / total) / jnp.sqrt(num_seen * jnp.maximum(unseen_fraction, 1e-12)),
        0.0,
    )
    width = scale * (moments.maximum - moments.minimum)
    return Estimate(known_change + scale * moments.mean, sigma2, skewness, width, num_seen, total, num_tests)


def grow_batch(
    posterior: AbstractPosterior,
    size: int,
    difference: Callable[[Any], tuple[Float[Array, " block"], Float[Array, " block"]]],
    enough: Callable[[Moments, Int[Array, ""]], Bool[Array, ""]],
    *,
    key: PRNGKeyArray,
) -> tuple[Moments, Float[Array, ""], Int[Array, ""]]:
    """Add blocks of rows in random order until `enough` is true or all rows are used. No row is used twice.

    Args:
        posterior: the target distribution.
        size: rows in a block.
        difference: function that takes the rows of a block, and returns the differences d_i and the log-likelihoods at
            the chain's position.
        enough: function that takes the moments and the number of blocks, and returns whether the batch suffices. It is
            called after each block.
        key: random key.

    Returns:
        the moments, the mean log-likelihood of the used rows at the chain's position, the number of blocks.
    """
    total = posterior.num_data
    blocks = -(-total // size)

    def needs_more(carry: Any) -> Bool[Array, ""]:
        moments, _, num_used = carry
        return (num_used == 0) | ((num_used < blocks) & ~enough(moments, num_used))

    # Every block is a slice of one permutation, so all blocks need the same key. JAX's check against key reuse rejects
    # a key that is used twice. Each block therefore makes its own key from the same words, which the check accepts.
    key_words, kind = jax.random.key_data(key), jax.random.key_impl(key)

    def use_block(carry: Any) -> Any:
        moments, here, num_used = carry
        # The last block can overlap the block before it. Rows in the overlap are not new.
        start = jnp.minimum(num_used * size, total - size)
        new = start + jnp.arange(size) >= num_used * size
        rows = distinct_indices(
            size, total, start=start.astype(jnp.uint32), key=jax.random.wrap_key_data(key_words, impl=kind)
        )
        # Without the barrier, XLA would compute the row indices again at every use of the block.
        d, block_densities = difference(jax.lax.optimization_barrier(posterior.take(rows)))
        return moments.with_block(d, new), here + jnp.sum(jnp.where(new, block_densities, 0.0)), num_used + 1

    start = (Moments.empty(posterior.dtype), jnp.zeros((), posterior.dtype), jnp.zeros((), jnp.int32))
    moments, density_sum, num_tests = jax.lax.while_loop(needs_more, use_block, start)
    return moments, density_sum / moments.count, num_tests
