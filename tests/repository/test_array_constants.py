"""Constants of modules whose functions JAX traces: no NumPy arrays of 64 bits.

JAX converts such an array to the precision of the first run, and may use it with this precision in a run of the other
precision in the same process (see `bnnzoo.posterior.backend.arithmetic`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import numpy as np

import bnnzoo.assembly
import bnnzoo.models
import bnnzoo.posterior
import bnnzoo.samplers

PACKAGES = (bnnzoo.posterior, bnnzoo.models, bnnzoo.samplers, bnnzoo.assembly)


def _arrays(value: Any) -> Iterator[np.ndarray]:
    """Yield the NumPy arrays in a value, in containers, and in the attributes of a class."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, dict):
        yield from _arrays(list(value.values()))
    elif isinstance(value, type) and value.__module__.startswith("bnnzoo"):
        yield from _arrays([item for item in vars(value).values() if not isinstance(item, type)])


def test_modules_that_are_traced_hold_no_arrays_of_64_bits():
    found, count = [], 0
    for package in PACKAGES:
        for about in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            values = vars(importlib.import_module(about.name))
            names = [name for name in values if not name.startswith("__")]
            count += len(names)
            wide = [name for name in names if any(array.dtype.itemsize > 4 for array in _arrays(values[name]))]
            found += [f"{about.name}.{name}" for name in wide]
    assert count > 1000
    assert found == []
