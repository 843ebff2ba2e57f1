"""The data set: a function without arguments, the same numbers every time."""

import numpy as np
from bnnzoo import Dataset
from bnnzoo.data import from_arrays


def load() -> Dataset:
    """y = sin 4x + 0.2 e, 200 points, x ~ U(-1, 1), e ~ N(0, 1)."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(200, 1))
    y = np.sin(4 * x) + 0.2 * rng.normal(size=x.shape)
    return from_arrays(x, y, name="template-name", feature_names=("x",), target_names=("y",))
