"""Predictions of each draw, as arrays [draw, row, ...]: samples, means, log scales and log likelihoods.

The predictions are computed in blocks of rows and of draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped, UInt32

from bnnzoo.evaluation.formulas.blocking import round_up_size, row_blocks
from bnnzoo.evaluation.predictions.predictive import centre_of_draw
from bnnzoo.posterior import intervals
from bnnzoo.posterior.predicting import Predicting

_MAX_DRAWS_PER_CALL = 512
"""Largest number of draws per call of a compiled program.

Runs with more draws use exactly this number per call. Otherwise every time-limited run, with its own number of draws,
would compile its own program.
"""


def sample_indices(
    num_draws: int, weights: Float[np.ndarray, " draw"] | None = None, *, min_samples: int = 1
) -> Int[np.ndarray, " sample"]:
    """Return the indices of the draws from which to sample, by systematic resampling at fixed points (Kitagawa 1996).

    The number of copies of an index is proportional to the weight of the draw, up to a difference of one. The number of
    all indices is a multiple of `num_draws` and at least `min_samples`.
    """
    count = num_draws * -(-min_samples // num_draws)
    fractions = np.full(num_draws, 1 / num_draws) if weights is None else weights / weights.sum()
    points = (np.arange(count) + 0.5) / count
    return np.minimum(np.searchsorted(np.cumsum(fractions), points), num_draws - 1)


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

    The random numbers of a sample depend only on the key, the index of the draw and the seed of the row.

    Args:
        posterior: the model.
        draws: the draws theta_s.
        x: inputs in the form that the network takes.
        numbers: seeds of the rows; by default their positions. Rows with equal seeds have the same noise.
        first_draw: index of the first of the `draws` in the run; the indices of the other draws are consecutive.
        arrange: for a density, function that converts rows to inputs of the network. Whole rows are then sampled, and
            `x` determines only their number.
        key: PRNG key.
    """
    row_numbers = np.arange(len(x), dtype=np.uint32) if numbers is None else numbers
    return _by_rows(_sample_draw, posterior, draws, x, row_numbers, first_draw=first_draw, shared=(key, arrange))


def functions(
    posterior: Predicting, draws: Float[np.ndarray, "draw dim"], x: Shaped[np.ndarray, "row ..."]
) -> Float[np.ndarray, "draw row value"]:
    """Return the mean of each target, or the class probabilities, that each draw predicts."""
    return _by_rows(_mean_of_draw, posterior, draws, x)


def log_scales(
    posterior: Predicting, draws: Float[np.ndarray, "draw dim"], x: Shaped[np.ndarray, "row ..."]
) -> Float[np.ndarray, "draw row value"]:
    """Return the log standard deviation that each draw of a regression predicts."""
    return _by_rows(_log_scale_of_draw, posterior, draws, x)


def log_likelihoods(
    posterior: Predicting,
    draws: Float[np.ndarray, "draw dim"],
    x: Shaped[np.ndarray, "row ..."],
    y: Shaped[np.ndarray, "row ..."],
) -> Float[np.ndarray, "draw row"]:
    """Return log p(y_i | x_i, theta_s) of each draw s and row i."""
    return _by_rows(_log_likelihood_of_draw, posterior, draws, x, y)


@eqx.filter_jit
def log_intervals(
    posterior: Predicting,
    draws: Float[Array | np.ndarray, "draw dim"],
    log_weights: Float[Array | np.ndarray, " draw"],
    x: Shaped[Array | np.ndarray, "row ..."],
    low: Float[Array | np.ndarray, "row target"],
    high: Float[Array | np.ndarray, "row target"],
) -> Float[Array, " row"]:
    """Return log sum_s w_s P(low < y < high | x, theta_s) of each row, with the weight w_s of draw s.

    Raises:
        UsageError: if the probabilities of intervals are not implemented for the distribution of the targets.
    """

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
    predict: Callable[..., Array],
    posterior: Predicting,
    draws: Float[np.ndarray, "draw dim"],
    *arrays: Shaped[np.ndarray, "row ..."],
    first_draw: int = 0,
    shared: tuple[Any, ...] = (),
) -> Shaped[np.ndarray, "draw row ..."]:
    """Call a function for all draws and rows, in blocks of draws and rows; return an array [draw, row, ...].

    Args:
        predict: function that is called as `predict(posterior, draw, index of the draw, *rows, *shared)`, where `rows`
            are blocks of the arrays.
        posterior: the model.
        draws: the draws.
        arrays: arrays with one entry per row.
        first_draw: index of the first draw in `draws`.
        shared: further arguments of `predict`.
    """
    length, values_by_block = min(_MAX_DRAWS_PER_CALL, round_up_size(len(draws))), []
    for block, count in row_blocks(len(arrays[0]), int(np.prod(arrays[0].shape[1:]))):
        rows, values = [jnp.asarray(a[block]) for a in arrays], []
        for start in range(0, len(draws), length):
            piece = draws[np.minimum(np.arange(start, start + length), len(draws) - 1)]
            first = np.int32(first_draw + start)
            value = np.asarray(_map_draws(predict, posterior, jnp.asarray(piece), first, *rows, *shared))
            values.append(value[: len(draws) - start, :count])
        values_by_block.append(np.concatenate(values))
    return np.concatenate(values_by_block, 1)


@eqx.filter_jit
def _map_draws(
    predict: Callable[..., Array],
    posterior: Predicting,
    draws: Float[Array, "draw dim"],
    first: Int[Array, ""] | np.int32,
    *arguments: Any,
) -> Shaped[Array, "draw row ..."]:
    def predict_draw(pair: tuple[Array, Array]) -> Array:
        return predict(posterior, *pair, *arguments)

    return jax.lax.map(predict_draw, (draws, first + jnp.arange(len(draws))))


def _mean_of_draw(posterior: Predicting, draw: Float[Array, " dim"], _: Array, x: Any) -> Float[Array, "row value"]:
    return centre_of_draw(posterior.task, *posterior.predictive(draw, x))


def _log_scale_of_draw(
    posterior: Predicting, draw: Float[Array, " dim"], _: Array, x: Any
) -> Float[Array, "row value"]:
    likelihood, outputs = posterior.predictive(draw, x)
    return 0.5 * jnp.log(jax.vmap(lambda output: likelihood.distribution(output).variance)(outputs))


def _log_likelihood_of_draw(
    posterior: Predicting, draw: Float[Array, " dim"], _: Array, x: Any, y: Any
) -> Float[Array, " row"]:
    likelihood, outputs = posterior.predictive(draw, x)
    return jax.vmap(likelihood.log_prob)(outputs, y)


def _sample_draw(
    posterior: Predicting,
    draw: Float[Array, " dim"],
    index: Int[Array, ""],
    x: Shaped[Array, "row ..."],
    numbers: UInt32[Array, " row"],
    key: PRNGKeyArray,
    arrange: Callable[[Any], Any] | None,
) -> Shaped[Array, "row ..."]:
    keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.fold_in(key, index), number))(numbers)

    def sample_targets(inputs: Array) -> Array:
        likelihood, outputs = posterior.predictive(draw, inputs)
        return jax.vmap(lambda output, sample_key: likelihood.sample(output, key=sample_key))(outputs, keys)

    rows = sample_targets(x)
    if arrange is None:
        return rows
    # Each pass uses the same noise. Column d depends only on the columns before it, so it is final after pass d.
    return jax.lax.fori_loop(1, rows.shape[1], lambda _, rows: sample_targets(jnp.asarray(arrange(rows))), rows)
