"""Metrics and their standard errors against closed forms and independent libraries, on the same arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scoringrules
import xarray as xr
from scipy import stats
from sklearn import metrics as reference

from bnnzoo.data import Scaler
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.formulas import metrics
from bnnzoo.evaluation.predictions.predictive import Moments
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.evaluation.scores import familiarity, row_scores


@pytest.fixture
def classified():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(4), 300)
    return rng.integers(0, 4, 300), probabilities


def test_accuracy_and_brier(classified):
    labels, probabilities = classified
    assert metrics.accuracy(labels, probabilities).value == reference.accuracy_score(labels, probabilities.argmax(1))
    expected = np.mean(np.sum((np.eye(4)[labels] - probabilities) ** 2, 1))
    np.testing.assert_allclose(metrics.brier(labels, probabilities).value, expected)
    two = probabilities[:, :2] / probabilities[:, :2].sum(1, keepdims=True)
    half = reference.brier_score_loss(labels % 2, two[:, 1])
    np.testing.assert_allclose(metrics.brier(labels % 2, two).value, 2 * half)


def test_negative_log_likelihood(classified):
    labels, probabilities = classified
    result = metrics.negative_log_likelihood(np.log(probabilities[np.arange(300), labels]))
    np.testing.assert_allclose(result.value, reference.log_loss(labels, probabilities))
    assert metrics.negative_log_likelihood(np.array([-1.0, -3.0])).value == 2


def test_entropy(classified):
    _, probabilities = classified
    np.testing.assert_allclose(metrics.entropy(probabilities), stats.entropy(probabilities, axis=1))
    np.testing.assert_allclose(metrics.entropy(np.array([[1.0, 0.0], [0.5, 0.5]])), [0, np.log(2)])


@pytest.mark.parametrize("adaptive", [False, True])
def test_expected_calibration_error(classified, adaptive):
    labels, probabilities = classified
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == labels
    if adaptive:
        bins = np.array_split(np.argsort(confidence), 15)
    else:
        bins = [np.flatnonzero((confidence > i / 15) & (confidence <= (i + 1) / 15)) for i in range(15)]
    expected = sum(len(b) / 300 * abs(correct[b].mean() - confidence[b].mean()) for b in bins if len(b))
    result = metrics.expected_calibration_error(labels, probabilities, adaptive=adaptive)
    np.testing.assert_allclose(result.value, expected, rtol=1e-9)
    certain = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert metrics.expected_calibration_error(np.array([0, 1]), certain, adaptive=adaptive).value == 0
    assert metrics.expected_calibration_error(np.array([1, 0]), certain, adaptive=adaptive).value == 1


def test_auroc(classified):
    labels, probabilities = classified
    rounded = np.round(probabilities[:, 0], 1)
    result = metrics.auroc(rounded, labels == 0)
    np.testing.assert_allclose(result.value, reference.roc_auc_score(labels == 0, rounded))
    several = metrics.auroc_of_classes(labels, probabilities)
    expected = reference.roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    np.testing.assert_allclose(several.value, expected)
    two = probabilities[:, :2] / probabilities[:, :2].sum(1, keepdims=True)
    expected = reference.roc_auc_score(labels % 2, two[:, 1])
    np.testing.assert_allclose(metrics.auroc_of_classes(labels % 2, two).value, expected)
    assert math.isnan(metrics.auroc(rounded, np.ones(300, bool)).value)


def test_false_positive_rate():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=1000), 1 + rng.normal(size=700)
    rate, recall, _ = reference.roc_curve(np.r_[np.ones(1000), np.zeros(700)], -np.r_[inside, outside])
    np.testing.assert_allclose(metrics.false_positive_rate(inside, outside), rate[recall >= 0.95][0])


def test_errors_of_predictions():
    rng = np.random.default_rng(0)
    y, centre = rng.normal(size=(50, 2)), rng.normal(size=(50, 2))
    np.testing.assert_allclose(metrics.rmse(y, centre).value, reference.mean_squared_error(y, centre) ** 0.5)
    np.testing.assert_allclose(metrics.mae(y, centre).value, reference.mean_absolute_error(y, centre))
    inside = metrics.coverage(*2 * [np.array([[0.5], [0.99], [0.2]])], 0.9)
    assert inside.value == pytest.approx(2 / 3)
    variance = rng.gamma(2.0, size=(50, 2))
    expected = -stats.norm.logpdf(y, centre, np.sqrt(variance)).sum(1).mean()
    np.testing.assert_allclose(metrics.gaussian_negative_log_likelihood(y, centre, variance).value, expected)


def _statistics(rng):
    """Return the metrics of 400 new rows."""
    y, centre = rng.normal(size=(400, 1)), 0.5 * rng.normal(size=(400, 1))
    logits = rng.normal(size=(400, 3))
    probabilities = np.exp(2 * logits) / np.exp(2 * logits).sum(1, keepdims=True)
    labels = np.array([rng.choice(3, p=p) for p in np.exp(logits) / np.exp(logits).sum(1, keepdims=True)])
    return {
        "rmse": metrics.rmse(y, centre),
        "mae": metrics.mae(y, centre),
        "brier": metrics.brier(labels, probabilities),
        "ece": metrics.expected_calibration_error(labels, probabilities, 5),
        "ece_adaptive": metrics.expected_calibration_error(labels, probabilities, 5, adaptive=True),
        "auroc": metrics.auroc_of_classes(labels, probabilities),
    }


def test_standard_errors_are_those_of_new_rows():
    """100 data sets: the sd of each metric over them is its mean standard error, to 30 % (4 sd of a sample sd)."""
    rng = np.random.default_rng(0)
    result = [_statistics(rng) for _ in range(100)]
    for name in result[0]:
        spread = np.std([item[name].value for item in result], ddof=1)
        errors = np.mean([item[name].se for item in result])
        assert errors == pytest.approx(spread, rel=0.3), name


@pytest.mark.parametrize(("few", "many"), [(3, 30), (30, 3)])
def test_the_error_of_an_auroc_is_delongs_however_few_of_a_kind_there_are(few, many):
    """For each kind: the variance of a row's separated fraction of the other kind, divided by the number of rows."""
    rng = np.random.default_rng(few)
    positive = rng.permutation(np.r_[np.ones(few, bool), np.zeros(many, bool)])
    ranks = rng.integers(0, 9, few + many) + 2.0 * positive
    over = np.sign(ranks[positive][:, None] - ranks[~positive]) / 2 + 0.5
    result = metrics.auroc(ranks, positive)
    assert result.value == pytest.approx(over.mean())
    expected = over.mean(1).var() / few + over.mean(0).var() / many
    assert result.se == pytest.approx(np.sqrt(expected * (few + many) / (few + many - 1)))


def test_the_error_of_a_share_is_wilsons():
    """This also holds if all rows agree: 31 of 31 rows inside an interval do not prove that all are."""
    all_inside = metrics.coverage(*2 * [np.full((31, 1), 0.5)], 0.9)
    assert (all_inside.value, all_inside.se) == (1, pytest.approx(1 / 64))
    labels, probabilities = np.arange(40) % 4 // 3, np.tile([0.9, 0.1], (40, 1))
    result = metrics.accuracy(labels, probabilities)
    interval = stats.binomtest(30, 40).proportion_ci(2 * stats.norm.cdf(1) - 1, method="wilson")
    assert result.se == pytest.approx((interval.high - interval.low) / 2)


def test_uniform_and_shifted_pit():
    rng = np.random.default_rng(0)
    uniform = rng.uniform(size=(500, 2))
    distance = metrics.pit_distance(uniform)
    assert distance == max(stats.kstest(uniform[:, i], "uniform").statistic for i in range(2))
    assert metrics.pit_distance(uniform**1.5) > 2 * distance


# ---- from samples --------------------------------------------------------------------------------


def test_crps_quantiles_and_pit_of_gaussian_samples():
    rng = np.random.default_rng(0)
    samples = 2 + 3 * rng.normal(size=(20_000, 6, 1))
    y = np.linspace(-4, 8, 6)[:, None]
    sampled = row_scores.sampled_scores(samples, y, np.zeros((6, 1)))
    np.testing.assert_allclose(sampled.crps, scoringrules.crps_normal(y, 2.0, 3.0), rtol=0.05)
    np.testing.assert_allclose(sampled.pit, stats.norm.cdf(y, 2, 3), atol=0.015)
    np.testing.assert_allclose(sampled.quantiles, np.quantile(samples, row_scores.QUANTILES, axis=0), rtol=1e-5)
    crps = np.abs(samples - y).mean(0)[:, 0] - 0.5 * np.array(
        [np.abs(np.subtract.outer(s, s)).mean() for s in samples[:500, :, 0].T]
    )
    np.testing.assert_allclose(sampled.crps[:, 0], crps, rtol=0.1)


def test_pit_of_counts_is_randomised():
    rng = np.random.default_rng(0)
    y = rng.poisson(3, size=(1500, 1)).astype(float)
    samples = rng.poisson(3, size=(800, 1500, 1)).astype(float)
    pit = row_scores.sampled_scores(samples, y, rng.uniform(size=y.shape)).pit
    assert stats.kstest(pit[:, 0], "uniform").pvalue > 1e-4


def test_coverage_of_counts_is_the_expectation_over_the_randomisation():
    """The mean of 2000 randomisations agrees; the sd of a single randomisation is about 0.01 with 400 rows."""
    rng = np.random.default_rng(0)
    y, rate = rng.negative_binomial(2, 0.3, size=(400, 1)), np.full((400, 1), 14 / 3)
    below, up_to = stats.poisson.cdf(y - 1, rate), stats.poisson.cdf(y, rate)
    pit = below + rng.uniform(size=(2000, 400, 1)) * (up_to - below)
    for level in (0.5, 0.8, 0.9, 0.95):
        randomised = np.mean(np.abs(2 * pit - 1) <= level, (1, 2))
        error = randomised.std() / np.sqrt(len(randomised))
        assert abs(metrics.coverage(below, up_to, level).value - randomised.mean()) < 5 * error
        assert randomised.std() > 0.004  # the positive control: the randomisation matters


def test_coverage_of_correct_counts_is_the_nominal_one():
    y = np.arange(60)[:, None]
    weight = stats.poisson.pmf(y, 3.0)
    below, up_to = stats.poisson.cdf(y - 1, 3.0), stats.poisson.cdf(y, 3.0)
    for level in (0.5, 0.9):
        inside = [metrics.coverage(below[i : i + 1], up_to[i : i + 1], level).value for i in range(60)]
        np.testing.assert_allclose(np.sum(inside * weight[:, 0]), level, atol=1e-12)


def test_coverage_and_width_of_gaussian_intervals():
    rng = np.random.default_rng(0)
    samples, y = rng.normal(size=(1500, 1000, 1)), rng.normal(size=(1000, 1))
    sampled = row_scores.interval_estimates(row_scores.sampled_scores(samples, y, np.zeros_like(y)), ["y"], np.ones(1))
    for level in row_scores.LEVELS:
        coverage, width = sampled[f"coverage_{level}"], sampled[f"width_{level}"]
        assert abs(coverage.value - level / 100) < 5 * coverage.se
        np.testing.assert_allclose(width.value, 2 * stats.norm.ppf(0.5 + level / 200), rtol=5e-3)


def test_regression_metrics_are_in_original_units():
    rng = np.random.default_rng(0)
    scaler = Scaler(*(np.array([v], np.float32) for v in (0.0, 1.0, 100.0, 20.0)))
    y = 100 + 20 * rng.normal(size=(30, 1)).astype(np.float32)
    mean, aleatoric, epistemic = 0.1 * rng.normal(size=(30, 1)), np.full((30, 1), 0.8), np.full((30, 1), 0.2)
    inside = (y - 100) / 20
    density = stats.norm.logpdf(inside, mean, 1.0)[:, 0]
    result = row_scores.regression(y, Moments(mean, aleatoric, epistemic, density), scaler, ["y"], np.array([20.0]))
    expected = -stats.norm.logpdf(y, 100 + 20 * mean, 20.0).mean()
    np.testing.assert_allclose(result["nll"].value, expected, rtol=1e-5)
    np.testing.assert_allclose(result["nll_moment"].value, expected, rtol=1e-5)
    np.testing.assert_allclose(result["nll_standardised"].value, -density.mean())
    np.testing.assert_allclose(result["rmse"].value, 20 * result["rmse_standardised"].value, rtol=1e-5)
    np.testing.assert_allclose(result["aleatoric_sd"].value, 20 * 0.8**0.5, rtol=1e-6)
    np.testing.assert_allclose(result["epistemic_sd"].value, 20 * 0.2**0.5, rtol=1e-6)


def test_a_density_of_several_targets_has_the_unit_of_each():
    """Return the metrics of two rows of two targets with units 2 and 5."""
    scaler = Scaler(*(np.array(v, np.float32) for v in ([0, 0], [1, 1], [10, -1], [2, 5])))
    y = np.array([[12.0, 4.0], [8.0, -6.0]], np.float32)  # 1 and 1, -1 and -1 in the network's units
    mean = np.array([[0.5, 0.0], [-1.0, 2.0]])
    parts = Moments(
        mean, np.array([[1.0, 4.0], [1.0, 4.0]]), np.array([[3.0, 5.0], [1.0, 0.0]]), np.array([-1.0, -4.0])
    )
    result = {
        name: item.value
        for name, item in row_scores.regression(y, parts, scaler, ["a", "b"], np.array([2.0, 5.0])).items()
    }
    sds = np.sqrt([[4.0, 9.0], [2.0, 4.0]]) * [2, 5]
    expected = {
        "nll": 2.5 + np.log(10),
        "nll_moment": -stats.norm.logpdf(y, mean * [2, 5] + [10, -1], sds).sum(1).mean(),
        "mae_standardised": (0.5 + 1 + 0 + 3) / 4,
        "aleatoric_sd_standardised": np.sqrt((1 + 4) / 2),
        "epistemic_sd_standardised": np.sqrt((3 + 5 + 1 + 0) / 4),
        "nll_standardised": 2.5,
        "rmse_standardised": np.sqrt((0.25 + 1 + 0 + 9) / 4),
        "a_rmse": np.sqrt(1 / 2),
        "b_rmse": np.sqrt(250 / 2),
        "a_rmse_standardised": np.sqrt(1 / 8),
        "b_rmse_standardised": np.sqrt(10 / 2),
        "a_mae": 1 / 2,
        "b_mae": 10,
    }
    assert result.pop("nll_moment_standardised") == pytest.approx(expected["nll_moment"] - np.log(10))
    assert result == pytest.approx(expected)
    values = {name: item.value for name, item in row_scores.density(parts, scaler).items()}
    assert values == pytest.approx({"nll": 2.5 + np.log(10), "nll_standardised": 2.5})


# ---- out of distribution -------------------------------------------------------------------------


def test_ood_scores_and_their_summary():
    rng = np.random.default_rng(0)
    sure, unsure = rng.dirichlet([20.0, 1, 1], 200), rng.dirichlet([2.0, 2, 2], 300)

    def moments(p):
        return Moments(p, np.full((len(p), 1), 0.1), metrics.entropy(p)[:, None] - 0.1, np.zeros(len(p)))

    parts = [
        familiarity.scores(moments(p), classify=True, single=single) for single in (False, True) for p in (sure, unsure)
    ]
    result = familiarity.OodScores("x", *parts).summary()
    outside = np.r_[np.zeros(200), np.ones(300)]
    for name, score in (
        ("max_probability", -np.r_[sure.max(1), unsure.max(1)]),
        ("entropy", np.r_[metrics.entropy(sure), metrics.entropy(unsure)]),
    ):
        for end in ("", "_single"):
            np.testing.assert_allclose(result[f"ood_auroc_{name}{end}"], reference.roc_auc_score(outside, score))
            passing, recall, _ = reference.roc_curve(1 - outside, -score)
            np.testing.assert_allclose(result[f"ood_fpr95_{name}{end}"], passing[recall >= 0.95][0])
    np.testing.assert_allclose(result["test_max_probability"], sure.max(1).mean())
    np.testing.assert_allclose(result["ood_max_probability"], unsure.max(1).mean())
    assert result["ood_auroc_mutual_information"] == result["ood_auroc_entropy"]
    assert result["ood_rows"] == 300
    assert "ood_auroc_mutual_information_single" not in result


def test_the_unit_of_a_spread_is_the_training_targets_sd_as_the_network_sees_them(monkeypatch):
    """The unit is 1 if the targets do not vary, or if there are none."""
    scaler = Scaler(*(np.array(v, np.float32) for v in ([0], [1], [9, 7], [0.25, 1])))
    monkeypatch.setattr(Predictor, "scaler", scaler)

    def unit(**observed: np.ndarray) -> np.ndarray:
        rows = xr.Dataset({name: (("row", "target"), values) for name, values in observed.items()})
        predictor = Predictor(Record(xr.DataTree.from_dict({"/observed_data": rows}), None))
        return np.broadcast_to(familiarity._target_sds(predictor), 2)

    np.testing.assert_allclose(unit(y=np.array([[9.5, 7.0], [8.5, 7.0]])), [2, 1])
    np.testing.assert_array_equal(unit(y=np.zeros((0, 2))), [1, 1])
    np.testing.assert_array_equal(unit(), [1, 1])
    moments = Moments(np.zeros((1, 2)), np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]), np.zeros(1))
    result = familiarity.scores(moments, classify=False, single=False, unit=np.array([2.0, 1.0]))
    assert {name: item.item() for name, item in result.items()} == pytest.approx(
        {"sd": ((4 / 4 + 6) / 2) ** 0.5, "epistemic_sd": ((3 / 4 + 4) / 2) ** 0.5}
    )
    assert list(familiarity.scores(moments, classify=False, single=True)) == ["sd"]


@pytest.mark.parametrize("task", ["regression", "classification", "density"])
def test_unfamiliar_rows_are_scored_by_all_draws_and_by_the_best(task, monkeypatch):
    """The moments contain the number of a row; for the best draw alone they are twice as large."""
    inside, outside = np.array([[0.1], [0.3]], np.float32), np.array([[0.2], [0.25], [0.4]], np.float32)

    def moments(self: Predictor, x: np.ndarray, y: np.ndarray | None = None, *, draw: int | None = None) -> Moments:
        assert draw in (None, 4)
        assert (y is x) if task == "density" else y is None
        values = (1.0 if draw is None else 2.0) * x.astype(float)
        mean = np.hstack([values, 1 - values]) if task == "classification" else values
        return Moments(mean, 4 * values, 5 * values, -values[:, 0] if task == "density" else np.full(len(x), 77.0))

    for name, value in {"classifies": task == "classification", "is_density": task == "density"}.items():
        monkeypatch.setattr(Predictor, name, value)
    monkeypatch.setattr(Predictor, "moments", moments)
    monkeypatch.setattr(familiarity, "best_draw", lambda predictor: 4)
    monkeypatch.setattr(Predictor, "signature", None)
    monkeypatch.setattr(familiarity, "_target_sds", lambda predictor: 2.0)
    monkeypatch.setattr(familiarity.new_rows, "inputs_of", lambda predictor, spec, unseen: outside)
    result = familiarity.of_run(Predictor.__new__(Predictor), "far.csv", inside)
    assert result.name == "far.csv"
    of_draws = {
        "regression": {"sd": lambda v: np.sqrt(9 * v) / 2, "epistemic_sd": lambda v: np.sqrt(5 * v) / 2},
        "classification": {
            "max_probability": lambda v: np.maximum(v, 1 - v),
            "entropy": lambda v: stats.entropy(np.stack([v, 1 - v], 1), axis=1),
            "mutual_information": lambda v: 5 * v,
        },
        "density": {"nll": lambda v: v},
    }[task]
    for scores_said, x, times in (
        (result.inside, inside, 1),
        (result.outside, outside, 1),
        (result.single_inside, inside, 2),
        (result.single_outside, outside, 2),
    ):
        spread = () if times == 1 else ("epistemic_sd", "mutual_information")
        expected = {
            name: score(times * x[:, 0].astype(float)) for name, score in of_draws.items() if name not in spread
        }
        assert list(scores_said) == list(expected)
        for name, values in expected.items():
            np.testing.assert_allclose(scores_said[name], values, rtol=1e-6, err_msg=name)


def test_noise_lies_where_there_are_no_data():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 17, (20, 8, 8)).astype(np.uint8)
    draws = familiarity.noise(images, 100)
    assert draws.shape == (100, 8, 8)
    assert draws.dtype == np.uint8
    assert set(np.unique(draws)) == set(range(17))
    line = familiarity.noise(np.linspace(0, 1, 50, dtype=np.float32)[:, None], 3000)
    outside = np.mean((line < 0) | (line > 1))
    assert outside == pytest.approx(2 / 3, abs=0.05)
    assert line.min() > -1
    assert line.max() < 2


def test_noise_reaches_as_far_beyond_each_feature_as_its_own_range_is():
    x = np.column_stack([np.linspace(10, 12, 30), np.linspace(-4, -1, 30)]).astype(np.float32)
    draws = familiarity.noise(x, 3000)
    np.testing.assert_allclose(draws.min(0), [8, -7], atol=0.05)
    np.testing.assert_allclose(draws.max(0), [14, 2], atol=0.05)


def test_noise_in_place_of_images_of_numbers_is_as_dark_and_as_bright_as_all_of_them():
    """Every pixel lies between the smallest and the largest value of all pixels."""
    x = np.zeros((2, 1, 3, 3), np.float32)
    x[1, 0, 0, 0], x[0, 0, 2, 2] = 4.0, -1.0
    draws = familiarity.noise(x, 500)
    assert (draws.shape, draws.dtype) == ((500, 1, 3, 3), np.float32)
    np.testing.assert_allclose(draws.min(0), -1.0, atol=0.15)
    np.testing.assert_allclose(draws.max(0), 4.0, atol=0.15)
    assert (draws.min(), draws.max()) == (pytest.approx(-1, abs=0.01), pytest.approx(4, abs=0.01))


def test_noise_in_the_range_of_rows_that_no_file_has_is_refused():
    none = xr.Dataset({"x": (("row", "feature"), np.zeros((0, 2), np.float32))})
    record = Record(xr.DataTree.from_dict({"/constant_data": none}), None)
    with pytest.raises(UsageError, match='ood="noise" needs the training rows'):
        familiarity.of_run(Predictor(record), "noise", np.ones((3, 2), np.float32))
