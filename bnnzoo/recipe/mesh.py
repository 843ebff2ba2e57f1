"""Meshes of devices, which the user types as `chains=2,data=4`."""

from __future__ import annotations

import re
from typing import NamedTuple

_AXIS = re.compile(r"(chains|data)=([1-9]\d{0,5})", re.ASCII)


class Axes(NamedTuple):
    """The two sizes of a mesh of devices.

    `chains` is the number of groups of devices. The chains are distributed over the groups. `data` is the number of
    devices in a group. The rows of the data are distributed over these devices.
    """

    chains: int = 1
    data: int = 1


def axes(text: str) -> Axes:
    """Return the sizes in a text such as `chains=2,data=4`. A size that the text does not contain is 1.

    Raises:
        ValueError: if the text has another form, or if a size is repeated.
    """
    matches = [_AXIS.fullmatch(part.strip()) for part in text.split(",")]
    sizes = {match[1]: int(match[2]) for match in matches if match}
    if len(sizes) < len(matches):
        raise ValueError(
            f"must be chains=C, data=D or chains=C,data=D, where C and D are numbers of devices (got {text!r})"
        )
    return Axes(**sizes)
