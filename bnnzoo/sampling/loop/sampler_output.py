"""Checks of the values that a sampler's methods return, done while JAX traces them. They find errors in plugins."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bnnzoo.errors import BnnzooError
from bnnzoo.files import variable_names
from bnnzoo.plugins import registry


def check_state(sampler: Any, state: Any, theta: Any) -> None:
    """Check that the first state of a sampler has a position with the shape and type of `theta`.

    Raises:
        BnnzooError: if the state has no such position; the message names the sampler and the problem.
    """
    position = getattr(state, "position", None)
    if position is None:
        raise _fault(sampler, "init", f"must return a state with the attribute position (got {_describe_type(state)})")
    if jnp.shape(position) != jnp.shape(theta) or jnp.result_type(position) != theta.dtype:
        raise _fault(
            sampler,
            "init",
            f"must return a state with a position {_describe_array(theta)} (got {_describe_array(position)})",
        )


def check_step(sampler: Any, method: str, state: Any, result: Any) -> None:
    """Check that a step returns a state with the structure of `state`, and statistics that a file can store.

    Raises:
        BnnzooError: if the step returns anything else; the message names the sampler, the method and the problem.
    """
    if not (isinstance(result, tuple) and len(result) == 2):
        raise _fault(
            sampler, method, f"must return two values, the next state and statistics (got {_describe_type(result)})"
        )
    next_state, stats = result
    if not isinstance(stats, dict):
        raise _fault(
            sampler, method, f"must return the statistics as a dictionary of arrays (got {_describe_type(stats)})"
        )
    for name, value in stats.items():
        if not (isinstance(name, str) and hasattr(value, "dtype")):
            raise _fault(
                sampler, method, f"must return an array for the statistic {name!r} (got {_describe_type(value)})"
            )
        reason = variable_names.fault(name)
        if not reason and jnp.issubdtype(value.dtype, jnp.complexfloating):
            reason = "is complex"
        if not reason and jnp.ndim(value):
            reason = f"is not one number per step (got {name} with the shape {list(jnp.shape(value))})"
        if reason:
            raise _fault(sampler, method, f"returns a statistic that {reason}")
    state_structure = jax.tree.structure(state)
    if jax.tree.structure(next_state) != state_structure:
        raise _fault(
            sampler,
            method,
            f"must return a state with the structure of its argument, {_describe_type(state)} (got "
            f"{_describe_type(next_state)})",
        )
    for old_leaf, new_leaf in zip(jax.tree.leaves(state), jax.tree.leaves(next_state), strict=True):
        if jnp.shape(old_leaf) != jnp.shape(new_leaf) or jnp.result_type(old_leaf) != jnp.result_type(new_leaf):
            raise _fault(
                sampler,
                method,
                f"must not change the shape or type of an array in the state: {_describe_array(old_leaf)} became "
                f"{_describe_array(new_leaf)}",
            )


def _fault(sampler: Any, method: str, problem: str) -> BnnzooError:
    return BnnzooError(f"{registry.describe_part('samplers', sampler)}: {method} {problem}")


def _describe_type(value: Any) -> str:
    """Describe a value's type in a few words."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return f"a tuple of {len(value)}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def _describe_array(value: Any) -> str:
    return f"{jnp.result_type(value)}{list(jnp.shape(value))}"
