"""Comparison of runs on the same test rows: metrics, paired differences, distance to a reference, cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from bnnzoo import zoo
from bnnzoo.errors import UsageError
from bnnzoo.evaluation import evaluate, loo
from bnnzoo.evaluation.evidence import BOUND, Evidence
from bnnzoo.evaluation.metrics import Estimate, flat
from bnnzoo.run import Run

_LOWER_IS_BETTER = ("nll_rounded", "nll", "rmse", "rmse_standardised", "crps", "crps_standardised", "brier")
METRICS = (*_LOWER_IS_BETTER[:-1], "coverage_90", "accuracy", "brier", "ece")
"""Metrics that are compared, if a run's task has them."""
_BETTER = {
    **dict.fromkeys((*_LOWER_IS_BETTER, "loo_nll"), "lower"),
    "accuracy": "higher",
}
"""Metrics that show on their own which run predicts better; the first one that a run has decides."""
_CLEAR = 2.0
"""Standard errors that a difference must exceed."""


class Compared(NamedTuple):
    """Results of a run: its metrics, and numbers without an error, namely distances to the reference and costs."""

    name: str
    about: dict[str, str]
    estimates: dict[str, Estimate]
    numbers: dict[str, float]
    doubt: str = ""
    """Verdict of the run, if it is negative; see `Record.doubt`."""


class Difference(NamedTuple):
    """A metric of the first run minus that of the second, on the same rows."""

    first: str
    second: str
    metric: str
    estimate: Estimate

    @property
    def error(self) -> float:
        """Standard error over rows and over draws, which includes the variation between seeds."""
        mcse = self.estimate.mcse or 0.0
        return math.hypot(self.estimate.se or math.nan, 0.0 if math.isnan(mcse) else mcse)

    @property
    def least(self) -> float:
        """Smallest significant difference: two standard errors for many rows, more for few."""
        influence = self.estimate.influence
        rows = 1 if influence is None else len(influence)
        return self.error * float(stats.t.ppf(stats.norm.cdf(_CLEAR), max(rows - 1, 1)))


class Comparison(NamedTuple):
    """Results of all runs, and a difference for each pair of runs and metric."""

    compared: list[Compared]
    paired: list[Difference]

    @property
    def runs(self) -> list[dict[str, Any]]:
        """One flat dictionary per run, where a metric NAME is followed by NAME_se."""
        return [{"run": run.name, **run.about, **flat(run.estimates), **run.numbers} for run in self.compared]

    @property
    def differences(self) -> list[dict[str, Any]]:
        """One flat dictionary per difference."""
        return [
            {"first": one.first, "second": one.second, "metric": one.metric}
            | {"difference": one.estimate.value, "se": one.estimate.se, "mcse": one.estimate.mcse}
            for one in self.paired
        ]

    @property
    def words(self) -> list[str]:
        """Sentences: the better run of each pair, runs that have not converged, and differences in log evidence."""
        pairs = itertools.groupby(self.paired, lambda one: (one.first, one.second))
        told = [_sentence(first, second, list(found)) for (first, second), found in pairs]
        known = [run for run in self.compared if "log_evidence" in run.numbers]
        told += [f"{run.name}: {run.doubt}" for run in self.compared if run.doubt]
        return told + [_bayes_factor(*pair) for pair in itertools.combinations(known, 2)]


def compare(runs: Sequence[Run | str | Path], *, reference: Run | str | Path | None = None) -> Comparison:
    """Compare runs on their test rows, and by evidence and leave-one-out score if every run has an evidence estimate.

    The standard error of a difference is computed from the differences per row. It is much smaller than the runs' own
    errors if the same rows are difficult for both. `mcse` is the Monte Carlo error of both runs, by which two runs of
    one recipe differ.

    Args:
        runs: runs or their files.
        reference: a run taken as the truth, such as long Hamiltonian chains. Classification: `agreement`, the fraction
            of rows with the same most probable class, and `total_variation`, the mean of sum_c |p_c - q_c| / 2
            (Izmailov et al. 2021). Regression: `mean_distance`, the root mean square of the difference of predictive
            means in the reference's predictive sd, and `sd_ratio`, the mean ratio of the sds. Density:
            `log_density_distance`, the root mean square of the difference of log densities.

    Raises:
        UsageError: for fewer than two runs, or runs that do not share their training or test rows.
    """
    opened = [_open(run) for run in runs]
    known = [*opened, *([] if reference is None else [_open(reference)])]
    if len(known) < 2:
        raise UsageError("compare: expected two or more runs, or one run and a [[reference]] (got one run)")
    names = _names(known)
    tests = [run.test_rows() for run in known]
    for name, run in zip(names, known, strict=True):
        run.predictor.record.require_training_rows(f"{name}: compare")
    for name, run, rows in zip(names[1:], known[1:], tests[1:], strict=True):
        if run.attributes["data_sha256"] != known[0].attributes["data_sha256"]:
            raise UsageError(
                f"{name}: trained on other rows than {names[0]}; compare runs with the same [[data]] and the same split"
            )
        if not all(np.array_equal(a, b) for a, b in zip(rows, tests[0], strict=True)):
            raise UsageError(
                f"{name}: tested on other rows than {names[0]}; compare runs with the same [[test_fraction]] "
                "and [[split_seed]]"
            )
    inputs = tests[0][0]
    truth = None if reference is None else known[-1].predictor.table(inputs)
    known_evidence, compared = _evidence(opened), []
    left_out = [loo.estimates(run.predictor) for run in opened] if known_evidence else []
    scores = _comparable([evaluate.of_rows(run.predictor, *tests[0]).estimates for run in opened])
    for i, (name, run) in enumerate(zip(names, opened, strict=False)):
        estimates = {metric: scores[i][metric] for metric in METRICS if metric in scores[i]}
        if "rmse" in estimates:  # with a single target, the two are proportional
            estimates.pop("rmse_standardised", None)
        if "nll_rounded" not in scores[i] and left_out and all("loo_nll" in loo_scores for loo_scores in left_out):
            estimates["loo_nll"] = left_out[i]["loo_nll"]
        numbers = {} if truth is None else distances(run.predictor.table(inputs), truth)
        if known_evidence:
            one = known_evidence[i]
            numbers |= {"log_evidence": one.log_evidence, "log_evidence_se": one.se}
            numbers["log_evidence_trusted"] = float(one.trusted)
        about = {key: run.attributes[key] for key in ("model", "sampler", "exactness")}
        compared.append(Compared(name, about, estimates, numbers | _cost(run), run.predictor.record.doubt))
    pairs = itertools.combinations(compared, 2)
    return Comparison(compared, [one for first, second in pairs for one in _differences(first, second)])


def _comparable(scores: Sequence[dict[str, Estimate]]) -> list[dict[str, Estimate]]:
    """Return the comparable metrics of each run: for rounded targets `nll_rounded` instead of `nll`.

    A density that is narrower than the step between values is unbounded. If one run has no `nll_rounded`, neither
    metric is compared.
    """
    rounded = ["nll_rounded" in one for one in scores]
    if not any(rounded):
        return list(scores)
    left_out = {"nll"} if all(rounded) else {"nll", "nll_rounded"}
    return [{name: estimate for name, estimate in one.items() if name not in left_out} for one in scores]


def distances(found: pd.DataFrame, truth: pd.DataFrame) -> dict[str, float]:
    """Return the distances of predictions from those of a reference, both as returned by `Predictor.table`."""
    if "log_density" in truth:
        gap = found["log_density"].to_numpy(np.float64) - truth["log_density"].to_numpy(np.float64)
        return {"log_density_distance": float(np.sqrt(np.mean(gap**2)))}
    classes = [name for name in truth if str(name).startswith("p_")]
    if classes and "entropy" in truth:
        p, q = found[classes].to_numpy(np.float64), truth[classes].to_numpy(np.float64)
        return {
            "agreement": float(np.mean(p.argmax(1) == q.argmax(1))),
            "total_variation": float(np.mean(np.abs(p - q).sum(1)) / 2),
        }
    means = [str(name) for name in truth if str(name) == "mean" or str(name).endswith("_mean")]
    sds = [name.removesuffix("mean") + "sd" for name in means]
    sd = truth[sds].to_numpy(np.float64)
    distance = (found[means].to_numpy(np.float64) - truth[means].to_numpy(np.float64)) / sd
    return {
        "mean_distance": float(np.sqrt(np.mean(distance**2))),
        "sd_ratio": float(np.mean(found[sds].to_numpy(np.float64) / sd)),
    }


def _differences(first: Compared, second: Compared) -> list[Difference]:
    found = []
    for metric, left in first.estimates.items():
        right = second.estimates[metric]
        assert left.influence is not None
        assert right.influence is not None
        mcse = None if left.mcse is None or right.mcse is None else math.hypot(left.mcse, right.mcse)
        paired = Estimate(left.value - right.value, left.influence - right.influence, mcse)
        found.append(Difference(first.name, second.name, metric, paired))
    return found


def _sentence(first: str, second: str, found: Sequence[Difference]) -> str:
    """Return a sentence such as `a.nc is better than b.nc: nll lower by 0.12 ± 0.03; no clear difference in rmse`.

    The first metric with a clear difference decides.
    """
    clear: dict[str, bool] = {}
    shown: dict[str, str] = {}
    unknown: list[str] = []
    for one in (one for one in found if one.metric in _BETTER):
        value = one.estimate.value
        if math.isnan(value):
            unknown.append(one.metric)
        elif math.isinf(value) or abs(value) > one.least:
            clear[one.metric] = (value < 0) == (_BETTER[one.metric] == "lower")
            shown[one.metric] = (
                "by far: that of the other is infinite"
                if math.isinf(value)
                else f"by {abs(value):.2g} ± {one.error:.2g}"
            )
    unclear = [one.metric for one in found if one.metric in _BETTER and one.metric not in {*clear, *unknown}]
    if not clear and unknown:
        return f"{first} and {second}: cannot compare {', '.join(unknown)}"
    if not clear:
        return f"{first} and {second}: no difference in {', '.join(unclear)} beyond {_CLEAR:g} standard errors"
    first_is_better = next(iter(clear.values()))
    better, worse = (first, second) if first_is_better else (second, first)
    turned = {"lower": "higher", "higher": "lower"}
    told = [
        f"{'' if is_first == first_is_better else 'but '}{name} "
        f"{_BETTER[name] if is_first == first_is_better else turned[_BETTER[name]]} {shown[name]}"
        for name, is_first in clear.items()
    ]
    rest = [f"no clear difference in {', '.join(unclear)}"] if unclear else []
    return f"{better} is better than {worse}: {'; '.join([*told, *rest])}"


def _evidence(runs: Sequence[Run]) -> list[Evidence]:
    """Return the evidence of each run; empty if one has none or a lower bound only, since bounds are not comparable."""
    try:
        found = [run.evidence() for run in runs]
    except UsageError:
        return []
    return [] if any(one.method == BOUND for one in found) else found


def _bayes_factor(first: Compared, second: Compared) -> str:
    """Return `log p(D) of a.nc is 3.1 ± 0.2 above that of b.nc`; the difference is the log Bayes factor."""
    difference = first.numbers["log_evidence"] - second.numbers["log_evidence"]
    se = math.hypot(first.numbers["log_evidence_se"], second.numbers["log_evidence_se"])
    error = " (of unknown error)" if math.isnan(se) else f" ± {se:.2g}"
    way = "above" if difference > 0 else "below"
    doubted = [one.name for one in (first, second) if not one.numbers["log_evidence_trusted"]]
    doubt = f"; do not trust it: bnnzoo evidence gives the reason for {' and for '.join(doubted)}" if doubted else ""
    return f"log p(D) of {first.name} is {abs(difference):.3g}{error} {way} that of {second.name}{doubt}"


def _cost(run: Run) -> dict[str, float]:
    about, found = run.attributes, run.diagnose()
    seconds = float(about["seconds_sampling"])
    return {
        "seconds": float(about["seconds_warmup"]) + seconds,
        "target_evaluations": float(about["target_evaluations"]),
        "rhat": found["rhat"],
        "ess_bulk": found["ess_bulk"],
        "ess_per_second": found["ess_bulk"] / seconds if seconds else math.nan,
    }


def _open(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else zoo.open(run)


def _names(runs: Sequence[Run]) -> list[str]:
    """Return unique names of the runs: their files' names, with folders where names repeat."""
    paths = [run.path or Path(f"run {i}") for i, run in enumerate(runs)]
    short = [path.name for path in paths]
    return [str(path) if short.count(path.name) > 1 else path.name for path in paths]
