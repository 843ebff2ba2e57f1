"""Runs side by side, on the same test rows: metrics, paired differences, distance to a reference, cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bnnzoo import zoo
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.metrics import Estimate
from bnnzoo.run import Run

METRICS = ("nll", "rmse", "crps", "coverage_90", "accuracy", "brier", "ece")
"""What is compared, of what a run's task has."""


class Comparison(NamedTuple):
    """`runs`: a flat dictionary a run. `differences`: one a pair of runs and metric, the first minus the second."""

    runs: list[dict[str, Any]]
    differences: list[dict[str, Any]]


def compare(runs: Sequence[Run | str | Path], *, reference: Run | str | Path | None = None) -> Comparison:
    """Compare runs on their test rows.

    The standard error of a difference is that of the difference row by row: much smaller than the runs' own where
    the same rows are hard for both.

    Args:
        reference: a run taken as the truth, such as long Hamiltonian chains. Classification: `agreement`, the share of
            rows with the same most probable class, and `total_variation`, the mean of sum_c |p_c - q_c| / 2 (Izmailov
            et al. 2021). Regression: `mean_distance`, the root mean square of the difference of predictive means in
            the reference's predictive sd, and `sd_ratio`, the mean ratio of the sds.

    Raises:
        UsageError: for fewer than two runs, or runs that do not share their training or test rows.
    """
    opened = [_open(run) for run in runs]
    known = [*opened, *([] if reference is None else [_open(reference)])]
    if len(known) < 2:
        raise UsageError("compare: one run; give two or more, or a --reference")
    names = _names(known)
    tests = [run.test_rows() for run in known]
    for name, run, rows in zip(names[1:], known[1:], tests[1:], strict=True):
        if run.attributes["data_sha256"] != known[0].attributes["data_sha256"]:
            raise UsageError(
                f"{name}: not trained on the rows of {names[0]}; compare runs of the same --data and split"
            )
        if not all(np.array_equal(a, b) for a, b in zip(rows, tests[0], strict=True)):
            raise UsageError(
                f"{name}: not tested on the rows of {names[0]}; use the same --test-fraction, --split-seed"
            )
    inputs = tests[0][0]
    truth = None if reference is None else known[-1].predict(inputs)
    scores = [run.estimates() for run in opened]
    rows = []
    for name, run, estimates in zip(names, opened, scores, strict=False):
        row = {"run": name, **{k: run.attributes[k] for k in ("model", "sampler", "exactness")}}
        for metric in METRICS:
            if metric in estimates:
                row |= {metric: estimates[metric].value, f"{metric}_se": estimates[metric].se}
        if truth is not None:
            row |= distances(run.predict(inputs), truth)
        rows.append(row | _cost(run))
    pairs = itertools.combinations(zip(names, scores, strict=False), 2)
    return Comparison(rows, [difference for first, second in pairs for difference in _differences(*first, *second)])


def distances(found: pd.DataFrame, truth: pd.DataFrame) -> dict[str, float]:
    """How far predictions are from those of a reference, both as `Run.predict` returns them."""
    classes = [name for name in truth if str(name).startswith("p_")]
    if classes and "entropy" in truth:
        p, q = found[classes].to_numpy(np.float64), truth[classes].to_numpy(np.float64)
        return {
            "agreement": float(np.mean(p.argmax(1) == q.argmax(1))),
            "total_variation": float(np.mean(np.abs(p - q).sum(1)) / 2),
        }
    sds = [str(name) for name in truth if str(name) == "sd" or str(name).endswith("_sd")]
    sds = [name for name in sds if not name.endswith(("aleatoric_sd", "epistemic_sd"))]
    means = [name.removesuffix("sd") + "mean" for name in sds]
    sd = truth[sds].to_numpy(np.float64)
    distance = (found[means].to_numpy(np.float64) - truth[means].to_numpy(np.float64)) / sd
    return {
        "mean_distance": float(np.sqrt(np.mean(distance**2))),
        "sd_ratio": float(np.mean(found[sds].to_numpy(np.float64) / sd)),
    }


def _differences(
    first: str, left: dict[str, Estimate], second: str, right: dict[str, Estimate]
) -> list[dict[str, Any]]:
    found = []
    for metric in (name for name in METRICS if name in left):
        value = left[metric].value - right[metric].value
        paired = Estimate(value, left[metric].influence - right[metric].influence)
        found.append({"first": first, "second": second, "metric": metric, "difference": value, "se": paired.se})
    return found


def _cost(run: Run) -> dict[str, Any]:
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
    """What tells the runs apart: their files' names, with the folders where those repeat."""
    paths = [run.path or Path(f"run {i}") for i, run in enumerate(runs)]
    short = [path.name for path in paths]
    return [str(path) if short.count(path.name) > 1 else path.name for path in paths]
