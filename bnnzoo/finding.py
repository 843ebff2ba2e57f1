"""What was measured of a run against a limit: a value. Here, and only here, a sentence is made of it."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Literal, NamedTuple

Topic = Literal["validity", "convergence", "calibration", "novelty"]
Spelling = Literal["options", "keywords"]
"""How a setting is written: `--sampler.step-size 0.01` on the command line, `step_size=0.01` in Python."""

_spelling: ContextVar[Spelling] = ContextVar("spelling", default="keywords")
_SETTING = re.compile(r"\[\[([a-z0-9_.]+)(?:=([^\]]*))?\]\]")
_NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?|True|False")


def setting(field: str, value: object = None) -> str:
    """A setting as advice holds it, spelt only where it is read: `setting("sampler.step_size", 0.01)`.

    Args:
        field: a key of a recipe: of a run (`warmup`), or of a part (`sampler.step_size`).
        value: what to set it to; left out where the words around it say which way to go.
    """
    return f"[[{field}]]" if value is None else f"[[{field}={value}]]"


def spelt(text: str, spelling: Spelling) -> str:
    """A text with its settings written out."""

    def written(found: re.Match[str]) -> str:
        field, value = found[1], found[2]
        if spelling == "options":
            option = f"--{field.replace('_', '-')}"
            return option if value is None else f"{option} {value}"
        name = field.rpartition(".")[2]
        if value is None:
            return name
        return f"{name}={value}" if _NUMBER.fullmatch(value) else f'{name}="{value}"'

    return _SETTING.sub(written, text)


def spelling() -> Spelling:
    """The spelling of whoever called: the command line, or Python."""
    return _spelling.get()


@contextlib.contextmanager
def spelling_of(caller: Spelling) -> Iterator[None]:
    """Inside, messages are spelt for this caller."""
    before = _spelling.set(caller)
    try:
        yield
    finally:
        _spelling.reset(before)


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
    """What to do instead, without a full stop, with each `setting` as a value; empty where nothing is known to help."""

    @property
    def settings(self) -> tuple[tuple[str, str | None], ...]:
        """What the advice is about: each field with the value advised, or None where the words say which way to go."""
        return tuple((found[1], found[2]) for found in _SETTING.finditer(self.advice))

    def __str__(self) -> str:
        return sentence(self, spelling())


def sentence(finding: Finding, spelling: Spelling = "options") -> str:
    """The finding in words, without a full stop: "mean sigma2 6.3, trusted up to 2; use more --sampler.num-batches"."""
    return f"{_measured(finding)}; {spelt(finding.advice, spelling)}" if finding.advice else _measured(finding)


def sentences(findings: Sequence[Finding], spelling: Spelling = "options") -> list[str]:
    """Each in words; advice that several have in common is given once, after the last of them."""
    last = {finding.advice: number for number, finding in enumerate(findings)}
    return [sentence(f, spelling) if last[f.advice] == number else _measured(f) for number, f in enumerate(findings)]


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
