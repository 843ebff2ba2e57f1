"""Bias of the means and standard deviations of a run, estimated from exact chains that start at draws of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from bnnzoo.evaluation.formulas.rhat import FEWEST

MIN_ESS = 100.0
"""Smallest effective sample size of a function for a test of its biases.

With a smaller effective sample size, the standard errors of the biases are too imprecise.
"""
_MIN_FORGOTTEN = 1e-3
"""Smallest divisor 1 - slope in `_exact_moments`, where `_slope` computes the slope of later values on starting values.

The number 1 - slope is the fraction of its starting value that a chain has forgotten. A chain that has forgotten a
smaller fraction contains no information about the posterior.
"""
_MIN_UNITS = 4
"""Smallest number of exact chains from which biases are estimated."""
_MAX_GROUPS = 64
"""Largest number of groups of exact chains in the jackknife, which leaves out one group at a time."""
_CONFIDENCE = 0.95
MAX_REMEMBERED = 0.1
"""Largest fraction of a function's starting value that may remain in its later values.

`estimate` assumes that a chain forgets all components of a function at the same rate. But a chain may never forget some
component, for example because it never leaves its mode. Such a component causes neither a visible drift nor a visible
bias. The remaining fraction of the starting value is then at least the fraction of the function's variance that comes
from this component.
"""


class Moments(NamedTuple):
    """Mean and sd of each function over the draws of a run, their Monte Carlo errors, and the bulk ESS."""

    mean: Float[np.ndarray, " value"]
    mean_error: Float[np.ndarray, " value"]
    sd: Float[np.ndarray, " value"]
    sd_error: Float[np.ndarray, " value"]
    ess: Float[np.ndarray, " value"]


@dataclasses.dataclass(frozen=True)
class Biases:
    """Bias of the mean and of the sd of each function of the parameters (see `Estimands`).

    The bias of a mean is (run mean - exact mean) / exact sd. The bias of an sd is (run sd - exact sd) / exact sd.

    Attributes:
        values: the biases of the means of all functions, then of their sds; NaN where a bias cannot be estimated.
        run_errors, exact_errors: parts of the standard errors that come from the draws of the run and from the exact
            chains.
        units: number of exact chains; it determines the degrees of freedom of the t distribution of a bias.
        testable: whether the error of each bias is known well enough for a test with the nominal level.
        remembered: for each function, a lower 95 % confidence bound for the fraction of a chain's starting value that
            remains in its later values; 1 if it cannot be estimated.
    """

    values: Float[np.ndarray, " bias"]
    run_errors: Float[np.ndarray, " bias"]
    exact_errors: Float[np.ndarray, " bias"]
    units: int
    testable: Bool[np.ndarray, " bias"]
    remembered: Float[np.ndarray, " value"]

    @property
    def errors(self) -> Float[np.ndarray, " bias"]:
        """Standard errors of the biases."""
        return np.hypot(self.run_errors, self.exact_errors)

    @property
    def bounds(self) -> Float[np.ndarray, " bias"]:
        """Upper confidence bound (95 %) for the absolute value of each bias; infinite if it is unknown."""
        margins = one_sided_margin(degrees_of_freedom(self.units)) * self.errors
        return np.nan_to_num(np.abs(self.values) + margins, nan=np.inf)

    @property
    def detectable(self) -> Float[np.ndarray, " bias"]:
        """Smallest bias that would be significant at the level 0.05 in 95 % of all repetitions of the audit."""
        factors = stats.t.ppf([(1 + _CONFIDENCE) / 2, _CONFIDENCE], degrees_of_freedom(self.units))
        return np.nan_to_num(float(factors.sum()) * self.errors, nan=np.inf)

    @property
    def scores(self) -> Float[np.ndarray, " bias"]:
        """Each bias divided by its standard error; 0 for a bias that is not testable."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.testable & (self.errors > 0), self.values / self.errors, 0.0)

    def p_value(self, tests: int) -> float:
        """Return the p-value of the largest absolute score, with a Bonferroni correction for `tests` tests."""
        if not self.testable.any():
            return 1.0
        largest = float(np.max(np.abs(self.scores)))
        return min(1.0, 2 * float(stats.t.sf(largest, degrees_of_freedom(self.units))) * tests)


def degrees_of_freedom(units: int) -> int:
    """Return the degrees of freedom of a jackknife over `units` exact chains."""
    return max(min(units, _MAX_GROUPS) - 1, 1)


def one_sided_margin(freedom: int) -> float:
    """Return the 95 % quantile of the t distribution: the margin of a one-sided bound in standard errors.

    Args:
        freedom: degrees of freedom.
    """
    return float(stats.t.ppf(_CONFIDENCE, freedom))


def run_moments(values: Float[np.ndarray, "chain draw value"]) -> Moments:
    """Return the moments of each function over the draws of a run.

    If no chain moves, each chain counts as one independent draw. With fewer than four draws per chain, the errors are
    infinite and the effective sample sizes 0.
    """
    values = np.asarray(values, float)
    if np.all(values == values[:, :1]):
        values = values[:, 0][None]
    count = values.shape[0] * values.shape[1]
    with np.errstate(invalid="ignore"):  # log sds may be infinite; `varying` leaves them out later
        mean, sd = values.mean((0, 1)), values.std((0, 1), ddof=min(1, count - 1))
    if values.shape[1] < FEWEST:
        error = np.full_like(mean, np.inf)
        return Moments(mean, error, sd, error, np.zeros_like(mean))
    from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]

    axes, statistics = {"chain_axis": 0, "draw_axis": 1}, cast(Any, array_stats)
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = [np.asarray(statistics.mcse(values, method=method, **axes)) for method in ("mean", "sd")]
        ess = np.asarray(statistics.ess(values, method="bulk", **axes))
    # The mean of a constant function has no error, and its effective sample size is the number of draws.
    is_constant = sd == 0
    errors = [np.where(is_constant, 0.0, error) for error in errors]
    return Moments(mean, errors[0], sd, errors[1], np.where(is_constant, count, ess))


def estimate(
    run: Moments,
    starts: Float[np.ndarray, "unit value"],
    later: Float[np.ndarray, "snapshot unit value"],
) -> Biases:
    """Estimate the biases of the mean and the sd of each function over the draws of a run.

    Let m and V be the mean and the variance of a function under the posterior, and X the value at the start of an exact
    chain. The chain gradually forgets X. After some steps, the mean over chains is m + b (E X - m), and the variance
    over chains is V + c (Var X - V). The number b is the slope in a regression of later values on starting values. The
    number c is the same slope for squared deviations from the mean. For an autoregression c is b^2. For a chain that
    either stays or forgets everything in one step, c is b. The two equations are solved for m and V. The errors come
    from a jackknife over the chains.

    With fewer than four chains, the biases are NaN.

    Args:
        run: moments of the functions over the draws of the run.
        starts: values of the functions at the draws where the exact chains start.
        later: values of the functions on the same chains at later steps.
    """
    units, count = starts.shape
    if units < _MIN_UNITS:
        unknown_values = np.full(2 * count, np.nan)
        return Biases(
            unknown_values, unknown_values, unknown_values, max(units, 2), np.zeros(2 * count, bool), np.ones(count)
        )
    starts, later = np.asarray(starts, float), np.asarray(later, float)
    with np.errstate(all="ignore"):
        mean, sd = _exact_moments(starts, later)
        values = _relative_biases(run.mean, run.sd, mean, sd)
        leave_one_out = [(starts[is_kept], later[:, is_kept]) for is_kept in _without_each_group(units)]
        exact_errors = _jackknife(
            [_relative_biases(run.mean, run.sd, *_exact_moments(*part)) for part in leave_one_out]
        )
        slope_errors = _jackknife([_slope(*part) for part in leave_one_out])
        run_errors = np.concatenate([run.mean_error / sd, run.sd_error / sd])
    testable = np.isfinite(values) & np.isfinite(run_errors) & np.isfinite(exact_errors)
    testable &= np.tile((run.ess >= MIN_ESS) & (run.sd > 0), 2) & (units >= _MAX_GROUPS // 2)
    remembered = np.maximum(_slope(starts, later) - one_sided_margin(degrees_of_freedom(units)) * slope_errors, 0.0)
    return Biases(values, run_errors, exact_errors, units, testable, remembered)


def _without_each_group(units: int) -> list[Bool[np.ndarray, " unit"]]:
    """Return the samples of the jackknife: for each group of exact chains, a mask that leaves out this group."""
    groups = np.arange(units) * min(units, _MAX_GROUPS) // units
    return [groups != group for group in np.unique(groups)]


def _jackknife(
    leave_one_out_values: Sequence[Float[np.ndarray, " value"]] | Sequence[float],
) -> Any:
    """Return jackknife standard errors. Each estimate in `leave_one_out_values` omits one group of exact chains."""
    return np.sqrt((len(leave_one_out_values) - 1) * np.var(leave_one_out_values, 0))


def pooled_sd(
    run: Moments,
    starts: Float[np.ndarray, "unit value"],
    later: Float[np.ndarray, "snapshot unit value"],
) -> tuple[float, float]:
    """Return the relative bias of the pooled sd of all functions, and the standard error of this bias.

    The pooled sd is the square root of the sum of the variances of the functions. The bias is (run - exact) / exact.
    With fewer than four chains, both numbers are NaN.
    """

    def total_sd(is_included: Bool[np.ndarray, " unit"]) -> float:
        return float(np.sqrt(np.sum(_exact_moments(starts[is_included], later[:, is_included])[1] ** 2)))

    units = len(starts)
    run_sd = float(np.sqrt(np.sum(run.sd**2)))
    if units < _MIN_UNITS:
        return np.nan, np.nan
    starts, later = np.asarray(starts, float), np.asarray(later, float)
    with np.errstate(all="ignore"):
        ratio = run_sd / total_sd(np.ones(units, bool))
        ratios = [run_sd / total_sd(is_kept) for is_kept in _without_each_group(units)]
        # The errors of the functions are added, not their squares: predictions at neighbouring rows are dependent.
        run_error = ratio * float(np.sum(run.sd * run.sd_error)) / run_sd**2 if run_sd else np.nan
    return ratio - 1, float(np.hypot(run_error, _jackknife(ratios)))


def forgotten_fraction(starts: Float[np.ndarray, "unit value"], later: Float[np.ndarray, "unit value"]) -> float:
    """Return 1 - slope, from one regression of the later values of all functions on their starting values.

    The result is 0 if no chain moved, or if all starts are equal.
    """
    start, end = (np.asarray(values, float) - np.mean(values, 0, dtype=float) for values in (starts, later))
    spread = float(np.sum(start**2))
    return 1 - float(np.clip(np.sum(start * end) / spread, 0.0, 1.0)) if spread > 0 else 0.0


def _relative_biases(
    mean: Float[np.ndarray, " value"],
    sd: Float[np.ndarray, " value"],
    exact_mean: Float[np.ndarray, " value"],
    exact_sd: Float[np.ndarray, " value"],
) -> Float[np.ndarray, " bias"]:
    return np.concatenate([(mean - exact_mean) / exact_sd, sd / exact_sd - 1])


def _exact_moments(
    starts: Float[np.ndarray, "unit value"], later: Float[np.ndarray, "snapshot unit value"]
) -> tuple[Float[np.ndarray, " value"], Float[np.ndarray, " value"]]:
    """Return the posterior mean and sd of each function: the solution of the two equations in `estimate`."""
    slope = _slope(starts, later)
    mean = (later.mean((0, 1)) - slope * starts.mean(0)) / np.maximum(1 - slope, _MIN_FORGOTTEN)
    variance_slope = _slope((starts - starts.mean(0)) ** 2, (later - later.mean(1, keepdims=True)) ** 2)
    variance_after = later.var(1, ddof=1).mean(0)
    variance = (variance_after - variance_slope * starts.var(0, ddof=1)) / np.maximum(
        1 - variance_slope, _MIN_FORGOTTEN
    )
    return mean, np.sqrt(np.maximum(variance, _MIN_FORGOTTEN * variance_after))


def _slope(
    starts: Float[np.ndarray, "unit value"], later: Float[np.ndarray, "snapshot unit value"]
) -> Float[np.ndarray, " value"]:
    """Return the slope of later values on starting values, averaged over the snapshots.

    The slope is clipped to the range from 0 (the starts are forgotten) to 1 (nothing moved).
    """
    centred = starts - starts.mean(0)
    spread = np.maximum(np.sum(centred**2, 0), np.finfo(float).tiny)
    return np.clip(np.sum(centred * later.mean(0), 0) / spread, 0.0, 1.0)
