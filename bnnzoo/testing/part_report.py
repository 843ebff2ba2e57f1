"""Report of `check_likelihood` and `check_prior`: one result per check and case, and one verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from bnnzoo.plugins import registry
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.testing import own_parameters
from bnnzoo.testing.check_report import AbstractCheckReport, Checks, State, attempt, state_of

FIELDS = ("the class and its fields are described, and defaults are in range", "add a docstring and Doc(...)")
PARAMETERS = (
    "sampled parameters: natural and unconstrained are inverses, draws follow log_prior, and they change log_prob",
    "see bnnzoo.Parameter; the density of the unconstrained value includes the Jacobian",
)
"""Property and remedy of the checks that likelihoods and priors share."""


class PartResult(NamedTuple):
    """One check on one case.

    Attributes:
        found: the fault if the check failed, or the reason if it is not applicable.
    """

    check: str
    case: str
    state: State
    found: str = ""


@dataclass(frozen=True)
class PartReport(AbstractCheckReport):
    """Report on one likelihood or prior; `str` of it is a table."""

    refused: ClassVar[Mapping[str, str]] = {}
    kind: str
    part: str
    checks: Checks
    results: tuple[PartResult, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON-compatible dictionary."""
        return {self.kind: self.part, **self.outcome()}


def report_on(
    kind: str, part: Any, checks: Checks, cases: Iterable[tuple[str, Iterable[tuple[str, str]]]]
) -> PartReport:
    """Return the report on a part.

    Args:
        kind: "likelihood" or "prior".
        part: the part.
        checks: all checks of its kind.
        cases: the name of each case, and its checks with their faults, which are computed here in float32.
    """
    results = [PartResult("fields", "", *state_of(attempt(lambda: own_parameters.fields(type(part)))))]
    with jax_settings.arithmetic("float32"):
        results += [PartResult(check, case, *state_of(fault)) for case, faults in cases for check, fault in faults]
    name = registry.name_of(f"{kind}s", part) or type(part).__name__
    return PartReport(kind, name, checks, tuple(results))
