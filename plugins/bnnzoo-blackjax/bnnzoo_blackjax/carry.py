"""Conversion of BlackJAX's states to constant dtypes, because JAX loops must not change the dtypes of a carry."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def with_types_of(new: Any, old: Any) -> Any:
    """Return the arrays of the tree `new`, converted to the dtypes of the arrays of the tree `old`."""
    return jax.tree.map(lambda a, b: jnp.asarray(a, jnp.asarray(b).dtype), new, old)


def without_weak_types(tree: Any) -> Any:
    """Return the tree with arrays whose dtypes are not weak (JAX's term for dtypes of Python numbers)."""
    return jax.tree.map(lambda a: jax.lax.convert_element_type(a, jnp.asarray(a).dtype), tree)
