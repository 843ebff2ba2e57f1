"""What was measured of a run against a limit: a value. Sentences are made of it where it is printed."""

from __future__ import annotations

from typing import Literal, NamedTuple

Topic = Literal["validity", "convergence", "calibration", "novelty"]


class Finding(NamedTuple):
    """A number beyond its limit, and what to do about it."""

    topic: Topic
    """What it speaks of: did the sampler do what it promises, has it converged, is it calibrated, does it know what
    is new to it."""
    kind: str
    """Which number: "sigma2", "rhat". Findings are sorted and told apart by topic and kind, never by their words."""
    label: str
    """The number's name in a sentence: "mean sigma2"."""
    value: float
    limit: float
    advice: str = ""
    """What to type instead, without a full stop; empty where nothing is known to help."""
