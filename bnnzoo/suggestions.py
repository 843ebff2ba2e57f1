"""Suggestions of similar names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return up to `count` known names that are similar to `name`, the most similar first.

    The comparison ignores the case of letters, and `-` equals `_`.
    """
    known = list(known)
    folded = [_fold(known_name) for known_name in known]
    matches = difflib.get_close_matches(_fold(name), dict.fromkeys(folded), count)
    return [
        known_name
        for match in matches
        for known_name, folded_name in zip(known, folded, strict=True)
        if folded_name == match
    ][:count]


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_")
