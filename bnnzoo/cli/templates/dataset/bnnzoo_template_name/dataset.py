"""The data set: a function without arguments that returns the same numbers every time."""

import numpy as np
from bnnzoo import Dataset
from bnnzoo.data import from_arrays


def load() -> Dataset:
    """Return 200 points y = sin 4x + 0.2 e with x ~ U(-1, 1) and e ~ N(0, 1)."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(200, 1))
    y = np.sin(4 * x) + 0.2 * rng.normal(size=x.shape)
    return from_arrays(x, y, name="template-name", feature_names=("x",), target_names=("y",))
