"""Conformal intervals and sets: coverage over replications, agreement with refitted posteriors, and the commands.

Each test of a coverage has a false alarm in a thousand, by the binomial distribution over independent replications.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

import bnnzoo
from bnnzoo import cli
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.formulas import conformal_bayes
from bnnzoo.evaluation.formulas.conformal_bayes import ConformalBayes
from bnnzoo.evaluation.intervals import full_conformal, prediction_intervals, split_conformal
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.sklearn import BayesianClassifier, BayesianRegressor

REPLICATIONS, ROWS, DRAWS, LEVEL = 300, 40, 1000, 0.8
FALSE_ALARM = 1e-3
SHORT: dict[str, Any] = {"chains": 2, "warmup": 100, "draws": 150, "init": "map", "start_steps": 250}
quiet = pytest.mark.filterwarnings("ignore:.*has not converged:bnnzoo.errors.BnnzooWarning")


def _holds(covered: np.ndarray, least: float, most: float = 1.0) -> bool:
    """Whether a number of successes is consistent with a coverage between `least` and `most`."""
    count, total = int(np.sum(covered)), len(covered)
    low = stats.binom.ppf(FALSE_ALARM / 2, total, least)
    return low <= count <= stats.binom.ppf(1 - FALSE_ALARM / 2, total, most)


def conformal_of(log_scores: np.ndarray) -> ConformalBayes:
    """Return the test of candidates at the level `LEVEL` for draws of equal weight."""
    weights = np.zeros(len(log_scores), np.float32)
    return ConformalBayes.from_log_scores(log_scores, weights, power=1.0, alpha=1 - LEVEL)


class Line:
    """A conjugate linear model with noise of sd 1, fitted with noise `scale`: exact draws, without a chain."""

    def __init__(self, seed: int, scale: float):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(ROWS + 1, 3))
        y = x @ rng.normal(size=3) + rng.normal(size=ROWS + 1)
        self.x, self.y, self.new_x, self.new_y, self.scale = x[:-1], y[:-1], x[-1], y[-1], scale
        self.mean, self.covariance = self.posterior(self.x, self.y)
        self.draws = rng.multivariate_normal(self.mean, self.covariance, DRAWS)
        log_likelihoods = stats.norm.logpdf(self.y, self.draws @ self.x.T, scale)
        self.candidate_test = conformal_of(log_likelihoods)

    def posterior(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        covariance = np.linalg.inv(np.eye(3) + x.T @ x / self.scale**2)
        return covariance @ x.T @ y / self.scale**2, covariance

    def contains(self, candidates: np.ndarray) -> np.ndarray:
        log_densities = stats.norm.logpdf(candidates[None], (self.draws @ self.new_x)[:, None, None], self.scale)
        return self.candidate_test.included(log_densities.astype(np.float32))

    def bayesian(self) -> tuple[float, float]:
        centre, sd = self.new_x @ self.mean, np.sqrt(self.scale**2 + self.new_x @ self.covariance @ self.new_x)
        half = stats.norm.ppf((1 + LEVEL) / 2) * sd
        return centre - half, centre + half

    def conformal(self) -> tuple[float, float]:
        low, high = conformal_bayes.hull(self.contains, *(np.array([end]) for end in self.bayesian()))
        return float(low[0]), float(high[0])

    def rank(self, candidate: float) -> float:
        """The rank of a candidate by the posterior that is refitted with it, without importance weights."""
        x, y = np.vstack([self.x, self.new_x]), np.append(self.y, candidate)
        mean, covariance = self.posterior(x, y)
        sd = np.sqrt(self.scale**2 + np.einsum("ri,ij,rj->r", x, covariance, x))
        scores = stats.norm.logpdf(y, x @ mean, sd)
        return np.mean(scores <= scores[-1])


@pytest.mark.long
@pytest.mark.parametrize("scale", [1.0, 0.3, 3.0])
def test_the_coverage_of_conformal_intervals(scale):
    """With far too small noise, Bayesian intervals fail; conformal intervals have the coverage and are not too wide."""
    covered = {"bayesian": [], "conformal": []}
    for seed in range(REPLICATIONS):
        line = Line(seed, scale)
        for name, (low, high) in (("bayesian", line.bayesian()), ("conformal", line.conformal())):
            covered[name].append(low <= line.new_y <= high)
    assert _holds(np.array(covered["conformal"]), LEVEL, LEVEL + 1 / (ROWS + 1) + 0.01)
    assert _holds(np.array(covered["bayesian"]), LEVEL) == (scale >= 1)
    if scale == 0.3:
        assert np.mean(covered["bayesian"]) < 0.4  # positive control: the test above can fail


def test_rows_with_much_noise_have_wide_intervals():
    """The known noise sd is 0.1 in four of five rows and 2 in the others; both kinds must have the coverage 80 %.

    Positive control: with scores without the sds, the coverage of the noisy rows is below 40 %.
    """
    held: dict[tuple[bool, bool], list[bool]] = {
        (scaled, noisy): [] for scaled in (True, False) for noisy in (True, False)
    }
    for seed in range(REPLICATIONS):
        rng = np.random.default_rng(seed)
        sd = np.where(rng.uniform(size=ROWS + 1) < 0.2, 2.0, 0.1)
        x = rng.normal(size=ROWS + 1)
        y = x * rng.normal() + sd * rng.normal(size=ROWS + 1)
        variance = 1 / (1 + np.sum((x / sd)[:-1] ** 2))
        slopes = variance * np.sum((x * y / sd**2)[:-1]) + variance**0.5 * rng.normal(size=DRAWS)
        log_likelihoods = stats.norm.logpdf(y, slopes[:, None] * x, sd)
        log_density = log_likelihoods[:, -1:, None].astype(np.float32)
        for scaled in (True, False):
            log_sds = np.broadcast_to(np.log(sd) if scaled else np.zeros(ROWS + 1), (DRAWS, ROWS + 1))
            conformal = conformal_of(log_likelihoods[:, :-1] + log_sds[:, :-1])
            contained = conformal.included(log_density, log_sds[:, -1:].astype(np.float32))
            held[scaled, bool(sd[-1] > 1)].append(bool(contained[0, 0]))
    assert _holds(np.array(held[True, True]), LEVEL, LEVEL + 1 / (ROWS + 1) + 0.01)
    assert _holds(np.array(held[True, False]), LEVEL, LEVEL + 1 / (ROWS + 1) + 0.01)
    assert np.mean(held[False, True]) < 0.4


def test_importance_weights_agree_with_the_refitted_posterior():
    differing = []
    for seed in range(20):
        line = Line(1000 + seed, 1.0)
        low, high = line.bayesian()
        candidates = np.linspace(2 * low - high, 2 * high - low, 41)
        contained = line.contains(candidates[:, None])[:, 0]
        exact = np.array([line.rank(candidate) for candidate in candidates]) > 1 - LEVEL
        differing.append(np.mean(contained != exact))
    assert np.mean(differing) < 0.02


@pytest.mark.long
def test_the_coverage_of_sets_of_classes():
    """Logistic regression with one weight, drawn from its posterior on a grid; also one that is far too sure."""
    for prior_sd, least_bayesian in ((1.5, True), (0.05, None)):
        members = []
        for seed in range(REPLICATIONS):
            rng = np.random.default_rng(seed)
            x = rng.normal(size=ROWS + 1)
            y = (rng.uniform(size=ROWS + 1) < special.expit(1.5 * x)).astype(int)
            grid = np.linspace(-6, 6, 2001)
            signs = np.where(y == 1, 1.0, -1.0)
            logs = special.log_expit(grid[:, None] * x[:-1] * signs[:-1]).sum(1) - grid**2 / (2 * prior_sd**2)
            weights = rng.choice(grid, DRAWS, p=special.softmax(logs))
            conformal = conformal_of(special.log_expit(weights[:, None] * x[:-1] * signs[:-1]))
            log_densities = special.log_expit(weights[:, None, None] * x[-1] * np.array([-1.0, 1.0])[:, None])
            sets = conformal.included(log_densities.astype(np.float32))
            members.append(sets[y[-1], 0])
        assert _holds(np.array(members), LEVEL), (prior_sd, least_bayesian, np.mean(members))


def test_ranks_are_those_of_the_definition():
    assert [conformal_bayes.least_rank(0.1, count) for count in (8, 9, 18, 19, 99)] == [1, 2, 2, 3, 11]
    conformal = conformal_of(np.log([[0.1, 0.2, 0.3, 0.4]]))
    new = np.log(np.array([0.05, 0.1, 0.25, 0.9]))[None, :, None].astype(np.float32)
    for alpha, expected in ((0.2, [False, True, True, True]), (0.5, [False, False, True, True])):
        sets = conformal._replace(alpha=alpha).included(new)
        assert sets[:, 0].tolist() == expected
    impossible = np.full((1, 1, 1), -np.inf, np.float32)
    assert not conformal._replace(alpha=0.2).included(impossible).any()


@pytest.mark.parametrize("width", [1e-3, 0.4, 1.0, 7.0, 1e4])
@pytest.mark.parametrize("discrete", [False, True])
def test_a_hull_is_found_wherever_it_ends(width, discrete):
    """Sets that are far wider than the first grid are found by widening, and their ends by refining."""
    centre = np.array([0.25, -3.0])

    def contains(candidates: np.ndarray) -> np.ndarray:
        return np.abs(candidates - centre) <= width

    low, high = conformal_bayes.hull(contains, centre - 1, centre + 1, discrete=discrete)
    if discrete and width >= 1:
        np.testing.assert_array_equal(low, np.ceil(centre - width))
        np.testing.assert_array_equal(high, np.floor(centre + width))
    elif not discrete and width >= 0.4:
        assert ((centre - width - 0.003 < low) & (low <= centre - width)).all()
        assert ((centre + width + 0.003 > high) & (high >= centre + width)).all()
    assert (low <= high).all()


def test_a_set_without_an_end_is_infinite():
    low, high = conformal_bayes.hull(lambda y: y > -1, np.zeros(1), np.ones(1))
    assert high.tolist() == [np.inf]
    assert -1.01 < low[0] <= -1


@pytest.fixture(scope="module")
def make(tmp_path_factory) -> Callable[..., bnnzoo.Run]:
    """Make a run on 160 rows of a line, in units far from those of the network."""
    folder = tmp_path_factory.mktemp("conformal")

    def make_run(name: str, sampler: str = "nuts", **options: Any) -> bnnzoo.Run:
        if (folder / name).exists():
            return bnnzoo.open(folder / name)
        rng = np.random.default_rng(0)
        x = rng.uniform(-1, 1, size=(160, 1))
        y = 1000 + 50 * (x + 0.3 * rng.normal(size=x.shape))
        if options.pop("classes", False):
            y = np.digitize(y[:, 0], [980, 1015])
        options_given = {
            "data": (x, y),
            "test_fraction": 0.25,
            "out": folder / name,
            "progress": False,
            **SHORT,
            **options,
        }
        return bnnzoo.sample("linear", sampler, **options_given)

    return make_run


@pytest.mark.long
@quiet
def test_intervals_of_a_run_are_in_original_units_and_use_no_test_rows(make):
    run = make("line.nc")
    x = np.linspace(-1, 1, 7)[:, None]
    intervals = run.predict_interval(x, level=0.8)
    assert list(intervals) == ["lower", "upper"]
    bayesian = run.predict_interval(x, level=0.8, interval="bayesian")
    np.testing.assert_allclose(bayesian.to_numpy().T, run.predictive(x).interval(0.8))
    # The model is correct, so both intervals are about as wide as the noise, 2.56 x 15.
    for table in (intervals, bayesian):
        np.testing.assert_allclose(table["upper"] - table["lower"], 38.4, rtol=0.25)
    joined = run.predict(x, interval="conformal", level=0.8)
    assert list(joined)[-2:] == ["lower", "upper"]
    np.testing.assert_array_equal(joined["lower"], intervals["lower"])
    other = bnnzoo.open(run.path)
    other.posterior["constant_data"]["y_test"].values[:] += 1e4
    np.testing.assert_array_equal(other.predict_interval(x, level=0.8)["upper"], intervals["upper"])


@pytest.mark.long
@quiet
def test_a_noise_scale_that_is_much_too_small_is_repaired(make):
    """On 40 test rows, the Bayesian intervals contain few targets; the conformal ones about the nominal number."""
    run = make("narrow.nc", likelihood={"name": "gaussian", "scale": 0.08})
    scores = run.evaluate(save=False, interval="conformal", level=0.8)
    assert scores["interval_level"] == 0.8
    assert scores["coverage_bayesian"] < 0.5
    assert _holds(np.arange(40) < round(40 * scores["coverage_conformal"]), 0.8)
    assert scores["width_conformal"] > 2 * scores["width_bayesian"]


@pytest.mark.long
@quiet
def test_split_conformal_covers_on_average():
    """Each replication splits the rows into calibration rows and scored rows; the run is overconfident."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(60, 1))
    y = x + 0.3 * rng.normal(size=x.shape)
    narrow = {"likelihood": {"name": "gaussian", "scale": 0.1}, "units": "data", "test_fraction": 0}
    run = bnnzoo.sample("linear", "nuts", data=(x, y), progress=False, **narrow, **SHORT)
    calibration = 39
    covered = []
    count = 200 * (calibration + 1)
    x = rng.uniform(-1, 1, size=(count, 1)).astype(np.float32)
    y = (x + 0.3 * rng.normal(size=x.shape)).astype(np.float32)
    predictor = run.predictor
    bayesian = split_conformal._bayesian(predictor, x, LEVEL)
    by_row = {row.tobytes(): number for number, row in enumerate(x)}

    def looked_up(_: Any, rows: np.ndarray, level: float) -> Any:
        index = [by_row[row.tobytes()] for row in rows]
        return tuple(part[index] for part in bayesian)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_conformal, "_bayesian", looked_up)
        for start in range(0, count, calibration + 1):
            rows, new = slice(start, start + calibration), slice(start + calibration, start + calibration + 1)
            low, high = split_conformal.intervals(predictor, x[new], (x[rows], y[rows]), LEVEL)
            covered.append(bool(low[0, 0] <= y[new][0, 0] <= high[0, 0]))
    assert _holds(np.array(covered), LEVEL, LEVEL + 1 / (calibration + 1))


@pytest.mark.long
@quiet
def test_counts_have_whole_ends(make):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 1))
    y = rng.poisson(np.exp(1 + 0.5 * x)).astype(float)
    run = bnnzoo.sample(
        "linear", "nuts", data=(x, y), likelihood="poisson", test_fraction=0.25, progress=False, **SHORT
    )
    for options in ({}, {"calibration": "test"}, {"interval": "bayesian"}):
        intervals = run.predict_interval([[-1.0], [0.0], [1.0]], **options)
        assert (intervals % 1 == 0).all(axis=None)
        assert (intervals["lower"] >= 0).all()
        assert (intervals["lower"] < intervals["upper"]).all()


@pytest.mark.long
@quiet
def test_sets_of_a_run_and_of_an_estimator(make):
    run = make("classes.nc", classes=True)
    x = np.linspace(-1, 1, 9)[:, None]
    for options in ({}, {"calibration": "test"}, {"interval": "bayesian"}):
        sets = run.predict_interval(x, level=0.9, **options)["set"]
        assert sets.iloc[0].startswith("0")
        assert sets.iloc[-1].startswith("2")
        assert sets.str.contains("|", regex=False).any()
        assert [names.split("|")[0] for names in sets] == run.predict(x)["predicted"].tolist()
    intervals = run.evaluate(save=False, interval="conformal")
    assert _holds(np.arange(40) < round(40 * intervals["coverage_conformal"]), 0.9)
    assert 1 <= intervals["size_conformal"] <= 3

    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 1))
    y = np.where(x[:, 0] + 0.5 * rng.normal(size=80) > 0, 10, 9)
    estimator = BayesianClassifier("linear", "nuts", **SHORT).fit(x[:50], y[:50])
    for options in ({}, {"calibration": (x[50:], y[50:])}, {"interval": "bayesian"}):
        members = estimator.predict_set([[-3.0], [0.0], [3.0]], 0.9, **options)
        assert members[[0, 2]].tolist() == [[True, False], [False, True]]
    with pytest.raises(ValueError, match="calibration: class '7' does not occur in the training rows"):
        estimator.predict_set(x, calibration=(x[50:], [7] * 30))


@pytest.mark.long
@quiet
def test_an_estimator_of_numbers(make):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 1))
    y = 5 * x[:, 0] + rng.normal(size=90)
    estimator = BayesianRegressor("linear", "nuts", **SHORT).fit(x[:60], y[:60])
    for options in ({}, {"calibration": (x[60:], y[60:])}, {"interval": "bayesian"}):
        intervals = estimator.predict_interval([[0.0], [1.0]], 0.8, **options)
        assert intervals.shape == (2, 2)
        np.testing.assert_allclose(intervals[:, 1] - intervals[:, 0], 2.56, rtol=0.35)
    several = BayesianRegressor("linear", "nuts", **SHORT).fit(x[:60], np.stack([y, -y], 1)[:60])
    with pytest.raises(UsageError, match="the run predicts several targets; use calibration"):
        several.predict_interval(x[:2])
    intervals = several.predict_interval(x[:2], calibration=(x[60:], np.stack([y, -y], 1)[60:]))
    assert intervals.shape == (2, 2, 2)


def test_calibration_rows_may_share_the_few_values_of_an_input_with_the_training_rows():
    levels = np.arange(40.0)[:, None] % 5
    assert not prediction_intervals._mostly_among((levels, levels), (levels[:20], levels[:20]))
    rows = np.arange(40.0)[:, None]
    assert prediction_intervals._mostly_among((rows, rows), (rows[:21], rows[:21]))
    assert not prediction_intervals._mostly_among((rows, rows), (rows[:20], rows[:20]))
    assert not prediction_intervals._mostly_among((rows, rows + 1), (rows, rows))


def test_scored_rows_and_uncensored_training_rows_are_no_calibration_rows():
    """Also if their inputs have few levels, or if the training rows with censored targets are left out."""
    rng = np.random.default_rng(0)
    few, x = np.arange(40.0)[:, None] % 5, rng.normal(size=(40, 1))
    y, other_y = rng.normal(size=(2, 40, 1))

    def accept(training: Any, rows: Any, scored: Any = None) -> None:
        record = types.SimpleNamespace(has_training_rows=training is not None, training_rows=lambda most: training)
        predictor: Any = Predictor.__new__(Predictor)
        predictor.record = record
        prediction_intervals.checked_calibration(predictor, *rows, scored=scored)

    accept(None, (few, y), (few, other_y))
    for scored in ((few, y), (few[::-1], y[::-1])):
        with pytest.raises(UsageError, match="the rows whose coverage is measured"):
            accept(None, (few, y), scored)
    with pytest.raises(UsageError, match="the rows whose coverage is measured"):
        accept(None, (few, few), (few, few))
    bounds = np.stack([y, np.where(y > 0.5, np.inf, y)], -1)
    is_exact = y[:, 0] <= 0.5
    accept((x, bounds), (x[is_exact], other_y[is_exact]))
    with pytest.raises(UsageError, match="most of the rows are training rows"):
        accept((x, bounds), (x[is_exact], y[is_exact]))


@pytest.mark.long
@quiet
def test_intervals_without_a_guarantee_are_refused_with_a_remedy(make, monkeypatch):
    run, x = make("line.nc"), [[0.0]]
    message = (
        r"sgld are biased, but intervals without calibration rows need exact draws; use calibration=\(X, y\) with rows"
    )
    biased = make("biased.nc", "sgld")
    with pytest.raises(UsageError, match=message):
        biased.predict_interval(x)
    for level, is_offered in ((0.97, True), (0.98, False)):  # 33 and 49 rows are needed, and there are 40 test rows
        with pytest.raises(UsageError, match=message) as caught:
            biased.predict_interval(x, level=level)
        assert ('calibration="test"' in str(caught.value)) is is_offered
    assert biased.predict_interval(x, calibration="test").shape == (1, 2)
    with pytest.raises(UsageError, match=r"parameters that are not sampled were trained on the training rows"):
        make("last.nc", stochastic="last").predict_interval(x)
    with pytest.raises(UsageError, match=r"level=0.999: needs at least 999 training rows \(got 120\); use a lower"):
        run.predict_interval(x, level=0.999)
    with pytest.raises(UsageError, match=r"level=0.99: needs at least 99 calibration rows \(got 40\); use a lower"):
        run.predict_interval(x, level=0.99, calibration="test")
    monkeypatch.setattr(full_conformal, "_MAX_TRAINING_ROWS", 50)
    message = (
        r"99 training rows \(at most 50 are used\); use a lower level, .*, or calibration=\(X, y\) with at least 99"
    )
    with pytest.raises(UsageError, match=message):
        run.predict_interval(x, level=0.99)
    monkeypatch.undo()
    for level in (0.0, 1.0, 90.0):
        with pytest.raises(UsageError, match="level: must be above 0 and below 1"):
            run.predict_interval(x, level=level)
    with pytest.raises(UsageError, match="interval: unknown interval 'exact'"):
        prediction_intervals.check_interval("exact")
    training = run.predictor.record.training_rows()
    with pytest.raises(UsageError, match="calibration: most of the rows are training rows"):
        run.predict_interval(x, calibration=training)
    with pytest.raises(UsageError, match="calibration: is supported for conformal intervals only"):
        run.predict_interval(x, interval="bayesian", calibration="test")
    with pytest.raises(UsageError, match="calibration: most of the rows are also the rows whose coverage is measured"):
        run.evaluate(save=False, interval="conformal", calibration="test")
    with pytest.raises(UsageError, match=r"level: requires interval=\"conformal\" or"):
        run.predict(x, level=0.8)
    with pytest.raises(UsageError, match=r"calibration: requires interval=\"conformal\" or"):
        run.evaluate(save=False, calibration="test")
    monkeypatch.setattr(full_conformal.loo, "smooth_weights", lambda ratios, efficiency: (ratios, 0.9))
    with pytest.raises(UsageError, match=r"importance weights of the draws are unreliable: Pareto k is 0.90 \(limit 0"):
        run.predict_interval(x)
    monkeypatch.setattr(full_conformal.loo, "has_stuck_chains", lambda values: True)
    with pytest.raises(UsageError, match="all draws of each chain are equal; use"):
        run.predict_interval(x)


@pytest.mark.long
@quiet
def test_the_check_of_the_weights_does_not_depend_on_the_predicted_rows(make, monkeypatch):
    run, tested = make("line.nc"), list[float]()
    smooth = full_conformal.loo.smooth_weights

    def record_of(ratios: np.ndarray, efficiency: float) -> Any:
        result = smooth(ratios, efficiency)
        tested.append(result[1])
        return result

    monkeypatch.setattr(full_conformal.loo, "smooth_weights", record_of)
    run.predict_interval([[0.0]])
    first, tested[:] = list(tested), []
    run.predict_interval([[5.0], [1.0]])
    assert first == tested
    assert len(first) == 3 * 50


@pytest.mark.long
@quiet
def test_rows_with_censored_targets_are_refused():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1))
    y = x[:, 0] + 0.3 * rng.normal(size=60)
    bounds = np.stack([y, np.where(y > 0.8, np.inf, y)], 1)
    run = bnnzoo.sample("linear", "nuts", data=(x, bounds), censored=True, test_fraction=0.3, progress=False, **SHORT)
    with pytest.raises(UsageError, match="training targets are censored"):
        run.predict_interval(x)
    with pytest.raises(UsageError, match="rows with censored targets are not supported"):
        run.predict_interval(x, calibration="test")
    assert run.predict_interval(x, interval="bayesian").shape == (60, 2)


@pytest.mark.long
@quiet
def test_more_draws_and_rows_than_are_needed_are_left_out(make, monkeypatch):
    monkeypatch.setattr(full_conformal, "_MAX_DRAWS", 100)
    monkeypatch.setattr(full_conformal, "_MAX_TRAINING_ROWS", 50)
    ready = full_conformal.prepare(make("line.nc").predictor, 0.9)
    assert ready.conformal.relative.shape == (100, 50)
    monkeypatch.setattr(conformal_bayes, "_SCORES", 33 * 50 * 2)
    x = np.linspace(-1, 1, 5)[:, None]
    blocks = full_conformal.intervals(ready, x)
    monkeypatch.undo()
    for first, second in zip(blocks, full_conformal.intervals(ready, x), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4)


@pytest.mark.long
def test_bayesian_sets_are_the_smallest(make):
    run = make("classes.nc", classes=True)
    x = np.linspace(-1, 1, 9)[:, None].astype(np.float32)
    members = prediction_intervals.sets(run.predictor, x, "bayesian", 0.9)
    probabilities = run.predictor.moments(x).mean
    total = (members * probabilities).sum(1)
    least = np.where(members, probabilities, 2).min(1)
    assert (total >= 0.9).all()
    assert (total - least < 0.9).all()


@pytest.mark.long
@quiet
def test_predict_and_evaluate_take_interval_options(make, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, classes, biased = make("line.nc"), make("classes.nc", classes=True), make("biased.nc", "sgld")
    pd.DataFrame({"x0": [-0.5, 0.5]}).to_csv("new.csv", index=False)
    rng = np.random.default_rng(7)
    x = rng.uniform(-1, 1, 30)
    pd.DataFrame({"x0": x, "y": 1000 + 50 * (x + 0.3 * rng.normal(size=30))}).to_csv("more.csv", index=False)

    def typed(*args: Any, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        assert cli.run([str(word) for word in args]) == code
        return tuple(capsys.readouterr())

    predict = ("predict", run.path, "--data", "new.csv")
    out, err = typed(*predict, "--interval", "conformal", "--level", "0.8")
    assert out.splitlines()[0].endswith("q95,lower,upper")
    assert "evaluating 2/2" in err
    assert "evaluating" not in typed(*predict, "--interval", "bayesian")[1]
    typed(*predict, "--interval", "conformal", "--calibration", "more.csv", "-q", "-o", "ends.nc")
    typed("predict", biased.path, "--data", "new.csv", "--interval", "conformal", "--calibration", "test")
    typed("predict", classes.path, "--data", "new.csv", "--interval", "conformal", "-q", "-o", "sets.csv")
    assert pd.read_csv("sets.csv", dtype=str)["set"].str.contains("1").any()
    out, _ = typed("evaluate", run.path, "--interval", "conformal")
    assert all(f"{quantity}_{kind}" in out for quantity in ("coverage", "width") for kind in ("bayesian", "conformal"))
    out, _ = typed("evaluate", run.path, "--interval", "conformal", "--calibration", "more.csv", "--json", "-q")
    assert 0.5 < json.loads(out)["coverage_conformal"] <= 1
    _, err = typed("predict", biased.path, "--data", "new.csv", "--interval", "conformal", code=2)
    assert "neither to train nor to test, or --calibration test for rows that are not the test rows of the run" in err
    _, err = typed(*predict, "--level", "0.8", code=2)
    assert "--level: requires --interval conformal or --interval bayesian" in err
    _, err = typed(*predict, "--interval", "conformal", "--calibration", "missing.csv", code=2)
    assert "missing.csv" in err
    _, err = typed(*predict, "--interval", "conformal", "--calibration", "more.csv", "-o", "more.csv", code=2)
    assert "more.csv" in err
