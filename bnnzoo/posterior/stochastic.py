"""Partly stochastic networks: only some parameters are sampled. The other parameters are trained once, then fixed."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from bnnzoo.errors import UsageError
from bnnzoo.posterior.layout import leaf_name, named_leaves


def with_leaves(network: PyTree, values: Mapping[str, Any]) -> PyTree:
    """Return the network with the arrays named in `values` replaced by these values."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(values[leaf_name(path)], leaf.dtype) if leaf_name(path) in values else leaf,
        network,
    )


def sampled_names(stochastic: str, network: PyTree, last: PyTree | None) -> frozenset[str]:
    """Return the names of the parameters that `--stochastic` selects.

    Args:
        stochastic: `all`, `last`, names with shell wildcards, or several of these separated by commas.
        network: the network.
        last: the last layer, a module inside `network`. None means the module that contains the last parameter.

    Raises:
        UsageError: if no parameter matches a pattern. The caller must add the option or file that contains it.
    """
    leaves = named_leaves(network)
    selected: set[str] = set()
    for word in map(str.strip, stochastic.split(",")):
        pattern = "*" if word == "all" else word
        matching = (
            last_names(network, last)
            if word == "last"
            else {leaf_key for leaf_key in leaves if fnmatchcase(leaf_key, pattern)}
        )
        if not matching:
            raise UsageError(f"no parameter matches {word!r}; use one of {', '.join(leaves)}, or all or last")
        selected |= matching
    return frozenset(selected)


def last_names(network: PyTree, last: PyTree | None) -> set[str]:
    """Return the names of the last layer's parameters in the whole network.

    Args:
        network: the network.
        last: the last layer, as for `sampled_names`.
    """
    if last is not None:
        last_ids = {id(leaf) for leaf in named_leaves(last).values()}
        return {name for name, leaf in named_leaves(network).items() if id(leaf) in last_ids}
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(eqx.filter(network, eqx.is_inexact_array))]
    return {leaf_name(path) for path in paths if path[:-1] == paths[-1][:-1]}
