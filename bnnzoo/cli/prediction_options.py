"""Options that `bnnzoo predict` and `bnnzoo evaluate` share."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Unseen = Annotated[
    Literal["error", "zero"] | None,
    typer.Option(
        "--unseen",
        metavar="error|zero",
        help="levels of text that training did not see: an error, or none of the known ones",
        show_default=False,
    ),
]

Interval = Annotated[
    Literal["bayesian", "conformal"] | None,
    typer.Option(
        "--interval",
        metavar="bayesian|conformal",
        help="add an interval of the target, or a set of classes; conformal: its coverage is guaranteed",
        show_default=False,
    ),
]
Level = Annotated[
    float | None,
    typer.Option("--level", metavar="FLOAT", help="its probability; 0.9 unless given", show_default=False),
]
Calibration = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="FILE|test",
        help="for --interval conformal: rows with targets, used neither to train nor to test; or the run's test rows",
        show_default=False,
    ),
]
