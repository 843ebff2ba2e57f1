"""Meshes of devices as the user types them: chains=2,data=4."""

from __future__ import annotations

import re
from typing import NamedTuple

_AXIS = re.compile(r"(chains|data)=([1-9]\d{0,5})", re.ASCII)


class Axes(NamedTuple):
    """The number of groups of devices, which share the chains, and of devices per group, which share the rows."""

    chains: int = 1
    data: int = 1


def axes(text: str) -> Axes:
    """Return the axes of a text such as `chains=2,data=4`; a missing axis is 1.

    Raises:
        ValueError: if the text has another form.
    """
    matches = [_AXIS.fullmatch(part.strip()) for part in text.split(",")]
    sizes = {match[1]: int(match[2]) for match in matches if match}
    if len(sizes) < len(matches):
        raise ValueError(f"must be chains=C, data=D or chains=C,data=D, with numbers of devices (got {text!r})")
    return Axes(**sizes)
