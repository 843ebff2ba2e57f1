"""Report of `check_likelihood` and `check_prior`: one result per check and case, and one verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from bnnzoo.testing.table import aligned

NOT_APPLICABLE = "not applicable: "
"""Prefix of the result of a check that has nothing to test."""


class PartResult(NamedTuple):
    """One check on one case.

    Attributes:
        found: the fault if the check failed, or the reason if it is not applicable.
    """

    check: str
    case: str
    state: Literal["passed", "failed", "not applicable"]
    found: str = ""

    @classmethod
    def from_fault(cls, check: str, case: str, fault: str) -> PartResult:
        """Convert the text of a check to a result: a fault, an empty string, or `NOT_APPLICABLE` and a reason."""
        if fault.startswith(NOT_APPLICABLE):
            return cls(check, case, "not applicable", fault.removeprefix(NOT_APPLICABLE))
        return cls(check, case, "failed" if fault else "passed", fault)


class PartReport(NamedTuple):
    """Report on one likelihood or prior; `str` of it is a table."""

    kind: str
    part: str
    checks: Mapping[str, tuple[str, str]]
    """Each check by name, in order: the property that must hold, and the remedy if it does not."""
    results: tuple[PartResult, ...]

    @property
    def failures(self) -> tuple[PartResult, ...]:
        """Results of the failed checks."""
        return tuple(result for result in self.results if result.state == "failed")

    @property
    def passed(self) -> bool:
        """Whether no check failed and at least one was run."""
        return bool(self.results) and not self.failures

    @property
    def verdict(self) -> str:
        """One line: passed, or the failed checks."""
        failed = dict.fromkeys(result.check for result in self.failures)
        if failed:
            return f"failed: {'; '.join(f'{name}: {self.checks[name][0]}' for name in failed)}"
        cases = len({result.case for result in self.results} - {""})
        return f"passed: {len({result.check for result in self.results})} checks on {cases} cases"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON-compatible dictionary."""
        rows = [{**r._asdict(), "advice": self.checks[r.check][1] if r.state == "failed" else ""} for r in self.results]
        return {self.kind: self.part, "passed": self.passed, "verdict": self.verdict, "results": rows}

    def __str__(self) -> str:
        rows = [("check", "property", "cases", "verdict")]
        for name, (claim, _) in self.checks.items():
            states = [result.state for result in self.results if result.check == name]
            if states:
                tested = len(states) - states.count("not applicable")
                verdict = "failed" if "failed" in states else "passed" if tested else "not applicable"
                rows.append((name, claim, str(tested), verdict))
        lines = aligned(rows)
        for name in dict.fromkeys(result.check for result in self.failures):
            failed = [result for result in self.failures if result.check == name]
            others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            case = f"{failed[0].case}{others}: " if failed[0].case else ""
            lines.append(f"{name}: {case}{failed[0].found}; {self.checks[name][1]}")
        return "\n".join([*lines, self.verdict])
