"""Check of the size of a network before it is built."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from bnnzoo.errors import UsageError


def check(model: str, build: Callable[[], Any]) -> None:
    """Check that the parameters of a network fit into the memory of this machine.

    Args:
        model: name of the model, for the message.
        build: function that builds the network; it is traced, not run.

    Raises:
        UsageError: if the parameters need more memory than the machine has. The message contains both numbers.
    """
    leaves = jax.tree.leaves(eqx.filter_eval_shape(build))
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves if hasattr(leaf, "dtype"))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > memory:
        sizes = f"its parameters need {num_bytes / 2**30:.3g} GiB, but this machine has {memory / 2**30:.3g} GiB"
        raise UsageError(f"model {model}: {sizes} of memory; make the network smaller")
