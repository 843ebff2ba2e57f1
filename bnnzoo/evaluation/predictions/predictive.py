"""Moments of the posterior predictive distribution, accumulated by scans over draws.

No array has draws x rows x outputs elements, so the memory does not grow with the number of draws.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped
from scipy import special

from bnnzoo.evaluation.contents.draws import Draws, draw_slices
from bnnzoo.evaluation.formulas import metrics
from bnnzoo.evaluation.formulas.blocking import round_up_size, row_blocks
from bnnzoo.posterior.predicting import OutputDistribution, Predicting, Task

_BATCHES = 20
"""Approximate number of batches of consecutive draws, whose sums are kept separately for Monte Carlo errors."""


class Moments(NamedTuple):
    """Moments of the predictive distribution of each row, in the units of the network.

    If the draws have weights, all means and variances over draws are weighted.

    Regression:

    - `mean` [row, target]: mean of the target.
    - `aleatoric` [row, target]: variance of the noise, averaged over draws.
    - `epistemic` [row, target]: variance of the mean between draws.

    Classification:

    - `mean` [row, class]: class probabilities.
    - `aleatoric` [row, 1]: entropy of the label given a draw, averaged over draws.
    - `epistemic` [row, 1]: mutual information of label and draw.

    If targets were given, `log_density` [row] is the log of the mean over draws of p(y | x, theta_s).
    """

    mean: Float[np.ndarray, "row value"]
    aleatoric: Float[np.ndarray, "row part"]
    epistemic: Float[np.ndarray, "row part"]
    log_density: Float[np.ndarray, " row"]


class Sums(NamedTuple):
    """Weighted sums over the draws of each batch, from which the moments are computed.

    `centre` is subtracted from the means of the draws before they are summed. `log_density` is the logarithm of the
    weighted sum of densities.
    """

    classify: bool
    centre: Float[np.ndarray, "row value"]
    weight: Float[np.ndarray, " batch"]
    mean: Float[np.ndarray, "batch row value"]
    square: Float[np.ndarray, "batch row value"]
    aleatoric: Float[np.ndarray, "batch row part"]
    log_density: Float[np.ndarray, "batch row"]

    def moments(self, keep: Bool[np.ndarray, " batch"] | None = None) -> Moments:
        """Return the moments over all draws, or only over the draws of the batches that `keep` selects."""
        is_kept = np.ones(len(self.weight), bool) if keep is None else keep
        total = self.weight[is_kept].sum()

        def weighted_mean(sums: np.ndarray) -> np.ndarray:
            return sum((sums[i] for i in np.flatnonzero(is_kept)), np.zeros(sums.shape[1:])) / total

        mean, aleatoric = weighted_mean(self.mean), weighted_mean(self.aleatoric)
        if self.classify:
            epistemic = np.maximum(metrics.entropy(mean)[:, None] - aleatoric, 0.0)
        else:
            epistemic = np.maximum(weighted_mean(self.square) - mean**2, 0.0)
        log_density = special.logsumexp(self.log_density[is_kept].astype(np.float64), 0) - np.log(total)
        return Moments(mean + self.centre, aleatoric, epistemic, log_density)


def batches(num_chains: int, num_draws: int) -> list[slice]:
    """Split the draws into about twenty batches of consecutive draws of one chain, at least one batch per chain."""
    pieces = min(num_draws, max(1, round(_BATCHES / num_chains)))
    edges = np.linspace(0, num_draws, pieces + 1).round().astype(int)
    return [
        slice(chain * num_draws + int(a), chain * num_draws + int(b))
        for chain in range(num_chains)
        for a, b in itertools.pairwise(edges)
    ]


def sums(
    posterior: Predicting,
    draws: Draws | Float[np.ndarray, "draw dim"],
    x: Shaped[np.ndarray, "row ..."],
    y: Shaped[np.ndarray, "row ..."] | None = None,
    *,
    weights: Float[np.ndarray, " draw"] | None = None,
    parts: list[slice] | None = None,
    keep_parts: bool = True,
) -> Sums:
    """Compute the sums over draws from which the moments of the rows `x` follow.

    Args:
        posterior: the model.
        draws: the draws of all chains.
        x: inputs in the form that the network takes.
        y: targets in the units of the network; without them, `log_density` has no meaning.
        weights: weights of the draws, which need not sum to 1; equal by default.
        parts: batches of draws; by default about twenty.
        keep_parts: whether to return the sums of each batch, for Monte Carlo errors. Otherwise the sums of all batches
            are added in float64.
    """
    parts = batches(1, len(draws)) if parts is None else parts
    weights = np.ones(len(draws)) if weights is None else weights
    length = round_up_size(max(part.stop - part.start for part in parts))
    blocks = list(row_blocks(len(x), int(np.prod(x.shape[1:]))))
    inputs = [jnp.asarray(x[block]) for block, _ in blocks]
    targets = [None if y is None else jnp.asarray(y[block]) for block, _ in blocks]
    # The centre is the prediction of the draw with the largest weight. A draw of weight zero may have extreme
    # predictions; after subtraction of such a centre, float32 would lose the digits of the other draws.
    heaviest = int(np.argmax(weights))
    centre_draw = jnp.asarray(draws[heaviest : heaviest + 1][0])
    centres = [_centre_of(posterior, centre_draw, rows) for rows in inputs]

    def sum_piece(piece: Int[np.ndarray, " piece"], weight: Float[np.ndarray, " piece"]) -> list[np.ndarray]:
        """Return the sums over one piece of the draws, for all rows; each draw is read once."""
        thetas, piece_weights = jnp.asarray(draws[piece]), jnp.asarray(weight)
        sums_by_block = []
        for rows, target, centre, (_, count) in zip(inputs, targets, centres, blocks, strict=True):
            sums_of_rows = _accumulate(posterior, thetas, piece_weights, rows, target, centre)
            sums_by_block.append([np.asarray(value)[:count] for value in sums_of_rows])
        return [np.concatenate(values) for values in zip(*sums_by_block, strict=True)]

    pieces = draw_slices(draws, length)
    padded = np.arange(len(pieces) * pieces[0].stop)

    def sum_part(part: slice) -> list[np.ndarray]:
        """Return the sums over one batch of draws."""
        # All batches are padded to one length with a draw of weight 0, so that they use the same compiled program.
        index = np.minimum(part.start + padded, part.stop - 1)
        weight = np.where(padded < part.stop - part.start, weights[index], 0)
        index_and_weight = zip(np.split(index, len(pieces)), np.split(weight, len(pieces)), strict=True)
        return functools.reduce(_add, (sum_piece(*piece) for piece in index_and_weight))

    part_sums = map(sum_part, parts)
    if keep_parts:
        totals = [np.stack(values) for values in zip(*part_sums, strict=True)]
    else:
        wide_sums = ([values.astype(np.float64) for values in one_part] for one_part in part_sums)
        totals = [values[None] for values in functools.reduce(_add, wide_sums)]
    centre = np.concatenate(
        [np.asarray(block_centre)[:count] for block_centre, (_, count) in zip(centres, blocks, strict=True)]
    )
    classify = posterior.task == "classification"
    draw_weights = np.array([weights[part].sum() for part in parts])
    return Sums(classify, centre, draw_weights if keep_parts else draw_weights.sum(keepdims=True), *totals)


def join_rows(shards: Sequence[Sums]) -> Sums:
    """Return the sums of all rows, given the sums of shards of the rows."""
    first = shards[0]
    if len(shards) == 1:
        return first
    by_row = {"mean": 1, "square": 1, "aleatoric": 1, "log_density": 1, "centre": 0}
    joined = {name: np.concatenate([getattr(shard, name) for shard in shards], axis) for name, axis in by_row.items()}
    return first._replace(**joined)


def _add(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Add the sums over two sets of draws; the fourth entry of each set is the logarithm of a sum."""
    joins = (np.add, np.add, np.add, np.logaddexp)
    return [join(*values) for join, *values in zip(joins, first, second, strict=True)]


def centre_of_draw(
    task: Task, likelihood: OutputDistribution, outputs: Float[Array, "row output"]
) -> Float[Array, "row value"]:
    """Return, for each row, the mean or the class probabilities of the distribution that one draw predicts."""
    if task == "classification":
        return jax.vmap(likelihood.class_probabilities)(outputs)
    return jax.vmap(lambda output: likelihood.distribution(output).mean)(outputs)


@eqx.filter_jit
def _centre_of(
    posterior: Predicting, draw: Float[Array, " dim"], x: Shaped[Array, "row ..."]
) -> Float[Array, "row value"]:
    """Return the values that are subtracted from the means of each row: the means of one draw, or 0 for classes.

    Without the subtraction, float32 would lose the variance between draws.
    """
    mean = centre_of_draw(posterior.task, *posterior.predictive(draw, x))
    return jnp.zeros_like(mean) if posterior.task == "classification" else mean


@eqx.filter_jit
def _accumulate(
    posterior: Predicting,
    draws: Float[Array, "draw dim"],
    weights: Float[Array, " draw"],
    x: Shaped[Array, "row ..."],
    y: Shaped[Array, "row ..."] | None,
    centre: Float[Array, "row value"],
) -> tuple[Array, ...]:
    """Sum the mean, the squared mean, the aleatoric part and the density over draws; see `Sums`.

    The scan takes one draw per step, because a convolution whose kernels differ within a batch is slow on most devices.
    """
    classify = posterior.task == "classification"

    def draw_terms(draw: Float[Array, " dim"]) -> tuple[Array, Array, Array, Array]:
        likelihood, outputs = posterior.predictive(draw, x)
        mean = centre_of_draw(posterior.task, likelihood, outputs)
        if classify:
            log_mean = jnp.log(jnp.maximum(mean, jnp.finfo(mean.dtype).tiny))
            aleatoric, square = -jnp.sum(mean * log_mean, 1, keepdims=True), mean[:, :0]
        else:
            aleatoric = jax.vmap(lambda output: likelihood.distribution(output).variance)(outputs)
            square = (mean - centre) ** 2
        log_density = jnp.zeros(len(x), mean.dtype) if y is None else jax.vmap(likelihood.log_prob)(outputs, y)
        return mean - centre, square, aleatoric, log_density

    def add(sums: tuple[Array, ...], draw: tuple[Array, Array]) -> tuple[tuple[Array, ...], None]:
        weight = draw[1]
        *values, log_density = draw_terms(draw[0])
        log_density = jnp.logaddexp(sums[3], log_density + jnp.log(weight))
        # A draw of weight 0 adds nothing, even if its value is infinite.
        weighted_values = (jnp.where(weight > 0, weight * value, 0) for value in values)
        return (*(total + added for total, added in zip(sums[:3], weighted_values, strict=True)), log_density), None

    shapes = jax.eval_shape(draw_terms, draws[0])
    zero = [jnp.zeros(shape.shape, jnp.result_type(shape.dtype, weights.dtype)) for shape in shapes]
    start = (*zero[:3], jnp.full_like(zero[3], -jnp.inf))
    return jax.lax.scan(add, start, (draws, weights))[0]
