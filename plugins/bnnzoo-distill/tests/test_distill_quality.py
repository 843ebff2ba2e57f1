"""A student agrees with its run, on test rows and beyond the data, in the units of the data."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from bnnzoo_distill import checking, distill
from bnnzoo_distill.checking import MAX_NLL_GAP, MIN_CORRELATION
from conftest import QUICK, SMALL

import bnnzoo
from bnnzoo import BnnzooWarning, UsageError

GRID = np.linspace(75, 125, 101)[:, None]


def test_a_student_of_a_regression_reaches_the_goals(gap_student):
    report = gap_student.report
    assert report["test"]["rows"] == 400
    assert abs(report["test"]["nll_gap"]) < MAX_NLL_GAP
    assert report["test"]["nll_gap_se"] < 0.01
    for rows in ("test", "shifted", "generated"):
        assert report[rows]["epistemic_correlation"] > MIN_CORRELATION, rows
        assert report[rows]["rmse_mean"] < 0.05, rows


def test_predictions_are_those_of_the_run_in_original_units(gap_run, gap_student):
    expected, predicted = gap_run.predict(GRID), gap_student.predict(GRID)
    sd = expected["sd"]
    assert np.all(np.abs(predicted["mean"] - expected["mean"]) < 0.3 * sd)
    for name in ("sd", "aleatoric_sd", "epistemic_sd"):
        assert np.corrcoef(np.log(predicted["sd"]), np.log(expected["sd"]))[0, 1] > 0.99
        assert np.allclose(predicted[name], expected[name], rtol=0.35), name
        assert np.array_equal(predicted[name], getattr(gap_student, name)(GRID))
    assert np.array_equal(predicted["mean"], gap_student.mean(GRID))


def test_the_epistemic_sd_is_large_in_the_gap_and_beyond_the_data(gap_student):
    inside, gap, below, above = gap_student.epistemic_sd([[112.0], [100.0], [70.0], [130.0]])
    assert gap > 2 * inside
    assert min(below, above) > 5 * inside


def test_inputs_far_away_are_moved_to_the_end_of_the_trained_range(gap_student):
    assert gap_student.mean([1e6]) == gap_student.mean(gap_student.x_high)


def test_the_density_is_close_to_that_of_the_run(gap_run, gap_student):
    x, y = np.array([[85.0], [112.0]]), np.array([480.0, 540.0])
    assert np.allclose(gap_student.log_prob(x, y), gap_run.predictive(x).log_prob(y), atol=0.3)
    grid = np.linspace(300, 700, 4001)
    assert np.exp(gap_student.log_prob(np.full((4001, 1), 100.0), grid)).sum() * 0.1 == pytest.approx(1, abs=0.02)
    with pytest.raises(UsageError, match="2 targets for 1 rows"):
        gap_student.log_prob([[85.0]], y)


def test_heavy_tails_are_learned():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(120, 1))
    data = x, x + 0.1 * rng.standard_t(4, size=x.shape)
    run = bnnzoo.sample("linear", "nuts", data=data, likelihood="student-t", warmup=200, draws=200, chains=2, seed=0)
    student = distill(run, **SMALL)
    assert student.report["test"]["nll_gap"] < 0.01
    z = 6 * student.sd([0.0])
    expected = run.predictive([[0.0]]).log_prob(run.predictive([[0.0]]).mean + z)
    assert student.log_prob([0.0], student.mean([0.0]) + z) == pytest.approx(expected, abs=0.5)


def test_a_student_of_classes_reaches_the_goals(class_run, class_student):
    report = class_student.report
    assert abs(report["test"]["nll_gap"]) < MAX_NLL_GAP
    assert min(report[rows]["epistemic_correlation"] for rows in ("test", "shifted")) > MIN_CORRELATION
    x = np.random.default_rng(1).normal(size=(50, 2))
    expected = class_run.predictive(x)
    assert class_student.signature.class_names == ("other", "same")
    assert np.allclose(class_student.probabilities(x), expected.probabilities, atol=0.06)
    assert np.allclose(class_student.mutual_information(x), expected.mutual_information, atol=0.03)
    frame = class_student.predict(x)
    assert list(frame) == ["p_other", "p_same", "mutual_information", "predicted"]
    assert np.mean(frame["predicted"] == expected.mode) > 0.95
    assert np.allclose(class_student.log_prob(x, np.zeros(50, int)), np.log(class_student.probabilities(x)[:, 0]))
    for unknown in (-1, 2, 0.5):
        with pytest.raises(UsageError, match=rf"indices of classes, 0 to 1 \(got {unknown}\)"):
            class_student.log_prob(x[:2], [0, unknown])


def test_targets_without_test_rows_come_from_many_draws():
    """With one draw for all rows, the difference of the log-likelihoods would be that of this draw."""
    predictions = SimpleNamespace(sample=lambda count: np.repeat(np.arange(count)[:, None], 400, 1))
    targets = checking._targets(predictions, 400)
    assert targets.shape == (400,)
    assert len(np.unique(targets)) == 256


def test_members_of_the_other_task_are_refused(gap_student, class_student):
    for name in ("mean", "sd", "aleatoric_sd", "epistemic_sd"):
        with pytest.raises(UsageError, match=f"{name}: is not supported for classification; use probabilities"):
            getattr(class_student, name)([[0.0, 0.0]])
    for name in ("probabilities", "mutual_information"):
        with pytest.raises(UsageError, match=f"{name}: is not supported for regression; use mean"):
            getattr(gap_student, name)([[0.0]])


@pytest.mark.parametrize("x", [[[1.0, 2.0]], [[np.nan]], np.zeros((1, 1, 1))])
def test_wrong_inputs_are_refused(gap_student, x):
    with pytest.raises(UsageError, match=r"x: expected finite numbers of shape \[row, 1\]"):
        gap_student.mean(x)


def test_missed_goals_are_warnings_with_a_remedy(gap_run):
    with pytest.warns(BnnzooWarning) as caught:
        student = distill(gap_run, **QUICK)
    texts = [str(warning.message) for warning in caught]
    remedy = "above the NLL of the run (goal: at most 0.02); train longer and with more inputs (steps=60, inputs=900)"
    assert any(remedy in text for text in texts), texts
    assert student.about["inputs"] == 300


@pytest.mark.filterwarnings("ignore:.*goal")
def test_the_seed_fixes_the_student(gap_run):
    first, same, other = (distill(gap_run, **QUICK, seed=seed).mean([100.0]) for seed in (0, 0, 1))
    assert first == same != other


@pytest.mark.filterwarnings("ignore:.*goal")
def test_tables_with_text_and_codes_are_read_as_in_training():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"size": rng.uniform(0, 9, 90), "kind": rng.choice(["a", "b", "c"], 90), "rooms": rng.integers(1, 5, 90)}
    )
    y = frame["size"] + 3 * (frame["kind"] == "b") + frame["rooms"]
    run = bnnzoo.sample("linear", "nuts", data=(frame, y), warmup=100, draws=100, chains=2, seed=0)
    student = distill(run, inputs=2000, steps=2000, width=32)
    assert np.allclose(student.mean(frame), run.predict(frame)["mean"], atol=0.5)
    shuffled = frame[["rooms", "kind", "size"]]
    assert np.array_equal(student.mean(shuffled), student.mean(frame))
    frame.to_csv("rows.csv", index=False)
    assert np.allclose(student.mean("rows.csv"), student.mean(frame))
    with pytest.raises(UsageError, match="d"):
        student.mean(frame.assign(kind="d"))
