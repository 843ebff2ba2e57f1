"""Results of the checks of a model, a likelihood or a prior, and the common base of their reports."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, Literal

from bnnzoo.testing.table import aligned

Checks = Mapping[str, tuple[str, str]]
"""The tested property and the remedy of each check, by the name of the check."""
State = Literal["passed", "failed", "not applicable"]

NOT_APPLICABLE = "not applicable: "
"""Prefix of the text that a check returns if it does not apply; the reason follows."""
_PRELIMINARY = ("fields", "inputs")
"""Checks that also pass for a part that supports no case. They do not show that the part was tested."""


def attempt(check: Callable[[], str]) -> str:
    """Run a check and return its fault; empty if the check passes. If the check raises, the exception is the fault."""
    try:
        return check()
    except Exception as error:
        return describe_error(error)


def describe_error(error: Exception) -> str:
    """Return an exception as one line of text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def state_of(fault: str) -> tuple[State, str]:
    """Split the text that a check returned into the state of the check, and the fault or reason.

    The text is empty if the check passed. Otherwise it is a fault, or `NOT_APPLICABLE` followed by a reason.
    """
    if fault.startswith(NOT_APPLICABLE):
        return "not applicable", fault.removeprefix(NOT_APPLICABLE)
    return "failed" if fault else "passed", fault


class AbstractCheckReport(abc.ABC):
    """Results of checks; `str(report)` is a table. Each result has the fields `check`, `case`, `state` and `found`."""

    checks: Checks
    results: tuple[Any, ...]
    refused: Mapping[str, str]
    """The error message of each case that is not supported, by the name of the case."""

    @abc.abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON-compatible dictionary."""

    @property
    def failures(self) -> tuple[Any, ...]:
        """Results of the failed checks."""
        return tuple(result for result in self.results if result.state == "failed")

    @property
    def cases(self) -> int:
        """Number of tested cases."""
        return len({result.case for result in self.results} - {""})

    @property
    def passed(self) -> bool:
        """Whether the part was tested in at least one case, and no check failed."""
        return self._is_tested and not self.failures

    @property
    def _is_tested(self) -> bool:
        """Whether at least one check passed, apart from the preliminary checks."""
        return any(result.state == "passed" and result.check not in _PRELIMINARY for result in self.results)

    @property
    def verdict(self) -> str:
        """One line: passed, the failed checks, or the reasons why nothing was tested."""
        if failed := dict.fromkeys(result.check for result in self.failures):
            return "failed: " + "; ".join(f"{name}: {self.checks[name][0]}" for name in failed)
        if not self._is_tested:
            reasons = [*self.refused.values(), *(result.found for result in self.results if result.found)]
            return f"not tested: none of the cases is supported; {'; '.join(dict.fromkeys(reasons))}"
        return f"passed: {len({result.check for result in self.results})} checks on {self.cases} cases"

    def outcome(self) -> dict[str, Any]:
        """Return the verdict and the results as a dictionary. The entry `advice` of a failed check is the remedy."""
        rows = [
            {**result._asdict(), "advice": self.checks[result.check][1] if result.state == "failed" else ""}
            for result in self.results
        ]
        return {"passed": self.passed, "verdict": self.verdict, "results": rows}

    def __str__(self) -> str:
        """Return a table of the checks, a line for each failed check and unsupported case, and the verdict."""
        rows = [("check", "property", "cases", "verdict")]
        for name, (claim, _) in self.checks.items():
            states = [result.state for result in self.results if result.check == name]
            if states:
                tested = len(states) - states.count("not applicable")
                verdict = "failed" if "failed" in states else "passed" if tested else "not applicable"
                rows.append((name, claim, str(tested), verdict))
        lines = aligned(rows)
        for name in dict.fromkeys(result.check for result in self.failures):
            first, *others = (result for result in self.failures if result.check == name)
            others_note = f" (and {len(others)} more)" if others else ""
            case = f"{first.case}{others_note}: " if first.case else ""
            lines.append(f"{name}: {case}{first.found}; {self.checks[name][1]}")
        lines += [f"{case}: not applicable: {reason}" for case, reason in self.refused.items()]
        return "\n".join([*lines, self.verdict])
