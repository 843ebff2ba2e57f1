"""The words of a run's file: groups, dimensions, variables, root attributes. Each is spelt here and nowhere else.

The file follows ArviZ's schema: `posterior` and `sample_stats` have the dimensions chain, draw first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from bnnzoo.data import Dataset, Scaler

Group = Mapping[str, np.ndarray]
"""The variables of a group, by name."""
Attributes = dict[str, str | int | float]
Dims = Mapping[str, list[str]]
"""The names of a variable's dimensions; of one that grows, under posterior/NAME, those after chain, draw."""

POSTERIOR = "posterior"
SAMPLE_STATS = "sample_stats"
OBSERVED_DATA = "observed_data"
CONSTANT_DATA = "constant_data"
POSTERIOR_PREDICTIVE, LOG_LIKELIHOOD = "posterior_predictive", "log_likelihood"
"""Of the training rows, those of observed_data: ArviZ compares the three row by row."""
PREDICTIONS, PREDICTIONS_CONSTANT_DATA = "predictions", "predictions_constant_data"
PREDICTIONS_LOG_LIKELIHOOD = "predictions_log_likelihood"
"""Of the test rows. The last is a group of ours: a second variable in log_likelihood would be refused by `loo`."""
WARMUP = "warmup_"
"""How the groups of kept warm-up begin: warmup_posterior, warmup_sample_stats."""
FIXED = "fixed_"
"""How the variables of constant_data begin that hold what was trained, not sampled."""
LINEARISED_AT = "linearised_at_"
"""How those begin that hold the point where each chain's predictions are linearised."""

KEPT_ROWS = "x_kept"
"""The variable of constant_data that holds the inputs at which predictions were kept, not draws of the parameters."""

SECONDS = ("start", "compile", "warmup", "sampling", "judging", "writing")
"""Where the time of a run goes, in the order of the command: the root attributes `seconds_start`, ..."""
CHAIN, DRAW = "chain", "draw"
SAMPLED = (CHAIN, DRAW)
DIMS: dict[str, dict[str, list[str]]] = {
    POSTERIOR_PREDICTIVE: {"y": [CHAIN, DRAW, "row", "target"]},
    LOG_LIKELIHOOD: {"y": [CHAIN, DRAW, "row"]},
    PREDICTIONS: {"y": [CHAIN, DRAW, "test_row", "target"]},
    PREDICTIONS_LOG_LIKELIHOOD: {"y": [CHAIN, DRAW, "test_row"]},
    PREDICTIONS_CONSTANT_DATA: {"y": ["test_row", "target"], "x": ["test_row"]},
}
"""Dimensions of the groups that `evaluate` adds; a classification has no targets to tell apart. Inputs go on as in
constant_data."""


def train_groups(
    train: Dataset,
    test: Dataset | None,
    scaler: Scaler,
    fixed: Mapping[str, np.ndarray],
    kept: np.ndarray | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """observed_data and constant_data of a run, in original units; and in the latter what was not sampled."""
    constant = {
        "x": train.x,
        "x_mean": scaler.x_mean,
        "x_sd": scaler.x_sd,
        "y_mean": scaler.y_mean,
        "y_sd": scaler.y_sd,
    }
    if test is not None:
        constant |= {"x_test": test.x, "y_test": test.y}
    if kept is not None:
        constant[KEPT_ROWS] = kept
    constant |= {FIXED + name: value for name, value in fixed.items()}
    return {OBSERVED_DATA: {"y": observed(train.y)}, CONSTANT_DATA: constant}


def observed(targets: np.ndarray) -> np.ndarray:
    """Targets [..., row, target] as observed_data and what ArviZ compares with it hold them: of one target [..., row].

    ArviZ's checks of predictions take one dimension for the observations.
    """
    return targets[..., 0] if targets.dtype.kind == "f" and targets.shape[-1:] == (1,) and targets.ndim > 1 else targets


def targets_of(values: np.ndarray) -> np.ndarray:
    """The targets that `observed` made observed_data of; labels are [row] in both."""
    return values[:, None] if values.dtype.kind == "f" and values.ndim == 1 else values


def row_dims(train: Dataset, scaler: Scaler) -> dict[str, list[str]]:
    """The names of the dimensions of `train_groups`."""
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
    """The parameters that were not sampled, by name, from the variables of constant_data."""
    return {name.removeprefix(FIXED): value for name, value in constant.items() if name.startswith(FIXED)}


def linearised_group(points: Group) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Variables of constant_data, and their dimensions, for each chain's point `[chain, ...]` by block."""
    values = {LINEARISED_AT + name: value for name, value in points.items()}
    return values, {name: [CHAIN, *(f"{name}_dim_{i}" for i in range(v.ndim - 1))] for name, v in values.items()}


def linearised_points(constant: Group, blocks: Iterable[str]) -> list[np.ndarray] | None:
    """What `linearised_group` wrote, in the order of the blocks; None where predictions are not linearised."""
    names = [LINEARISED_AT + block for block in blocks]
    return [np.asarray(constant[name]) for name in names] if names[0] in constant else None


def dims_of(name: str, array_ndim: int, dims: Dims, *, skip: int = 0) -> list[str]:
    """The names of a variable's dimensions after the first `skip`: as given, or counted.

    What grows with the run is named with its group: a parameter or a statistic may be called like the data.
    """
    count = array_ndim - skip
    given = list(dims.get(f"{POSTERIOR}/{name}" if skip else name, ()))[:count]
    return (
        given
        if len(given) == count and not (skip and set(given) & set(SAMPLED))
        else [f"{name}_dim_{i}" for i in range(count)]
    )
