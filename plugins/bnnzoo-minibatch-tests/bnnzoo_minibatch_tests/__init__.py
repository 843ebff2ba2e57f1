"""Acceptance tests on growing mini-batches, for comparison with the noise penalty.

Names are resolved at first use, because `bnnzoo list` imports this module and must not import JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bnnzoo import Entry, hookimpl

if TYPE_CHECKING:
    from bnnzoo_minibatch_tests.austerity import Austerity as Austerity
    from bnnzoo_minibatch_tests.confidence import Confidence as Confidence
    from bnnzoo_minibatch_tests.minibatch_barker import MinibatchBarker as MinibatchBarker

BNNZOO_API = 1

_HOME_OF = {"Austerity": "austerity", "Confidence": "confidence", "MinibatchBarker": "minibatch_barker"}
__all__ = list(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


@hookimpl
def bnnzoo_samplers() -> list[Entry]:
    """Return the plugin's samplers."""
    return [
        Entry(
            "minibatch-barker",
            "bnnzoo_minibatch_tests.minibatch_barker:MinibatchBarker",
            "Barker's test on batches that grow until their noise is small enough",
            "noise-corrected",
        ),
        Entry(
            "austerity",
            "bnnzoo_minibatch_tests.austerity:Austerity",
            "Metropolis with a sequential t test on a growing batch, for comparison",
            "biased",
        ),
        Entry(
            "confidence",
            "bnnzoo_minibatch_tests.confidence:Confidence",
            "Metropolis with a concentration bound on a growing batch, for comparison",
            "biased",
        ),
    ]


@hookimpl
def bnnzoo_recipes() -> list[Entry]:
    """Return the plugin's recipes."""
    names = ("minibatch-barker", "austerity", "confidence")
    return [Entry(name, f"bnnzoo_minibatch_tests:recipes/{name}.yaml", "") for name in names]
