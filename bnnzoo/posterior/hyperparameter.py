"""Numeric hyperparameters of modules: NumPy float32 scalars.

They are traced by `eqx.filter_jit` (a new value compiles nothing new, which a Python float would) and, unlike JAX
arrays, they do not start JAX before the number of devices is set.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

Number = float | np.float32 | Float[Array, ""]


def as_number(value: Any) -> Any:
    return np.float32(value) if isinstance(value, int | float | np.floating | np.integer) else value


def number(default: float) -> Any:
    """A module field that holds a float32 scalar."""
    return eqx.field(converter=as_number, default=np.float32(default))
