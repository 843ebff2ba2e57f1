"""Parts whose methods use their numeric fields as Python numbers, made ready for compiled programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np

P = TypeVar("P", bound=eqx.Module)

_UNKNOWN = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""Errors of JAX where a program that is being compiled asks for the value of an argument."""


def compilable(part: P, use: Callable[[P], Any]) -> P:
    """The part as compiled programs can take it: with traced numbers, or with Python numbers where it needs those.

    A new value of a traced number compiles nothing new. A Python number is part of the program: a plugin's
    `float(self.scale)` works.

    Args:
        use: calls the methods that programs call. It is traced, not run.
    """
    try:
        eqx.filter_eval_shape(use, part)
    except _UNKNOWN:
        return jax.tree.map(lambda leaf: leaf.item() if isinstance(leaf, np.generic) else leaf, part)
    return part
