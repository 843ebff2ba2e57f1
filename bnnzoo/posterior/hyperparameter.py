"""Numeric hyperparameters of modules: NumPy float32 scalars.

`eqx.filter_jit` traces NumPy scalars, so that a new value needs no new compilation. A new Python float would need a new
compilation. A JAX array would start JAX before the number of devices is set.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

Number = float | np.float32 | Float[Array, ""]


def as_number(value: Any) -> Any:
    """Convert a real number to float32; return anything else unchanged."""
    return np.float32(value) if isinstance(value, int | float | np.floating | np.integer) else value


def number(default: float) -> Any:
    """Return a module field for a float32 scalar, with this default."""
    return eqx.field(converter=as_number, default=np.float32(default))
