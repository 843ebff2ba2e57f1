"""Options of a run in several processes. All processes are started with the same command."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from bnnzoo.cli import common_options as common

_PANEL: dict[str, Any] = {"rich_help_panel": "Several processes", "show_default": False}
Distributed = Annotated[
    bool,
    typer.Option(
        "--distributed",
        help="this process is one of several that share the chains (Slurm, Open MPI and Kubernetes are detected)",
        **_PANEL,
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option("--coordinator", metavar="HOST:PORT", help="if not detected: address of the first process", **_PANEL),
]
Count = Annotated[
    int | None, typer.Option("--processes", metavar="INT", min=1, help="if not detected: number of processes", **_PANEL)
]
Rank = Annotated[
    int | None,
    typer.Option("--rank", metavar="INT", min=0, help="if not detected: number of this process, from 0", **_PANEL),
]
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "distributed": (Distributed, False),
    "coordinator": (Coordinator, None),
    "processes": (Count, None),
    "rank": (Rank, None),
}


def parameters(*, hidden: bool) -> list[inspect.Parameter]:
    """Return the options of a run in several processes. The command `show` ignores these options and hides them."""
    return common.parameters(_OPTIONS, hidden=hidden)


def join_if_requested(arguments: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Return a context that joins this process to the other processes if an option of this module is given."""
    address = arguments["coordinator"], arguments["processes"], arguments["rank"]
    if not arguments["distributed"] and address == (None, None, None):
        return contextlib.nullcontext()
    from bnnzoo.sampling.devices import jax_settings

    return jax_settings.join_processes(*address)


def is_first() -> bool:
    """Whether this process is the first one, which prints the results. Call after the run: the function starts JAX."""
    from bnnzoo.sampling.devices.processes import Processes

    return Processes.current().is_first
