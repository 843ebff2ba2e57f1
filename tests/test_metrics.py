"""Metrics against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from bnnzoo import metrics


@pytest.fixture
def classes():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([0.5, 1.0, 2.0], 200)
    return rng.integers(0, 3, 200), probabilities


def test_accuracy_and_brier(classes):
    labels, probabilities = classes
    assert metrics.accuracy(labels, probabilities) == reference.accuracy_score(labels, probabilities.argmax(1))
    wanted = ((probabilities - np.eye(3)[labels]) ** 2).sum(1).mean()
    np.testing.assert_allclose(metrics.brier(labels, probabilities), wanted)
    two = probabilities[:, :2] / probabilities[:, :2].sum(1, keepdims=True)
    half = reference.brier_score_loss(labels % 2, two[:, 1])
    np.testing.assert_allclose(metrics.brier(labels % 2, two), 2 * half)


def test_entropy(classes):
    _, probabilities = classes
    np.testing.assert_allclose(metrics.entropy(probabilities), stats.entropy(probabilities, axis=1))
    np.testing.assert_allclose(metrics.entropy(np.array([[1.0, 0.0], [0.5, 0.5]])), [0, np.log(2)])


def test_calibration_error_by_hand(classes):
    labels, probabilities = classes
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    total = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence >= low) & (confidence < low + 1 / 15 + (low > 0.93))
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    np.testing.assert_allclose(metrics.expected_calibration_error(labels, probabilities), total, rtol=1e-9)


def test_calibration_error_of_the_certain():
    certain = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert metrics.expected_calibration_error(np.array([0, 1]), certain) == 0
    assert metrics.expected_calibration_error(np.array([1, 0]), certain) == 1


def test_regression():
    rng = np.random.default_rng(1)
    y, mean = rng.normal(size=(2, 50, 2))
    np.testing.assert_allclose(metrics.rmse(y, mean), reference.mean_squared_error(y, mean) ** 0.5)
    assert metrics.coverage(np.array([[0.0], [1.0], [2.0]]), np.zeros((3, 1)), np.ones((3, 1))) == pytest.approx(2 / 3)
    assert metrics.negative_log_likelihood(np.array([-1.0, -3.0])) == 2
