"""Report of `check_likelihood` and `check_prior`: one result per check and case, and one verdict."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from bnnzoo.testing.check_table import Checks, check_lines, failed_properties, rows_with_advice

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
    checks: Checks
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
        if failed := failed_properties(self.checks, self.results):
            return f"failed: {failed}"
        cases = len({result.case for result in self.results} - {""})
        return f"passed: {len({result.check for result in self.results})} checks on {cases} cases"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON-compatible dictionary."""
        rows = rows_with_advice(self.checks, self.results)
        return {self.kind: self.part, "passed": self.passed, "verdict": self.verdict, "results": rows}

    def __str__(self) -> str:
        return "\n".join([*check_lines(self.checks, self.results), self.verdict])
