"""Names in a run's file: groups, dimensions, variables and root attributes, each defined only here.

The file follows ArviZ's schema: `posterior` and `sample_stats` have the dimensions chain, draw first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from bnnzoo.data import Dataset, Scaler

Group = Mapping[str, np.ndarray]
"""Variables of a group, by name."""
Attributes = dict[str, str | int | float]
Dims = Mapping[str, list[str]]
"""Dimension names by variable. A variable that grows is under posterior/NAME, with its dimensions after chain, draw."""

POSTERIOR = "posterior"
SAMPLE_STATS = "sample_stats"
OBSERVED_DATA = "observed_data"
CONSTANT_DATA = "constant_data"
POSTERIOR_PREDICTIVE, LOG_LIKELIHOOD = "posterior_predictive", "log_likelihood"
"""Groups about the training rows, as in observed_data: ArviZ compares the three row by row."""
PREDICTIONS, PREDICTIONS_CONSTANT_DATA = "predictions", "predictions_constant_data"
PREDICTIONS_LOG_LIKELIHOOD = "predictions_log_likelihood"
"""Groups about the test rows. This one is not in ArviZ's schema: `loo` refuses a second variable in log_likelihood."""
WARMUP = "warmup_"
"""Prefix of the groups of kept warm-up: warmup_posterior, warmup_sample_stats."""
FIXED = "fixed_"
"""Prefix of the variables of constant_data with parameters that were trained instead of sampled."""
LINEARISED_AT = "linearised_at_"
"""Prefix of the variables with the point at which each chain's predictions are linearised."""

KEPT_ROWS = "x_kept"
"""Variable of constant_data with the inputs at which predictions were kept instead of draws of the parameters."""

SECONDS = ("start", "compile", "warmup", "sampling", "judging", "writing")
"""Phases of a run's time, in order: the root attributes `seconds_start`, ..."""
CHAIN, DRAW = "chain", "draw"
SAMPLED = (CHAIN, DRAW)
DIMS: dict[str, dict[str, list[str]]] = {
    POSTERIOR_PREDICTIVE: {"y": [CHAIN, DRAW, "row", "target"]},
    LOG_LIKELIHOOD: {"y": [CHAIN, DRAW, "row"]},
    PREDICTIONS: {"y": [CHAIN, DRAW, "test_row", "target"]},
    PREDICTIONS_LOG_LIKELIHOOD: {"y": [CHAIN, DRAW, "test_row"]},
    PREDICTIONS_CONSTANT_DATA: {"y": ["test_row", "target"], "x": ["test_row"]},
}
"""Dimensions of the groups that `evaluate` adds. Classification has no target dimension; inputs add those of `x`."""


def train_groups(
    train: Dataset,
    test: Dataset | None,
    scaler: Scaler,
    fixed: Mapping[str, np.ndarray],
    kept_rows: np.ndarray | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """Return observed_data and constant_data of a run, in original units; the latter includes unsampled parameters."""
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
    """Return targets [..., row, target] in the form of observed_data: a single target becomes [..., row].

    ArviZ's predictive checks expect one dimension for the observations.
    """
    return targets[..., 0] if targets.dtype.kind == "f" and targets.shape[-1:] == (1,) and targets.ndim > 1 else targets


def targets_of(values: np.ndarray) -> np.ndarray:
    """Return the targets from which `observed` made observed_data; labels are [row] in both."""
    return values[:, None] if values.dtype.kind == "f" and values.ndim == 1 else values


def row_dims(train: Dataset, scaler: Scaler) -> dict[str, list[str]]:
    """Return the dimension names of `train_groups`."""
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
    """Return the parameters that were not sampled, by name, from the variables of constant_data."""
    return {name.removeprefix(FIXED): value for name, value in constant.items() if name.startswith(FIXED)}


def linearised_group(points: Group) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Return variables of constant_data, and their dimensions, for each chain's point `[chain, ...]` by block."""
    values = {LINEARISED_AT + name: value for name, value in points.items()}
    return values, {name: [CHAIN, *(f"{name}_dim_{i}" for i in range(v.ndim - 1))] for name, v in values.items()}


def linearised_points(constant: Group, blocks: Iterable[str]) -> list[np.ndarray] | None:
    """Return the points that `linearised_group` wrote, in block order, or None if predictions are not linearised."""
    names = [LINEARISED_AT + block for block in blocks]
    return [np.asarray(constant[name]) for name in names] if names[0] in constant else None


def dims_of(name: str, array_ndim: int, dims: Dims, *, skip: int = 0) -> list[str]:
    """Return the names of a variable's dimensions after the first `skip`: as given, or numbered.

    Variables that grow are looked up with their group, because a parameter may have the same name as a data variable.
    """
    count = array_ndim - skip
    given_names = list(dims.get(f"{POSTERIOR}/{name}" if skip else name, ()))[:count]
    return (
        given_names
        if len(given_names) == count and not (skip and set(given_names) & set(SAMPLED))
        else [f"{name}_dim_{i}" for i in range(count)]
    )
