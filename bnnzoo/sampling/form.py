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
        raise _fault(sampler, "init", f"gives {_words(state)}, and must give a state with the attribute position")
    if jnp.shape(position) != jnp.shape(theta) or jnp.result_type(position) != theta.dtype:
        raise _fault(sampler, "init", f"gives a position {_array(position)}, and must give {_array(theta)}")


def check_step(sampler: Any, method: str, state: Any, given: Any) -> None:
    """Refuse a step whose result is not a state like its input and statistics that a file can hold.

    Raises:
        BnnzooError: naming the sampler, the method and the problem.
    """
    if not (isinstance(given, tuple) and len(given) == 2):
        raise _fault(sampler, method, f"gives {_words(given)}, and must give two things: the next state, statistics")
    after, stats = given
    if not isinstance(stats, dict):
        raise _fault(sampler, method, f"gives {_words(stats)} for statistics, and must give a dictionary of numbers")
    for name, value in stats.items():
        if not (isinstance(name, str) and hasattr(value, "dtype")):
            raise _fault(sampler, method, f"gives {_words(value)} for the statistic {name!r}, and must give an array")
        reason = naming.fault(name) or ("is complex" if jnp.issubdtype(value.dtype, jnp.complexfloating) else "")
        if reason:
            raise _fault(sampler, method, f"gives a statistic that {reason}")
    if reason := naming.clash({name: jnp.ndim(value) for name, value in stats.items()}):
        raise _fault(sampler, method, f"gives a statistic that {reason}")
    before = jax.tree.structure(state)
    if jax.tree.structure(after) != before:
        raise _fault(sampler, method, f"gives {_words(after)}, not the state that it was given: {_words(state)}")
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        if jnp.shape(one) != jnp.shape(other) or jnp.result_type(one) != jnp.result_type(other):
            raise _fault(sampler, method, f"makes {_array(other)} of the {_array(one)} of a state: it must stay alike")


def _fault(sampler: Any, method: str, what: str) -> BnnzooError:
    return BnnzooError(f"{registry.described('samplers', sampler)}: {method} {what}")


def _words(thing: Any) -> str:
    """Describe a value's type in a few words."""
    if isinstance(thing, tuple) and not hasattr(thing, "_fields"):
        return f"a tuple of {len(thing)}"
    return "nothing" if thing is None else f"a {type(thing).__name__}"


def _array(value: Any) -> str:
    return f"{jnp.result_type(value)}{list(jnp.shape(value))}"
