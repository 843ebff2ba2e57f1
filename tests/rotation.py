"""The tests that run at some commits only, so that the default suite takes minutes; `-m slow` runs all of them.

A different fortieth of a generated suite (`rotating`) and a different sixteenth of the tests that take seconds
(`@pytest.mark.long`) run at each commit. The number of commits selects the part; a hash of the commit could omit some
parts for a long time.
"""

from __future__ import annotations

import functools
import subprocess
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

TURN, LONG_TURN = 40, 16
"""Numbers of commits after which all of a generated suite and all long tests have run."""


@functools.cache
def position() -> int:
    """Return the number of commits up to this one; 0 if it is unknown."""
    arguments = ["git", "rev-list", "--count", "HEAD"]
    try:
        counted = subprocess.run(arguments, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(counted.stdout)


def runs_at(number: int, position: int, turn: int = TURN) -> bool:
    """Whether the part with this number runs by default at this number of commits."""
    return number % turn == position % turn


def rotating(values: Iterable[Any], names: Sequence[str] | None = None) -> list[Any]:
    """Return the parameters of a test, each with a marker to run at one commit in forty, and with `-m slow`."""
    values = list(values)
    names = [str(value) for value in values] if names is None else names
    pairs = enumerate(zip(values, names, strict=True))
    return [pytest.param(value, id=name, marks=pytest.mark.rotating(number)) for number, (value, name) in pairs]


def mark(items: Iterable[pytest.Item], expression: str) -> None:
    """Mark the parts that do not run by default as `slow`; with `-m slow` mark all parts."""
    by_default = "not slow" in expression
    for item in items:
        marker = item.get_closest_marker("rotating")
        if marker is not None:
            runs = runs_at(marker.args[0], position())
        elif item.get_closest_marker("long") is not None:
            runs = runs_at(zlib.crc32(item.nodeid.encode()), position(), LONG_TURN)
        else:
            continue
        if not (by_default and runs):
            item.add_marker(pytest.mark.slow)
