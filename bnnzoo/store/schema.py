"""The names in the file of a run: groups, dimensions, variables and root attributes.

The file follows ArviZ's schema: the first dimensions of `posterior` and `sample_stats` are chain and draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from bnnzoo.data import Dataset, Scaler

Group = Mapping[str, np.ndarray]
"""Variables of a group, by name."""
Attributes = dict[str, str | int | float]
Dims = Mapping[str, list[str]]
"""Dimension names by variable.

A variable with draws is listed as posterior/NAME, with the dimensions that follow chain and draw.
"""

POSTERIOR = "posterior"
SAMPLE_STATS = "sample_stats"
OBSERVED_DATA = "observed_data"
CONSTANT_DATA = "constant_data"
POSTERIOR_PREDICTIVE, LOG_LIKELIHOOD = "posterior_predictive", "log_likelihood"
"""Groups about the training rows. ArviZ compares these groups with observed_data row by row."""
PREDICTIONS, PREDICTIONS_CONSTANT_DATA = "predictions", "predictions_constant_data"
PREDICTIONS_LOG_LIKELIHOOD = "predictions_log_likelihood"
"""Groups about the test rows.

`predictions_log_likelihood` is not in ArviZ's schema. It is a separate group because `loo` of ArviZ requires that
log_likelihood has only one variable.
"""
WARMUP = "warmup_"
"""Prefix of the groups with the draws of the warm-up: warmup_posterior, warmup_sample_stats."""
FIXED = "fixed_"
"""Prefix of variables of constant_data. They are parameters that were trained and not sampled."""
PRIOR_MEAN, PRIOR_SD, PRIOR_FACTOR = "prior_mean_", "prior_sd_", "prior_factor"
"""Variables of constant_data with the normal prior of a run with `prior_from`.

The first two are the prefixes of the mean and the standard deviation of each parameter. The third is the name of the
Cholesky factor of the covariance, which is absent if the parameters are independent.
"""
LINEARISED_AT = "linearised_at_"
"""Prefix of variables of constant_data: for each chain, the parameters at which its predictions are linearised."""

FINAL_STATE, CHECKPOINT_BYTES = "final_state", "checkpoint"
"""Group of a finished run, and its variable: the bytes of the last checkpoint, from which `resume` can add draws."""

KEPT_ROWS = "x_kept"
"""Variable of constant_data, if a run stores predictions instead of parameters: the inputs of the predictions."""

ROW_SOURCE = "row_source"
"""Root attribute of a run whose training rows are not in its file: path and size of the data file, as JSON."""
ROWS_IN_FILES = "rows_in_files"
"""Root attribute with the value 1: the run's file has the training rows, and readers copy them to temporary files."""
PADDED_ROWS = "padded_rows"
"""Root attribute of a run whose rows were padded (`NetworkPosterior.in_bucket`): number of rows after padding."""

LENGTH_PLAN = "length_plan"
"""Root attribute of a run with a time budget, as JSON (see `_LengthPlan` in attributes.py)."""

SECONDS = ("start", "compile", "warmup", "sampling", "judging", "writing")
"""Phases of a run in order. The root attributes `seconds_start`, ... contain the durations of the phases."""
CHAIN, DRAW = "chain", "draw"
SAMPLED = (CHAIN, DRAW)
DIMS: dict[str, dict[str, list[str]]] = {
    POSTERIOR_PREDICTIVE: {"y": [CHAIN, DRAW, "row", "target"]},
    LOG_LIKELIHOOD: {"y": [CHAIN, DRAW, "row"]},
    PREDICTIONS: {"y": [CHAIN, DRAW, "test_row", "target"]},
    PREDICTIONS_LOG_LIKELIHOOD: {"y": [CHAIN, DRAW, "test_row"]},
    PREDICTIONS_CONSTANT_DATA: {"y": ["test_row", "target"], "x": ["test_row"]},
}
"""Dimensions of the groups that `evaluate` adds.

Classification has no dimension `target`. After `test_row`, `x` also has the dimensions of one input, such as `feature`.
"""


def train_groups(
    train: Dataset,
    test: Dataset | None,
    scaler: Scaler,
    fixed: Mapping[str, np.ndarray],
    kept_rows: np.ndarray | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """Return the groups observed_data and constant_data of a run, in original units.

    The parameters in `fixed`, which are not sampled, become variables of constant_data.
    """
    constant = {
        "x": train.x,
        "x_mean": scaler.x_mean,
        "x_sd": scaler.x_sd,
        "y_mean": scaler.y_mean,
        "y_sd": scaler.y_sd,
    }
    if test is not None:
        constant |= {"x_test": test.x, "y_test": test.y}
    if kept_rows is not None:
        constant[KEPT_ROWS] = kept_rows
    constant |= {FIXED + name: value for name, value in fixed.items()}
    return {OBSERVED_DATA: {"y": observed(train.y)}, CONSTANT_DATA: constant}


def observed(targets: np.ndarray) -> np.ndarray:
    """Return targets [..., row, target] in the shape of observed_data: a single target has the shape [..., row].

    ArviZ's predictive checks expect one dimension for the observations.
    """
    return targets[..., 0] if targets.dtype.kind == "f" and targets.shape[-1:] == (1,) and targets.ndim > 1 else targets


def targets_of(values: np.ndarray) -> np.ndarray:
    """Invert `observed`: return targets with shape [row, target]. Labels keep the shape [row]."""
    return values[:, None] if values.dtype.kind == "f" and values.ndim == 1 else values


def row_dims(train: Dataset, scaler: Scaler) -> dict[str, list[str]]:
    """Return the dimension names of the variables that `train_groups` returns, and of the stored predictions `f`."""
    inputs = {2: ["feature"], 3: ["height", "width"], 4: ["channel", "height", "width"]}[train.x.ndim]
    targets = ["target", "bound"][: train.y.ndim - 1]
    scale = inputs[: scaler.x_mean.ndim]
    return {
        "x": ["row", *inputs],
        "y": ["row", *targets],
        "x_test": ["test_row", *inputs],
        KEPT_ROWS: ["kept_row", *inputs],
        f"{POSTERIOR}/f": ["kept_row", "output"],
        "y_test": ["test_row", *targets],
        "x_mean": scale,
        "x_sd": scale,
        "y_mean": ["target"],
        "y_sd": ["target"],
    }


def fixed_leaves(constant: Group) -> dict[str, np.ndarray]:
    """Return the parameters that were trained and not sampled, by name. `constant` is the group constant_data."""
    return _with_prefix(constant, FIXED)


def prior_moments(constant: Group) -> tuple[dict[str, np.ndarray], ...]:
    """Return the normal prior of a run with `prior_from`: means by name, sds by name, and the factor of the covariance.

    `constant` is constant_data. The last dictionary has the key "" for the Cholesky factor of the covariance. It is
    empty if the parameters are independent.
    """
    return _with_prefix(constant, PRIOR_MEAN), _with_prefix(constant, PRIOR_SD), _with_prefix(constant, PRIOR_FACTOR)


def _with_prefix(constant: Group, prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in constant.items() if name.startswith(prefix)}


def linearised_group(points: Group) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Return `points` (an array `[chain, ...]` per parameter block) as variables of constant_data, and dimension names.

    The points are the parameters at which the predictions of each chain are linearised.
    """
    values = {LINEARISED_AT + name: value for name, value in points.items()}
    return values, {name: [CHAIN, *(f"{name}_dim_{i}" for i in range(v.ndim - 1))] for name, v in values.items()}


def linearised_points(constant: Group, blocks: Iterable[str]) -> list[np.ndarray] | None:
    """Return the points of `linearised_group`, one array per block; None if predictions are not linearised."""
    names = [LINEARISED_AT + block for block in blocks]
    return [np.asarray(constant[name]) for name in names] if names[0] in constant else None


def dims_of(name: str, array_ndim: int, dims: Dims, *, skip: int = 0) -> list[str]:
    """Return the names of the dimensions of a variable, without the first `skip` dimensions.

    If `dims` has a name for every dimension, these names are returned. Otherwise the names are `NAME_dim_0`, ... A
    variable with draws has the key posterior/NAME in `dims`, because a parameter and a variable of the data may share a
    name.
    """
    count = array_ndim - skip
    given_names = list(dims.get(f"{POSTERIOR}/{name}" if skip else name, ()))[:count]
    return (
        given_names
        if len(given_names) == count and not (skip and set(given_names) & set(SAMPLED))
        else [f"{name}_dim_{i}" for i in range(count)]
    )
