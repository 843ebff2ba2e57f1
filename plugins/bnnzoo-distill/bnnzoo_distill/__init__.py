"""Distillation: one student network that answers like the posterior predictive distribution of a run.

Names are resolved at first use, because `bnnzoo --help` imports this module and must not import JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bnnzoo import Entry, hookimpl

if TYPE_CHECKING:
    from bnnzoo_distill.distilling import distill as distill
    from bnnzoo_distill.files import load as load
    from bnnzoo_distill.student import Student as Student

BNNZOO_API = 1

_HOME_OF = {"Student": "student", "distill": "distilling", "load": "files"}
__all__ = list(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


@hookimpl
def bnnzoo_commands() -> list[Entry]:
    """Return the plugin's commands."""
    summary = "Train one network that predicts like all draws of a run."
    return [Entry("distill", "bnnzoo_distill.commands:distill", summary)]
