"""Initial position from a file of Equinox, for the recipe's `init: network.eqx`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bnnzoo.assembly import Problem
from bnnzoo.errors import UsageError
from bnnzoo.posterior.layout import network_layout

SUFFIX = ".eqx"


def network_position(problem: Problem, path: Path) -> Float[Array, " dim"]:
    """Return the position whose network has the arrays of a file that `equinox.tree_serialise_leaves` wrote.

    The network in the file may be of another class than the model's network, such as `equinox.nn.MLP`, if it has the
    same arrays in the same order. Parameters of the likelihood and of the prior have their default initial values.

    Args:
        problem: the problem. The position has only the parameters that the run samples.
        path: the file.

    Raises:
        UsageError: if the file cannot be read, or if its arrays are not those of the model's network.
    """
    template = problem.require_description().architecture.build(key=jax.random.key(0))
    try:
        with path.open("rb") as file:
            network = eqx.tree_deserialise_leaves(file, template, filter_spec=_read_array)
            is_complete = not file.read(1)
    except FileNotFoundError:
        raise UsageError(f"{path}: [[init]]: no such file; correct the path") from None
    except (OSError, EOFError, ValueError, RuntimeError, MemoryError):
        network, is_complete = template, False
    if not is_complete:
        blocks = ", ".join(f"{block.name} {list(block.shape)}" for block in network_layout(template).blocks)
        raise UsageError(
            f"{path}: [[init]]: the arrays in the file are not those of {problem.recipe.model.name} for the training "
            f"data (expected, in this order: {blocks}); write the file with equinox.tree_serialise_leaves, from a "
            "network with exactly the expected arrays"
        )
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(eqx.filter(network, eqx.is_inexact_array))):
        raise UsageError(f"{path}: [[init]]: contains values that are not finite; train the network again")
    return problem.network_posterior.position(network)


def _read_array(file: BinaryIO, like: Any) -> Any:
    """Return the next array of the file with the type of the array `like`; return `like` if it is not an array."""
    return jnp.asarray(np.load(file, allow_pickle=False), like.dtype) if eqx.is_array(like) else like
