"""Evaluation of a run: weighted draws, Monte Carlo errors, leave-one-out, unfamiliar inputs, comparisons."""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
import tiny
import xarray as xr
from arviz_stats.base import array_stats
from scipy import special, stats

import bnnzoo
from bnnzoo import cli, store
from bnnzoo.api import compare
from bnnzoo.cli import compare as compare_command
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.evidence.estimators import BOUND, Evidence
from bnnzoo.evaluation.formulas import blocking
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.evaluation.predictions import loo, per_draw, predictive
from bnnzoo.evaluation.scores import row_scores
from bnnzoo.evaluation.scores.familiarity import best_draw
from bnnzoo.models import Linear
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Categorical, Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.recipe import as_dict

X = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
SHORT: dict[str, Any] = {"chains": 2, "warmup": 60, "draws": 60, "init": "prior", "chain_method": "vectorized"}


def _posterior(likelihood: Any, targets: int) -> NetworkPosterior:
    network = Linear().build((2,), likelihood.num_outputs(targets), key=jax.random.key(0))
    return NetworkPosterior.of(network, likelihood, Normal(), X[:0], np.zeros((0, 1), np.float32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of one regression, and one of a classification, on the same forty rows."""
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    y = 100 + 20 * (x @ [1.0, -0.5] + 0.5 * rng.normal(size=80))
    np.savez(folder / "line.npz", x=x, y=y)
    np.savez(folder / "sides.npz", x=x, y=(x[:, 0] + 0.5 * rng.normal(size=80) > 0).astype(int))
    for name, data, seed in (("a", "line", 0), ("b", "line", 1), ("c", "sides", 0)):
        options = {**SHORT, "test_fraction": 0.5, "seed": seed}
        bnnzoo.sample("linear", "mala", data=folder / f"{data}.npz", out=folder / f"{name}.nc", **options)
    return folder


# ---- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("likelihood", "targets"), [(Gaussian(0.5), 1), (Categorical(), 3)])
def test_weights_are_copies_of_draws(likelihood, targets):
    posterior = _posterior(likelihood, targets)
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(12, posterior.layout.dim)).astype(np.float32)
    times = rng.integers(0, 4, 12)
    y = np.zeros((30, 1), np.float32) if targets == 1 else rng.integers(0, 3, 30).astype(np.int32)
    weighted = predictive.sums(posterior, draws, X, y, weights=times / 7.0, keep_parts=False).moments()
    copies = predictive.sums(posterior, np.repeat(draws, times, 0), X, y, keep_parts=False).moments()
    for first, second in zip(weighted, copies, strict=True):
        np.testing.assert_allclose(first, second, rtol=2e-4, atol=1e-5)
    assert not np.allclose(
        weighted.mean, predictive.sums(posterior, draws, X, y, keep_parts=False).moments().mean, atol=1e-3
    )


def test_copies_are_as_many_as_the_weights_say():
    np.testing.assert_array_equal(per_draw.sample_indices(7), np.arange(7))
    np.testing.assert_array_equal(np.bincount(per_draw.sample_indices(7, min_samples=15)), np.full(7, 3))
    weights = np.random.default_rng(0).gamma(0.3, size=50)
    counts = np.bincount(per_draw.sample_indices(50, weights, min_samples=1000), minlength=50)
    assert counts.sum() == 1000
    assert np.abs(counts - 1000 * weights / weights.sum()).max() <= 1


@pytest.mark.slow
def test_a_run_with_log_weights_predicts_by_them(folder, tmp_path):
    """With all weight on one draw, predictions, metrics and ESS are those of this draw."""
    path = tmp_path / "weighted.nc"
    shutil.copyfile(folder / "a.nc", path)
    log_weight = np.full((2, 60), -1e4)
    log_weight[1, 7] = 3.0
    store.add_groups(path, {"sample_stats": {"log_weight": log_weight}}, {"log_weight": ["chain", "draw"]}, {})
    run = bnnzoo.open(path)
    tree = run.posterior["posterior"]
    about = {n: run.posterior["constant_data"][n].values.astype(float) for n in ("x_mean", "x_sd", "y_mean", "y_sd")}
    x, y = run.test_rows()
    weight, bias = (tree[n].values[1, 7].astype(float) for n in ("weight", "bias"))
    scale = float(tree["likelihood_scale"].values[1, 7]) * about["y_sd"]
    mean = ((x - about["x_mean"]) / about["x_sd"] @ weight.T + bias) * about["y_sd"] + about["y_mean"]
    frame = run.predict(x)
    np.testing.assert_allclose(frame["mean"], mean[:, 0], rtol=1e-4)
    np.testing.assert_allclose(frame["epistemic_sd"] / scale, 0, atol=1e-3)
    # 1080 samples: the error of a median is 0.04 sd.
    np.testing.assert_allclose((frame["q50"] - mean[:, 0]) / scale, 0, atol=0.2)
    np.testing.assert_allclose((frame["q95"] - mean[:, 0]) / scale, 1.645, atol=0.3)
    scores = run.evaluate(save=False)
    np.testing.assert_allclose(scores["nll"], -stats.norm.logpdf(y, mean, scale).mean(), rtol=1e-3)
    assert np.isnan(scores["nll_mcse"])
    assert run.diagnose()["weights_ess"] == pytest.approx(1.0)


@pytest.mark.long
def test_infinite_predictions_are_warned_about():
    """The rate of a count grows exponentially with its inputs."""
    x = np.linspace(-1, 1, 40)[:, None]
    y = np.random.default_rng(0).poisson(np.exp(1 + x[:, 0]))
    options = {"likelihood": "poisson", "warmup": 50, "draws": 20, "chains": 2, "progress": False}
    run = bnnzoo.sample("linear", "nuts", data=(x, y), **options)
    with pytest.warns(BnnzooWarning, match="the predictive mean is not finite in 1 of 2 rows, first in row 2"):
        frame = run.predict(np.array([[0.0], [1e4]]))
    assert not np.isfinite(frame["mean"][1])


# ---- errors --------------------------------------------------------------------------------------


def test_batches_hold_every_draw_once_and_no_two_chains():
    for chains, draws in ((1, 7), (3, 50), (4, 1000), (30, 3)):
        parts = predictive.batches(chains, draws)
        every = np.concatenate([np.arange(p.start, p.stop) for p in parts])
        np.testing.assert_array_equal(every, np.arange(chains * draws))
        assert all(p.start // draws == (p.stop - 1) // draws for p in parts)
    assert len(predictive.batches(4, 1000)) == 20


def _sums(weights: np.ndarray, chains: int) -> predictive.Sums:
    """One row with one class probability: what each draw says, in batches."""
    parts = predictive.batches(chains, weights.size // chains)
    values = np.array([weights.reshape(-1)[p].sum() for p in parts])[:, None, None]
    count = np.array([float(p.stop - p.start) for p in parts])
    return predictive.Sums(True, np.zeros((1, 1)), count, values, values[..., :0], values, values[..., 0])


def _mean(moments: predictive.Moments) -> dict[str, Estimate]:
    return {"mean": Estimate(float(moments.mean[0, 0]), np.zeros(1))}


def test_the_error_over_draws_is_that_of_new_draws():
    """60 runs of 4 x 100 independent draws: the larger of two errors is 1 to 1.35 of the truth on average."""
    rng = np.random.default_rng(0)
    errors = [row_scores.monte_carlo_errors(_sums(rng.normal(size=400), 4), 4, _mean)["mean"] for _ in range(60)]
    assert 0.95 < np.mean(errors) / 400**-0.5 < 1.35


def test_the_error_over_draws_sees_chains_that_differ():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 100)) + np.array([0.0, 0, 5, 5])[:, None]
    error = row_scores.monte_carlo_errors(_sums(draws, 4), 4, _mean)["mean"]
    assert error == pytest.approx(np.std([0, 0, 5, 5], ddof=1) / 2, rel=0.1)
    still = row_scores.monte_carlo_errors(_sums(np.repeat(draws[:, :1], 100, 1), 4), 4, _mean)["mean"]
    assert still == pytest.approx(np.std(draws[:, 0], ddof=1) / 2, rel=1e-6)


# ---- leave one out -------------------------------------------------------------------------------


def test_leave_one_out_is_that_of_arviz():
    import arviz_stats
    from arviz_base import from_dict

    rng = np.random.default_rng(0)
    y, theta = rng.normal(size=40), 0.15 * rng.normal(size=(4, 250))
    values = stats.norm.logpdf(y, theta[..., None], 1.0)
    result = loo.leave_one_out(values)
    tree = from_dict({"posterior": {"theta": theta}, "log_likelihood": {"y": values}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = arviz_stats.loo(tree, pointwise=True, reff=1.0)
    np.testing.assert_allclose(result.log_density, expected.elpd_i.values, atol=2e-4)
    np.testing.assert_allclose(result.pareto_k, expected.pareto_k.values, atol=0.1)


def test_leave_one_out_agrees_with_the_closed_form():
    """A Gaussian mean with prior N(0, 1): y_i given the rest is N(sum / N, 1 + 1 / N). With half the power as well."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=30)
    for power in (1.0, 0.5):
        precision = 1 + 30 * power
        theta = power * y.sum() / precision + rng.normal(size=(4, 5000)) / precision**0.5
        result = loo.leave_one_out(stats.norm.logpdf(y, theta[..., None], 1.0), power=power)
        rest = 1 + 29 * power
        expected = stats.norm.logpdf(y, power * (y.sum() - y) / rest, (1 + 1 / rest) ** 0.5)
        np.testing.assert_allclose(result.log_density, expected, atol=0.01)
        assert (result.pareto_k < result.good_k).all()


def test_repeated_draws_have_no_pareto_k():
    values = np.repeat(np.random.default_rng(0).normal(size=(2, 1, 5)), 50, 1)
    result = loo.leave_one_out(values)
    assert np.isinf(result.pareto_k).all()
    assert np.isfinite(result.log_density).all()


def test_equal_weights_of_moving_chains_have_a_pareto_k_of_0():
    """The probabilities of a confident classifier are rounded to 1 in most draws, or the likelihood has power 0."""
    rng = np.random.default_rng(0)
    assert (loo.leave_one_out(rng.normal(size=(2, 50, 5)), power=0.0).pareto_k == 0).all()
    confident = np.where(rng.uniform(size=(2, 200, 5)) < 0.93, 0.0, -0.005 * rng.uniform(size=(2, 200, 5)))
    confident[:, :, 0] = 0.0
    result = loo.leave_one_out(confident)
    assert (result.pareto_k == 0).all()
    np.testing.assert_allclose(result.log_density, confident.mean((0, 1)), atol=1e-4)
    assert (loo.leave_one_out(np.zeros((2, 50, 5))).pareto_k == 0).all()
    assert np.isinf(loo.leave_one_out(1000 * confident).pareto_k[1:]).all()


def test_a_pareto_k_that_is_no_number_is_infinite(monkeypatch):
    """Newer versions of ArviZ return NaN for a tail that they cannot fit."""
    monkeypatch.setattr(array_stats, "psislw", lambda log_ratios, **_: (log_ratios, np.nan))
    result = loo.leave_one_out(np.random.default_rng(0).normal(size=(2, 50, 5)))
    assert np.isinf(result.pareto_k).all()
    assert np.isfinite(result.log_density).all()


# ---- a run ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_every_metric_has_its_errors(folder):
    run = bnnzoo.open(folder / "a.nc")
    scores = run.evaluate()
    for name in ("nll", "nll_moment", "rmse", "mae", "nll_standardised", "rmse_standardised", "epistemic_sd"):
        assert scores[f"{name}_se"] > 0
        assert scores[f"{name}_mcse"] > 0
    for name in ("crps", "coverage_50", "coverage_80", "coverage_90", "coverage_95", "width_90", "loo_nll"):
        assert scores[f"{name}_se"] >= 0
    np.testing.assert_allclose(
        scores["nll"] - scores["nll_standardised"], np.log(run.posterior["constant_data"]["y_sd"])
    )
    assert scores["loo_rows"] == 40
    # The log likelihoods in the file are those that leave-one-out was computed from.
    tree = xr.open_datatree(folder / "a.nc", engine="h5netcdf")
    repeat = loo.leave_one_out(tree["log_likelihood"]["y"].values)
    np.testing.assert_allclose(scores["loo_nll"], -repeat.log_density.mean(), rtol=1e-5)
    assert run.pit().shape == (40, 1)


@pytest.mark.long
def test_each_of_several_targets_has_its_own_errors(tmp_path, capsys):
    """A root mean squared error over metres and degrees has no meaning."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = np.column_stack([1000 * x[:, 0], 0.01 * x[:, 1]]) + rng.normal(size=(60, 2)) * [500, 0.001]
    table = tmp_path / "two.csv"
    pd.DataFrame(np.column_stack([x, y]), columns=["a", "b", "metres", "degrees"]).to_csv(table, index=False)
    options = {**SHORT, "test_fraction": 0.5, "target": "metres,degrees"}
    run = bnnzoo.sample("linear", "mala", data=table, out=tmp_path / "run.nc", **options)
    scores, (inputs, truth) = run.evaluate(save=False), run.test_rows()
    predicted = run.predict(pd.DataFrame(inputs, columns=["a", "b"]))
    each = []
    for i, name in enumerate(("metres", "degrees")):
        gap = truth[:, i] - predicted[f"{name}_mean"].to_numpy()
        each.append(scores[f"{name}_rmse"])
        np.testing.assert_allclose(scores[f"{name}_rmse"], np.sqrt(np.mean(gap**2)), rtol=1e-4)
        np.testing.assert_allclose(scores[f"{name}_mae"], np.mean(np.abs(gap)), rtol=1e-4)
        assert {f"{name}_rmse_se", f"{name}_rmse_mcse", f"{name}_crps_se", f"{name}_coverage_90_se"} <= set(scores)
    # Over both there is no error in metres or degrees, but one in units of the training targets' sds.
    assert not {"rmse", "mae", "crps", "width_90", "aleatoric_sd", "epistemic_sd"} & set(scores)
    sds = run.posterior["observed_data"]["y"].to_numpy().astype(np.float64).std(0)
    np.testing.assert_allclose(scores["rmse_standardised"], np.sqrt(np.mean(np.square(each / sds))), rtol=1e-4)
    np.testing.assert_allclose(scores["degrees_rmse_standardised"], each[1] / sds[1], rtol=1e-4)
    crps, coverage = ([scores[f"{name}_{m}"] for name in ("metres", "degrees")] for m in ("crps", "coverage_90"))
    np.testing.assert_allclose(np.mean(crps / sds), scores["crps_standardised"], rtol=1e-4)
    np.testing.assert_allclose(np.mean(coverage), scores["coverage_90"], rtol=1e-5)
    assert cli.run(["evaluate", str(tmp_path / "run.nc"), "--quiet"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert {"nll", "rmse_standardised", "coverage_90", "metres", "degrees"} <= {cells[0] for cells in lines}
    assert ["target", "rmse", "rmse_standardised", "mae", "crps", "coverage_90"] in lines


@pytest.mark.long
def test_errors_of_several_targets_are_standardised_also_where_the_targets_are_not(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = np.column_stack([3 * x[:, 0], 0.1 * x[:, 1]]) + rng.normal(size=(60, 2)) * [1, 0.01]
    options = {**SHORT, "test_fraction": 0.5, "standardise": False}
    run = bnnzoo.sample("linear", "mala", data=(x, y), out=tmp_path / "run.nc", **options)
    scores, sds = run.evaluate(save=False), run.posterior["observed_data"]["y"].to_numpy().astype(np.float64).std(0)
    names = run.predictor.signature.target_names
    each = [scores[f"{name}_rmse"] / sd for name, sd in zip(names, sds, strict=True)]
    np.testing.assert_allclose(scores["rmse_standardised"], np.sqrt(np.mean(np.square(each))), rtol=1e-4)


def test_one_row_has_no_error_over_rows(folder):
    scores = bnnzoo.open(folder / "a.nc").evaluate((X[:1], np.ones(1)))
    assert np.isfinite(scores["rmse"])
    assert "rmse_mcse" in scores
    assert not [name for name in scores if name.endswith("_se")]


def test_classification_metrics_and_their_parts(folder):
    scores = bnnzoo.open(folder / "c.nc").evaluate(save=False)
    names = (
        "nll",
        "accuracy",
        "confidence",
        "brier",
        "ece",
        "ece_adaptive",
        "auroc",
        "entropy",
        "aleatoric",
        "epistemic",
    )
    assert all(f"{name}_se" in scores and f"{name}_mcse" in scores for name in names)
    np.testing.assert_allclose(scores["entropy"], scores["aleatoric"] + scores["epistemic"], rtol=1e-4)
    assert scores["epistemic"] > 0


@pytest.mark.filterwarnings("ignore:.*settled")
@pytest.mark.slow
def test_levels_never_seen_may_be_none_in_all_tables_of_an_evaluation(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"colour": rng.choice(["red", "blue"], 40), "a": rng.normal(size=40), "y": rng.normal(size=40)}
    )
    run = bnnzoo.sample("linear", "mala", data=table, out=tmp_path / "run.nc", test_fraction=0.0, **SHORT)
    new = table.assign(colour=["green", *table["colour"][1:]])
    assert "ood_auroc_sd" in run.estimates(new, ood=new, unseen="zero")
    for data, ood in ((new, table), (table, new)):
        with pytest.raises(UsageError, match="row 1, column colour: category 'green' does not occur"):
            run.estimates(data, ood=ood)


@pytest.mark.long
def test_ood_of_far_inputs(folder, tmp_path, capsys):
    """For distant inputs without labels, only the epistemic part of a regression's sd grows."""
    run = bnnzoo.open(folder / "a.nc")
    far = np.random.default_rng(0).normal(size=(25, 2)) * 40
    np.savez(tmp_path / "far.npz", far)
    scores = run.ood(tmp_path / "far.npz")
    assert scores.outside["epistemic_sd"].shape == (25,)
    assert scores.inside["epistemic_sd"].shape == (40,)
    assert list(scores.single_outside) == ["sd"]
    assert cli.run(["evaluate", str(folder / "a.nc"), "--ood", str(tmp_path / "far.npz"), "--json", "--quiet"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["ood_auroc_epistemic_sd"] > 0.95
    assert output["ood_fpr95_epistemic_sd"] < 0.2
    assert output["ood_auroc_sd_single"] == pytest.approx(0.5)
    assert output["ood_rows"] == 25
    classified = bnnzoo.open(folder / "c.nc").ood("noise")
    assert list(classified.outside) == ["max_probability", "entropy", "mutual_information"]
    best = int(np.argmax(run.posterior["sample_stats"]["lp"].values))
    assert best_draw(run.predictor) == best


def test_unfamiliar_rows_are_told_in_training_sds_by_a_network_that_sees_others(folder):
    options = {**SHORT, "test_fraction": 0.5, "standardise": False}
    run = bnnzoo.sample("linear", "mala", data=folder / "line.npz", **options)
    sd = run.predict(run.test_rows()[0])["sd"] / run.posterior["observed_data"]["y"].values.std()
    np.testing.assert_allclose(run.ood("noise").inside["sd"], sd, rtol=1e-4)


def test_the_best_draw_without_a_log_density(folder, monkeypatch):
    """Without lp in the file, the draw with the largest summed log likelihood of the training rows is used. A few draws
    at a time: of all, a number a row would not fit into memory.
    """
    run = bnnzoo.open(folder / "a.nc")
    run.evaluate(save=True)
    summed = run.posterior["log_likelihood"]["y"].values.sum(-1).reshape(-1)
    monkeypatch.delitem(run.predictor.record.statistics, "lp")
    requests: list[int] = []
    counted = per_draw.log_likelihoods
    monkeypatch.setattr(blocking, "ELEMENTS", 25 * 2 * 40)
    monkeypatch.setattr(
        per_draw, "log_likelihoods", lambda p, d, *rows: requests.append(len(d)) or counted(p, d, *rows)
    )
    assert best_draw(run.predictor) == int(np.argmax(summed))
    assert requests == [50, 50, 20]


# ---- comparisons ---------------------------------------------------------------------------------


@pytest.mark.long
def test_compare_pairs_rows(folder, capsys):
    paths = [str(folder / f"{name}.nc") for name in "ab"]
    assert cli.run(["compare", *paths, "--reference", paths[0], "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    first, second = output["runs"]
    alone = bnnzoo.open(paths[0]).evaluate(save=False)
    assert first["nll"] == pytest.approx(alone["nll"])
    assert first["nll_se"] == pytest.approx(alone["nll_se"])
    assert (first["mean_distance"], first["sd_ratio"]) == (0, 1)
    assert second["mean_distance"] > 0
    assert first["ess_per_second"] == pytest.approx(
        first["ess_bulk"] / bnnzoo.open(paths[0]).attributes["seconds_sampling"]
    )
    by_metric = {row["metric"]: row for row in output["differences"]}
    assert set(by_metric) == {"nll", "rmse", "crps", "coverage_90"}
    assert by_metric["nll"]["difference"] == pytest.approx(first["nll"] - second["nll"])
    # By hand, row by row; far below the error of either.
    rows = [bnnzoo.open(p).estimates()["nll"].influence for p in paths]
    assert by_metric["nll"]["se"] == pytest.approx(np.std(rows[0] - rows[1], ddof=1) / 40**0.5)
    assert by_metric["nll"]["se"] < 0.5 * first["nll_se"]
    assert cli.run(["compare", *paths]) == 0
    out = capsys.readouterr().out
    assert "±" in out
    # Which run is better, and that neither of the two short runs has converged.
    assert len(output["words"]) == 3
    assert output["words"][0].endswith(out.splitlines()[-3])
    assert all("not settled" in message for message in output["words"][1:])


def test_compare_says_which_is_better_and_by_how_much():
    from bnnzoo.api.compare import Comparison, Difference

    def verdict_of(**differences: float) -> str:
        influence = np.tile([-1.0, 1.0], 50)  # a standard error of 0.1005
        paired = [Difference("a", "b", name, Estimate(v, influence)) for name, v in differences.items()]
        (sentence,) = Comparison([], paired).words
        return sentence

    assert verdict_of(nll=-0.5, rmse=0.1, coverage_90=-0.9) == (
        "a is better than b: nll lower by 0.5 ± 0.1; no clear difference in rmse"
    )
    assert verdict_of(nll=0.5, rmse=-0.4) == "b is better than a: nll lower by 0.5 ± 0.1; but rmse higher by 0.4 ± 0.1"
    assert (
        verdict_of(nll=-0.5, accuracy=0.3) == "a is better than b: nll lower by 0.5 ± 0.1; accuracy higher by 0.3 ± 0.1"
    )
    assert verdict_of(nll=0.1, crps=-0.2) == "a and b: no difference in nll, crps beyond 2 standard errors"
    # Less is better, but of the share that is right; what is right at neither end does not say.
    smaller = ("nll", "loo_nll", "rmse", "crps", "brier")
    assert [verdict_of(**{name: -0.5}) for name in smaller] == [
        f"a is better than b: {n} lower by 0.5 ± 0.1" for n in smaller
    ]
    assert verdict_of(accuracy=-0.5) == "b is better than a: accuracy higher by 0.5 ± 0.1"


def test_a_difference_within_monte_carlo_error_is_not_reported():
    """Clear over the rows, and less than the Monte Carlo error of both; and of few rows t decides."""
    from bnnzoo.api.compare import Compared, Comparison, Difference, _differences

    influence = np.tile([-1.0, 1.0], 50)
    estimates = [
        {"nll": Estimate(value, shift * influence, mcse)} for value, shift, mcse in ((0.5, 1, 0.3), (1, 1.1, 0.4))
    ]
    first, second = (Compared(name, {}, numbers, {}) for name, numbers in zip("ab", estimates, strict=True))
    (difference,) = _differences(first, second)
    assert difference.estimate.mcse == pytest.approx(0.5)
    assert difference.error == pytest.approx(np.hypot(0.01005, 0.5), rel=1e-3)
    comparison = Comparison([first, second], [difference])
    assert comparison.words == ["a and b: no difference in nll beyond 2 standard errors"]
    assert comparison.differences[0]["mcse"] == pytest.approx(0.5)
    doubtful = second._replace(doubt="not converged: R-hat 2")
    assert Comparison([first, doubtful], [difference]).words[1:] == ["b: not converged: R-hat 2"]
    for rows, verdict in ((3, "no difference"), (30, "is better")):
        influence = np.resize([-1.0, 1.0, 0.0], rows)
        few = Difference("a", "b", "nll", Estimate(-2.5 * np.std(influence, ddof=1) / rows**0.5, influence))
        assert verdict in Comparison([], [few]).words[0]


def test_distances_between_class_probabilities():
    import pandas as pd

    from bnnzoo.api.compare import distances

    def frame(p):
        return pd.DataFrame({**{f"p_{i}": p[:, i] for i in range(3)}, "entropy": stats.entropy(p, axis=1)})

    p, q = (special.softmax(np.random.default_rng(s).normal(size=(50, 3)), 1) for s in (0, 1))
    measured = distances(frame(p), frame(q))
    assert measured["agreement"] == np.mean(p.argmax(1) == q.argmax(1))
    expected = np.mean([np.abs(a - b)[a > b].sum() for a, b in zip(p, q, strict=True)])
    assert measured["total_variation"] == pytest.approx(expected)


def test_distances_are_in_the_references_sds_and_ratios_over_them():
    """Two targets, one target, and densities; the parts of a spread are not counted as a spread of their own."""

    def frame(mean: Any, sd: Any, prefix: str = "") -> pd.DataFrame:
        parts = {"mean": mean, "sd": sd, "aleatoric_sd": 9.0, "epistemic_sd": 7.0, "q05": 5.0}
        return pd.DataFrame({f"{prefix}{name}": np.broadcast_to(values, 2) for name, values in parts.items()})

    result, truth = frame([1.0, 2.0], [3.0, 4.0]), frame([3.0, 2.0], [2.0, 8.0])
    expected = {"mean_distance": (1 / 2) ** 0.5, "sd_ratio": (3 / 2 + 4 / 8) / 2}
    assert compare.distances(result, truth) == pytest.approx(expected)
    others = (
        (frame([1.0, 2.0], [3.0, 4.0], "a_"), frame(0.0, 1.0, "an_epistemic_")),
        (frame([3.0, 2.0], [2.0, 8.0], "a_"), frame(6.0, 2.0, "an_epistemic_")),
    )
    expected = {"mean_distance": ((1 + 0 + 9 + 9) / 4) ** 0.5, "sd_ratio": (3 / 2 + 4 / 8 + 1 / 2 + 1 / 2) / 4}
    assert compare.distances(*(pd.concat(both, axis=1) for both in others)) == pytest.approx(expected)
    densities = (pd.DataFrame({"log_density": values}) for values in ([1.0, -2.0], [4.0, 2.0]))
    assert compare.distances(*densities) == pytest.approx({"log_density_distance": (25 / 2) ** 0.5})


class Told(bnnzoo.Run):
    """A run with the attributes that a test sets."""

    def __init__(self, path: str, evidence: Evidence | None, **about: Any):
        self.path, self._evidence = Path(path), evidence
        costs = {"seconds_compile": 64.0, "seconds_warmup": 2.0, "seconds_sampling": 4.0, "target_evaluations": 7}
        attributes = {"data_sha256": "", "model": "m", "sampler": "s", "exactness": "exact"} | costs | about
        record = SimpleNamespace(attributes=attributes, require_training_rows=lambda purpose: None, doubt="")
        self.predictor: Any = SimpleNamespace(record=record)

    def test_rows(self, *of: Any, **how: Any) -> Any:
        return np.zeros((2, 1)), np.zeros((2, 1))

    def evidence(self, *others: Any) -> Evidence:
        if self._evidence is None:
            raise UsageError("does not tell")
        return self._evidence

    def diagnose(self) -> dict[str, Any]:
        return {"rhat": 1.5, "ess_bulk": 20.0, "ess_tail": 3.0}


@pytest.fixture
def attributes_of_runs(monkeypatch):
    """Both rows' losses are 1 and 3; those with one row left out twice as much, where draws are the posterior's."""
    nll = lambda by: Estimate(2.0 * by, by * np.array([-1.0, 1.0]))  # noqa: E731
    looked = SimpleNamespace(estimates={"nll": nll(1), "epistemic": nll(5)})
    monkeypatch.setattr(compare.evaluate, "of_rows", lambda predictor, x, y: looked)
    table = pd.DataFrame({"log_density": [0.0]})
    monkeypatch.setattr(compare.prediction_table, "table", lambda predictor, x: table)
    alone = lambda p: {"loo_nll": nll(2)} if p.record.attributes["exactness"] == "exact" else {}  # noqa: E731
    monkeypatch.setattr(compare.loo, "estimates", alone)


def test_runs_are_compared_by_the_evidence_where_every_one_tells_more_than_a_bound(attributes_of_runs):
    exact = Told("a.nc", Evidence(-3.0, 0.3, "rejection", ""))
    laplace = Told("b.nc", Evidence(-5.0, 0.4, "Laplace", "", trusted=False), exactness="approximate")
    bound, silent = Told("c.nc", Evidence(-4.0, 0.1, BOUND, "")), Told("d.nc", None)

    def compared(*runs: bnnzoo.Run) -> list[tuple[set[str], list[str]]]:
        numbers = compare.compare(runs)
        return [({name for name in run.numbers if "evidence" in name}, list(run.estimates)) for run in numbers.compared]

    both = {"log_evidence", "log_evidence_se", "log_evidence_trusted"}
    assert compared(exact, exact) == [(both, ["nll", "loo_nll"])] * 2
    assert compared(exact, laplace) == [(both, ["nll"])] * 2
    for other in (bound, silent):
        assert compared(exact, other) == compared(other, exact) == [(set(), ["nll"])] * 2
    numbers = compare.compare([exact, laplace]).compared[1].numbers
    assert [numbers[name] for name in ("log_evidence", "log_evidence_se", "log_evidence_trusted")] == [-5.0, 0.4, 0.0]


def test_the_cost_of_a_run_includes_warm_up_but_not_compilation(attributes_of_runs):
    compared, none = compare.compare([Told("a.nc", None), Told("b.nc", None, seconds_sampling=0.0)]).compared
    costs = {"seconds": 6.0, "target_evaluations": 7.0, "rhat": 1.5, "ess_bulk": 20.0, "ess_per_second": 5.0}
    assert compared.numbers == costs
    assert none.numbers == pytest.approx(costs | {"seconds": 2.0, "ess_per_second": np.nan}, nan_ok=True)


def test_runs_of_one_name_are_told_apart_by_their_folders(attributes_of_runs):
    runs = [Told(path, None) for path in ("x/a.nc", "y/a.nc", "x/b.nc")]
    assert [run.name for run in compare.compare(runs).compared] == [str(runs[0].path), str(runs[1].path), "b.nc"]
    # A reference is no run of its own, and names are told apart from its.
    (compared,) = compare.compare(runs[:1], reference=runs[1]).compared
    assert (compared.name, compared.numbers["log_density_distance"]) == (str(runs[0].path), 0.0)


@pytest.mark.parametrize("doubtful", ["a", "b"])
def test_a_problem_of_the_run_or_of_the_reference_is_printed(doubtful, attributes_of_runs, capsys, monkeypatch):
    runs = {name: Told(f"{name}.nc", None) for name in "ab"}
    runs[doubtful].predictor.record.doubt = "not settled"
    comparison = compare.compare([runs["a"]], reference=runs["b"])
    expected = "a.nc: not settled" if doubtful == "a" else "the reference b.nc: not settled"
    assert comparison.words == [expected]
    monkeypatch.setattr(compare, "compare", lambda *_, **__: comparison)
    compare_command.compare([])
    assert capsys.readouterr().out.endswith(f"\n\n{expected}\n")


def test_compare_refuses_other_data(folder, tmp_path, capsys):
    assert cli.run(["compare", str(folder / "a.nc"), str(folder / "c.nc")]) == 2
    assert "c.nc: its training rows differ from those of a.nc" in capsys.readouterr().err
    path = tmp_path / "moved.nc"
    shutil.copyfile(folder / "a.nc", path)
    x, y = bnnzoo.open(path).test_rows()
    constant = {n: v.values for n, v in bnnzoo.open(path).posterior["constant_data"].data_vars.items()}
    store.add_groups(path, {"constant_data": {**constant, "x_test": x[::-1], "y_test": y[::-1]}}, {}, {})
    assert cli.run(["compare", str(folder / "a.nc"), str(path)]) == 2
    assert "moved.nc: its test rows differ from those of a.nc" in capsys.readouterr().err
    with pytest.raises(UsageError, match="two or more"):
        bnnzoo.compare([folder / "a.nc"])


def _subspace(directions, parameters, kind="identified"):
    return {"subspace": json.dumps({"kind": kind, "directions": directions, "parameters": parameters})}


@pytest.mark.parametrize(
    ("attributes", "stochastic", "why"),
    [
        ({"exactness": "exact", "regime_ok": "not-applicable"}, "all", ""),
        ({"exactness": "noise-corrected", "regime_ok": 1}, "all", ""),
        ({"exactness": "noise-corrected", "regime_ok": 0}, "all", "violates the assumptions of its sampler"),
        ({"exactness": "biased", "regime_ok": "not-applicable"}, "all", "the sampler is biased"),
        ({"exactness": "exact", "regime_ok": "not-applicable"}, "last", "including the row that is left out"),
        ({"exactness": "exact", **_subspace(18, 18)}, "identified", ""),
        ({"exactness": "exact", **_subspace(17, 18)}, "identified", "including the row that is left out"),
        ({"exactness": "exact", **_subspace(18, 18, "linearised")}, "linearised", "including the row that is left out"),
    ],
)
def test_leave_one_out_has_a_caveat_for_biased_draws(attributes, stochastic, why):
    """Features that saw the row left out, and draws of another law: the number carries the sentence."""
    recipe = json.dumps(as_dict(tiny.recipe("nuts", "mlp", stochastic=stochastic)))
    caveat = loo.caveat(Record(xr.DataTree(xr.Dataset(attrs={**attributes, "recipe": recipe, "signature": ""})), None))
    assert why in caveat
    assert bool(caveat) == bool(why)


@pytest.mark.long
def test_the_caveat_is_in_every_output(folder, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(loo, "caveat", lambda record: "loo_nll: not quite")
    assert cli.run(["evaluate", str(folder / "a.nc"), "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["loo_caveat"] == "loo_nll: not quite"
    assert "bnnzoo: warning: loo_nll: not quite" in err
    page = bnnzoo.open(folder / "a.nc").report(tmp_path / "report.html")
    assert "loo_nll: not quite." in page.read_text(encoding="utf-8")


@pytest.mark.long
def test_compared_metrics_are_those_of_the_task(tmp_path):
    """Transforms are of numbers; a run is found wherever one works in later, or said to be gone."""
    out = tmp_path / "run.nc"
    run = bnnzoo.api.entrances.run_recipe(tiny.recipe("random-walk"), out=out)
    assert run.pit().ndim == 2
    (tmp_path / "sub").mkdir()
    with contextlib.chdir(tmp_path):
        run = bnnzoo.open("run.nc")
    with contextlib.chdir(tmp_path / "sub"):
        run.save("copy.nc")
        run.evaluate()
    assert "log_likelihood" in bnnzoo.open(out).posterior.children
    out.rename(tmp_path / "moved.nc")
    with pytest.raises(UsageError, match=r"run\.nc: the file no longer exists"):
        run.save(tmp_path / "again.nc")
    with pytest.raises(UsageError, match="trace: unknown option foo; this picture has no options"):
        run.plot("trace", foo=1)
    labels = np.array(["a", "b"] * 20)
    x = np.random.default_rng(0).normal(size=(40, 2))
    short = {"chains": 1, "warmup": 2, "draws": 4, "init": "prior"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classes = bnnzoo.sample("linear", "random-walk", data=(x, labels), **short)
    with pytest.raises(UsageError, match="pit: requires a regression"):
        classes.pit()
