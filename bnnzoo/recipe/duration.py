"""Times as they are typed: 90s, 5m, 2h."""

from __future__ import annotations

import math
import re

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smh])\s*", re.ASCII)


def seconds(text: str) -> float:
    """The seconds that a text such as `5m` stands for.

    Raises:
        ValueError: for any other text, or no time at all.
    """
    found = _TEXT.fullmatch(text)
    if found is None or not 0 < float(found[1]) < math.inf:
        raise ValueError(f"must be a time such as 90s, 5m or 2h (got {text!r})")
    return float(found[1]) * _SECONDS[found[2]]
