"""Predictive mixtures of a run's rows, block by block.

The network is evaluated in the run's precision, and the mixture in float64, because special functions of counts and of
tails need this accuracy. A NumPyro model keeps the run's precision, because its code may set types itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from bnnzoo.evaluation.contents.draws import draw_slices
from bnnzoo.evaluation.formulas import blocking
from bnnzoo.evaluation.predictions import mixture
from bnnzoo.evaluation.predictions.mixture import DrawMixture
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.posterior import NetworkPosterior, backend, marginals
from bnnzoo.progress import Observer, Progress

ELEMENTS = 2**21
"""Largest number of draws x points x rows x targets that one compiled program works on."""


def map_rows(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    values_per_row: int,
    compute: Callable[[Int[np.ndarray, " block"], int, DrawMixture], Any],
    *,
    observer: Observer | None = None,
) -> Shaped[np.ndarray, "value row ..."]:
    """Return `compute(rows, count, mixture)` of all rows, joined along the second axis; empty without rows.

    `rows` are the numbers of a block of rows, padded to equal length with the last row; `count` of them are real.

    Args:
        predictor: the predictor of a run.
        x: inputs as `Predictor.rows_of` returns them.
        values_per_row: numbers per draw and row that the caller computes at a time.
        compute: function of a block, [value, row, ...].
        observer: is called with the progress.
    """
    precision = "float64" if isinstance(predictor.posterior, NetworkPosterior) else predictor.precision
    parts = [np.empty((0, 0))]
    with backend.arithmetic(precision):
        for rows, count, draws in _mixtures(predictor, x, values_per_row, precision):
            parts.append(np.asarray(compute(rows, count, draws))[:, :count])
            if observer is not None:
                observer(Progress("evaluating", int(rows[0]) + count, len(x)))
    return np.concatenate(parts[1:], 1) if len(parts) > 1 else parts[0]


def _mixtures(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], values_per_row: int, precision: Any
) -> Iterator[tuple[Int[np.ndarray, " block"], int, DrawMixture]]:
    """Yield blocks of rows, padded to equal length with the last row, their number of real rows, and their mixtures."""
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
                mixture.likelihoods_and_outputs(
                    predictor.posterior, jnp.asarray(thetas[piece]), jnp.asarray(inputs[rows])
                )
                for piece in draw_slices(thetas, count)
            ]
        yield rows, real, _joined(pieces, log_weights, precision)


def is_discrete(predictor: Predictor, x: Shaped[np.ndarray, "row ..."]) -> bool:
    """Whether a run's targets are whole numbers, by the distribution of the first row under the first draw."""
    if not len(x):
        return False
    with backend.arithmetic(predictor.precision):
        inputs, draw = jnp.asarray(predictor.inputs(x[:1])), jnp.asarray(predictor.thetas[0:1][0])
        likelihood, outputs = predictor.posterior.predictive(draw, inputs)
        return marginals.is_discrete(likelihood.distribution(outputs[0]))


def _num_outputs(predictor: Predictor, inputs: Shaped[np.ndarray, "row ..."]) -> int:
    """Return the number of outputs of a row."""
    with backend.arithmetic(predictor.precision):
        draw = jnp.asarray(predictor.thetas[0:1][0])
        outputs = jax.eval_shape(lambda theta, x: predictor.posterior.predictive(theta, x)[1], draw, inputs)
    return int(np.prod(outputs.shape[1:]))


def _joined(pieces: list[tuple[Any, Any, Any]], log_weights: Float[np.ndarray, " draw"], precision: str) -> DrawMixture:
    """Join pieces of draws, with real numbers in the given precision."""

    def join(*leaves: Any) -> np.ndarray:
        joined = np.concatenate([np.asarray(leaf) for leaf in leaves])
        return joined.astype(precision) if joined.dtype.kind == "f" else joined

    arrays = jax.tree.map(join, *(arrays for arrays, _, _ in pieces))
    outputs = join(*(outputs for _, _, outputs in pieces))
    return DrawMixture(arrays, pieces[0][1], outputs, log_weights.astype(precision))
