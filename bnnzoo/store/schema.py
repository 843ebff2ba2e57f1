"""The names that a run's file is written and read by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bnnzoo.data import Dataset, Scaler

_FIXED = "fixed_"
"""How the variables of constant_data begin that hold parameters which were not sampled."""

LINEARISED_AT = "linearised_at_"
"""How those begin that hold the point where each chain's predictions are linearised."""


def fixed_leaves(constant: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters that were not sampled, by name, from the variables of constant_data."""
    return {name.removeprefix(_FIXED): value for name, value in constant.items() if name.startswith(_FIXED)}


def train_groups(
    train: Dataset, test: Dataset | None, scaler: Scaler, fixed: Mapping[str, np.ndarray]
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
    constant |= {_FIXED + name: value for name, value in fixed.items()}
    return {"observed_data": {"y": train.y}, "constant_data": constant}


def row_dims(train: Dataset, scaler: Scaler) -> dict[str, list[str]]:
    """The names of the dimensions of the data, and of what standardises them."""
    inputs = {2: ["feature"], 3: ["height", "width"], 4: ["channel", "height", "width"]}[train.x.ndim]
    targets = ["target"] * (train.y.ndim - 1)
    moments = inputs[: scaler.x_mean.ndim]
    return {
        "x": ["row", *inputs],
        "y": ["row", *targets],
        "x_test": ["test_row", *inputs],
        "y_test": ["test_row", *targets],
        "x_mean": moments,
        "x_sd": moments,
        "y_mean": ["target"],
        "y_sd": ["target"],
    }
