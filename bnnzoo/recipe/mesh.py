"""Meshes of devices as they are typed: chains=2,data=4."""

from __future__ import annotations

import re
from typing import NamedTuple

_AXIS = re.compile(r"(chains|data)=([1-9]\d{0,5})", re.ASCII)


class Axes(NamedTuple):
    """Over how many devices the chains are split, and over how many each chain's rows."""

    chains: int = 1
    data: int = 1


def axes(text: str) -> Axes:
    """The axes that a text such as `chains=2,data=4` names; one that is left out is 1.

    Raises:
        ValueError: for any other text.
    """
    found = [_AXIS.fullmatch(part.strip()) for part in text.split(",")]
    named = {match[1]: int(match[2]) for match in found if match}
    if len(named) < len(found):
        raise ValueError(f"must be chains=C, data=D or chains=C,data=D, of devices (got {text!r})")
    return Axes(**named)
