"""Predictive mixture over all draws: density, distribution function and quantiles for some rows.

The density and the distribution function are exact sums over the draws. The network is evaluated once per draw and row,
in the precision of the run and in blocks of rows. All further computations use the stored outputs of all draws at once.
The further computations use float64, because special functions of counts and of tails need this accuracy. For a NumPyro
model, they use the precision of the run, because the code of the model may set types itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from bnnzoo.evaluation.contents.draws import draw_slices
from bnnzoo.evaluation.formulas import blocking
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.posterior import NetworkPosterior, backend, marginals
from bnnzoo.posterior.predicting import OutputDistribution, Predicting
from bnnzoo.progress import Observer, Progress

ELEMENTS = 2**21
"""Largest size of an array in one compiled program: draws x points x rows x targets."""
_RELATIVE_ERROR = 1e-6
"""Largest error of a quantile, in predictive standard deviations; float32 outputs are not more accurate."""
_MAX_STEPS = 200
"""Largest number of steps of a search for a quantile."""
_NUM_DOUBLINGS = 50
"""Number of steps that double the bracket of a quantile; later steps multiply it by 256."""


class DrawMixture(eqx.Module):
    """Distributions of the targets of some rows under each draw, and weights of the draws."""

    arrays: Any
    """Arrays inside the likelihoods of the draws, with the draws along the first axis."""
    rest: Any
    """Parts of the likelihood that are not arrays, and are therefore equal for all draws."""
    outputs: Shaped[Array | np.ndarray, "draw row ..."]
    log_weights: Float[Array | np.ndarray, " draw"]
    """Logarithms of the normalised weights."""

    def likelihood(self, arrays: Any) -> OutputDistribution:
        """Return the likelihood of one draw; `arrays` is the entry of the draw in `self.arrays`."""
        return eqx.combine(arrays, self.rest)


@eqx.filter_jit
def _likelihoods_and_outputs(
    posterior: Predicting, draws: Float[Array, "draw dim"], x: Shaped[Array, "row ..."]
) -> tuple[Any, Any, Shaped[Array, "draw row ..."]]:
    """Return the arrays inside the likelihoods of the draws, the rest of the likelihood, and the outputs.

    The function evaluates one draw at a time, because a convolution whose kernels differ within a batch is slow.
    """

    def is_array(leaf: Any) -> bool:
        return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)

    def evaluate(draw: Float[Array, " dim"]) -> tuple[Any, Array]:
        likelihood, outputs = posterior.predictive(draw, x)
        return eqx.filter(likelihood, is_array), outputs

    likelihood, _ = eqx.filter_eval_shape(posterior.predictive, draws[0], x)
    arrays, outputs = jax.lax.map(evaluate, draws)
    return arrays, eqx.filter(likelihood, is_array, inverse=True), outputs


@eqx.filter_jit
def log_densities(
    mixture: DrawMixture, y: Shaped[Array | np.ndarray, "point row *target"]
) -> Float[Array, "draw point row"]:
    """Return log p(y | x, theta_s) of each draw s in the units of the network; -inf if y is impossible."""

    def log_prob(likelihood: OutputDistribution, output: Array, value: Array) -> Array:
        if not value.ndim:  # a class label
            return likelihood.log_prob(output, value)
        possible = marginals.in_support(likelihood.distribution(output), value)
        log_prob = likelihood.log_prob(output, jnp.where(possible, value, 1.0))
        return jnp.where(possible.all(), log_prob, -jnp.inf)

    return _by_draw(mixture, log_prob, y)


def _by_draw(
    mixture: DrawMixture,
    function: Callable[[OutputDistribution, Array, Array], Array],
    y: Shaped[Array | np.ndarray, "point row *target"],
) -> Shaped[Array, "draw point row ..."]:
    """Return `function(likelihood, output, value)` for each draw, point and row."""
    values = jnp.asarray(y)

    def of_draw(arrays: Any, outputs: Array) -> Array:
        likelihood = mixture.likelihood(arrays)
        of_rows = jax.vmap(lambda output, value: function(likelihood, output, value))
        return jax.vmap(lambda point: of_rows(outputs, point))(values)

    return jax.vmap(of_draw)(mixture.arrays, jnp.asarray(mixture.outputs))


@eqx.filter_jit
def log_density(mixture: DrawMixture, y: Shaped[Array | np.ndarray, "point row *target"]) -> Float[Array, "point row"]:
    """Return log sum_s w_s p(y | x, theta_s), the joint log density of the targets of a row under the mixture.

    The sum is over draws s with weights w_s.
    """
    terms = log_densities(mixture, y) + jnp.asarray(mixture.log_weights)[:, None, None]
    return jax.nn.logsumexp(terms, 0)


@eqx.filter_jit
def cdf(mixture: DrawMixture, y: Float[Array | np.ndarray, "point row target"]) -> Float[Array, "point row target"]:
    """Return the distribution function sum_s w_s P(Y_t <= y_t | x, theta_s) of each target t under the mixture.

    The sum is over draws s with weights w_s.

    Raises:
        NotImplementedError: if the distribution of a target has no distribution function.
    """
    by_draw = _by_draw(
        mixture, lambda likelihood, output, value: marginals.marginal_cdf(likelihood.distribution(output), value), y
    )
    return jnp.tensordot(jnp.exp(jnp.asarray(mixture.log_weights)), by_draw, 1)


@eqx.filter_jit
def quantiles(
    mixture: DrawMixture,
    levels: Float[Array | np.ndarray, " level"],
    centre: Float[Array | np.ndarray, "row target"],
    sd: Float[Array | np.ndarray, "row target"],
) -> Float[Array, "level row target"]:
    """Return quantiles of each target t: the smallest y with P(Y_t <= y) >= level.

    The search brackets the root of P(Y_t <= y) - level and then uses the ITP method (Oliveira and Takahashi 2020). This
    method takes at most one step more than bisection, and about ten steps for a smooth function. If the targets are
    whole numbers, bisection is used, and the result is exact.

    Args:
        mixture: the distributions of the rows.
        levels: probabilities between 0 and 1, exclusive. A level closer to 1 than four rounding errors is reduced to
            this distance, because the distribution function has no higher resolution.
        centre: predictive means, where the search starts.
        sd: predictive standard deviations, the unit of the first bracket and of the error.

    Raises:
        NotImplementedError: if the distribution of a target has no distribution function.
    """
    outputs = jnp.asarray(mixture.outputs)
    likelihood = mixture.likelihood(jax.tree.map(lambda array: array[0], mixture.arrays))
    discrete = marginals.is_discrete(likelihood.distribution(outputs[0, 0]))
    levels = jnp.asarray(levels)
    dtype, precision = levels.dtype, jnp.finfo(levels.dtype)
    # The cdf cannot reach a level that rounding hides: the sum of the weights is not exactly 1, and denormal numbers
    # are 0 on some devices.
    limit = cdf(mixture, jnp.full((len(levels), *jnp.shape(centre)), jnp.inf, dtype))
    probability = jnp.clip(levels, 2 * precision.tiny, 1 - 4 * precision.eps)[:, None, None] * limit
    middle, unit = jnp.asarray(centre, dtype), jnp.maximum(jnp.asarray(sd, dtype), jnp.finfo(dtype).tiny)
    round_down = jnp.floor if discrete else (lambda value: value)

    def excess(y: Array) -> Array:
        return cdf(mixture, y) - probability

    def point_at(distance: Array, direction: int) -> Array:
        return round_down(middle + direction * distance * unit) + (direction if discrete else 0)

    start = jnp.full(probability.shape, 4.0, dtype)
    (low, below), (high, above) = (_bracket(excess, point_at, start, direction) for direction in (-1, 1))
    tolerance = jnp.ones_like(unit) if discrete else jnp.maximum(_RELATIVE_ERROR * unit, _spacing(low, high))
    slack = 0.2 / (high - low)
    max_halvings = jnp.ceil(jnp.log2((high - low) / tolerance)) + 1

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        low, high, below, above, count = state
        half, width = (low + high) / 2, high - low
        if discrete:
            point = jnp.floor(half)
        else:
            radius = jnp.maximum(tolerance / 2 * 2 ** (max_halvings - count) - width / 2, 0.0)
            point = _itp_point(low, high, below, above, slack, radius)
        value = excess(point)
        is_active, is_below = width > tolerance, value < 0
        low, below = (jnp.where(is_active & is_below, new, old) for new, old in ((point, low), (value, below)))
        high, above = (jnp.where(is_active & ~is_below, new, old) for new, old in ((point, high), (value, above)))
        return low, high, below, above, count + 1

    low, high, *_ = jax.lax.while_loop(
        lambda state: jnp.any(state[1] - state[0] > tolerance) & (state[4] < _MAX_STEPS),
        step,
        (low, high, below, above, jnp.zeros((), int)),
    )
    return high if discrete else (low + high) / 2


def _bracket(
    excess: Callable[[Array], Array], point_at: Callable[[Array, int], Array], start: Array, direction: int
) -> tuple[Array, Array]:
    """Return a point on one side of each root, and the value of `excess` at this point.

    The distance of the point from the centre is doubled until the point is beyond the root. After 50 doublings it grows
    faster: the quantiles of heavy tails may be anywhere in the range of the floating-point numbers.

    Args:
        excess: increasing function of y whose root is sought.
        point_at: function that returns the point at a distance from the centre in a direction.
        start: first distance.
        direction: -1 for a point below the root, 1 for a point above the root.
    """

    def is_before_root(state: tuple[Array, Array, Array]) -> Bool[Array, "..."]:
        _, value, _ = state
        return value >= 0 if direction < 0 else value < 0

    def widen(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        distance, _, count = state
        factor = jnp.where(count < _NUM_DOUBLINGS, 2.0, 256.0)
        wider = jnp.where(is_before_root(state), factor * distance, distance)
        return wider, excess(point_at(wider, direction)), count + 1

    distance, value, _ = jax.lax.while_loop(
        lambda state: jnp.any(is_before_root(state)) & (state[2] < _MAX_STEPS),
        widen,
        (start, excess(point_at(start, direction)), jnp.zeros((), int)),
    )
    return point_at(distance, direction), value


def _itp_point(low: Array, high: Array, below: Array, above: Array, slack: Array, radius: Array) -> Array:
    """Return the next point of the ITP method: the secant point, moved twice towards the middle of the bracket."""
    half, width = (low + high) / 2, high - low
    secant = low - below * width / jnp.where(above == below, 1.0, above - below)
    direction = jnp.sign(half - secant)
    truncation = slack * width**2
    truncated = jnp.where(truncation <= jnp.abs(half - secant), secant + direction * truncation, half)
    return jnp.where(jnp.abs(truncated - half) <= radius, truncated, half - direction * radius)


def _spacing(low: Float[Array, "..."], high: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the smallest reliable bracket width: at least four times the distance of neighbouring floats."""
    return 4 * jnp.finfo(low.dtype).eps * jnp.maximum(jnp.abs(low), jnp.abs(high))


def map_rows(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    values_per_row: int,
    compute: Callable[[Int[np.ndarray, " block"], DrawMixture], Any],
    *,
    observer: Observer | None = None,
) -> Shaped[np.ndarray, "value row ..."]:
    """Apply a function to the predictive mixture of all rows, in blocks of rows.

    The results of the blocks are joined along the second axis. Without rows, the result is empty.

    Args:
        predictor: the predictor of a run.
        x: inputs as `new_rows.inputs_of` returns them.
        values_per_row: number of values that `compute` computes at a time for each draw and row.
        compute: function of the indices of the rows in a block, and their mixture. The function returns an array
            [value, row, ...]. All blocks have the same length: the last block is filled up with copies of the last row,
            whose results are dropped.
        observer: function that is called with the progress.
    """
    precision = "float64" if isinstance(predictor.posterior, NetworkPosterior) else predictor.precision
    parts = [np.empty((0, 0))]
    with backend.arithmetic_within_run(precision):
        for rows, count, draws in _mixtures(predictor, x, values_per_row, precision):
            parts.append(np.asarray(compute(rows, draws))[:, :count])
            if observer is not None:
                observer(Progress("evaluating", int(rows[0]) + count, len(x)))
    return np.concatenate(parts[1:], 1) if len(parts) > 1 else parts[0]


def _mixtures(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], values_per_row: int, precision: Any
) -> Iterator[tuple[Int[np.ndarray, " block"], int, DrawMixture]]:
    """Yield the indices of the rows in each block, the number of real rows, and the mixture; see `map_rows`."""
    inputs, thetas, weights = predictor.inputs(x), predictor.thetas, predictor.record.weights
    count = len(thetas)
    draw_weights = np.full(count, 1 / count) if weights is None else weights
    with np.errstate(divide="ignore"):
        log_weights = np.log(draw_weights)
    numbers = max(values_per_row, _num_outputs(predictor, inputs[:1]))
    per_row = max(int(np.prod(inputs.shape[1:])), count * numbers * blocking.ELEMENTS // ELEMENTS)
    for rows, real in blocking.row_blocks(len(inputs), per_row):
        with backend.arithmetic(predictor.precision):
            pieces = [
                _likelihoods_and_outputs(predictor.posterior, jnp.asarray(thetas[piece]), jnp.asarray(inputs[rows]))
                for piece in draw_slices(thetas, count)
            ]
        yield rows, real, _join_pieces(pieces, log_weights, precision)


def is_discrete(predictor: Predictor, x: Shaped[np.ndarray, "row ..."]) -> bool:
    """Whether the predicted distribution of the targets is discrete, from the first row under the first draw."""
    if not len(x):
        return False
    with backend.arithmetic(predictor.precision):
        inputs, draw = jnp.asarray(predictor.inputs(x[:1])), jnp.asarray(predictor.thetas[0:1][0])
        likelihood, outputs = predictor.posterior.predictive(draw, inputs)
        return marginals.is_discrete(likelihood.distribution(outputs[0]))


def _num_outputs(predictor: Predictor, inputs: Shaped[np.ndarray, "row ..."]) -> int:
    """Return the number of network outputs per row."""
    with backend.arithmetic(predictor.precision):
        draw = jnp.asarray(predictor.thetas[0:1][0])
        outputs = jax.eval_shape(lambda theta, x: predictor.posterior.predictive(theta, x)[1], draw, inputs)
    return int(np.prod(outputs.shape[1:]))


def _join_pieces(
    pieces: list[tuple[Any, Any, Any]], log_weights: Float[np.ndarray, " draw"], precision: str
) -> DrawMixture:
    """Join the results of `_likelihoods_and_outputs` for pieces of draws, with real numbers in the given precision."""

    def join(*leaves: Any) -> np.ndarray:
        joined = np.concatenate([np.asarray(leaf) for leaf in leaves])
        return joined.astype(precision) if joined.dtype.kind == "f" else joined

    arrays = jax.tree.map(join, *(arrays for arrays, _, _ in pieces))
    outputs = join(*(outputs for _, _, outputs in pieces))
    return DrawMixture(arrays, pieces[0][1], outputs, log_weights.astype(precision))
