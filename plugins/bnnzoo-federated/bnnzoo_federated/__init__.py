"""Federated posteriors: parties that hold rows and send sums over their rows, and a coordinator that runs the chains.

Names are resolved at first use, because `bnnzoo --help` imports this module and must not import JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bnnzoo import Entry, hookimpl

if TYPE_CHECKING:
    from bnnzoo_federated.coordinator import Coordinator as Coordinator
    from bnnzoo_federated.lines import DaskLine as DaskLine
    from bnnzoo_federated.lines import Line as Line
    from bnnzoo_federated.lines import security as security
    from bnnzoo_federated.log import read_log as read_log
    from bnnzoo_federated.log_table import show_log as show_log
    from bnnzoo_federated.party import Party as Party
    from bnnzoo_federated.privacy import Privacy as Privacy
    from bnnzoo_federated.server import serve as serve

BNNZOO_API = 1

_HOME_OF = {
    "Coordinator": "coordinator",
    "DaskLine": "lines",
    "Line": "lines",
    "Party": "party",
    "Privacy": "privacy",
    "read_log": "log",
    "security": "lines",
    "serve": "server",
    "show_log": "log_table",
}
__all__ = list(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


@hookimpl
def bnnzoo_commands() -> list[Entry]:
    """Return the plugin's commands."""
    return [
        Entry("party", "bnnzoo_federated.commands:app", "Serve local rows to a coordinator, or show what was sent.")
    ]
