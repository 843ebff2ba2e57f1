"""Rows drawn with probabilities of their own: those that move the log ratio most come most often, and count less."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.permutation import integers_below

_UNIFORM = 0.5
"""a, the share of the draws that are uniform: no row weighs more than 1 / a times what it would in a uniform batch."""
_WHOLE = 2.0**31
"""Counts that all rows share. Probabilities are ratios of whole numbers, so that what a draw is divided by is what it
was drawn with: a float32 sum over a million rows would be off by a tenth of a row's own probability."""


class RowProbabilities(eqx.Module):
    """p_i = counts_i / sum counts, fixed within a window of warm-up and after it: never a function of theta."""

    starts: UInt32[Array, " num_data"]
    """The sum of the counts of the rows before."""
    counts: UInt32[Array, " num_data"]
    looks: Float[Array, ""]
    """At the rows' influence, so far."""

    @property
    def total(self) -> UInt32[Array, ""]:
        return self.starts[-1] + self.counts[-1]

    @property
    def probabilities(self) -> Float[Array, " num_data"]:
        return self.counts.astype(float) / self.total.astype(float)

    def minibatch(
        self, posterior: AbstractPosterior, size: int, *, key: PRNGKeyArray
    ) -> tuple[Any, Float[Array, " size"]]:
        """The data of `draw`'s rows, and their weights."""
        rows, weights = self.draw(size, key=key)
        # Without the barrier XLA would draw the batch anew wherever it is used.
        return jax.lax.optimization_barrier((posterior.take(rows), weights))

    def draw(self, size: int, *, key: PRNGKeyArray) -> tuple[Int[Array, " size"], Float[Array, " size"]]:
        """`size` independent rows, and the weight 1 / (N p_i) of each: N times a weighted mean is the sum over all."""
        place = integers_below(self.total, size, key=key)
        rows = jnp.searchsorted(self.starts, place, side="right") - 1
        scale = self.total.astype(float) / self.counts.shape[0]
        return rows, scale / self.counts[rows].astype(float)


def uniform(num_data: int) -> RowProbabilities:
    """Every row alike: before the first look at them, and without warm-up."""
    return _of(jnp.full((num_data,), 1 / num_data), jnp.zeros(()))


def after_look(rows: RowProbabilities, square: Float[Array, " num_data"]) -> RowProbabilities:
    """The probabilities after one more look at the mean squares s of the rows' differences: a mean over the looks.

    A look says p_i = (1 - a) s_i / sum s + a / N; the k-th weighs k, as the early ones may be of a chain far from the
    posterior. With a move of length eta in units of the posterior, s_i is about eta^2 h_i, h_i the row's leverage.
    Probabilities that go with h_i rather than with its root, which would make the variance least, keep the *largest*
    term d_i / (K p_i) small, on which the skewness of the noise hangs.
    """
    total, number = jnp.sum(square), square.shape[0]
    share = jnp.where(total > 0, square / jnp.maximum(total, jnp.finfo(square.dtype).tiny), 1 / number)
    seen = (1 - _UNIFORM) * share + _UNIFORM / number
    before = rows.probabilities
    return _of(before + (seen - before) * 2 / (rows.looks + 2), rows.looks + 1)


@jax.jit
def pool_chains(each: RowProbabilities) -> RowProbabilities:
    """One set of probabilities for all chains [chain, num_data], their mean: they look at the same rows."""
    one = _of(jnp.mean(jax.vmap(lambda rows: rows.probabilities)(each), 0), each.looks[0])
    return jax.tree.map(lambda leaf, all_chains: jnp.broadcast_to(leaf, all_chains.shape), one, each)


def _of(probabilities: Float[Array, " num_data"], looks: Float[Array, ""]) -> RowProbabilities:
    counts = jnp.maximum(probabilities * _WHOLE, 1.0).astype(jnp.uint32)
    return RowProbabilities(jnp.cumsum(counts) - counts, counts, looks)
