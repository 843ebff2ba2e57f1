"""Checks of what likelihoods and priors have in common: fields, and parameters that are sampled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bnnzoo import naming
from bnnzoo.posterior.likelihoods import Parameter
from bnnzoo.recipe import fields_of
from bnnzoo.testing import density

_DRAWS = 4000


def attempt(check: Callable[[], str]) -> str:
    """The answer of a check; an exception is a fault too."""
    try:
        return check()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def fields(part: type) -> str:
    """A sentence where `bnnzoo info` and `--help` would have nothing to print."""
    own = (part.__doc__ or "").strip()
    if not own or (own.startswith(f"{part.__name__}(") and own.endswith(")")):  # made by dataclasses
        return "the class has no docstring: bnnzoo info would describe it by its signature"
    for field in fields_of(part):
        if not field.help:
            return f"the field {field.name} has no Doc(...): --help would say nothing"
        if not (field.accepts.scalars or field.accepts.choices or field.accepts.items):
            return f"the field {field.name} has no type that the command line can read"
        default = field.default
        if default is inspect.Parameter.empty or (isinstance(default, str) and default in field.accepts.choices):
            continue
        try:
            field.accepts.convert(default)
        except ValueError as error:
            return f"the default of the field {field.name} is outside its own range: {error}"
    return ""


def parameters(own: Sequence[Parameter]) -> str:
    """A sentence where a sampled parameter is not what the sampler and the file take it for."""
    if len({p.name for p in own}) < len(own):
        return f"two parameters are called {next(p.name for p in own if [q.name for q in own].count(p.name) > 1)}"
    for parameter in own:
        if reason := naming.fault(parameter.name):
            return f"the parameter {reason}"
        if found := _round_trip(parameter) or _own_prior(parameter):
            return f"{parameter.name}: {found}"
    return ""


def _round_trip(parameter: Parameter) -> str:
    """`natural` and `unconstrained` are inverses, on arrays of NumPy as on those of JAX."""
    shape = (3, *parameter.shape)
    u = np.linspace(-1.5, 1.5, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    natural = parameter.natural(u)
    if not isinstance(natural, np.ndarray):
        return f"natural makes {type(natural).__name__} of a NumPy array; a file holds NumPy arrays"
    if natural.shape != u.shape:
        return f"natural makes shape {list(natural.shape)} of {list(u.shape)}: it must work on each number"
    if not np.allclose(np.asarray(parameter.natural(jnp.asarray(u))), natural, atol=1e-5):
        return "natural differs between NumPy and JAX arrays"
    back = np.asarray(parameter.unconstrained(natural))
    if back.shape != u.shape or not np.allclose(back, u, atol=1e-4):
        return "unconstrained is not the inverse of natural: a file's draws could not be read back"
    return ""


def _own_prior(parameter: Parameter) -> str:
    """The density `log_prior` of the unconstrained array is normalised, and `draw` draws from it."""
    start = jnp.full(parameter.shape, parameter.start, jnp.float32)
    value = jnp.asarray(parameter.log_prior(start))
    if value.shape != () or value.dtype != jnp.float32 or not np.isfinite(value):
        return f"log_prior at its start is {value.dtype}{list(value.shape)} {value}; it must be one finite float32"
    if not np.isfinite(np.asarray(jax.grad(parameter.log_prior)(start))).all():
        return "the gradient of log_prior at its start is not finite"
    keys = jax.random.split(jax.random.key(0), _DRAWS)
    draws = np.asarray(jax.vmap(parameter.draw)(keys))
    if draws.shape != (_DRAWS, *parameter.shape):
        return f"draw gives shape {list(draws.shape[1:])}, not {list(parameter.shape)}"
    size = int(np.prod(parameter.shape))
    if not 1 <= size <= 2:
        return ""
    flat = draws.reshape(_DRAWS, size)
    grid = density.Grid.about(flat)

    def log_prior(row: Any) -> Any:
        return parameter.log_prior(row.reshape(parameter.shape))

    values = np.asarray(jax.jit(jax.vmap(log_prior))(jnp.asarray(grid.points)))
    if found := density.normalisation(grid, values):
        return f"log_prior of the unconstrained value: {found} (is the Jacobian of natural in it?)"
    found = density.agreement(grid, values, flat, np.asarray(jax.vmap(log_prior)(jnp.asarray(flat))))
    return f"draw: {found}" if found else ""
