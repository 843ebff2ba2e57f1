"""Report of `check_calibration`: the tests of each quantity, one verdict, and the ranks (to plot)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bnnzoo.testing.table import aligned


class Quantity(NamedTuple):
    """Results of the tests of one quantity.

    For each replicate, u = (rank of the true value among the draws + uniform noise) / (number of draws + 1).

    Attributes:
        mean: mean of u over the replicates. The expected value is 0.5. A larger value means that the draws are too low.
        distance: mean of |2 u - 1|. The expected value is 0.5. A larger value means that the draws are too narrow.
        p: the smaller p value of two tests: that u is uniform, and that |2 u - 1| is uniform.
        limit: the quantity is not calibrated if p is below this limit.
        dependence: lag-1 autocorrelation of the draws.
        independent: whether `dependence` is small enough for the test. The ranks of a correct sampler are then uniform.
    """

    name: str
    mean: float
    distance: float
    p: float
    limit: float
    dependence: float
    independent: bool

    @property
    def calibrated(self) -> bool:
        """Whether p is at least the limit."""
        return self.p >= self.limit  # false for NaN

    @property
    def verdict(self) -> str:
        """Short verdict: calibrated, undecided, or the direction of the error."""
        if self.calibrated:
            return "calibrated"
        if not self.independent:
            return "undecided"
        if abs(self.mean - 0.5) > abs(self.distance - 0.5):
            return "draws too low" if self.mean > 0.5 else "draws too high"
        return "draws too narrow" if self.distance > 0.5 else "draws too wide"


@dataclass(frozen=True, eq=False)
class CalibrationReport:
    """Report on one model and sampler; `str(report)` is a table.

    `uniform` contains u of each replicate and quantity, as defined in `Quantity`.
    """

    model: str
    sampler: str
    draws: int
    uniform: Float[np.ndarray, "replicate quantity"]
    quantities: tuple[Quantity, ...]

    @property
    def passed(self) -> bool:
        """Whether every quantity is calibrated."""
        return all(quantity.calibrated for quantity in self.quantities)

    @property
    def verdict(self) -> str:
        """One line: calibrated, or the names of the quantities that are not calibrated or undecided."""
        uncalibrated = [quantity for quantity in self.quantities if not quantity.calibrated]
        parts: list[str] = []
        if wrong := [quantity for quantity in uncalibrated if quantity.independent]:
            parts.append(
                "not calibrated: "
                + "; ".join(f"{quantity.name}: {quantity.verdict} (p {quantity.p:.2g})" for quantity in wrong)
            )
        if dependent := [quantity for quantity in uncalibrated if not quantity.independent]:
            worst = max(dependent, key=lambda quantity: quantity.dependence)
            parts.append(
                f"undecided: successive draws of the {worst.name} have autocorrelation "
                f"{worst.dependence:.2f}, so the chains mix too slowly; use a larger [[thin]] or [[warmup]], or "
                "another [[sampler]]"
            )
        return "; ".join(parts) or f"calibrated: {len(self.quantities)} quantities over {len(self.uniform)} replicates"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON-compatible dictionary."""
        return {
            "model": self.model,
            "sampler": self.sampler,
            "passed": self.passed,
            "verdict": self.verdict,
            "replicates": len(self.uniform),
            "draws": self.draws,
            "quantities": [{**q._asdict(), "verdict": q.verdict} for q in self.quantities],
        }

    def __str__(self) -> str:
        rows = [("quantity", "mean rank", "distance", "p", "limit", "autocorrelation", "verdict")]
        for q in self.quantities:
            numbers = (f"{q.mean:.3f}", f"{q.distance:.3f}", f"{q.p:.2g}", f"{q.limit:.2g}", f"{q.dependence:.2f}")
            rows.append((q.name, *numbers, q.verdict))
        return "\n".join([*aligned(rows), self.verdict])
