"""What was measured of a run against a limit: a value. Here, and only here, a sentence is made of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
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


def sentence(finding: Finding) -> str:
    """The finding in words, without a full stop: "mean sigma2 6.3, trusted up to 2; use more --sampler.num-batches"."""
    return f"{_measured(finding)}; {finding.advice}" if finding.advice else _measured(finding)


def sentences(findings: Sequence[Finding]) -> list[str]:
    """Each in words; advice that several have in common is given once, after the last of them."""
    last = {finding.advice: number for number, finding in enumerate(findings)}
    return [sentence(f) if last[f.advice] == number else _measured(f) for number, f in enumerate(findings)]


def _measured(finding: Finding) -> str:
    if math.isnan(finding.value):
        return f"{finding.label} is not a number, where its limit is {finding.limit:g}"
    side = "at least" if finding.value < finding.limit else "trusted up to"
    # Three digits, or as many as tell the value from its limit.
    value = next(v for d in (3, 4, 5, 17) if (v := f"{finding.value:.{d}g}") != f"{finding.limit:.{d}g}" or d == 17)
    return f"{finding.label} {value}, {side} {finding.limit:g}"


def to_json(findings: Iterable[Finding]) -> str:
    """As a file's attribute `findings` holds them."""
    return json.dumps([finding._asdict() for finding in findings])


def from_json(text: str) -> tuple[Finding, ...]:
    """The findings that `to_json` wrote."""
    return tuple(Finding(**words) for words in json.loads(text))
