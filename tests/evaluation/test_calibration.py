"""Calibration is tested over the whole curve: miscalibration is detected and named, correct predictions pass."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bnnzoo.evaluation.convergence.findings import answer_calibrated
from bnnzoo.evaluation.formulas import calibration_distance, metrics
from bnnzoo.evaluation.predictions.predictive import Moments
from bnnzoo.evaluation.scores import row_scores


def normal_pit(rows: int, sd: float = 1.0, shift: float = 0.0, seed: int = 0) -> np.ndarray:
    """Return the PIT of standard normal targets under a prediction with this sd and mean."""
    y = np.random.default_rng(seed).normal(size=(rows, 1))
    return stats.norm.cdf(y, shift, sd)


def classes(confidence: np.ndarray, accuracy: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and probabilities of two classes; class 0 has probability `confidence` and frequency `accuracy`."""
    wrong = np.random.default_rng(seed).uniform(size=len(confidence)) >= accuracy
    return wrong.astype(int), np.stack([confidence, 1 - confidence], 1)


def test_intervals_of_a_perfect_count_model_cover_what_they_claim():
    """Closed 90 % intervals of a Poisson distribution contain 93.5 to 98.8 %."""
    rng = np.random.default_rng(0)
    for rate in (0.5, 3.0):
        y = rng.poisson(rate, size=(4000, 1)).astype(float)
        samples = rng.poisson(rate, size=(1000, 4000, 1)).astype(float)
        rows = row_scores.sampled_scores(samples, y, rng.uniform(size=y.shape))
        for level in row_scores.LEVELS:
            result = row_scores.interval_estimates(rows, ["y"], np.ones(1))[f"coverage_{level}"]
            assert abs(result.value - level / 100) < 5 * (result.se or 0), (rate, level)
        assert answer_calibrated(calibration_distance.of_intervals(rows.pit), 4000).outcome == "yes"


def test_the_scores_of_two_rows_of_classes():
    """The first row has probability 0.7 for its class; the second has 0.5 for a wrong class and 0.4 for its own."""
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4]])
    parts = Moments(p, np.array([[0.6], [0.8]]), np.array([[0.1], [0.3]]), np.log([0.7, 0.4]))
    result = {name: item.value for name, item in row_scores.classification(np.array([0, 2]), parts).items()}
    expected = {
        "nll": -np.log(0.28) / 2,
        "accuracy": 0.5,
        "confidence": 0.6,
        "brier": (0.09 + 0.04 + 0.01 + 0.01 + 0.25 + 0.36) / 2,
        "ece": (0.3 + 0.5) / 2,
        "ece_adaptive": (0.3 + 0.5) / 2,
        "auroc": 1.0,
        "entropy": stats.entropy(p, axis=1).mean(),
        "aleatoric": 0.7,
        "epistemic": 0.2,
    }
    assert result == pytest.approx(expected)


def test_quantiles_of_equal_samples_are_that_sample():
    """(1 - share) a + share a can differ from a in float32, so an interval of one point could miss an equal target."""
    for value in np.random.default_rng(0).uniform(1, 1000, 500).astype(np.float32):
        result = metrics.quantiles(np.full((1003, 1, 1), value), row_scores.QUANTILES)
        assert (result == value).all()


def test_overconfidence_and_underconfidence_do_not_cancel():
    """The ECE is 0.397 although the mean confidence equals the accuracy."""
    confidence = np.repeat([0.55, 0.95], 500)
    labels, probabilities = classes(confidence, np.repeat([0.95, 0.55], 500))
    assert metrics.expected_calibration_error(labels, probabilities).value == pytest.approx(0.4, abs=0.03)
    assert np.mean(labels == 0) == pytest.approx(confidence.mean(), abs=0.02)
    answer = answer_calibrated(calibration_distance.of_classes(labels, probabilities), 1000)
    assert answer.outcome == "no"
    assert "Underconfident where its confidence is at most 0.55, overconfident where it is larger" in answer.text


@pytest.mark.parametrize(
    ("sd", "shift", "message"),
    [(1.6, 0.0, "too wide"), (0.6, 0.0, "too narrow"), (1.0, 0.7, "too high"), (1.0, -0.7, "too low")],
)
def test_the_direction_of_miscalibration_is_named(sd, shift, message):
    """With sd 1.6 the central 50 % interval contains 0.72 of the targets."""
    pit = normal_pit(500, sd, shift)
    if sd == 1.6:
        assert metrics.coverage(pit, pit, 0.5).value == pytest.approx(0.72, abs=0.03)
    answer = answer_calibrated(calibration_distance.of_intervals(pit), 500)
    assert answer.outcome == "no"
    assert message in answer.text
    assert answer_calibrated(calibration_distance.of_intervals(pit[:15]), 15).outcome != "yes"


@pytest.mark.parametrize(("accuracy", "message"), [(0.65, "Overconfident"), (0.97, "Underconfident")])
def test_a_classifier_that_is_off_is_named(accuracy, message):
    labels, probabilities = classes(np.full(500, 0.8), np.full(500, accuracy))
    answer = answer_calibrated(calibration_distance.of_classes(labels, probabilities), 500)
    assert answer.outcome == "no"
    assert answer.text.startswith(message)


def test_a_class_claimed_too_often_is_named():
    """P(1) is 0.15 too large in every row. Over- and underconfidence cancel in the confidence."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.2, 0.8, 5000)
    labels = (rng.uniform(size=5000) < p - 0.15).astype(int)
    answer = answer_calibrated(calibration_distance.of_classes(labels, np.stack([1 - p, p], 1), ("low", "high")), 5000)
    assert answer.outcome == "no"
    assert answer.text.startswith("Class high predicted too often: 49.9% on average, observed in 35.3%"), answer.text
    three = np.stack([(1 - p) / 2, (1 - p) / 2, p], 1)
    labels = np.where(rng.uniform(size=5000) < p - 0.15, 2, rng.integers(0, 2, 5000))
    answer = answer_calibrated(calibration_distance.of_classes(labels, three, ("a", "b", "c")), 5000)
    assert answer.outcome == "no"
    assert answer.text.startswith("Overconfident")


def test_one_target_of_several_is_named():
    """One target of ten has sds three times too small; of two targets, one is too wide and one too narrow."""
    pit = np.random.default_rng(0).uniform(size=(1000, 10))
    pit[:, 4:5] = normal_pit(1000, 1 / 3)
    answer = answer_calibrated(calibration_distance.of_intervals(pit, [f"y{i}" for i in range(10)]), 1000)
    assert answer.outcome == "no"
    assert "ntervals of y4 too narrow" in answer.text
    both = np.hstack([normal_pit(1000, 1.5, seed=1), normal_pit(1000, 1 / 1.5, seed=2)])
    assert answer_calibrated(calibration_distance.of_intervals(both), 1000).outcome == "no"


def test_few_rows_do_not_give_a_calibrated_answer():
    """If 90 % intervals contain 83 % of 300 rows, at most one of ten predictions is reported as calibrated."""
    sd = stats.norm.ppf(0.915) / stats.norm.ppf(0.95)
    messages = [
        answer_calibrated(calibration_distance.of_intervals(normal_pit(300, sd, seed=repeat)), 300).outcome
        for repeat in range(200)
    ]
    assert messages.count("yes") <= 20


def test_half_a_percent_is_not_wrong_however_many_rows_show_it():
    pit = normal_pit(10**6, 1.01)
    assert stats.kstest(np.abs(2 * pit[:, 0] - 1), "uniform").pvalue < 1e-6
    answer = answer_calibrated(calibration_distance.of_intervals(pit), 10**6)
    assert answer.outcome == "yes"
    labels, probabilities = classes(np.full(10**6, 0.8), np.full(10**6, 0.795))
    assert answer_calibrated(calibration_distance.of_classes(labels, probabilities), 10**6).outcome == "yes"


def test_false_alarms_are_rare_and_the_interval_holds_the_truth():
    """At most 1 % of 500 correct predictions for 200 rows get a "no", as the interval allows.

    Of 500 predictions with too narrow intervals, the interval contains the true gap in at least 97.6 % (nominally 99 %;
    3.1 sd).
    """
    rng = np.random.default_rng(0)
    alarms_absent, holds = 0, 0
    z = np.linspace(0, 5, 5001)
    truth = np.max(np.abs(stats.norm.cdf(0.7 * z) - stats.norm.cdf(z))) * 2
    for repeat in range(500):
        pit = normal_pit(200, seed=repeat)
        confidence = rng.uniform(0.5, 1, 200)
        labels, probabilities = classes(confidence, confidence, seed=repeat)
        for curve in (calibration_distance.of_intervals(pit), calibration_distance.of_classes(labels, probabilities)):
            alarms_absent += answer_calibrated(curve, 200).outcome == "no"
        narrow = calibration_distance.of_intervals(normal_pit(200, 0.7, seed=repeat))
        holds += narrow.low <= truth <= narrow.high
    assert alarms_absent <= 10
    assert holds >= 488


@pytest.mark.parametrize(("ratio", "least", "most"), [(1.0, 0, 9), (0.7, 297, 300)])
def test_a_right_posterior_of_few_rows_is_not_called_wrong(ratio, least, most):
    """Exact linear regressions, 400 training and 400 test rows, 11 weights: all test rows share the error of the fit.

    Of 300 regressions, at most 9 are reported as wrong (P(more than 9 | 1 %) = 0.1 %); with sds of 0.7 nearly all are.
    """
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(300):
        train, test = (np.c_[np.ones(400), rng.normal(size=(400, 10))] for _ in range(2))
        y, target = rng.normal(size=400), rng.normal(size=400)
        covariance = np.linalg.inv(train.T @ train)
        sd = ratio * np.sqrt(1 + np.einsum("ij,jk,ik->i", test, covariance, test))
        pit = stats.norm.cdf((target - test @ covariance @ train.T @ y) / sd)
        wrong += answer_calibrated(calibration_distance.of_intervals(pit[:, None]), 400).outcome == "no"
    assert least <= wrong <= most
