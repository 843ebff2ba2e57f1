"""Durations as the user types them: 90s, 5m, 2h."""

from __future__ import annotations

import math
import re

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smh])\s*", re.ASCII)


def seconds(text: str) -> float:
    """Return the number of seconds of a duration such as `5m`.

    Raises:
        ValueError: if the text is not a duration, or if the duration is zero or infinite.
    """
    match = _TEXT.fullmatch(text)
    if match is None or not 0 < float(match[1]) < math.inf:
        raise ValueError(f"must be a time such as 90s, 5m or 2h (got {text!r})")
    return float(match[1]) * _SECONDS[match[2]]


def text(seconds: float) -> str:
    """Return the text of a duration, rounded up to whole seconds, minutes or hours, such as `90s`, `8m` and `3h`."""
    unit = next((unit for unit in ("s", "m") if seconds <= 90 * _SECONDS[unit]), "h")
    return f"{math.ceil(seconds / _SECONDS[unit])}{unit}"
