"""Options that `bnnzoo predict` and `bnnzoo evaluate` share."""

from __future__ import annotations

from typing import Annotated, Literal

from bnnzoo.cli import common_options as common

Unseen = Annotated[
    Literal["error", "zero"] | None,
    common.value(
        "--unseen", "error|zero", "levels of text that training did not see: an error, or none of the known ones"
    ),
]

Interval = Annotated[
    Literal["bayesian", "conformal"] | None,
    common.value(
        "--interval",
        "bayesian|conformal",
        "add an interval of the target, or a set of classes; conformal: its coverage is guaranteed",
    ),
]
Level = Annotated[
    float | None,
    common.value("--level", "FLOAT", "its probability; 0.9 unless given"),
]
Calibration = Annotated[
    str | None,
    common.value(
        "--calibration",
        "FILE|test",
        "for --interval conformal: rows with targets, used neither to train nor to test; or the run's test rows",
    ),
]
