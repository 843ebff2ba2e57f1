"""Report of `check_sampler`: one row per statistic, one outcome per target, and one verdict."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from bnnzoo.testing.table import aligned

_POWER = 1.645
"""95 % quantile of the standard normal distribution.

A normal score with variance 1 exceeds a threshold with a probability of 95 % if its mean is this much above the
threshold.
"""


@dataclasses.dataclass(frozen=True)
class Row:
    """One statistic (mean, variance, correlation or distribution) of one quantity, compared with the exact value.

    Attributes:
        effect: the difference from the exact value. A difference of means is divided by the posterior sd, a difference
            of variances is divided by the exact variance, and a difference of correlations is not scaled. For a
            distribution, it is the largest distance between the distribution functions of the chains' final states and
            of the target.
        z: the effect divided by its standard error, which is computed from the variation between chains. For a
            distribution it is sqrt(number of chains) times the distance (Kolmogorov).
        threshold: limit of |z|. A correct sampler exceeds it only with a very small probability.
        resolution: the effect at which |z| equals the threshold. A bias of this size is detected with a probability of
            50 %.
    """

    target: str
    quantity: str
    statistic: Literal["mean", "variance", "correlation", "distribution"]
    estimate: float
    truth: float
    effect: float
    z: float
    threshold: float

    @property
    def passed(self) -> bool:
        """Whether |z| is at most the threshold."""
        return abs(self.z) <= self.threshold  # false for NaN

    @property
    def resolution(self) -> float:
        """The effect at which |z| equals the threshold."""
        return abs(self.effect / self.z) * self.threshold if self.z else 0.0

    @property
    def detectable(self) -> float:
        """The bias that is detected with a probability of 95 %.

        If the sampler has a bias, z is approximately normal. Its mean is bias / standard error, and its variance is 1.
        """
        return self.resolution * (1 + _POWER / self.threshold)

    @property
    def bias(self) -> str:
        """Size and sign of the bias, such as `variance +58 % (z 41)`."""
        if self.statistic == "variance":
            size = f"{100 * self.effect:+.3g} %"
        else:
            size = {"mean": "{:+.2g} sd", "correlation": "{:+.2g}", "distribution": "differs by {:.2g}"}[
                self.statistic
            ].format(self.effect)
        return f"{self.statistic} {size} (z {self.z:.3g})"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a check on one target.

    Attributes:
        state: `tested`, `not applicable`, `undecided` or `stopped`. The state is `not applicable` if the sampler cannot
            run on the target. It is `undecided` if the chains mix too slowly to detect a bias. It is `stopped` if the
            run ended with an error, if no proposal was accepted, or if a step is wrong. A step is wrong if it adapts
            after warm-up, or if its randomness does not come from its random key.
        reason: the reason for the state. For `tested`, the warnings of the sampler about the run; empty if none.
        draws: number of draws per chain at the last test, without warm-up. The tests use the second half of them.
        acceptance: mean acceptance rate; NaN if the sampler does not report it.
        seconds: wall-clock time.
    """

    target: str
    state: Literal["tested", "not applicable", "undecided", "stopped"]
    reason: str = ""
    draws: int = 0
    acceptance: float = math.nan
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class SamplerReport:
    """Report on one sampler; `str(report)` is a table."""

    sampler: str
    exactness: str
    chains: int
    rows: tuple[Row, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """Whether every statistic passes, no target is undecided or stopped, and at least one target was tested."""
        states = {outcome.state for outcome in self.outcomes}
        return all(row.passed for row in self.rows) and bool(self.rows) and not states & {"undecided", "stopped"}

    @property
    def bias(self) -> str:
        """The statistic with the largest |z| / threshold of each failed target; empty if no target failed."""
        biases = []
        for outcome in self.outcomes:
            failed_rows = [row for row in self.rows if row.target == outcome.target and not row.passed]
            if failed_rows:
                # A NaN counts as an infinite score.
                worst = max(failed_rows, key=lambda row: math.inf if math.isnan(row.z) else abs(row.z) / row.threshold)
                biases.append(f"{outcome.target}: {worst.quantity}: {worst.bias}")
        return "; ".join(biases)

    @property
    def verdict(self) -> str:
        """One line: passed, biased (with the size), undecided or stopped."""
        parts = [f"biased: {self.bias}"] if self.bias else []
        for state in ("undecided", "stopped"):
            reasons = [f"{outcome.target}: {outcome.reason}" for outcome in self.outcomes if outcome.state == state]
            parts += [f"{state}: {'; '.join(reasons)}"] if reasons else []
        if parts:
            return "; ".join(parts)
        if not self.rows:
            return "not tested: the sampler supports none of the targets"
        tested = sum(outcome.state == "tested" for outcome in self.outcomes)
        detectable_bias = max(row.detectable for row in self.rows if row.statistic == "variance")
        return (
            f"passed: {tested} target{'' if tested == 1 else 's'}; a variance that is wrong by "
            f"{100 * detectable_bias:.2g} % is detected with a probability of 95 %"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON-compatible dictionary."""
        rows = [
            {**dataclasses.asdict(row), "passed": row.passed, "resolution": row.resolution, "seen": row.detectable}
            for row in self.rows
        ]
        return {
            "sampler": self.sampler,
            "exactness": self.exactness,
            "passed": self.passed,
            "verdict": self.verdict,
            "chains": self.chains,
            "targets": [dataclasses.asdict(outcome) for outcome in self.outcomes],
            "rows": rows,
        }

    def __str__(self) -> str:
        header = ("target", "quantity", "statistic", "estimate", "truth", "z", "limit", "verdict")
        cells = [
            (
                *(row.target, row.quantity, row.statistic),
                *(f"{value:.4g}" for value in (row.estimate, row.truth)),
                *(f"{value:.2f}" for value in (row.z, row.threshold)),
                "passed" if row.passed else f"biased: {row.bias}",
            )
            for row in self.rows
        ]
        lines = aligned([header, *cells])
        for outcome in self.outcomes:
            if outcome.reason:
                state = "the sampler warns" if outcome.state == "tested" else outcome.state
                lines.append(f"{outcome.target}: {state}: {outcome.reason}")
        return "\n".join([*lines, self.verdict])
