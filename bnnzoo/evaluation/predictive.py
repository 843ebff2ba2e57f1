"""Posterior predictive distribution, accumulated by scans over draws.

No array holds draws x rows x outputs, except the samples for quantiles, which are computed in blocks of rows.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped, UInt32
from scipy import special

from bnnzoo.evaluation import metrics
from bnnzoo.evaluation.draws import Draws, draw_slices
from bnnzoo.posterior import intervals
from bnnzoo.posterior.predicting import OutputDistribution, Predicting, Task

_SAMPLE_ELEMENTS = _INPUT_ELEMENTS = 2**22
_MAX_DRAWS_PER_CALL = 512
"""Draws per compiled program, whatever the number of draws: time-limited runs would otherwise compile one each."""
_BATCHES = 20
"""Number of batches of consecutive draws whose sums are kept separately, for Monte Carlo errors."""


class Moments(NamedTuple):
    """Moments of the predictive distribution of each row, in the units of the network.

    Regression: `mean` [row, target] of y, `aleatoric` and `epistemic` variances [row, target]. Classification: `mean`
    [row, class] the class probabilities, `aleatoric` [row, 1] the expected entropy of a draw, `epistemic` [row, 1] the
    mutual information of label and draw. `log_density` [row] is log mean_s p(y | x, theta_s), if targets were given.
    """

    mean: Float[np.ndarray, "row value"]
    aleatoric: Float[np.ndarray, "row part"]
    epistemic: Float[np.ndarray, "row part"]
    log_density: Float[np.ndarray, " row"]


class Sums(NamedTuple):
    """Weighted sums over draws, one per batch, from which the moments follow; sums of y are centred at `centre`."""

    classify: bool
    centre: Float[np.ndarray, "row value"]
    weight: Float[np.ndarray, " batch"]
    mean: Float[np.ndarray, "batch row value"]
    square: Float[np.ndarray, "batch row value"]
    aleatoric: Float[np.ndarray, "batch row part"]
    log_density: Float[np.ndarray, "batch row"]

    def moments(self, keep: Bool[np.ndarray, " batch"] | None = None) -> Moments:
        """Return the moments over all draws, or over the draws of the batches in `keep`."""
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
    """Split the draws into about twenty batches of consecutive draws within chains of `num_draws` draws each."""
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
    """Sum up the quantities from which the moments of the rows `x` follow.

    Args:
        posterior: the model.
        draws: the draws of all chains.
        x: inputs in the form that the network takes.
        y: targets in the units of the network; without them `log_density` has no meaning.
        weights: weights of the draws, with any sum; equal by default.
        parts: batches of draws; about twenty by default.
        apart: keep the batches separate, for Monte Carlo errors; otherwise add them up in float64.
    """
    parts = batches(1, len(draws)) if parts is None else parts
    weights = np.ones(len(draws)) if weights is None else weights
    length = _round_up_size(max(part.stop - part.start for part in parts))
    blocks = list(_row_blocks(len(x), int(np.prod(x.shape[1:]))))
    inputs = [jnp.asarray(x[block]) for block, _ in blocks]
    targets = [None if y is None else jnp.asarray(y[block]) for block, _ in blocks]
    # The centre is the heaviest draw. A draw of weight zero may predict anything, and float32 would lose the others
    # beside it.
    heaviest = int(np.argmax(weights))
    centre_draw = jnp.asarray(draws[heaviest : heaviest + 1][0])
    centres = [_centre_of(posterior, centre_draw, rows) for rows in inputs]

    def sum_piece(piece: Int[np.ndarray, " piece"], weight: Float[np.ndarray, " piece"]) -> list[np.ndarray]:
        """Return the sums over some draws for all rows; each draw is read once."""
        thetas, shares = jnp.asarray(draws[piece]), jnp.asarray(weight)
        found = []
        for rows, target, centre, (_, count) in zip(inputs, targets, centres, blocks, strict=True):
            sums_of_rows = _accumulate(posterior, thetas, shares, rows, target, centre)
            found.append([np.asarray(value)[:count] for value in sums_of_rows])
        return [np.concatenate(values) for values in zip(*found, strict=True)]

    pieces = draw_slices(draws, length)
    join_rules, totals = (np.add, np.add, np.add, np.logaddexp), []
    for number, part in enumerate(parts):
        # Shorter batches, and the last piece of each, are padded with a draw of weight 0, so one program serves all.
        padded = np.arange(len(pieces) * pieces[0].stop)
        index = np.minimum(part.start + padded, part.stop - 1)
        weight = np.where(padded < part.stop - part.start, weights[index], 0)
        index_and_weight = zip(np.split(index, len(pieces)), np.split(weight, len(pieces)), strict=True)
        piece_sums = zip(
            *(sum_piece(draw_index, draw_weight) for draw_index, draw_weight in index_and_weight), strict=True
        )
        block_sums = [functools.reduce(join, part_sums) for join, part_sums in zip(join_rules, piece_sums, strict=True)]
        if number == 0:
            num_sums = len(parts) if keep_parts else 1
            totals = [
                np.empty((num_sums, *part_sums.shape), part_sums.dtype if keep_parts else np.float64)
                for part_sums in block_sums
            ]
        for join, total, part_sums in zip(join_rules, totals, block_sums, strict=True):
            total[number if keep_parts else 0] = part_sums if keep_parts or number == 0 else join(total[0], part_sums)
    centre = np.concatenate(
        [np.asarray(block_centre)[:count] for block_centre, (_, count) in zip(centres, blocks, strict=True)]
    )
    classify = posterior.task == "classification"
    draw_weights = np.array([weights[part].sum() for part in parts])
    return Sums(classify, centre, draw_weights if keep_parts else draw_weights.sum(keepdims=True), *totals)


def moments(
    posterior: Predicting,
    draws: Float[np.ndarray, "draw dim"],
    x: Shaped[np.ndarray, "row ..."],
    y: Shaped[np.ndarray, "row ..."] | None = None,
    *,
    weights: Float[np.ndarray, " draw"] | None = None,
) -> Moments:
    """Return the predictive moments of the rows `x`, and the log predictive density of `y` if given."""
    return sums(posterior, draws, x, y, weights=weights, keep_parts=False).moments()


def sample_indices(
    num_draws: int, weights: Float[np.ndarray, " draw"] | None = None, *, min_samples: int = 1
) -> Int[np.ndarray, " sample"]:
    """Return the indices of draws to sample from, each repeated in proportion to its weight, up to one copy.

    The number of indices is a multiple of `num_draws` and at least `min_samples`. This is systematic resampling
    (Kitagawa 1996) at fixed points.
    """
    count = num_draws * -(-min_samples // num_draws)
    fractions = np.full(num_draws, 1 / num_draws) if weights is None else weights / weights.sum()
    points = (np.arange(count) + 0.5) / count
    return np.minimum(np.searchsorted(np.cumsum(fractions), points), num_draws - 1)


def blocks(count: int, numbers_per_element: int) -> Iterator[slice]:
    """Yield blocks of rows, or draws, such that a block with `numbers_per_element` numbers per element stays small."""
    length = max(1, _SAMPLE_ELEMENTS // max(1, numbers_per_element))
    for start in range(0, count, length):
        yield slice(start, min(count, start + length))


def _row_blocks(num_rows: int, row_size: int) -> Iterator[tuple[Int[np.ndarray, " block"], int]]:
    """Yield equal blocks of rows with small inputs and their number of real rows; the last row pads the last block."""
    pieces = -(-num_rows // max(1, _INPUT_ELEMENTS // max(1, row_size)))
    length = -(-num_rows // max(1, pieces))
    for start in range(0, num_rows, max(1, length)):
        yield np.minimum(np.arange(start, start + length), num_rows - 1), min(length, num_rows - start)


def samples(
    posterior: Predicting,
    draws: Float[np.ndarray, "draw dim"],
    x: Shaped[np.ndarray, "row ..."],
    *,
    numbers: UInt32[np.ndarray, " row"] | None = None,
    first_draw: int = 0,
    arrange: Callable[[Any], Any] | None = None,
    key: PRNGKeyArray,
) -> Shaped[np.ndarray, "draw row ..."]:
    """Sample one target per draw and row from p(y | x, theta_s).

    A sample depends only on the index of its draw, counted from `first_draw`, and on the number of its row.

    Args:
        posterior: the model.
        draws: the draws.
        x: inputs in the form that the network takes.
        numbers: seeds of the rows, by default their positions; rows with equal numbers have the same noise.
        first_draw: index of the first of the draws.
        arrange: for a density, converts a row to the network's input; whole rows are then sampled, whatever `x` holds.
        key: PRNG key.
    """
    noise, first_index = np.arange(len(x), dtype=np.uint32) if numbers is None else numbers, np.int32(first_draw)
    return _by_rows(
        lambda draw_block, draw_offset, rows, row_numbers: _samples(
            posterior, draw_block, first_index + draw_offset, rows, row_numbers, arrange, key
        ),
        draws,
        x,
        noise,
    )


def functions(
    posterior: Predicting, draws: Float[np.ndarray, "draw dim"], x: Shaped[np.ndarray, "row ..."]
) -> Float[np.ndarray, "draw row value"]:
    """Return the mean or the class probabilities that each draw predicts; their convergence is tested."""
    return _by_rows(lambda d, _, rows: _functions(posterior, d, rows), draws, x)


def log_scales(
    posterior: Predicting, draws: Float[np.ndarray, "draw dim"], x: Shaped[np.ndarray, "row ..."]
) -> Float[np.ndarray, "draw row value"]:
    """Return the log standard deviation that each draw of a regression predicts."""
    return _by_rows(lambda d, _, rows: _log_scales(posterior, d, rows), draws, x)


def log_likelihoods(
    posterior: Predicting,
    draws: Float[np.ndarray, "draw dim"],
    x: Shaped[np.ndarray, "row ..."],
    y: Shaped[np.ndarray, "row ..."],
) -> Float[np.ndarray, "draw row"]:
    """Return log p(y_i | x_i, theta_s), for ArviZ's group `log_likelihood`."""
    return _by_rows(lambda d, _, *rows: _log_likelihoods(posterior, d, *rows), draws, x, y)


@eqx.filter_jit
def log_intervals(
    posterior: Predicting,
    draws: Float[Array | np.ndarray, "draw dim"],
    log_weights: Float[Array | np.ndarray, " draw"],
    x: Shaped[Array | np.ndarray, "row ..."],
    low: Float[Array | np.ndarray, "row target"],
    high: Float[Array | np.ndarray, "row target"],
) -> Float[Array, " row"]:
    """Return log sum_s w_s P(low < y < high | x, theta_s) of each row."""

    def add(total: Float[Array, " row"], draw: tuple[Array, Array]) -> tuple[Float[Array, " row"], None]:
        likelihood, outputs = posterior.predictive(draw[0], jnp.asarray(x))

        def log_probability(output: Array, low: Array, high: Array) -> Array:
            return intervals.log_likelihood(likelihood.distribution(output), low, high)

        return jnp.logaddexp(
            total, jax.vmap(log_probability)(outputs, jnp.asarray(low), jnp.asarray(high)) + draw[1]
        ), None

    weights = jnp.asarray(log_weights, jnp.result_type(draws))
    return jax.lax.scan(add, jnp.full(len(x), -jnp.inf, weights.dtype), (jnp.asarray(draws), weights))[0]


def _by_rows(
    function: Callable[..., Array], draws: Float[np.ndarray, "draw dim"], *arrays: Shaped[np.ndarray, "row ..."]
) -> Shaped[np.ndarray, "draw row ..."]:
    """Return `function(draws, index of the first, *rows)` [draw, row, ...], computed in blocks of rows and of draws."""
    length, row_blocks = min(_MAX_DRAWS_PER_CALL, _round_up_size(len(draws))), []
    for block, count in _row_blocks(len(arrays[0]), int(np.prod(arrays[0].shape[1:]))):
        rows, values = [jnp.asarray(a[block]) for a in arrays], []
        for start in range(0, len(draws), length):
            piece = draws[np.minimum(np.arange(start, start + length), len(draws) - 1)]
            value = np.asarray(function(jnp.asarray(piece), np.int32(start), *rows))
            values.append(value[: len(draws) - start, :count])
        row_blocks.append(np.concatenate(values))
    return np.concatenate(row_blocks, 1)


def _round_up_size(count: int) -> int:
    """Round up to three significant binary digits, by at most a quarter, to limit the number of compiled programs."""
    step = 1 << max(0, count.bit_length() - 3)
    return -(-count // step) * step


def _centre(
    task: Task, likelihood: OutputDistribution, outputs: Float[Array, "row output"]
) -> Float[Array, "row value"]:
    """Return the mean, or the class probabilities, of one draw's distribution of each row."""
    if task == "classification":
        return jax.vmap(likelihood.class_probabilities)(outputs)
    return jax.vmap(lambda output: likelihood.distribution(output).mean)(outputs)


@eqx.filter_jit
def _centre_of(
    posterior: Predicting, draw: Float[Array, " dim"], x: Shaped[Array, "row ..."]
) -> Float[Array, "row value"]:
    """Return the centre of the sums: one draw's mean, so that float32 keeps the variance between draws."""
    mean = _centre(posterior.task, *posterior.predictive(draw, x))
    return jnp.zeros_like(mean) if posterior.task == "classification" else mean


@eqx.filter_jit
def _functions(
    posterior: Predicting, draws: Float[Array, "draw dim"], x: Shaped[Array, "row ..."]
) -> Float[Array, "draw row value"]:
    return jax.lax.map(lambda draw: _centre(posterior.task, *posterior.predictive(draw, x)), draws)


@eqx.filter_jit
def _log_scales(
    posterior: Predicting, draws: Float[Array, "draw dim"], x: Shaped[Array, "row ..."]
) -> Float[Array, "draw row value"]:
    def draw_log_scales(draw: Float[Array, " dim"]) -> Float[Array, "row value"]:
        likelihood, outputs = posterior.predictive(draw, x)
        return 0.5 * jnp.log(jax.vmap(lambda output: likelihood.distribution(output).variance)(outputs))

    return jax.lax.map(draw_log_scales, draws)


@eqx.filter_jit
def _accumulate(
    posterior: Predicting,
    draws: Float[Array, "draw dim"],
    weights: Float[Array, " draw"],
    x: Shaped[Array, "row ..."],
    y: Shaped[Array, "row ..."] | None,
    centre: Float[Array, "row value"],
) -> tuple[Array, ...]:
    """Sum up the mean, its square, the aleatoric part and the log density over draws, see `Sums`.

    The scan takes one draw per step, because a convolution whose kernels differ within a batch is slow on most devices.
    """
    classify = posterior.task == "classification"

    def draw_terms(draw: Float[Array, " dim"]) -> tuple[Array, Array, Array, Array]:
        likelihood, outputs = posterior.predictive(draw, x)
        mean = _centre(posterior.task, likelihood, outputs)
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
        # A draw without weight adds nothing, even if its value is infinite.
        weighted_values = (jnp.where(weight > 0, weight * value, 0) for value in values)
        return (*(total + added for total, added in zip(sums[:3], weighted_values, strict=True)), log_density), None

    shapes = jax.eval_shape(draw_terms, draws[0])
    zero = [jnp.zeros(shape.shape, jnp.result_type(shape.dtype, weights.dtype)) for shape in shapes]
    start = (*zero[:3], jnp.full_like(zero[3], -jnp.inf))
    return jax.lax.scan(add, start, (draws, weights))[0]


@eqx.filter_jit
def _samples(
    posterior: Predicting,
    draws: Float[Array, "draw dim"],
    first: Int[Array, ""] | np.int32,
    x: Shaped[Array, "row ..."],
    numbers: UInt32[Array, " row"],
    arrange: Callable[[Any], Any] | None,
    key: PRNGKeyArray,
) -> Shaped[Array, "draw row ..."]:
    def sample_draw(pair: tuple[Array, Array]) -> Array:
        draw, index = pair
        keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.fold_in(key, index), number))(numbers)

        def sample_targets(inputs: Array) -> Array:
            likelihood, outputs = posterior.predictive(draw, inputs)
            return jax.vmap(lambda output, sample_key: likelihood.sample(output, key=sample_key))(outputs, keys)

        rows = sample_targets(x)
        if arrange is None:
            return rows
        inputs_of = arrange
        # Each pass has the same noise. Column d depends on the columns before it, so it is final after d passes.
        return jax.lax.fori_loop(1, rows.shape[1], lambda _, rows: sample_targets(jnp.asarray(inputs_of(rows))), rows)

    return jax.lax.map(sample_draw, (draws, first + jnp.arange(len(draws))))


@eqx.filter_jit
def _log_likelihoods(
    posterior: Predicting, draws: Float[Array, "draw dim"], x: Any, y: Any
) -> Float[Array, "draw row"]:
    def draw_log_likelihoods(draw: Float[Array, " dim"]) -> Array:
        likelihood, outputs = posterior.predictive(draw, x)
        return jax.vmap(likelihood.log_prob)(outputs, y)

    return jax.lax.map(draw_log_likelihoods, draws)
