"""Result of an audit: passed, drifted or undecided, the numbers that support it, and a verdict in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from bnnzoo.evaluation.audit import bias, drift
from bnnzoo.evaluation.audit.bias import Biases
from bnnzoo.evaluation.audit.estimands import PREDICTIONS
from bnnzoo.files.html import record_table
from bnnzoo.finding import spell_settings, spelling

LEVEL = 1e-3
"""Probability that an audit reports correct draws as drifted."""
TOLERANCE = 0.2
"""An audit passes only if it excludes every bias that is larger than this limit.

The bias of a mean is measured in posterior standard deviations. The bias of an sd is relative to the posterior's sd.
For the sd of all predictions together, the limit is half as large, because this sd is estimated more precisely than
the sd of a single prediction.
"""
_MIN_P = 1e-6
"""Smallest p-value that is reported exactly; smaller p-values are not known precisely."""


class Effort(NamedTuple):
    """Effort of an audit: number of exact chains, steps of each chain, acceptance rate, and duration in seconds."""

    chains: int
    steps: int
    acceptance: float
    seconds: float
    cost: float
    """Duration of the audit divided by the duration of the run."""


Outcome = Literal["passed", "drifted", "undecided"]


@dataclass(frozen=True)
class Audit:
    """Result of an audit.

    Attributes:
        outcome: `passed` if the audit excludes every bias above `tolerance`; `drifted` if the draws are not from the
            posterior; `undecided` if the audit shows neither.
        p: probability of a drift or bias of at least the observed size if the draws are correct; if `p` is below
            `level`, the outcome is `drifted`.
        drifted: name of the function of the parameters (see `Estimands`) with the strongest evidence of drift or bias.
        score: test statistic of the function `drifted`, about standard normal for correct draws. It is negative if the
            function is smaller on the exact chains than in the run.
        bias_sd: relative bias of the pooled sd of all predictions, (run - exact) / exact. The pooled sd is the root of
            the sum of the variances of the predictions over the draws. The value 0.1 means that the run's sd is 10 %
            too large.
        bias_sd_se: standard error of `bias_sd`.
        bias_sd_bound: upper confidence bound (95 %) for the absolute value of `bias_sd`.
        bias_sd_lowest, bias_sd_highest: lowest and highest bias of the sd of a single prediction. The predictions are
            at rows, and half way between rows, where the data may have a gap.
        bias_bound: largest upper confidence bound (95 %) for the absolute bias of a mean (in sds) or of an sd
            (relative).
        bias_bound_of: name of the function whose mean or sd has the bound `bias_bound`.
        detectable: size of a bias that the audit detects with 95 % probability, whichever function is biased.
        limited_by: `draws` if the Monte Carlo error of the run limits the power of the audit; `chains` if the error of
            the exact chains limits it. With fewer than twelve exact chains, the value is `draws` if the run has too few
            effective draws for more chains, and `chains` if the caller did not allow more chains.
        remembered: lower confidence bound (95 %) for the fraction of a function's starting value that remains in its
            later values; the largest bound of all functions. If this bound is above 0.1, a component of the function
            may not have moved at all. A bias of such a component is not visible.
        moved: fraction of their starting values that the exact chains have forgotten; near 0 if the chains have hardly
            moved.
        chains, steps, acceptance: number of exact chains, number of steps of each chain, and acceptance rate.
        cost: `seconds` divided by the duration of the run in seconds.
        seconds: duration of the audit in seconds.
        tolerance, level: limit of the biases, and limit of the p-value.
    """

    outcome: Outcome
    p: float
    drifted: str
    score: float
    bias_sd: float
    bias_sd_se: float
    bias_sd_bound: float
    bias_sd_lowest: float
    bias_sd_highest: float
    bias_bound: float
    bias_bound_of: str
    detectable: float
    limited_by: Literal["draws", "chains"]
    remembered: float
    moved: float
    chains: int
    steps: int
    acceptance: float
    cost: float
    seconds: float
    tolerance: float = TOLERANCE
    level: float = LEVEL

    def _repr_html_(self) -> str:
        return record_table({"verdict": self.verdict, **asdict(self)})

    @property
    def passed(self) -> bool:
        """Whether the outcome is `passed`."""
        return self.outcome == "passed"

    @property
    def verdict(self) -> str:
        """Verdict in one line."""
        return spell_settings(self._verdict(), spelling())

    def _verdict(self) -> str:
        """Return the verdict, in which settings are still written as `[[name=value]]`."""
        width = ""
        if np.isfinite(self.bias_sd_se):
            side = "large" if self.bias_sd > 0 else "small"
            width = f"; the sd of the predictions is {abs(self.bias_sd):.0%} ± {self.bias_sd_se:.0%} too {side}"
        p = f"p = {self.p:.1g}" if self.p > _MIN_P else f"p < {_MIN_P:g}"
        if self.outcome == "drifted":
            way = "fell" if self.score < 0 else "rose"
            if np.isfinite(self.bias_sd_lowest):
                width += f" (from {self.bias_sd_lowest:+.0%} to {self.bias_sd_highest:+.0%} at single inputs)"
            return (
                "drifted: the draws are not from the posterior: on exact chains that start at the draws, "
                f"{self.drifted} {way} ({p}){width}"
            )
        if self.outcome == "passed":
            return (
                f"passed: no bias of a mean or an sd exceeds {self.bias_bound:.0%} of the sd (limit "
                f"{self.tolerance:.0%}), and the bias of the sd of all predictions is at most "
                f"{self.bias_sd_bound:.0%} (limit {self.tolerance / 2:.0%}); {self.chains} exact chains of "
                f"{self.steps} steps detect a bias of {self.detectable:.0%} with 95 % probability{width}"
            )
        if not np.isfinite(self.bias_bound):
            return (
                f"undecided: {self.chains} independent draws are too few to test {self.bias_bound_of}; "
                f"{_REMEDIES[self.limited_by]}"
            )
        if self.remembered > bias.MAX_REMEMBERED:
            return (
                f"undecided: the exact chains still depend on their starts (at least {self.remembered:.0%} of a "
                f"starting value remains, limit {bias.MAX_REMEMBERED:.0%}), so some biases may be undetected{width}; "
                f"{_REMEDIES['chains']}"
            )
        if self.chains < drift.MIN_FLIPPED:
            remedy = "give the audit more [[chains]]" if self.limited_by == "chains" else _REMEDIES["draws"]
            return (
                f"undecided: {self.chains} exact chains are too few (at least {drift.MIN_FLIPPED} are needed){width}; "
                f"{remedy}"
            )
        bound, limit, quantity = self.bias_bound, self.tolerance, self.bias_bound_of
        if max(bound, self.detectable) <= limit:
            bound, limit, quantity = self.bias_sd_bound, limit / 2, "the sd of all predictions"
        return (
            f"undecided: a bias of {bound:.0%} of an sd cannot be excluded (limit {limit:.0%}) for {quantity}; "
            f"a bias of {self.detectable:.0%} is detected with 95 % probability{width}; {_REMEDIES[self.limited_by]}"
        )

    def record(self) -> dict[str, Any]:
        """Return the verdict and all numbers as a flat dictionary."""
        return {"verdict": self.verdict, **asdict(self)}


_REMEDIES = {
    "draws": "sample more [[draws]] or more [[chains]]",
    "chains": "give the audit more [[seconds]] or more [[chains]]",
}


def decide(
    test: drift.Drift,
    biases: Mapping[str, Biases],
    pooled_sd: tuple[float, float],
    moved: float,
    effort: Effort,
    *,
    max_chains: int = 128,
    tolerance: float = TOLERANCE,
) -> Audit:
    """Decide the outcome of an audit.

    The outcome is `drifted` if the drift test or a bias is significant. Otherwise it is `passed` if all these
    conditions hold, and `undecided` if not:

    - The confidence bounds of all biases are within the tolerance, and the bound of the pooled sd is within half of the
      tolerance.
    - The audit would detect a bias of the size of the tolerance.
    - There are at least twelve exact chains, and they have forgotten their starts.

    Args:
        test: result of the drift test.
        biases: biases of the functions that are not constant, by name.
        pooled_sd: bias of the pooled sd of all predictions at the rows, and the standard error of this bias.
        moved: fraction of their starting values that the exact chains have forgotten.
        effort: number of exact chains and steps, acceptance rate and duration.
        max_chains: largest number of exact chains that the caller allows.
        tolerance: limit of the biases; the audit passes only if it excludes every larger bias.
    """
    p, name, score = test.p_value, test.function, test.score
    tests = sum(int(function_biases.testable.sum()) for function_biases in biases.values())
    for function_name, function_biases in biases.items():
        largest = int(np.argmax(np.abs(function_biases.scores)))
        bias_p_value = function_biases.p_value(tests)
        if bias_p_value < p:
            means = len(function_biases.values) // 2
            p, score = bias_p_value, -float(function_biases.scores[largest])
            name = function_name if largest < means else f"the sd of {function_name}"
    p = min(1.0, 2 * p)  # correction for two tests: the test for drift and the test for bias
    bounds = {function_name: float(np.max(function_biases.bounds)) for function_name, function_biases in biases.items()}
    bound_of = max(bounds, key=lambda function_name: bounds[function_name]) if bounds else "the predictions"
    bound = bounds.get(bound_of, np.inf)
    detectable = max((float(np.max(function_biases.detectable)) for function_biases in biases.values()), default=np.inf)
    worst_biases = biases.get(bound_of)
    is_limited_by_draws = worst_biases is not None and bool(
        np.nansum(worst_biases.run_errors**2) > np.nansum(worst_biases.exact_errors**2)
    )
    if effort.chains < drift.MIN_FLIPPED:
        is_limited_by_draws = effort.chains < max_chains
    sds = [
        float(value)
        for function_name, function_biases in biases.items()
        if function_name in PREDICTIONS
        for value in function_biases.values[len(function_biases.values) // 2 :]
        if np.isfinite(value)
    ]
    degrees_of_freedom = bias.degrees_of_freedom(effort.chains)
    pooled_bound = float(
        np.nan_to_num(abs(pooled_sd[0]) + bias.one_sided_margin(degrees_of_freedom) * pooled_sd[1], nan=np.inf)
    )
    remembered = max((float(np.max(function_biases.remembered)) for function_biases in biases.values()), default=1.0)
    # With fewer than a dozen chains, random sign flips cannot give a p-value below the level.
    is_conclusive = (
        pooled_bound <= tolerance / 2
        and effort.chains >= drift.MIN_FLIPPED
        and max(bound, detectable) <= tolerance
        and remembered <= bias.MAX_REMEMBERED
    )
    return Audit(
        outcome="drifted" if p < LEVEL else "passed" if is_conclusive else "undecided",
        p=p,
        drifted=name,
        score=score,
        bias_sd=pooled_sd[0],
        bias_sd_se=pooled_sd[1],
        bias_sd_bound=pooled_bound,
        bias_sd_lowest=min(sds, default=np.nan),
        bias_sd_highest=max(sds, default=np.nan),
        bias_bound=bound,
        bias_bound_of=bound_of,
        detectable=detectable,
        limited_by="draws" if is_limited_by_draws else "chains",
        remembered=remembered,
        moved=moved,
        tolerance=tolerance,
        **effort._asdict(),
    )
