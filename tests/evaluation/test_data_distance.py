"""Distances of predictions from the data (`data_distance`): draws of the posterior never fail, and far draws fail."""

from __future__ import annotations

import types
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy import stats

from bnnzoo.data import Scaler
from bnnzoo.evaluation.convergence import data_distance
from bnnzoo.evaluation.convergence.data_distance import constant_log_density, distance_from_data
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.censored import Censored
from bnnzoo.posterior.counts import NegativeBinomial, ZeroInflatedPoisson
from bnnzoo.posterior.likelihoods import Gaussian, Heteroscedastic, Mixture, Poisson, StudentT
from bnnzoo.posterior.priors import Normal

RECORD: dict[str, Any] = {"names_a_model": True, "draw_weights": None, "has_training_rows": False, "attributes": {}}
DENSITY = "the log-likelihood of the training rows"


def posterior_of(likelihood: Any, y: np.ndarray) -> NetworkPosterior:
    network = eqx.nn.Linear(1, likelihood.num_outputs(y.shape[1]), key=jax.random.key(0))
    return NetworkPosterior.of(network, likelihood, Normal(), y[:, :1], y)


def test_remoteness_is_in_standard_deviations_of_the_data(monkeypatch):
    """Targets have mean 10 and sd 0.25, and the second target is constant.

    Predictions are 11.5, or 1000 in a third of all draws.
    """
    monkeypatch.setattr(Predictor, "classifies", False)
    monkeypatch.setattr(Predictor, "scaler", Scaler(*(np.array(v, np.float32) for v in ([0], [1], [9, 7], [0.25, 1]))))
    predictor: Any = Predictor.__new__(Predictor)
    above = np.full((2, 3, 4, 2), [11.5 - 9, 50.0 - 7])
    above[:, 0] = 1000.0

    def remoteness(*targets: float) -> dict[str, float]:
        y = np.stack([np.array(targets), np.full(len(targets), 7.0)], 1)
        predictor.record = types.SimpleNamespace(**RECORD, array=lambda group, name: y)
        return distance_from_data(predictor, {"predictive means": above}, 4)

    assert remoteness(9.75, 10.25) == {"remoteness": pytest.approx(6.0)}
    assert remoteness(8.0, 12.0) == {"remoteness": pytest.approx(0.75)}
    assert remoteness(10.0, 10.0) == {}
    assert remoteness() == {}


def test_remoteness_is_of_the_worst_target_above_or_below(monkeypatch):
    monkeypatch.setattr(Predictor, "classifies", False)
    monkeypatch.setattr(Predictor, "scaler", Scaler(*(np.array(v, np.float32) for v in ([0], [1], [0, 0], [1, 1]))))
    predictor: Any = Predictor.__new__(Predictor)
    y = np.array([[-2.0, 5.0], [2.0, 5.5]])
    predictor.record = types.SimpleNamespace(**RECORD, array=lambda group, name: y)
    for means, expected in (([-6.0, 5.25], 3.0), ([-6.0, 4.0], 5.0), ([1.0, 6.25], 4.0)):
        result = distance_from_data(predictor, {"predictive means": np.full((2, 3, 4, 2), means)}, 4)
        assert result == {"remoteness": pytest.approx(expected)}
    predictor.model = None
    for change in ({"names_a_model": False}, {"draw_weights": np.ones(6) / 6}):
        predictor.record = types.SimpleNamespace(**RECORD | change)
        assert distance_from_data(predictor, {}, 4) == {}


def test_one_chain_of_four_that_left_the_data_is_seen(monkeypatch):
    """The predictions of a chain, or its noise scale, are far from the data.

    In the units of the data, the rows under N(0, 1) have the mean log density -log(2 pi e) / 2.
    """
    monkeypatch.setattr(Predictor, "classifies", False)
    monkeypatch.setattr(Predictor, "scaler", Scaler(*(np.array(v, np.float32) for v in ([0], [1], [0], [0.5]))))
    monkeypatch.setattr(data_distance.thinning, "density_rows", lambda predictor, probes: 2)
    predictor: Any = Predictor.__new__(Predictor)
    y = np.array([[-1.0], [1.0]])
    monkeypatch.setattr(Predictor, "posterior", posterior_of(Gaussian(), y))
    monkeypatch.setattr(Predictor, "signature", types.SimpleNamespace(num_targets=1))
    rows = {"has_training_rows": True, "training_rows": lambda most: (y, y)}
    predictor.record = types.SimpleNamespace(**RECORD | rows, array=lambda group, name: y)
    means, density = np.zeros((4, 5, 3, 1)), np.full((4, 5), 2 * -3.0)
    means[2, :3], density[1, :3] = 7.0, 2 * -50.0
    result = distance_from_data(predictor, {"predictive means": means, DENSITY: density}, 4)
    guessed = -np.log(2 * np.pi * np.e) / 2
    assert result == {"remoteness": pytest.approx(7.0), "deficit": pytest.approx(50 + guessed)}
    density[3] = np.nan
    result = distance_from_data(predictor, {"predictive means": means, DENSITY: density}, 4)
    assert not result["deficit"] <= 100
    density[3] = 2 * -3.0
    # The fixed scale 0.05 is 0.025 in the units of the data. Two components reach a higher density than a Gaussian.
    for likelihood, best in ((Gaussian(scale=np.float32(0.05)), stats.norm.logpdf(1, 0, 0.025)), (Mixture(2), guessed)):
        monkeypatch.setattr(Predictor, "posterior", posterior_of(likelihood, y))
        result = distance_from_data(predictor, {"predictive means": means, DENSITY: density}, 4)
        assert result["deficit"] == pytest.approx(best + 50, abs=1e-3)
    monkeypatch.setattr(Predictor, "posterior", None)  # such as the site of a NumPyro model
    assert list(distance_from_data(predictor, {"predictive means": means, DENSITY: density}, 4)) == ["remoteness"]


def test_distances_shrink_with_the_likelihood_power(monkeypatch):
    """At power 0, draws do not depend on the data, so no distance is returned."""
    monkeypatch.setattr(Predictor, "classifies", False)
    monkeypatch.setattr(Predictor, "scaler", Scaler(*(np.array(v, np.float32) for v in ([0], [1], [0], [0.5]))))
    monkeypatch.setattr(Predictor, "signature", types.SimpleNamespace(num_targets=1, class_names=("a", "b")))
    monkeypatch.setattr(data_distance.thinning, "density_rows", lambda predictor, probes: 2)
    y = np.array([[-1.0], [1.0]])
    monkeypatch.setattr(Predictor, "posterior", posterior_of(Gaussian(), y))
    predictor: Any = Predictor.__new__(Predictor)
    values = {"predictive means": np.full((2, 3, 4, 1), 8.0), DENSITY: np.full((2, 3), -1000.0)}

    def distances(power: float) -> dict[str, float]:
        attributes = {"likelihood_power": power}
        about = RECORD | {"attributes": attributes, "has_training_rows": True, "training_rows": lambda most: (y, y)}
        predictor.record = types.SimpleNamespace(**about, array=lambda group, name: y)
        return distance_from_data(predictor, values, 4)

    full = distances(1.0)
    assert distances(0.25) == {"remoteness": full["remoteness"] / 2, "deficit": full["deficit"] / 4}
    assert distances(2.0) == full
    assert distances(0.0) == {}
    monkeypatch.setattr(Predictor, "classifies", True)
    assert distances(0.25)["surprise"] == distances(1.0)["surprise"] / 4
    assert distances(0.0) == {}


@pytest.mark.parametrize("sd", [0.02, 1.0])
def test_a_fixed_scale_or_rate_is_compared_with_the_best_constant_prediction_of_its_likelihood(sd):
    """With a width that cannot adapt, no constant prediction reaches the density of a Gaussian with the targets' sd."""
    rng = np.random.default_rng(0)
    y = rng.normal(3.0, 1.0, size=(40, 1)).astype(np.float32)
    gaussian = constant_log_density(Gaussian(scale=np.float32(sd)), y, num_targets=1)
    assert gaussian == pytest.approx(stats.norm.logpdf(y, y.mean(), sd).mean(), rel=1e-4)
    counts = np.round(np.exp(9 + y / 3)).astype(np.float32)
    poisson = constant_log_density(Poisson(), counts, num_targets=1)
    assert poisson == pytest.approx(stats.poisson.logpmf(counts, counts.mean(dtype=np.float64)).mean(), rel=1e-4)
    assert poisson < stats.norm.logpdf(counts, counts.mean(), counts.std()).mean() - 100


@pytest.mark.long
def test_a_constant_prediction_has_the_best_noise_that_the_likelihood_can_learn():
    rng = np.random.default_rng(0)
    y = np.float32([2.0, -3.0]) + rng.normal(size=(40, 2)).astype(np.float32)
    best = stats.norm.logpdf(y, y.mean(0), y.std(0)).sum(1).mean()
    for likelihood in (Gaussian(), Heteroscedastic(), Mixture(1)):
        assert constant_log_density(likelihood.of_targets(2), y, num_targets=2) == pytest.approx(best, abs=1e-3)
    bounds = np.stack([y, y], -1)
    censored = Censored(Gaussian().of_targets(2))
    assert constant_log_density(censored, bounds, num_targets=2) == pytest.approx(best, abs=1e-3)
    df, location, scale = stats.t.fit(y[:, 0], fdf=4)
    student = stats.t.logpdf(y[:, 0], df, location, scale).mean()
    assert constant_log_density(StudentT(), y[:, :1], num_targets=1) == pytest.approx(student, abs=1e-3)
    bounds[y < 2, 0] = -np.inf
    assert -5 < constant_log_density(censored, bounds, num_targets=2) < 0


def test_a_constant_rate_is_multiplied_by_the_exposure():
    exposure = np.array([1.0, 10.0, 100.0, 1000.0])
    y = np.array([[2.0], [20.0], [210.0], [1990.0]], np.float32)
    mean = exposure * y.sum() / exposure.sum()
    expected = stats.poisson.logpmf(y[:, 0], mean).mean()
    density = constant_log_density(Poisson(), y, num_targets=1, log_exposure=np.log(exposure))
    assert density == pytest.approx(expected, rel=1e-4)


def test_counts_with_extra_zeros_are_compared_with_a_prediction_of_extra_zeros():
    y = np.array([[0.0], [0.0], [1000.0], [1010.0]], np.float32)
    expected = np.log(0.5) + stats.poisson.logpmf(y[2:], 1005).mean() / 2
    assert constant_log_density(ZeroInflatedPoisson(), y, num_targets=1) == pytest.approx(expected, abs=1e-3)
    learned = constant_log_density(NegativeBinomial(), y, num_targets=1)
    fixed = constant_log_density(NegativeBinomial(dispersion=np.float32(1.0)), y, num_targets=1)
    assert -20 < fixed < learned < 0


def test_a_constant_prediction_is_never_worse_than_its_starts():
    """With badly scaled targets, the optimisation fails, and the mean as all outputs is a lower bound."""
    y = np.float32(1e4) + np.random.default_rng(0).normal(size=(20, 1)).astype(np.float32)
    assert constant_log_density(Heteroscedastic(), y, num_targets=1) >= stats.norm.logpdf(y, 1e4, 1e4).mean() - 0.1


def test_surprise_is_a_rows_loss_relative_to_guessing(monkeypatch):
    """Three classes; the log densities of four rows sum to -8 on average, given or computed again."""
    monkeypatch.setattr(Predictor, "classifies", True)
    monkeypatch.setattr(Predictor, "signature", types.SimpleNamespace(class_names=("a", "b", "c")))
    monkeypatch.setattr(data_distance.thinning, "density_rows", lambda predictor, probes: 4)
    rows = np.zeros((4, 1)), np.zeros(4, int)
    values = np.broadcast_to(np.array([-1.0, -2.0, -2.0, -3.0]), (2, 3, 4))
    predictor: Any = Predictor.__new__(Predictor)
    predictor.log_likelihoods = lambda x, y, indices: values[:, indices]
    about: dict[str, Any] = {"names_a_model": True, "draw_weights": None, "has_training_rows": True, "shape": (2, 3)}
    about["attributes"] = {}
    predictor.record = types.SimpleNamespace(**about, training_rows=lambda count: rows)
    expected = {"surprise": pytest.approx(2 / np.log(3))}
    assert distance_from_data(predictor, {}, 4) == expected
    twice = {"the log-likelihood of the training rows": np.full((2, 3), -16.0)}
    assert distance_from_data(predictor, twice, 4) == {"surprise": pytest.approx(4 / np.log(3))}
    predictor.record.has_training_rows = False
    assert distance_from_data(predictor, twice, 4) == {}
