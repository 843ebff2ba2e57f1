"""Distillation of a run: generate inputs, predict them with the run, train the student, check the student."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

import bnnzoo
from bnnzoo import BnnzooWarning, Run, UsageError
from bnnzoo.progress import Observer
from bnnzoo_distill import checking, teacher, training
from bnnzoo_distill.inputs import Columns, generate, push_outside
from bnnzoo_distill.student import Student
from bnnzoo_distill.teacher import Answers, Kind
from bnnzoo_distill.training import Settings

INPUTS, STEPS, WIDTH = 40_000, 20_000, 128
_MIN_INPUTS = 200


def distill(
    run: Run | str | Path,
    *,
    data: Any = None,
    test: Any = None,
    inputs: int = INPUTS,
    steps: int = STEPS,
    width: int = WIDTH,
    seed: int = 0,
    observer: Observer | None = None,
) -> Student:
    """Train one small network that predicts like all draws of a run, and check it on held-out inputs.

    The student learns the mean (or the class probabilities) and the aleatoric and epistemic uncertainty. At most a
    quarter of the student's training inputs are rows of `data` (by default, the training rows of the run). The other
    training inputs are generated between, near and beyond these rows.

    Args:
        run: the run, or the path of its file.
        data: rows near which the student is trained, in any form that `--data` of `bnnzoo predict` accepts; by default
            the training rows of the run. Targets are not needed.
        test: rows with targets on which the student is checked; by default the test rows of the run. If the run has
            no test rows, the student is checked on generated inputs and samples from the run's predictive distribution.
        inputs: number of training inputs, at least 200. For the check, `inputs` / 10 further inputs are generated.
        steps: number of optimisation steps.
        width: units of each of the three hidden layers.
        seed: seed of the generated inputs, the initial weights and the batches.
        observer: a function that receives the progress.

    Raises:
        UsageError: if the run is not supported (see `teacher.check_supported`), if a number is too small, or if the
            rows of `data` or `test` do not match the run.
    """
    for name, value, least in (("inputs", inputs, _MIN_INPUTS), ("steps", steps, 1), ("width", width, 1)):
        if value < least:
            raise UsageError(f"{name}: must be {least} or more (got {value})")
    run = run if isinstance(run, Run) else bnnzoo.open(run)
    kind = teacher.check_supported(run)
    rows = teacher.rows_near(run, data)
    if not len(rows):
        raise UsageError("data: has no rows; give at least one row with the columns of the training rows")
    rng = np.random.default_rng(seed)
    columns = Columns.of_rows(rows, run.predictor.signature)
    held_out = _held_out(run, rows, columns, test, inputs // 10, rng)
    given = rng.permutation(rows)[: inputs // 4]
    x = np.concatenate([given, generate(rows, columns, inputs - len(given), rng)])
    # One call for the inputs of both training and check, so that there is only one progress bar.
    answers = teacher.ask(run, kind, np.concatenate([x, held_out.generated]), seed, observer)
    settings = Settings(width, steps, seed)
    student = _fit(run, kind, x, answers.take(slice(len(x))), len(given), settings, observer)
    report = checking.check(run, kind, student, held_out, answers.take(slice(len(x), None)), seed)
    student.report.update(report)
    for problem in checking.missed_goals(report, settings, inputs):
        warnings.warn(BnnzooWarning(f"{run.predictor.record.name}: {problem}"), stacklevel=2)
    return student


def _held_out(
    run: Run, rows: np.ndarray, columns: Columns, test: Any, count: int, rng: np.random.Generator
) -> checking.Inputs:
    """Return the inputs of the check, which the training does not use. `count` of them are generated near `rows`."""
    generated = generate(rows, columns, count, rng)
    if test is not None or run.predictor.record.has_test_rows:
        x, y = run.test_rows(test)
        y = y if y.ndim == 1 else y[:, 0]
    else:
        x, y = generate(rows, columns, count, rng, outside=0.0), None
    shifted = push_outside(x, columns, rng) if columns.can_leave_range else x[:0]
    return checking.Inputs(x, y, shifted, generated)


def _fit(
    run: Run,
    kind: Kind,
    x: Float[np.ndarray, "row feature"],
    answers: Answers,
    num_given: int,
    settings: Settings,
    observer: Observer | None,
) -> Student:
    """Train a student on the teacher's answers at `x`.

    The first `num_given` rows of `x` determine the scales of the inputs and of the target.
    """
    given = answers.take(slice(num_given))
    y_mean, y_sd, tail = 0.0, 1.0, np.zeros(2)
    if kind == "regression":
        # Law of total variance: the variance of the predictive mean over the rows, plus the mean predictive variance.
        y_mean = float(given.mean.mean())
        y_sd = float(np.sqrt(given.mean.var() + np.mean(given.aleatoric**2 + given.epistemic**2)))
        tail = training.fit_tail(answers)
    sd = x[:num_given].std(0)
    x_mean, x_sd = x[:num_given].mean(0), np.where(sd > 0, sd, 1).astype(np.float32)
    layers = training.train(
        kind, (x - x_mean) / x_sd, training.targets_of(kind, answers, y_mean, y_sd), settings, observer
    )
    attributes, (chains, draws) = run.attributes, run.predictor.record.shape
    about = {name: attributes[name] for name in ("model", "sampler", "data_sha256", "version") if name in attributes}
    about |= {"chains": chains, "draws": draws, "inputs": len(x), **settings._asdict()}
    signature = run.predictor.signature
    return Student(signature, layers, x_mean, x_sd, x.min(0), x.max(0), y_mean, y_sd, tail, about=about)
