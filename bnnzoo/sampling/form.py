"""Checks of the results of a sampler's methods while they are traced, because plugin authors write samplers too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bnnzoo import naming, registry
from bnnzoo.errors import BnnzooError


def check_state(sampler: Any, state: Any, theta: Any) -> None:
    """Refuse a first state that lacks a position of the right shape and type.

    Raises:
        BnnzooError: naming the sampler and what is missing.
    """
    position = getattr(state, "position", None)
    if position is None:
        raise _fault(sampler, "init", f"must return a state with the attribute position (got {_words(state)})")
    if jnp.shape(position) != jnp.shape(theta) or jnp.result_type(position) != theta.dtype:
        raise _fault(sampler, "init", f"must return a position {_array(theta)} (got {_array(position)})")


def check_step(sampler: Any, method: str, state: Any, given: Any) -> None:
    """Refuse a step whose result is not a state like its input and statistics that a file can hold.

    Raises:
        BnnzooError: naming the sampler, the method and the problem.
    """
    if not (isinstance(given, tuple) and len(given) == 2):
        raise _fault(sampler, method, f"must return two values, the next state and statistics (got {_words(given)})")
    after, stats = given
    if not isinstance(stats, dict):
        raise _fault(sampler, method, f"must return a dictionary of numbers for statistics (got {_words(stats)})")
    for name, value in stats.items():
        if not (isinstance(name, str) and hasattr(value, "dtype")):
            raise _fault(sampler, method, f"must return an array for the statistic {name!r} (got {_words(value)})")
        reason = naming.fault(name) or ("is complex" if jnp.issubdtype(value.dtype, jnp.complexfloating) else "")
        if reason:
            raise _fault(sampler, method, f"returns a statistic that {reason}")
    if reason := naming.clash({name: jnp.ndim(value) for name, value in stats.items()}):
        raise _fault(sampler, method, f"returns a statistic that {reason}")
    before = jax.tree.structure(state)
    if jax.tree.structure(after) != before:
        raise _fault(
            sampler,
            method,
            f"must return a state like the one that it was given, {_words(state)} (got {_words(after)})",
        )
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        if jnp.shape(one) != jnp.shape(other) or jnp.result_type(one) != jnp.result_type(other):
            raise _fault(
                sampler, method, f"must not change the arrays of a state: {_array(one)} became {_array(other)}"
            )


def _fault(sampler: Any, method: str, what: str) -> BnnzooError:
    return BnnzooError(f"{registry.described('samplers', sampler)}: {method} {what}")


def _words(thing: Any) -> str:
    """Describe a value's type in a few words."""
    if isinstance(thing, tuple) and not hasattr(thing, "_fields"):
        return f"a tuple of {len(thing)}"
    return "nothing" if thing is None else f"a {type(thing).__name__}"


def _array(value: Any) -> str:
    return f"{jnp.result_type(value)}{list(jnp.shape(value))}"
