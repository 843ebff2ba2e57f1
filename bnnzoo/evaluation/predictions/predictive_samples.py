"""Samples from the predictive distribution of a run, and quantiles of these samples, in original units."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from numbers import Integral
from typing import Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import Float, Int, PRNGKeyArray, Shaped, UInt32

from bnnzoo.errors import UsageError
from bnnzoo.evaluation.formulas import blocking, metrics
from bnnzoo.evaluation.predictions import per_draw
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.posterior import backend

QUANTILES = (0.05, 0.5, 0.95)
"""Probabilities of the quantiles in a table of predictions."""
_MIN_SAMPLES = 1000
"""Smallest number of samples from which a quantile is computed; with fewer draws, each draw gives several samples."""
_DENSITY_SAMPLES = 2**17
"""Smallest number of samples from a density; all test rows share the samples.

The standard error of a distribution function that is estimated from independent samples is then at most 0.0014.
"""


def samples(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    numbers: UInt32[np.ndarray, " row"] | None = None,
    *,
    seed: int = 0,
) -> Iterator[tuple[slice, Float[np.ndarray, "sample row target"]]]:
    """Yield blocks of rows with samples from their predictive distribution in original units, at least 1000 per row.

    Args:
        predictor: the predictor of a run.
        x: inputs of the rows.
        numbers: seeds of the rows. Rows with equal seeds have the same noise. By default all seeds are different.
        seed: seed of all samples.
    """
    inputs, key, weights = predictor.inputs(x), jax.random.key(seed), predictor.record.weights
    numbers = np.arange(len(x), dtype=np.uint32) if numbers is None else numbers
    index = per_draw.sample_indices(len(predictor.thetas), weights, min_samples=_MIN_SAMPLES)
    for rows in blocking.blocks(len(inputs), len(index) * len(predictor.signature.target_names)):
        yield rows, _sample(predictor, index, inputs[rows], key, numbers=numbers[rows])


def density_samples(predictor: Predictor, *, seed: int = 0) -> Float[np.ndarray, "sample column"]:
    """Return samples from the predictive distribution of a density, in original units.

    All draws give the same number of samples; with weights, draws are resampled first. A density has no inputs, so all
    test rows share these samples.
    """
    index = per_draw.sample_indices(len(predictor.thetas), predictor.record.weights)
    rows_per_draw = -(-_DENSITY_SAMPLES // len(index))
    x = predictor.inputs(np.zeros((rows_per_draw, len(predictor.signature.target_names)), np.float32))
    sampled = _sample(predictor, index, x, _key(predictor, seed))
    return sampled.reshape(-1, sampled.shape[-1])


def quantiles(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], levels: tuple[float, ...] = QUANTILES, *, seed: int = 0
) -> Float[np.ndarray, "quantile row target"]:
    """Return quantiles of the predictive distribution in original units.

    The random numbers of a row depend only on its inputs and `seed`, so rows with equal inputs have equal quantiles.
    """
    blocks = samples(predictor, x, _content_seeds(x), seed=seed)
    return np.concatenate([metrics.quantiles(np.sort(values, 0), levels) for _, values in blocks], 1)


def sample_rows(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], count: int, *, seed: int = 0
) -> Shaped[np.ndarray, "sample row *target"]:
    """Return `count` samples of the targets in original units; a sample uses the same draw for all rows."""
    return _sample(predictor, _random_draws(predictor, count, seed), predictor.inputs(x), _key(predictor, seed))


def sample_each(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], draw_numbers: Int[np.ndarray, " kept"], *, seed: int
) -> Shaped[np.ndarray, "chain kept row *target"]:
    """Return one sample of the target for each kept draw and each row, in original units."""
    index = predictor.draw_indices(draw_numbers)
    sampled = _sample(predictor, index, predictor.inputs(x), _key(predictor, seed))
    return sampled.reshape(-1, len(draw_numbers), *sampled.shape[1:])


def new_rows(predictor: Predictor, count: int, *, seed: int = 0) -> pd.DataFrame:
    """Return `count` rows from the posterior predictive distribution of a density, in original units.

    Each row comes from a different draw, as long as there are enough draws of equal weight.

    Raises:
        UsageError: if the run is not a density, or if `count` is not a whole number of at least 1.
    """
    if not predictor.is_density:
        raise UsageError(
            "draws: new rows can be drawn from a density only ([[task=density]]); this run predicts targets from inputs"
        )
    if not isinstance(count, Integral) or count < 1:
        raise UsageError(f"draws: must be the number of new rows, 1 or more (got {count})")
    names = list(predictor.signature.target_names)
    x = predictor.inputs(np.zeros((1, len(names)), np.float32))
    sampled = _sample(predictor, _random_draws(predictor, int(count), seed), x, _key(predictor, seed))
    return pd.DataFrame(sampled[:, 0], columns=names)


def check_count(name: str, count: Any) -> None:
    """Check a number of samples; `name` is the name of the argument.

    Raises:
        UsageError: if `count` is not a whole number of at least 1.
    """
    if not isinstance(count, Integral) or count < 1:
        raise UsageError(f"{name}: must be a whole number, 1 or more (got {count!r})")


def _random_draws(predictor: Predictor, count: int, seed: int) -> Int[np.ndarray, " sample"]:
    """Return the indices of `count` random draws; none repeats as long as there are enough draws of equal weight."""
    index = per_draw.sample_indices(len(predictor.thetas), predictor.record.weights, min_samples=count)
    return np.random.default_rng(seed).permutation(index)[:count]


def _key(predictor: Predictor, seed: int) -> PRNGKeyArray:
    with backend.arithmetic(predictor.precision):
        return jax.random.key(seed)


def _sample(
    predictor: Predictor,
    index: Int[np.ndarray, " sample"],
    inputs: Shaped[np.ndarray, "row ..."],
    key: PRNGKeyArray,
    numbers: UInt32[np.ndarray, " row"] | None = None,
) -> Shaped[np.ndarray, "sample row *target"]:
    """Return one sample of the target (for a density, of the whole row) for each draw in `index` and each row.

    The samples are in original units.
    """
    arrange = predictor.arrange if predictor.is_density else None
    sampled = predictor.in_pieces(
        index,
        lambda thetas, first: per_draw.samples(
            predictor.posterior, thetas, inputs, numbers=numbers, first_draw=first, arrange=arrange, key=key
        ),
    )
    return sampled if predictor.classifies else predictor.scaler.unscale_targets(sampled)


def _content_seeds(x: Shaped[np.ndarray, "row ..."]) -> UInt32[np.ndarray, " row"]:
    """Return a seed for each row, computed from the inputs of the row alone.

    Equal rows have equal seeds. Different rows have different seeds (apart from rare collisions), because errors from
    the same noise would not cancel in an average over rows.
    """
    return np.array([zlib.crc32((row + 0).tobytes()) for row in x], np.uint32)  # + 0: -0.0 and 0.0 are equal
