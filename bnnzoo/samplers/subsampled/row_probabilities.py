"""Rows drawn with unequal probabilities: influential rows are drawn more often and weighted less."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.permutation import integers_below

_UNIFORM = 0.5
"""Fraction a of uniform draws: the probability p_i of row i is at least a / N. So the weight of a row is at most 1 / a.
With equal probabilities each weight would be 1."""
_TOTAL_COUNT = 2.0**31
"""Approximate sum of the integer counts over all rows. With integers the weight of a draw matches its probability
exactly. With float32 probabilities of a million rows, the rounding error of their cumulative sum would be a tenth of
one probability."""


class RowProbabilities(eqx.Module):
    """Probabilities p_i = counts_i / sum_j counts_j with which the rows are drawn.

    The probabilities do not depend on theta. They change only between warm-up windows.
    """

    starts: UInt32[Array, " num_data"]
    """Cumulative sum of the counts of all previous rows."""
    counts: UInt32[Array, " num_data"]
    looks: Float[Array, ""]
    """Number of times that the influence of the rows has been evaluated."""

    @property
    def total(self) -> UInt32[Array, ""]:
        """Sum of the counts."""
        return self.starts[-1] + self.counts[-1]

    @property
    def probabilities(self) -> Float[Array, " num_data"]:
        """Probability p_i of each row."""
        return self.counts.astype(float) / self.total.astype(float)

    def minibatch(
        self, posterior: AbstractPosterior, size: int, *, key: PRNGKeyArray
    ) -> tuple[Any, Float[Array, " size"]]:
        """Return the data of `size` rows that `draw` selects, and the weights of the rows."""
        rows, weights = self.draw(size, key=key)
        # Without the barrier XLA would draw the batch again at every use.
        return jax.lax.optimization_barrier((posterior.take(rows), weights))

    def draw(self, size: int, *, key: PRNGKeyArray) -> tuple[Int[Array, " size"], Float[Array, " size"]]:
        """Draw `size` independent rows, with weights 1 / (N p_i).

        N times the weighted mean of a quantity estimates its sum over all N rows.
        """
        place = integers_below(self.total, size, key=key)
        rows = jnp.searchsorted(self.starts, place, side="right") - 1
        scale = self.total.astype(float) / self.counts.shape[0]
        return rows, scale / self.counts[rows].astype(float)


def uniform(num_data: int) -> RowProbabilities:
    """Return equal probabilities for all rows."""
    return _from_probabilities(jnp.full((num_data,), 1 / num_data), jnp.zeros(()))


def update_probabilities(rows: RowProbabilities, square: Float[Array, " num_data"]) -> RowProbabilities:
    """Return the probabilities after another evaluation of the influence of the rows.

    `square` has one value s_i for each row: the mean square of d_i over some proposals. d_i is the change of the row's
    log-likelihood from the current position to a proposal, minus that of its control variate if there is one. An
    evaluation gives p_i = (1 - a) s_i / sum_j s_j + a / N, with a = `_UNIFORM`. The new probabilities are a weighted
    mean over all evaluations. Evaluation k has weight k, because a chain may be far from the posterior at first.

    For a move of eta posterior standard deviations, s_i is about eta^2 h_i, where h_i is the leverage of the row.
    Probabilities proportional to sqrt(h_i) would give the noise of a step its smallest variance. Probabilities
    proportional to h_i give it a smaller skewness, because the skewness depends on the *largest* term d_i / (K p_i).
    """
    total, num_data = jnp.sum(square), square.shape[0]
    fractions = jnp.where(total > 0, square / jnp.maximum(total, jnp.finfo(square.dtype).tiny), 1 / num_data)
    new_probabilities = (1 - _UNIFORM) * fractions + _UNIFORM / num_data
    old_probabilities = rows.probabilities
    return _from_probabilities(
        old_probabilities + (new_probabilities - old_probabilities) * 2 / (rows.looks + 2), rows.looks + 1
    )


@jax.jit
def pool_chains(chain_probabilities: RowProbabilities) -> RowProbabilities:
    """Return the mean over all chains of the probabilities, repeated for every chain.

    All chains use the same data, so their evaluations of the rows can be combined.
    """
    pooled = _from_probabilities(
        jnp.mean(jax.vmap(lambda rows: rows.probabilities)(chain_probabilities), 0), chain_probabilities.looks[0]
    )
    return jax.tree.map(lambda leaf, all_chains: jnp.broadcast_to(leaf, all_chains.shape), pooled, chain_probabilities)


def _from_probabilities(probabilities: Float[Array, " num_data"], looks: Float[Array, ""]) -> RowProbabilities:
    counts = jnp.maximum(probabilities * _TOTAL_COUNT, 1.0).astype(jnp.uint32)
    return RowProbabilities(jnp.cumsum(counts) - counts, counts, looks)
