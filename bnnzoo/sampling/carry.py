"""A carry as named NumPy arrays and back: what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bnnzoo.errors import UsageError


def flatten(carry: PyTree) -> dict[str, np.ndarray]:
    """The leaves by their path in the tree, such as `states.position`; keys as their data."""
    return {name: np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for name, leaf in _named(carry)}


def restore(arrays: Mapping[str, np.ndarray], template: PyTree) -> PyTree:
    """The carry that `flatten` took apart.

    Args:
        template: a carry of the same structure, whose leaves have shapes and types.

    Raises:
        UsageError: where names, shapes or types are not the template's.
    """
    wanted = _named(template)
    if set(arrays) != {name for name, _ in wanted}:
        raise UsageError("its arrays are not those of the recipe; start the run again with --force")
    leaves: list[Any] = []
    for name, leaf in wanted:
        array = arrays[name]
        if _is_key(leaf):
            leaves.append(jax.random.wrap_key_data(jnp.asarray(array), impl="threefry2x32"))
            continue
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise UsageError(
                f"{name} is {array.dtype}{list(array.shape)}, not {leaf.dtype}{list(leaf.shape)}; "
                "start the run again with --force"
            )
        leaves.append(array)
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _named(tree: PyTree) -> list[tuple[str, Any]]:
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in paths]


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
