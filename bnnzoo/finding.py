"""Findings (measured values beyond their limits, with advice) and the notation of settings in messages.

Only this module turns a finding into a sentence, and a setting into an option or a keyword.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Literal, NamedTuple

Topic = Literal["validity", "convergence", "calibration", "novelty"]
Spelling = Literal["options", "keywords"]
"""The notation of a setting: `--sampler.step-size 0.01` on the command line, `step_size=0.01` in Python."""
RESUME: dict[Spelling, str] = {"options": "bnnzoo resume", "keywords": "bnnzoo.resume"}
"""Name of the command, or of the function, that continues a run."""

_spelling: ContextVar[Spelling] = ContextVar("spelling", default="keywords")
_SETTING = re.compile(r"\[\[([a-z][a-z0-9_.]*)(?:=([^\]]*))?\]\]")
_NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?|True|False")
_OPTIONS = {"out": "-o"}
"""Settings whose option is shown in its short form, with this form."""
_KEYWORDS = {"allow_inexact_resume": "allow_inexact", "only": "names", "format": "formats"}
"""Settings whose keyword in Python differs from the name of the option, with this keyword."""


def setting(field: str, value: object = None) -> str:
    """Return a placeholder for a setting in a message. `spell_settings` later replaces it by an option or a keyword.

    `setting("sampler.step_size", 0.01)` returns `[[sampler.step_size=0.01]]`. A constant text may contain this
    placeholder directly.

    Args:
        field: name of the setting: a key of a recipe (`warmup`, or `sampler.step_size` for a field of the sampler), or
            an argument of a function.
        value: the advised value. For an option that takes no value, True gives `--option` and False gives
            `--no-option`. Omit the value if the text advises only a direction, such as "a smaller step size".
    """
    return f"[[{field}]]" if value is None else f"[[{field}={_escaped(str(value))}]]"


def spell_settings(text: str, spelling: Spelling) -> str:
    """Replace the placeholders in a text by command-line options or by Python keywords."""

    def replacement(match: re.Match[str]) -> str:
        field, value = match[1], match[2] and _unescaped(match[2])
        if spelling == "options":
            option = _OPTIONS.get(field, f"--{field.replace('_', '-')}")
            if value == "False":
                return option.replace("--", "--no-", 1)
            return option if value in (None, "True") else f"{option} {shlex.quote(value)}"
        name = field.rpartition(".")[2]
        name = _KEYWORDS.get(name, name)
        if value is None:
            return name
        return f"{name}={value if _NUMBER.fullmatch(value) else json.dumps(value, ensure_ascii=False)}"

    return _SETTING.sub(replacement, text)


def spelled(field: str) -> str:
    """Return a setting in the notation that `spelling` returns: `--sampler.step-size` or `step_size`."""
    return spell_settings(setting(field), spelling())


def _escaped(value: str) -> str:
    """Return a value with `]` escaped, because `]]` ends a placeholder."""
    return value.replace("%", "%25").replace("]", "%5D")


def _unescaped(value: str) -> str:
    return value.replace("%5D", "]").replace("%25", "%")


def spelling() -> Spelling:
    """Return the notation of settings in messages: options on the command line, keywords in Python."""
    return _spelling.get()


@contextlib.contextmanager
def spelling_of(caller: Spelling) -> Iterator[None]:
    """Write the settings in all messages in the notation `caller` inside the context."""
    token = _spelling.set(caller)
    try:
        yield
    finally:
        _spelling.reset(token)


class Finding(NamedTuple):
    """A measured value beyond its limit, with advice."""

    topic: Topic
    """The subject: validity of the sampler, convergence, calibration, or detection of novel inputs."""
    kind: str
    """The identifier of the measured value, such as "rhat".

    Findings are sorted and distinguished by topic and kind, never by their text.
    """
    label: str
    """The name of the measured value in a sentence, such as "mean sigma2"."""
    value: float
    limit: float
    advice: str = ""
    """The remedy, without a full stop and with a placeholder for each setting; empty if no remedy is known."""
    chains: tuple[int, ...] = ()
    """The affected chains; empty if all chains are affected."""

    @property
    def settings(self) -> tuple[tuple[str, str | None], ...]:
        """Settings that the advice names, each with the advised value or None if no value is advised."""
        return tuple((match[1], match[2] and _unescaped(match[2])) for match in _SETTING.finditer(self.advice))

    def __str__(self) -> str:
        return sentence(self, spelling())


def sentence(finding: Finding, spelling: Spelling = "options") -> str:
    """Return the finding as a sentence without a full stop.

    Example: "mean sigma2 6.3, trusted up to 2; use more --sampler.num-batches".
    """
    return (
        f"{_value_and_limit(finding)}; {spell_settings(finding.advice, spelling)}"
        if finding.advice
        else _value_and_limit(finding)
    )


def sentences(findings: Sequence[Finding], spelling: Spelling = "options") -> list[str]:
    """Return each finding as a sentence. If several findings have the same advice, only the last one contains it."""
    final_use = {finding.advice: number for number, finding in enumerate(findings)}
    return [
        sentence(finding, spelling) if final_use[finding.advice] == number else _value_and_limit(finding)
        for number, finding in enumerate(findings)
    ]


def _value_and_limit(finding: Finding) -> str:
    label, limit = finding.label, finding.limit
    if finding.chains:
        label += f" (chain{'s' if len(finding.chains) > 1 else ''} {', '.join(map(str, finding.chains))})"
    if math.isnan(finding.value):
        return f"{label} is not a number (limit {limit:g})"
    relation = "must be at least" if finding.value < limit else "trusted up to"
    # Use three digits, or as many as are needed to distinguish the value from its limit.
    value = next(
        text
        for digits in range(3, 18)
        if float(text := f"{finding.value:.{digits}g}") != float(f"{limit:.{digits}g}") or digits == 17
    )
    return f"{label} {value}, {relation} {limit:g}"


def to_json(findings: Iterable[Finding]) -> str:
    """Return findings as JSON, as stored in the attribute `findings` of a run's file."""
    return json.dumps([finding._asdict() for finding in findings])


def from_json(text: str) -> tuple[Finding, ...]:
    """Return the findings that `to_json` wrote."""
    return tuple(Finding(**{**fields, "chains": tuple(fields.get("chains", ()))}) for fields in json.loads(text))
