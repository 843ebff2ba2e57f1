"""Report of `check_likelihood` and `check_prior`: one result per check and case, and one verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from bnnzoo.plugins import registry
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.testing import own_parameters
from bnnzoo.testing.check_report import AbstractCheckReport, Checks, State, attempt, state_of

FIELDS = (
    "the class and its fields have descriptions, and defaults are in range",
    "add a docstring to the class, and Doc('...') to the type of each field",
)
PARAMETERS = (
    "sampled parameters: natural and unconstrained are inverse, draws follow log_prior, and values affect log_prob",
    "see bnnzoo.Parameter; log_prior is the density of the unconstrained value, so include the Jacobian",
)
"""`FIELDS` and `PARAMETERS`: tested property and remedy of two checks of likelihoods and of priors."""


class PartResult(NamedTuple):
    """Result of one check on one case.

    Attributes:
        found: the fault of a failed check, or the reason why the check is not applicable; otherwise empty.
    """

    check: str
    case: str
    state: State
    found: str = ""


@dataclass(frozen=True)
class PartReport(AbstractCheckReport):
    """Report on one likelihood or prior; `str(report)` is a table."""

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
    """Run the checks of a likelihood or a prior, and return the report.

    Args:
        kind: "likelihood" or "prior".
        part: the likelihood or the prior.
        checks: name, property and remedy of each check for this kind of part.
        cases: pairs of the name of a case and an iterator. The iterator runs the checks of the case, and yields the
            name and the fault of each check.
    """
    results = [PartResult("fields", "", *state_of(attempt(lambda: own_parameters.fields(type(part)))))]
    with jax_settings.arithmetic("float32"):
        results += [PartResult(check, case, *state_of(fault)) for case, faults in cases for check, fault in faults]
    name = registry.name_of(f"{kind}s", part) or type(part).__name__
    return PartReport(kind, name, checks, tuple(results))
