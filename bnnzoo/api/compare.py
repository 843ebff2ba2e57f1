"""Comparison of runs on the same test rows: metrics, paired differences, distances to a reference, and costs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from bnnzoo.api import entrances
from bnnzoo.api.references import Reference, find_reference
from bnnzoo.api.run import Run
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.evidence.estimators import BOUND, Evidence
from bnnzoo.evaluation.formulas.metrics import Estimate, flat
from bnnzoo.evaluation.predictions import loo, prediction_table
from bnnzoo.evaluation.scores import evaluate
from bnnzoo.files.html import rows_table
from bnnzoo.store.schema import ROW_SOURCE

_LOWER_IS_BETTER = ("nll_rounded", "nll", "rmse", "rmse_standardised", "crps", "crps_standardised", "brier")
METRICS = (*_LOWER_IS_BETTER[:-1], "coverage_90", "accuracy", "brier", "ece")
"""Metrics that are compared. Metrics that are not defined for the task of the runs are left out."""
_BETTER = {
    **dict.fromkeys((*_LOWER_IS_BETTER, "loo_nll"), "lower"),
    "accuracy": "higher",
}
"""Metrics that can decide which run predicts better, and whether a lower or a higher value is better."""
_SIGNIFICANT_ERRORS = 2.0
"""A difference is significant if it exceeds this number of standard errors (more if there are few rows)."""


class Compared(NamedTuple):
    """Results of one run.

    `about` contains the model, the sampler and the exactness. `estimates` are metrics with standard errors. `numbers`
    are all other results: distances to the reference, costs and evidence.
    """

    name: str
    about: dict[str, str]
    estimates: dict[str, Estimate]
    numbers: dict[str, float]
    doubt: str = ""
    """Problem that the verdict of the run reports, such as missing convergence; empty if none (see `Record.doubt`)."""


class Difference(NamedTuple):
    """Metric of the first run minus the same metric of the second run, on the same rows."""

    first: str
    second: str
    metric: str
    estimate: Estimate

    @property
    def error(self) -> float:
        """Standard error of the difference. It combines the error over rows and the Monte Carlo error."""
        mcse = self.estimate.mcse or 0.0
        se = math.nan if self.estimate.se is None else self.estimate.se
        return math.hypot(se, 0.0 if math.isnan(mcse) else mcse)

    @property
    def least(self) -> float:
        """Smallest significant difference: two standard errors, or more standard errors if there are few rows."""
        influence = self.estimate.influence
        rows = 1 if influence is None else len(influence)
        return self.error * float(stats.t.ppf(stats.norm.cdf(_SIGNIFICANT_ERRORS), max(rows - 1, 1)))


class Comparison(NamedTuple):
    """Results of all runs, and the difference of each metric for each pair of runs."""

    compared: list[Compared]
    paired: list[Difference]
    remarks: tuple[str, ...] = ()
    """Sentences about the reference, if the runs were compared with one."""

    @property
    def runs(self) -> list[dict[str, Any]]:
        """One flat dictionary per run. The entry of a metric NAME is followed by its standard error NAME_se."""
        return [{"run": run.name, **run.about, **flat(run.estimates), **run.numbers} for run in self.compared]

    @property
    def differences(self) -> list[dict[str, Any]]:
        """One flat dictionary per difference."""
        return [
            {"first": difference.first, "second": difference.second, "metric": difference.metric}
            | {"difference": difference.estimate.value, "se": difference.estimate.se, "mcse": difference.estimate.mcse}
            for difference in self.paired
        ]

    def _repr_html_(self) -> str:
        sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.words)
        return rows_table(self.runs) + rows_table(self.differences) + sentences

    @property
    def words(self) -> list[str]:
        """Sentences: the better run of each pair, the runs with a problem, and the differences in log evidence."""
        pairs = itertools.groupby(self.paired, lambda difference: (difference.first, difference.second))
        sentences = [_sentence(first, second, list(differences)) for (first, second), differences in pairs]
        runs_with_evidence = [run for run in self.compared if "log_evidence" in run.numbers]
        sentences += [f"{run.name}: {run.doubt}" for run in self.compared if run.doubt]
        factors = [_bayes_factor(*pair) for pair in itertools.combinations(runs_with_evidence, 2)]
        return [*sentences, *factors, *self.remarks]


def compare(runs: Sequence[Run | str | Path], *, reference: Run | str | Path | None = None) -> Comparison:
    """Compare runs on their test rows.

    If every run has an evidence estimate (not only a lower bound), evidence and leave-one-out scores are compared too.
    The standard error of a difference is computed from the paired differences of the scores of each row. If the same
    rows are difficult for both runs, this error is much smaller than the standard error of either metric. `mcse` is the
    Monte Carlo error of the difference: two runs of a recipe with different seeds differ by about `mcse`.

    Args:
        runs: runs or their files.
        reference: a run that is treated as the truth, such as long Hamiltonian chains, or the name of a stored
            reference. The distances of the other runs to the reference are added; see `distances` for a run, and
            docs/evaluation.md for a stored reference. The test rows of a stored reference are used for all metrics.

    Raises:
        UsageError: if there are fewer than two runs, including the reference; if the file of a run has no training
            rows; if the runs differ in training or test rows; or if a run has another posterior than the reference.
        NotFoundError: if the reference is neither a file nor a registered name.
    """
    opened_runs = [entrances.opened(run) for run in runs]
    stored = find_reference(reference)
    if stored is not None:
        if not opened_runs:
            raise UsageError("compare: expected one or more runs besides the [[reference]] (got none)")
        return _compare_with_stored(opened_runs, stored)
    all_runs = [*opened_runs, *([] if reference is None else [entrances.opened(reference)])]
    if len(all_runs) < 2:
        raise UsageError(f"compare: expected two or more runs, or one run and a [[reference]] (got {len(all_runs)})")
    names = _names(all_runs)
    tests = [run.test_rows() for run in all_runs]
    for name, run in zip(names, all_runs, strict=True):
        if ROW_SOURCE not in run.attributes:
            run.predictor.record.require_training_rows(f"{name}: compare")
    for name, run, rows in zip(names[1:], all_runs[1:], tests[1:], strict=True):
        if run.attributes["data_sha256"] != all_runs[0].attributes["data_sha256"]:
            raise UsageError(
                f"{name}: its training rows differ from those of {names[0]}; compare runs with the same [[data]], "
                "[[test_fraction]] and [[split_seed]]"
            )
        if not all(np.array_equal(a, b) for a, b in zip(rows, tests[0], strict=True)):
            raise UsageError(
                f"{name}: its test rows differ from those of {names[0]}; compare runs with the same [[test_fraction]] "
                "and [[split_seed]]"
            )
    inputs = tests[0][0]
    truth = None if reference is None else prediction_table.table(all_runs[-1].predictor, inputs)
    numbers = [
        {} if truth is None else distances(prediction_table.table(run.predictor, inputs), truth) for run in opened_runs
    ]
    comparison = _comparison(opened_runs, names, tests[0], numbers)
    doubt = "" if reference is None else all_runs[-1].predictor.record.doubt
    return comparison._replace(remarks=(f"the reference {names[-1]}: {doubt}",)) if doubt else comparison


def _compare_with_stored(runs: Sequence[Run], reference: Reference) -> Comparison:
    """Compare runs with a stored reference, at the inputs of the reference."""
    names = _names(runs)
    results = [reference.distances(run, name) for run, name in zip(runs, names, strict=True)]
    comparison = _comparison(runs, names, reference.run.test_rows(), [result.flat for result in results])
    return comparison._replace(remarks=reference.remarks(results[0]))


def _comparison(
    opened_runs: Sequence[Run],
    names: Sequence[str],
    test_rows: tuple[np.ndarray, np.ndarray],
    distances_by_run: Sequence[dict[str, float]],
) -> Comparison:
    """Return metrics at the test rows, the distances, evidence and costs of each run, and all paired differences."""
    known_evidence, compared = _evidence(opened_runs), []
    loo_by_run = [loo.estimates(run.predictor) for run in opened_runs] if known_evidence else []
    scores = _comparable_metrics([evaluate.of_rows(run.predictor, *test_rows).estimates for run in opened_runs])
    for i, (name, run) in enumerate(zip(names, opened_runs, strict=False)):
        estimates = {metric: scores[i][metric] for metric in METRICS if metric in scores[i]}
        if "rmse" in estimates:  # with a single target, the two metrics are proportional
            estimates.pop("rmse_standardised", None)
        if "nll_rounded" not in scores[i] and loo_by_run and all("loo_nll" in loo_scores for loo_scores in loo_by_run):
            estimates["loo_nll"] = loo_by_run[i]["loo_nll"]
        numbers = dict(distances_by_run[i])
        if known_evidence:
            run_evidence = known_evidence[i]
            numbers |= {"log_evidence": run_evidence.log_evidence, "log_evidence_se": run_evidence.se}
            numbers["log_evidence_trusted"] = float(run_evidence.trusted)
        run_attributes = {key: run.attributes[key] for key in ("model", "sampler", "exactness")}
        compared.append(Compared(name, run_attributes, estimates, numbers | _cost(run), run.predictor.record.doubt))
    pairs = itertools.combinations(compared, 2)
    return Comparison(compared, [difference for first, second in pairs for difference in _differences(first, second)])


def _comparable_metrics(scores: Sequence[dict[str, Estimate]]) -> list[dict[str, Estimate]]:
    """Return the metrics of each run that can be compared.

    For rounded targets `nll_rounded` is compared instead of `nll`, because a predictive density can be arbitrarily high
    at values that repeat. If only some of the runs have `nll_rounded`, neither metric is compared.
    """
    rounded = ["nll_rounded" in metrics for metrics in scores]
    if not any(rounded):
        return list(scores)
    left_out = {"nll"} if all(rounded) else {"nll", "nll_rounded"}
    return [{name: estimate for name, estimate in metrics.items() if name not in left_out} for metrics in scores]


def distances(predictions: pd.DataFrame, truth: pd.DataFrame) -> dict[str, float]:
    """Return the distances between the predictions of a run and the predictions of a reference.

    Both tables come from `prediction_table.table`. The distances depend on the task:

    - Classification: `agreement` is the fraction of rows with the same most probable class. `total_variation` is the
      mean over rows of sum_c |p_c - q_c| / 2, where p_c and q_c are the class probabilities of the run and of the
      reference (Izmailov et al. 2021).
    - Regression: `mean_distance` is the root mean square difference of the predictive means, each divided by the
      predictive sd of the reference. `sd_ratio` is the mean of the predictive sd of the run, divided by the predictive
      sd of the reference.
    - Density: `log_density_distance` is the root mean square difference of the log densities.
    """
    if "log_density" in truth:
        log_difference = predictions["log_density"].to_numpy(np.float64) - truth["log_density"].to_numpy(np.float64)
        return {"log_density_distance": float(np.sqrt(np.mean(log_difference**2)))}
    classes = [name for name in truth if str(name).startswith("p_")]
    if classes and "entropy" in truth:
        p, q = predictions[classes].to_numpy(np.float64), truth[classes].to_numpy(np.float64)
        return {
            "agreement": float(np.mean(p.argmax(1) == q.argmax(1))),
            "total_variation": float(np.mean(np.abs(p - q).sum(1)) / 2),
        }
    means = [str(name) for name in truth if str(name) == "mean" or str(name).endswith("_mean")]
    sds = [name.removesuffix("mean") + "sd" for name in means]
    sd = truth[sds].to_numpy(np.float64)
    distance = (predictions[means].to_numpy(np.float64) - truth[means].to_numpy(np.float64)) / sd
    return {
        "mean_distance": float(np.sqrt(np.mean(distance**2))),
        "sd_ratio": float(np.mean(predictions[sds].to_numpy(np.float64) / sd)),
    }


def _differences(first: Compared, second: Compared) -> list[Difference]:
    differences = []
    for metric, first_estimate in first.estimates.items():
        second_estimate = second.estimates[metric]
        assert first_estimate.influence is not None
        assert second_estimate.influence is not None
        mcses = [estimate.mcse for estimate in (first_estimate, second_estimate) if estimate.mcse is not None]
        mcse = math.hypot(*mcses) if len(mcses) == 2 else None
        estimate = Estimate(
            first_estimate.value - second_estimate.value, first_estimate.influence - second_estimate.influence, mcse
        )
        differences.append(Difference(first.name, second.name, metric, estimate))
    return differences


def _sentence(first: str, second: str, differences: Sequence[Difference]) -> str:
    """Return a sentence such as `a.nc is better than b.nc: nll lower by 0.12 ± 0.03; no clear difference in rmse`.

    The first metric with a significant difference decides which run is better.
    """
    favours_first_by_metric: dict[str, bool] = {}
    texts: dict[str, str] = {}
    unknown: list[str] = []
    for difference in (difference for difference in differences if difference.metric in _BETTER):
        value = difference.estimate.value
        if math.isnan(value):
            unknown.append(difference.metric)
        elif math.isinf(value) or abs(value) > difference.least:
            favours_first_by_metric[difference.metric] = (value < 0) == (_BETTER[difference.metric] == "lower")
            texts[difference.metric] = (
                "(the other value is infinite)"
                if math.isinf(value)
                else f"by {abs(value):.2g} ± {difference.error:.2g}"
            )
    unclear = [
        difference.metric
        for difference in differences
        if difference.metric in _BETTER and difference.metric not in {*favours_first_by_metric, *unknown}
    ]
    if not favours_first_by_metric and unknown:
        return f"{first} and {second}: cannot compare {', '.join(unknown)}, because a value is not finite"
    if not favours_first_by_metric:
        return (
            f"{first} and {second}: no difference in {', '.join(unclear)} beyond {_SIGNIFICANT_ERRORS:g} standard "
            "errors"
        )
    first_is_better = next(iter(favours_first_by_metric.values()))
    better, worse = (first, second) if first_is_better else (second, first)
    opposite = {"lower": "higher", "higher": "lower"}
    sentences = [
        f"{'' if favours_first == first_is_better else 'but '}{name} "
        f"{_BETTER[name] if favours_first == first_is_better else opposite[_BETTER[name]]} {texts[name]}"
        for name, favours_first in favours_first_by_metric.items()
    ]
    unclear_sentence = [f"no clear difference in {', '.join(unclear)}"] if unclear else []
    return f"{better} is better than {worse}: {'; '.join([*sentences, *unclear_sentence])}"


def _evidence(runs: Sequence[Run]) -> list[Evidence]:
    """Return the evidence of each run.

    If a run has no evidence estimate, or only a lower bound, the list is empty. Lower bounds cannot be compared.
    """
    try:
        evidence = [run.evidence() for run in runs]
    except UsageError:
        return []
    return [] if any(estimate.method == BOUND for estimate in evidence) else evidence


def _bayes_factor(first: Compared, second: Compared) -> str:
    """Return a sentence such as `log p(D) of a.nc is 3.1 ± 0.2 above log p(D) of b.nc`: the log Bayes factor."""
    difference = first.numbers["log_evidence"] - second.numbers["log_evidence"]
    se = math.hypot(first.numbers["log_evidence_se"], second.numbers["log_evidence_se"])
    error = " (unknown error)" if math.isnan(se) else f" ± {se:.2g}"
    relation = "above" if difference > 0 else "below"
    doubtful_names = [run.name for run in (first, second) if not run.numbers["log_evidence_trusted"]]
    doubt = (
        f"; this difference is not reliable: to see why, run bnnzoo evidence on {' and on '.join(doubtful_names)}"
        if doubtful_names
        else ""
    )
    return f"log p(D) of {first.name} is {abs(difference):.3g}{error} {relation} log p(D) of {second.name}{doubt}"


def _cost(run: Run) -> dict[str, float]:
    attributes, diagnosis = run.attributes, run.diagnose()
    seconds = float(attributes["seconds_sampling"])
    return {
        "seconds": float(attributes["seconds_warmup"]) + seconds,
        "target_evaluations": float(attributes["target_evaluations"]),
        "rhat": diagnosis["rhat"],
        "ess_bulk": diagnosis["ess_bulk"],
        "ess_per_second": diagnosis["ess_bulk"] / seconds if seconds else math.nan,
    }


def _names(runs: Sequence[Run]) -> list[str]:
    """Return the file name of each run, or its path if two runs have the same file name."""
    paths = [run.path or Path(f"run {i}") for i, run in enumerate(runs)]
    file_names = [path.name for path in paths]
    return [str(path) if file_names.count(path.name) > 1 else path.name for path in paths]
