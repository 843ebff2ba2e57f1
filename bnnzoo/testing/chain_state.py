"""A check that sampling steps change only the position and the declared chain state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bnnzoo.samplers import AbstractSampler


def adaptation(sampler: AbstractSampler, before: Any, after: Any) -> str:
    """Return a sentence if the sampler still adapts after warm-up; otherwise an empty string.

    Only the position and the fields in `chain_state` of the sampler may change.

    Args:
        sampler: the sampler to check.
        before, after: states of one chain or of all chains, before and after steps of the sampling phase.
    """
    changed = [name for name in changed_fields(before, after) if not _is_declared(name, sampler.chain_state)]
    if not changed:
        return ""
    changed_list = ", ".join(f"state.{name}" for name in changed)
    declaration = ", ".join(repr(name) for name in (*sampler.chain_state, *changed))
    return (
        f"a step after warm-up changes {changed_list}; if this is an adaptation, move it to warmup_step or settle; if "
        f"it is not (a momentum or a cached density), declare chain_state = ({declaration},)"
    )


def changed_fields(before: Any, after: Any) -> list[str]:
    """Return the paths of the arrays, such as `inner.momentum`, that differ in any bit between two states.

    The position is not compared.
    """
    old_leaves, new_leaves = (jax.tree_util.tree_leaves_with_path(state) for state in (before, after))
    positions = before.position, after.position
    return [
        _name(path)
        for (path, old_leaf), (_, new_leaf) in zip(old_leaves, new_leaves, strict=True)
        if not (old_leaf is positions[0] and new_leaf is positions[1]) and not _same_bits(old_leaf, new_leaf)
    ]


def _is_declared(name: str, declared: Sequence[str]) -> bool:
    """Whether a field of the state, or an object that contains it, is declared."""
    return any(name == declared_name or name.startswith(f"{declared_name}.") for declared_name in declared)


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path)


def _same_bits(first: Any, second: Any) -> bool:
    arrays = []
    for leaf in (first, second):
        is_key = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        arrays.append(np.asarray(jax.random.key_data(leaf) if is_key else leaf))
    return arrays[0].tobytes() == arrays[1].tobytes()
