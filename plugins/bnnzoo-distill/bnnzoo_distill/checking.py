"""Comparison of the student network with its teacher (the run) on inputs that the training did not use."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from bnnzoo import PredictiveDistribution, Run
from bnnzoo.finding import setting
from bnnzoo_distill import teacher
from bnnzoo_distill.student import Student
from bnnzoo_distill.teacher import Answers, Kind
from bnnzoo_distill.training import Settings

MAX_NLL_GAP = 0.02
"""Goal: largest mean excess of the student's negative log-likelihood over the teacher's, in nats per test row."""
MIN_CORRELATION = 0.95
"""Goal: smallest correlation over rows between the epistemic uncertainties of student and teacher."""

_TARGET_DRAWS = 256
"""Largest number of posterior draws from which targets are sampled for the check, if there are no test rows."""


class Inputs(NamedTuple):
    """Encoded inputs in original units at which the student is checked.

    Attributes:
        test: test rows; if there are no test rows, inputs that are generated near the given rows.
        test_y: targets of the test rows; None if there are no test rows.
        shifted: test rows that were pushed beyond the range of the training rows; empty if all columns are
            copied, see `Columns`.
        generated: generated inputs, of which the fraction `inputs.OUTSIDE` is beyond the range of the given rows.
    """

    test: Float[np.ndarray, "row feature"]
    test_y: Shaped[np.ndarray, " row"] | None
    shifted: Float[np.ndarray, "row feature"]
    generated: Float[np.ndarray, "row feature"]


def check(run: Run, kind: Kind, student: Student, inputs: Inputs, answers: Answers, seed: int) -> dict[str, Any]:
    """Return the errors of the student relative to the teacher, for each kind of rows.

    `answers` are the predictions of the teacher at `inputs.generated`.

    Each kind of rows (`test`, `shifted`, `generated`) has the keys `rows`, `rmse_mean` and `epistemic_correlation`.
    `test` also has the negative log-likelihoods `nll_teacher` and `nll_student`, their difference `nll_gap`, and the
    standard error of this difference over rows, `nll_gap_se`. If there are no test rows, the target of each row is a
    sample from the teacher. Consecutive rows take samples from different posterior draws.
    """
    x, y = inputs.test, inputs.test_y
    # The inputs are already encoded, so the student must not expect the table with text.
    student = replace(student, signature=student.signature._replace(encoding=None))
    distribution = PredictiveDistribution(run.predictor, x, seed=seed)
    if kind == "classification":
        if y is None:
            order = np.argsort(distribution.classes)
            y = order[np.searchsorted(distribution.classes, _targets(distribution, len(x)), sorter=order)]
        with np.errstate(divide="ignore"):
            logs = np.log(distribution.probabilities[np.arange(len(x)), y])
    else:
        y = _targets(distribution, len(x)) if y is None else y
        logs = distribution.log_prob(y)
    gaps = logs - student.log_prob(x, y)
    report = {
        "test": {
            **_agreement(kind, student, x, teacher.ask(run, kind, x, seed)),
            "nll_teacher": -float(logs.mean()),
            "nll_student": -float((logs - gaps).mean()),
            "nll_gap": float(gaps.mean()),
            "nll_gap_se": float(gaps.std() / math.sqrt(len(gaps))),
        }
    }
    if len(inputs.shifted):
        report["shifted"] = _agreement(kind, student, inputs.shifted, teacher.ask(run, kind, inputs.shifted, seed))
    return report | {"generated": _agreement(kind, student, inputs.generated, answers)}


def _targets(distribution: PredictiveDistribution, rows: int) -> Shaped[np.ndarray, " row"]:
    """Return one sample of the target of each row. Consecutive rows take samples from different posterior draws."""
    samples = distribution.sample(min(rows, _TARGET_DRAWS))
    return samples[np.arange(rows) % len(samples), np.arange(rows)]


def _agreement(kind: Kind, student: Student, x: Float[np.ndarray, "row feature"], answers: Answers) -> dict[str, Any]:
    """Compare the student's predictions at `x` with the teacher's `answers` at `x`.

    The result contains the number of rows, the root mean squared difference of the predictive means, and the
    correlation of the epistemic uncertainties.
    """
    classifies = kind == "classification"
    means = student.probabilities(x) if classifies else student.mean(x) / student.y_sd
    difference = means - (answers.mean if classifies else answers.mean / student.y_sd)
    epistemic = student.mutual_information(x) if classifies else student.epistemic_sd(x)
    # If all uncertainties are equal, the correlation is undefined.
    varies = len(x) > 2 and min(np.ptp(epistemic), np.ptp(answers.epistemic)) > 0
    correlation = float(np.corrcoef(epistemic, answers.epistemic)[0, 1]) if varies else None
    rmse = float(np.sqrt(np.mean(difference**2)))
    return {"rows": len(x), "rmse_mean": rmse, "epistemic_correlation": correlation}


def missed_goals(report: dict[str, Any], settings: Settings, inputs: int) -> list[str]:
    """Return a message with a remedy for each goal that the student misses; empty if the student reaches all goals."""
    missed, test = [], report["test"]
    longer = setting("steps", 3 * settings.steps)
    if test["nll_gap"] > MAX_NLL_GAP:
        missed.append(
            f"the NLL of the student on the {test['rows']} test rows is {test['nll_gap']:.3f} +- "
            f"{test['nll_gap_se']:.3f} nats per row above the NLL of the run (goal: at most {MAX_NLL_GAP}); train "
            f"longer and with more inputs ({longer}, {setting('inputs', 3 * inputs)}); a longer training does not help "
            "if the predictive density has several modes"
        )
    for name in ("test", "shifted"):
        correlation = report.get(name, {}).get("epistemic_correlation")
        if correlation is not None and correlation < MIN_CORRELATION:
            missed.append(
                f"the correlation of the epistemic uncertainties of student and run on the {name} rows is "
                f"{correlation:.3f} (goal: at least {MIN_CORRELATION}); train longer and with more inputs "
                f"({longer}, {setting('inputs', 3 * inputs)})"
            )
    return missed
