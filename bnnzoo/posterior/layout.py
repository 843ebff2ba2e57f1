"""Blocks of the parameter vector `theta`: named arrays, such as a weight matrix, and their places in the vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, Int, PyTree

from bnnzoo.errors import UsageError
from bnnzoo.files import variable_names


class Block(NamedTuple):
    """One named array inside `theta`: `theta[start:stop]`, reshaped to `shape`."""

    name: str
    shape: tuple[int, ...]
    start: int
    owner: Literal["network", "likelihood", "prior"] = "network"

    @property
    def size(self) -> int:
        """Number of parameters in the block."""
        return prod(self.shape)

    @property
    def stop(self) -> int:
        """Index in `theta` of the first parameter after the block."""
        return self.start + self.size

    @property
    def layer(self) -> str:
        """Name of the block's layer: `layers_0` for the block `layers_0_weight`, and "" for the block `weight`."""
        return self.name.rpartition("_")[0]

    @property
    def fan_in(self) -> int:
        """Number of inputs of a unit: the product of all axes of the weight array except the first; 1 for a bias."""
        return prod(self.shape[1:])


class Layout(eqx.Module):
    """Map from slices of `theta` [dim] to named blocks. The map is static: a new map needs a new compilation."""

    blocks: tuple[Block, ...] = eqx.field(static=True)

    def __check_init__(self) -> None:
        """Check the blocks' names, which become variables of the result file.

        Raises:
            UsageError: if a name is not allowed in the result file, or if two names clash.
        """
        for block in self.blocks:
            if reason := variable_names.fault(block.name):
                raise UsageError(f"a parameter {reason}")
        if reason := variable_names.clash({block.name: len(block.shape) for block in self.blocks}):
            raise UsageError(f"a parameter {reason}; give it another name")

    @property
    def dim(self) -> int:
        """Number of parameters in `theta`."""
        return self.blocks[-1].stop if self.blocks else 0

    @property
    def network(self) -> Layout:
        """Layout of only the network's blocks, which come first in `theta`."""
        return Layout(tuple(b for b in self.blocks if b.owner == "network"))

    def unflatten(self, theta: Any) -> dict[str, Any]:
        """Return the blocks of `theta` by name. Leading axes such as chain and draw are kept."""
        lead = theta.shape[:-1]
        return {b.name: theta[..., b.start : b.stop].reshape(*lead, *b.shape) for b in self.blocks}

    def flatten(self, values: Mapping[str, Array | np.ndarray]) -> Float[Array, " dim"]:
        """Return the vector `theta` that contains the values of all blocks, given by block name."""
        return jnp.concatenate([jnp.ravel(jnp.asarray(values[b.name])) for b in self.blocks])

    def fan_in(self) -> Float[np.ndarray, " dim"]:
        """Return, for every parameter, the `fan_in` of its block."""
        return np.concatenate([np.full(b.size, b.fan_in, np.float32) for b in self.blocks])

    def layer_index(self) -> Int[np.ndarray, " dim"]:
        """Return, for every parameter, the index of its layer, from 0. The arrays of a layer must be consecutive."""
        layers = [block.layer for block in self.blocks]
        starts = [i == 0 or layer != layers[i - 1] for i, layer in enumerate(layers)]
        return np.repeat(np.cumsum(starts) - 1, [block.size for block in self.blocks])

    def name_of(self, index: int) -> str:
        """Return the readable name of the parameter at an index of `theta`, such as `layers_0_weight[3, 1]`."""
        block = next(b for b in self.blocks if b.start <= index < b.stop)
        place = np.unravel_index(index - block.start, block.shape)
        return f"{block.name}[{', '.join(str(int(i)) for i in place)}]" if block.shape else block.name


def leaf_name(path: tuple[Any, ...]) -> str:
    """Convert a tree path to a variable name: `.layers[0].weight` becomes `layers_0_weight`."""
    parts = [str(getattr(k, "name", getattr(k, "idx", getattr(k, "key", k)))) for k in path]
    return "_".join(parts) or "theta"


def named_leaves(network: PyTree) -> dict[str, Inexact[Array, "..."]]:
    """Return the floating-point arrays of a network by name, in the order of the tree's leaves."""
    leaves_with_path = jax.tree_util.tree_leaves_with_path(eqx.filter(network, eqx.is_inexact_array))
    return {leaf_name(path): leaf for path, leaf in leaves_with_path}


def network_layout(network: PyTree, sampled: Callable[[Any], bool] = eqx.is_inexact_array) -> Layout:
    """Return the layout of the leaves of `network` that `sampled` selects, in the order of the tree's leaves.

    Raises:
        UsageError: if two leaves have the same name, if a leaf is complex, or if a name is not allowed in the result
            file.
    """
    blocks: dict[str, Block] = {}
    start = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(eqx.filter(network, sampled)):
        name = leaf_name(path)
        if name in blocks:
            raise UsageError(f"two parameters of the network have the name {name}; rename one of the two fields")
        if jnp.iscomplexobj(leaf):
            raise UsageError(
                f"the network's parameter {name} is complex; store its real and imaginary parts as two arrays"
            )
        blocks[name] = Block(name, tuple(leaf.shape), start)
        start += leaf.size
    return Layout(tuple(blocks.values()))
