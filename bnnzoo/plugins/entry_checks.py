"""Checks of the objects that entries name."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from bnnzoo.plugins.discovery import COMMANDS, Registered

_BASES = {
    "models": ("bnnzoo.models", "AbstractModel"),
    "samplers": ("bnnzoo.samplers", "AbstractSampler"),
    "likelihoods": ("bnnzoo.posterior.likelihoods", "AbstractLikelihood"),
    "priors": ("bnnzoo.posterior.priors", "AbstractPrior"),
}
"""The base class of each kind as text, so that nothing is imported before it is used."""


def fault_of_part(entry: Registered, part: Any) -> str:
    """Return the reason why the object of an entry has the wrong type; empty if it has the right one."""
    if entry.kind == COMMANDS:
        return "" if _is_command(part) else f"is neither a Typer app nor a function (got {type(part).__name__})"
    if entry.kind not in _BASES:
        return "" if callable(part) else f"is not a function (got {type(part).__name__})"
    module, name = _BASES[entry.kind]
    if not (isinstance(part, type) and issubclass(part, getattr(importlib.import_module(module), name))):
        return f"is not a subclass of bnnzoo.{name}"
    if abstract_methods := sorted(getattr(part, "__abstractmethods__", ())):
        return f"does not implement all of bnnzoo.{name}: {', '.join(abstract_methods)}"
    class_exactness = getattr(part, "exactness", "")
    if entry.kind == "samplers" and class_exactness != entry.exactness:
        return f"is listed as {entry.exactness}, but its class declares {class_exactness or 'nothing'}"
    return ""


def _is_command(candidate: Any) -> bool:
    """Whether an object can be a command: a Typer app or a function."""
    from typer import Typer

    return inspect.isroutine(candidate) or isinstance(candidate, Typer)
