"""Benchmarks: bnnzoo's methods and other packages on the same splits, with one line of results per fit.

Names are resolved at first use, because `bnnzoo --help` imports this module and must not import JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bnnzoo import Entry, hookimpl

if TYPE_CHECKING:
    from bnnzoo_bench.distributions import Distribution as Distribution
    from bnnzoo_bench.distributions import Normal as Normal
    from bnnzoo_bench.distributions import Peer as Peer
    from bnnzoo_bench.distributions import StudentT as StudentT
    from bnnzoo_bench.results import read_results as read_results
    from bnnzoo_bench.scores import score as score

BNNZOO_API = 1

_HOME_OF = {
    "Distribution": "distributions",
    "Normal": "distributions",
    "Peer": "distributions",
    "StudentT": "distributions",
    "read_results": "results",
    "score": "scores",
}
__all__ = list(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


@hookimpl
def bnnzoo_commands() -> list[Entry]:
    """Return the plugin's commands."""
    return [Entry("bench", "bnnzoo_bench.commands:app", "Compare methods on the same problems and splits.")]
