"""A batch that grows within a step, block after block, until a test has seen enough of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.permutation import distinct_indices


class Moments(NamedTuple):
    """Of the differences d_i seen so far."""

    count: Float[Array, ""]
    mean: Float[Array, ""]
    squares: Float[Array, ""]
    cubes: Float[Array, ""]
    """Sums of squares and cubes about the mean."""
    least: Float[Array, ""]
    most: Float[Array, ""]

    @classmethod
    def nothing(cls, dtype: Any) -> Moments:
        zero = jnp.zeros((), dtype)
        return cls(zero, zero, zero, zero, zero + jnp.inf, zero - jnp.inf)

    def joined(self, d: Float[Array, " block"], new: Bool[Array, " block"]) -> Moments:
        """With a block's differences, those that are `new`; the sums as Chan, Golub and LeVeque 1979 join them."""
        count = jnp.sum(new).astype(d.dtype)
        mean = jnp.sum(jnp.where(new, d, 0.0)) / count
        centred = jnp.where(new, d - mean, 0.0)
        squares, cubes = jnp.sum(centred**2), jnp.sum(centred**3)
        total, apart = self.count + count, mean - self.mean
        share, own = count / total, self.count / total
        return Moments(
            total,
            self.mean + apart * share,
            self.squares + squares + apart**2 * self.count * share,
            self.cubes
            + cubes
            + apart**3 * self.count * share * (own - share)
            + 3 * apart * (own * squares - share * self.squares),
            jnp.minimum(self.least, jnp.min(jnp.where(new, d, jnp.inf))),
            jnp.maximum(self.most, jnp.max(jnp.where(new, d, -jnp.inf))),
        )


class Estimate(NamedTuple):
    """What the rows seen so far, none of them twice, say of log p(theta') - log p(theta)."""

    log_ratio: Float[Array, ""]
    sigma2: Float[Array, ""]
    """Its estimated variance: 0 where all rows were seen."""
    skewness: Float[Array, ""]
    width: Float[Array, ""]
    """The range of the terms whose mean it is."""
    seen: Float[Array, ""]
    total: int
    looks: Int[Array, ""]
    """At how many sizes of the batch the test has been asked."""


def estimated(
    moments: Moments, known: Float[Array, ""], looks: Int[Array, ""], *, scale: Float[Array, ""], total: int
) -> Estimate:
    """The log ratio and its noise: of K out of N rows, Var = scale^2 / K s^2 (1 - K / N), with scale = beta N.

    The third cumulant has the factor (1 - K / N)(1 - 2 K / N).

    Args:
        known: without noise: the change of the log prior, and what a control variate knows.
    """
    seen = moments.count
    left = 1 - seen / total
    spread = moments.squares / jnp.maximum(seen - 1, 1.0)
    # With all rows there is no noise, whatever one row alone, or one that is not finite, says of its spread.
    sigma2 = jnp.where(seen < total, scale**2 / seen * spread * left, 0.0)
    root = jnp.sqrt(jnp.maximum(moments.squares / seen, jnp.finfo(seen.dtype).tiny))
    # Scaled before it is divided by a cube: the cube of a small spread is no longer a float32.
    third = moments.cubes / seen / root / root / root
    # For the root of what is left: the variance has it once, the third cumulant once, 3/2 of it in its own units.
    skewness = jnp.where(seen < total, third * (1 - 2 * seen / total) / jnp.sqrt(seen * jnp.maximum(left, 1e-12)), 0.0)
    width = scale * (moments.most - moments.least)
    return Estimate(known + scale * moments.mean, sigma2, skewness, width, seen, total, looks)


def grown(
    posterior: AbstractPosterior,
    size: int,
    difference: Callable[[Any], tuple[Float[Array, " block"], Float[Array, " block"]]],
    enough: Callable[[Moments, Int[Array, ""]], Bool[Array, ""]],
    *,
    key: PRNGKeyArray,
) -> tuple[Moments, Float[Array, ""], Int[Array, ""]]:
    """Looks at rows in random order, `size` of them at a time and none twice, until `enough` or there are no more.

    Args:
        difference: of a block's rows, the differences d_i and the log-likelihoods where the chain is.
        enough: given the moments and the number of looks; never asked before the first block.

    Returns:
        the moments, the mean log-likelihood where the chain is, the number of blocks.
    """
    total = posterior.num_data
    blocks = -(-total // size)

    def more(carry: Any) -> Bool[Array, ""]:
        moments, _, looks = carry
        return (looks == 0) | ((looks < blocks) & ~enough(moments, looks))

    # Every block is a piece of one permutation, so the same key again: what JAX's check for that would refuse of a key
    # it allows of its data.
    words, kind = jax.random.key_data(key), jax.random.key_impl(key)

    def look(carry: Any) -> Any:
        moments, here, looks = carry
        # The last block overlaps the one before it: rows that were seen are not new.
        start = jnp.minimum(looks * size, total - size)
        new = start + jnp.arange(size) >= looks * size
        rows = distinct_indices(
            size, total, start=start.astype(jnp.uint32), key=jax.random.wrap_key_data(words, impl=kind)
        )
        # Without the barrier XLA would draw the block anew wherever it is used.
        d, there = difference(jax.lax.optimization_barrier(posterior.take(rows)))
        return moments.joined(d, new), here + jnp.sum(jnp.where(new, there, 0.0)), looks + 1

    start = (Moments.nothing(posterior.dtype), jnp.zeros((), posterior.dtype), jnp.zeros((), jnp.int32))
    moments, here, looks = jax.lax.while_loop(more, look, start)
    return moments, here / moments.count, looks
