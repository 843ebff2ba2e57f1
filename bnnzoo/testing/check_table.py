"""Tables of the results of checks, common to the reports on models, likelihoods and priors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from bnnzoo.testing.table import aligned

Checks = Mapping[str, tuple[str, str]]
"""Each check by name, in order: the property that must hold, and the remedy if it does not."""


@runtime_checkable
class CheckResult(Protocol):
    """One check on one case; `found` is the fault, or the reason if the check is not applicable."""

    @property
    def check(self) -> str: ...
    @property
    def case(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def found(self) -> str: ...
    def _asdict(self) -> dict[str, Any]: ...


def failed_properties(checks: Checks, results: Sequence[CheckResult]) -> str:
    """Return the failed checks with the properties that do not hold; "" if none failed."""
    failed = dict.fromkeys(result.check for result in results if result.state == "failed")
    return "; ".join(f"{name}: {checks[name][0]}" for name in failed)


def rows_with_advice(checks: Checks, results: Sequence[CheckResult]) -> list[dict[str, Any]]:
    """Return the results as dictionaries, with the remedy of each failed check as `advice`."""
    return [{**r._asdict(), "advice": checks[r.check][1] if r.state == "failed" else ""} for r in results]


def check_lines(checks: Checks, results: Sequence[CheckResult]) -> list[str]:
    """Return a table with one row per check, then one line per failed check."""
    rows = [("check", "property", "cases", "verdict")]
    for name, (claim, _) in checks.items():
        states = [result.state for result in results if result.check == name]
        if states:
            tested = len(states) - states.count("not applicable")
            verdict = "failed" if "failed" in states else "passed" if tested else "not applicable"
            rows.append((name, claim, str(tested), verdict))
    lines = aligned(rows)
    failures = [result for result in results if result.state == "failed"]
    for name in dict.fromkeys(result.check for result in failures):
        failed = [result for result in failures if result.check == name]
        others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        case = f"{failed[0].case}{others}: " if failed[0].case else ""
        lines.append(f"{name}: {case}{failed[0].found}; {checks[name][1]}")
    return lines
