"""The part of a generated suite that runs by default: another tenth with each commit, everything within ten.

A hash of the commit would leave some parts out for a long time; the number of commits does not.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

TURN = 10
"""Commits after which everything has run."""


@functools.cache
def position() -> int:
    """Number of commits up to this one; 0 where that is unknown."""
    arguments = ["git", "rev-list", "--count", "HEAD"]
    try:
        counted = subprocess.run(arguments, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(counted.stdout)


def runs_at(number: int, position: int) -> bool:
    """Whether the part of that number runs by default at that many commits."""
    return number % TURN == position % TURN


def rotating(values: Iterable[Any], names: Sequence[str] | None = None) -> list[Any]:
    """Parameters of a test, each with the marker that makes it run at one commit in ten, and with `-m slow`."""
    values = list(values)
    names = [str(value) for value in values] if names is None else names
    pairs = enumerate(zip(values, names, strict=True))
    return [pytest.param(value, id=name, marks=pytest.mark.rotating(number)) for number, (value, name) in pairs]


def mark(items: Iterable[pytest.Item], expression: str) -> None:
    """Give the marker `slow` to the parts that do not run by default; with `-m slow` to all of them."""
    by_default = "not slow" in expression
    for item in items:
        marker = item.get_closest_marker("rotating")
        if marker is not None and not (by_default and runs_at(marker.args[0], position())):
            item.add_marker(pytest.mark.slow)
