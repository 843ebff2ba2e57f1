"""Metrics and peers against exact answers."""

from __future__ import annotations

from importlib.metadata import entry_points

import numpy as np
import pytest
import scoringrules
from bnnzoo_bench import Distribution, Normal, Peer, StudentT, score
from bnnzoo_bench.peers import CatBoost, GaussianProcess, Linear, Mean, NgBoost
from bnnzoo_bench.torch_peers import LaplaceTorch, RealMlp, TabM
from scipy import stats

NEED_PACKAGES = {
    CatBoost: "catboost",
    NgBoost: "ngboost",
    LaplaceTorch: "laplace",
    RealMlp: "pytabkit",
    TabM: "pytabkit",
}


def rows(count=300, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=count), rng.normal(size=count), rng.uniform(0.1, 3, count)


def test_scores_of_normals_equal_the_closed_forms():
    y, mean, sd = rows()
    scores = score(Normal(mean, sd), y)
    z = (y - mean) / sd
    exact = sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert scores["crps"] == pytest.approx(exact.mean(), rel=1e-6)
    assert scores["nll"] == pytest.approx(np.mean(0.5 * np.log(2 * np.pi * sd**2) + z**2 / 2))
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))
    half = 1.6448536269514722 * sd
    assert scores["coverage_90"] == pytest.approx(np.mean(np.abs(y - mean) <= half))
    beyond = np.maximum(np.abs(y - mean) - half, 0)
    assert scores["interval_score_90"] == pytest.approx(np.mean(2 * half + 20 * beyond))


@pytest.mark.parametrize("df", [3.0, 30.0])
def test_crps_of_students_t_equals_the_closed_form(df):
    y, mean, sd = rows()
    y[0] = 60.0  # far outside of the panels
    expected = np.mean(scoringrules.crps_t(y, df, mean, sd))
    assert score(StudentT(df, mean, sd), y)["crps"] == pytest.approx(expected, rel=1e-4)


def test_scores_do_not_depend_on_the_unit_of_the_target():
    y, mean, sd = rows()
    assert score(Normal(7 * mean, 7 * sd), 7 * y, unit=7.0) == pytest.approx(score(Normal(mean, sd), y))


def test_calibrated_normals_have_ninety_percent_coverage():
    y, _, _ = rows(20_000)
    assert score(Normal(np.zeros(20_000), 1.0), y)["coverage_90"] == pytest.approx(0.9, abs=0.007)


def test_score_refuses_values_that_are_not_finite():
    with pytest.raises(ValueError, match="not finite on the test rows: crps, nll"):
        score(Normal([np.nan], 1.0), np.ones(1))


class Own(Normal):
    """A distribution with one attribute of the user."""

    def __init__(self, **attribute):
        super().__init__(np.zeros(3), 1.0)
        vars(self).update(attribute)


@pytest.mark.parametrize(
    ("distribution", "message"),
    [
        (Normal(0.0, 1.0), r"mean .*expected an array of shape \(3,\), got shape \(\)"),
        (Normal(np.zeros((3, 1)), 1.0), r"mean .*expected an array of shape \(3,\), got shape \(3, 1\)"),
        (Normal(np.zeros(4), 1.0), r"mean .*expected an array of shape \(3,\), got shape \(4,\)"),
        (Own(sd=1.0), r"sd .*expected an array of shape \(3,\), got shape \(\)"),
        (Own(log_prob=lambda y: 0.0), r"log_prob .*expected an array of shape \(3,\), got shape \(\)"),
        (Own(quantile=lambda q: np.zeros((3, 2))), r"quantile .* shape \(2, 3\), got shape \(3, 2\)"),
        (Own(cdf=lambda y: np.zeros(3)), r"cdf .*expected an array of shape \(78, 3\), got shape \(3,\)"),
        (Own(cdf=lambda y: y + np.zeros(5)), r"cdf .*shape \(78, 3\), got ValueError: operands could not be"),
        (stats.norm(np.zeros(3)), r"mean .*shape \(3,\), got TypeError"),
        (None, r"mean .*shape \(3,\), got AttributeError: 'NoneType' object has no attribute 'mean'"),
    ],
)
def test_a_wrong_shape_is_an_error_that_names_method_attribute_and_shapes(distribution, message):
    with pytest.raises(ValueError, match=f"^knn:Own: {message}"):
        score(distribution, np.arange(3.0), method="knn:Own")


def test_mean_predicts_the_moments_of_the_training_targets():
    peer = Mean()
    peer.fit(np.zeros((4, 1)), np.array([0.0, 0.0, 2.0, 2.0]), 1.0, 0)
    distribution = peer.predict(np.zeros((3, 1)))
    assert distribution.mean.tolist() == [1.0, 1.0, 1.0]
    assert distribution.sd.tolist() == [1.0, 1.0, 1.0]


def test_linear_predictive_density_is_a_ratio_of_marginal_likelihoods():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(9, 2)), rng.normal(size=9)

    def log_marginal(count):
        design = np.column_stack([np.ones(count), x[:count]])
        shape = 0.5 * (np.eye(count) + 100 * design @ design.T)  # rate / shape of the prior is 1/2
        return stats.multivariate_t(np.zeros(count), shape, df=2).logpdf(y[:count])

    peer = Linear()
    peer.fit(x[:8], y[:8], 1.0, 0)
    assert peer.predict(x[8:]).log_prob(y[8:])[0] == pytest.approx(log_marginal(9) - log_marginal(8))


@pytest.mark.filterwarnings("ignore")  # lengths of the kernel at their bounds
def test_linear_is_the_best_peer_on_a_linear_problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    y = x @ [1.0, 0.0, -1.0] + 0.1 * rng.normal(size=200)
    scores = {}
    for peer in (Mean(), Linear(), GaussianProcess()):
        peer.fit(x[:150], y[:150], 2.0, 0)
        scores[type(peer).__name__] = score(peer.predict(x[150:]), y[150:])["crps"]
    assert scores["Linear"] < 1.1 * scores["GaussianProcess"] < 0.2 * scores["Mean"]
    assert scores["Linear"] == pytest.approx(0.1 / np.sqrt(np.pi), rel=0.25)


@pytest.mark.filterwarnings("ignore")
def test_the_gaussian_process_uses_at_most_two_thousand_rows(monkeypatch):
    monkeypatch.setattr("bnnzoo_bench.peers._MAX_ROWS_OF_A_GP", 30)
    rng = np.random.default_rng(0)
    peer = GaussianProcess()
    peer.fit(rng.normal(size=(100, 1)), rng.normal(size=100), 5.0, 0)
    assert len(peer.model.X_train_) == 30


@pytest.mark.slow
@pytest.mark.parametrize(("peer_class", "module"), NEED_PACKAGES.items())
@pytest.mark.filterwarnings("ignore")
def test_boosting_and_networks_beat_the_mean(peer_class, module):
    pytest.importorskip(module)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(300, 2))
    y = np.sin(3 * x[:, 0]) + 0.1 * rng.normal(size=300)
    peer, mean = peer_class(), Mean()
    for each in (peer, mean):
        each.fit(x[:250], y[:250], 60.0, 0)
    boosted, plain = (score(each.predict(x[250:]), y[250:])["crps"] for each in (peer, mean))
    assert boosted < 0.4 * plain


def test_every_registered_peer_is_a_class_of_this_package():
    peers = {entry.name: entry.load() for entry in entry_points(group="bnnzoo_bench_peers")}
    assert {"laplace-torch", "realmlp", "tabm", "catboost", "ngboost", "gp", "linear", "mean"} <= peers.keys()
    assert all(isinstance(peer(), Peer) for peer in peers.values())


def test_peers_and_distributions_follow_the_protocols():
    assert all(isinstance(peer(), Peer) for peer in (Mean, Linear, GaussianProcess, *NEED_PACKAGES))
    assert isinstance(Normal(np.zeros(2), 1.0), Distribution)
    assert Normal(np.zeros(2), 1.0).quantile([0.1, 0.5, 0.9]).shape == (3, 2)
    assert Normal(np.zeros(2), 1.0).cdf(np.zeros((5, 2))).shape == (5, 2)
