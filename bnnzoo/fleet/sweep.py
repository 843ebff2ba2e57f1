"""The points of a sweep: all combinations of the values of its options, each with a name for its file."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bnnzoo.errors import UsageError
from bnnzoo.recipe import Value

MAX_RUNS = 10_000
"""Largest number of runs of one sweep. A larger number is probably a typing error."""

_SEEDS = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


class Point(NamedTuple):
    """The option values of one run, and the suffix of its name, such as `,sampler.step_size=0.001,seed=0`."""

    suffix: str
    options: dict[str, Value]


def parse_seeds(text: str) -> list[int]:
    """Parse a list of seeds, such as `0-19` or `0,3,5-7`. Remove duplicates.

    Raises:
        UsageError: if the text has another form, or if a range has more than `MAX_RUNS` seeds.
    """
    seeds: dict[int, None] = {}
    for piece in text.split(","):
        match = _SEEDS.fullmatch(piece.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first:
            raise UsageError(f"[[seeds]]: must be like 0-19 or 0,3,5-7 (got {text!r})")
        if last - first >= MAX_RUNS:
            raise UsageError(f"[[seeds]]: {piece} gives too many runs; use at most {MAX_RUNS}")
        seeds |= dict.fromkeys(range(first, last + 1))
    return list(seeds)


def points(values: Mapping[str, Sequence[Value]]) -> list[Point]:
    """Return all combinations of the values; the last option varies fastest.

    Without options, the result is one point without options.

    Raises:
        UsageError: if there are too many combinations, or if two of them have the same name.
    """
    keys = list(values)
    count = 1
    for options in values.values():
        count *= len(options)
    if count > MAX_RUNS:
        raise UsageError(f"sweep: {count} runs are too many; use at most {MAX_RUNS}")
    points_found = []
    for combination in itertools.product(*values.values()):
        pairs = zip(keys, combination, strict=True)
        suffix = "".join(f",{key}={_safe_text(value.raw)}" for key, value in pairs)
        points_found.append(Point(suffix, dict(zip(keys, combination, strict=True))))
    name, count_of_name = Counter(point.suffix for point in points_found).most_common(1)[0]
    if count_of_name > 1:
        raise UsageError(f"sweep: two runs have the same name ({name.lstrip(',')}); give each value once")
    return points_found


def _safe_text(value: Any) -> str:
    """Return the text of a value, with only characters that are safe in a file name."""
    if isinstance(value, list):
        return "x".join(map(_safe_text, value))
    return _UNSAFE.sub("_", str(value))
