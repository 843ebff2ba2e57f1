"""Conversion of BlackJAX's states to fixed types, as the carry of a JAX loop requires."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def with_types_of(new: Any, old: Any) -> Any:
    """Return `new` with the types of `old`."""
    return jax.tree.map(lambda a, b: jnp.asarray(a, jnp.asarray(b).dtype), new, old)


def without_weak_types(tree: Any) -> Any:
    """Return the tree without weak types."""
    return jax.tree.map(lambda a: jax.lax.convert_element_type(a, jnp.asarray(a).dtype), tree)
