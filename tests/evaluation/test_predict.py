"""Predictions: the distribution of the mixture over draws, in the data's units."""

from __future__ import annotations

import functools
import json
import os
import shutil
import tracemalloc
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
from scipy import special, stats

import bnnzoo
from bnnzoo.api import entrances
from bnnzoo.data import Scaler, Signature
from bnnzoo.data.checks.check import PREDICTED_COLUMNS
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.formulas import blocking
from bnnzoo.evaluation.predictions import new_rows, per_draw, prediction_table, predictive, predictive_samples
from bnnzoo.evaluation.predictions.csv_text import csv_text
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.evaluation.scores import evaluate, familiarity, row_scores
from bnnzoo.models import Cnn, Density, Linear
from bnnzoo.posterior import NetworkPosterior, backend
from bnnzoo.posterior.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic, Mixture, Poisson
from bnnzoo.posterior.priors import Normal
from bnnzoo.report import pictures

X = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)


def _posterior(likelihood: Any, targets: int = 1) -> NetworkPosterior:
    network = Linear().build((2,), likelihood.num_outputs(targets), key=jax.random.key(0))
    y = np.zeros((0, 1), np.float32)
    return NetworkPosterior.of(network, likelihood, Normal(), X[:0], y)


def _draws(posterior: NetworkPosterior, count: int) -> np.ndarray:
    """Return draws on their natural scale, and the outputs of each draw at X, by NumPy."""
    draws = np.random.default_rng(1).normal(size=(count, posterior.layout.dim)).astype(np.float32)
    if posterior.likelihood.parameters():
        draws[:, -1] = np.exp(0.3 * draws[:, -1])
    return draws


def _outputs(posterior: NetworkPosterior, draws: np.ndarray) -> np.ndarray:
    values = posterior.layout.unflatten(draws.astype(float))
    return np.einsum("soi,ri->sro", values["weight"], X.astype(float)) + values["bias"][:, None]


def _scale(raw: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(raw)) + 1e-4


@pytest.mark.parametrize("place", [0, 2])
def test_a_draw_of_no_weight_changes_nothing(place):
    """The model predicts counts, and the rate of this draw is e^48 or e^200: far beyond the others, or infinite."""
    posterior = _posterior(Poisson())
    draws_right = _draws(posterior, 2) / 4
    for bias in (48.0, 200.0):
        wild = np.insert(draws_right, place, np.full_like(draws_right[0], bias), 0)
        weights = np.insert(np.ones(2), place, 0.0)
        alone, weighted = (
            predictive.sums(posterior, d, X, weights=w, keep_parts=False).moments()
            for d, w in ((draws_right, None), (wild, weights))
        )
        for name in ("mean", "aleatoric", "epistemic"):
            np.testing.assert_allclose(getattr(weighted, name), getattr(alone, name), rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("count", [3, 16, 21])
def test_moments_of_a_gaussian(count):
    """The number of draws is below, equal to and above a multiple of eight."""
    posterior = _posterior(Gaussian())
    draws = _draws(posterior, count)
    y = np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    moments = predictive.sums(posterior, draws, X, y, keep_parts=False).moments()
    mean, sd = _outputs(posterior, draws)[..., 0], draws[:, -1:].astype(float)
    np.testing.assert_allclose(moments.mean[:, 0], mean.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(moments.epistemic[:, 0], mean.var(0), rtol=1e-4)
    np.testing.assert_allclose(moments.aleatoric[:, 0], np.mean(sd**2) * np.ones(5), rtol=1e-4)
    density = special.logsumexp(stats.norm.logpdf(y[:, 0], mean, sd), 0) - np.log(count)
    np.testing.assert_allclose(moments.log_density, density, rtol=1e-4)


def test_moments_of_a_mixture():
    posterior = _posterior(Mixture(2))
    draws = _draws(posterior, 11)
    y = np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    moments = predictive.sums(posterior, draws, X, y, keep_parts=False).moments()
    out = _outputs(posterior, draws)
    weight, centre, sd = special.softmax(out[..., :2], -1), out[..., 2:4], _scale(out[..., 4:])
    mean = (weight * centre).sum(-1)
    variance = (weight * (sd**2 + centre**2)).sum(-1) - mean**2
    np.testing.assert_allclose(moments.mean[:, 0], mean.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(moments.epistemic[:, 0], mean.var(0), rtol=1e-4)
    np.testing.assert_allclose(moments.aleatoric[:, 0], variance.mean(0), rtol=1e-4)
    terms = np.log(weight) + stats.norm.logpdf(y[None], centre, sd)
    density = special.logsumexp(special.logsumexp(terms, -1), 0) - np.log(11)
    np.testing.assert_allclose(moments.log_density, density, rtol=1e-4)


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
def test_moments_of_classes(likelihood):
    posterior = _posterior(likelihood, 3)
    draws = _draws(posterior, 11)
    labels = np.array([0, 1, 1, 0, 1], np.int32)
    moments = predictive.sums(posterior, draws, X, labels, keep_parts=False).moments()
    out = _outputs(posterior, draws)
    logits = np.concatenate([0 * out, out], -1) if isinstance(likelihood, Bernoulli) else out
    probability = special.softmax(logits, -1)
    np.testing.assert_allclose(moments.mean, probability.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moments.aleatoric[:, 0], stats.entropy(probability, axis=-1).mean(0), rtol=1e-4)
    expected = np.log(probability[:, np.arange(5), labels].mean(0))
    np.testing.assert_allclose(moments.log_density, expected, rtol=1e-4, atol=1e-6)


def test_a_small_spread_around_a_large_mean_survives_float32():
    posterior = _posterior(Gaussian(0.1))
    draws = np.zeros((64, posterior.layout.dim), np.float32)
    draws[:, -1] = 1000 + 1e-2 * np.random.default_rng(0).normal(size=64)
    moments = predictive.sums(posterior, draws, X, keep_parts=False).moments()
    np.testing.assert_allclose(moments.epistemic[:, 0], draws[:, -1].astype(float).var(), rtol=1e-2)


def test_samples_have_the_law_of_the_mixture():
    posterior = _posterior(Heteroscedastic())
    draws = np.repeat(_draws(posterior, 2), 4000, 0)
    samples = per_draw.samples(posterior, draws, X, key=jax.random.key(0))
    assert samples.shape == (8000, 5, 1)
    out = _outputs(posterior, draws[[0, 4000]])
    for row in range(5):
        for half in range(2):
            part = samples[4000 * half : 4000 * (half + 1), row, 0]
            law = stats.norm(out[half, row, 0], _scale(out[half, row, 1]))
            assert stats.kstest(part, law.cdf).pvalue > 1e-6
    assert len(np.unique(samples)) > 39_000


def test_log_likelihoods_are_those_of_the_posterior():
    posterior = _posterior(Gaussian())
    draws = _draws(posterior, 10)
    y = np.ones((5, 1), np.float32)
    result = per_draw.log_likelihoods(posterior, draws, X, y)
    mean, sd = _outputs(posterior, draws)[..., 0], draws[:, -1:].astype(float)
    np.testing.assert_allclose(result, stats.norm.logpdf(1.0, mean, sd), rtol=1e-4)


def test_blocks_cover_every_row_once(monkeypatch):
    rows = np.concatenate([np.arange(20)[b] for b in blocking.blocks(20, 1)])
    np.testing.assert_array_equal(rows, np.arange(20))
    monkeypatch.setattr(blocking, "ELEMENTS", 7 * 2)
    blocks = list(blocking.row_blocks(20, 2))
    assert [(len(rows), count) for rows, count in blocks] == [(7, 7), (7, 7), (7, 6)]
    np.testing.assert_array_equal(np.concatenate([rows for rows, _ in blocks]), [*range(20), 19])
    posterior = _posterior(Gaussian(0.5))
    draws = _draws(posterior, 9)
    x = np.random.default_rng(3).normal(size=(20, 2)).astype(np.float32)
    y = np.zeros((20, 1), np.float32)
    blocked = predictive.sums(posterior, draws, x, y, keep_parts=False).moments()
    monkeypatch.undo()
    for first, second in zip(blocked, predictive.sums(posterior, draws, x, y, keep_parts=False).moments(), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-6)


def test_any_number_of_draws_is_predicted_by_one_program(monkeypatch):
    """A time limit ends each run at a different draw.

    Each draw has its own prediction and noise, independent of blocks.
    """
    traced, centre = [], predictive.centre_of_draw
    monkeypatch.setattr(per_draw, "centre_of_draw", lambda *args: traced.append(0) or centre(*args))
    posterior, x, key = _posterior(Gaussian(0.5)), X[:4], jax.random.key(1)
    draws = _draws(posterior, 1300)
    outputs_found = per_draw.functions(posterior, draws, x)
    programs = len(traced)
    assert programs > 0
    np.testing.assert_allclose(outputs_found, _outputs(posterior, draws)[:, :4], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(per_draw.functions(posterior, draws[:1030], x), outputs_found[:1030])
    assert len(traced) == programs
    np.testing.assert_array_equal(per_draw.functions(posterior, draws[:9], x), outputs_found[:9])
    samples = per_draw.samples(posterior, draws, x, key=key)
    for first in (511, 512, 1299):
        alone = per_draw.samples(posterior, draws[first : first + 1], x, first_draw=first, key=key)
        np.testing.assert_array_equal(alone[0], samples[first])
    assert len(np.unique(samples)) > 5190


@pytest.mark.parametrize(("count", "filled"), [(1, 1), (7, 7), (9, 10), (17, 20), (65, 80), (81, 96), (448, 448)])
def test_few_numbers_of_draws_are_compiled(count, filled):
    assert blocking.round_up_size(count) == filled


def test_blocks_are_of_four_million_numbers():
    """Rows have four numbers, or inputs of a million each; blocks are as equal as possible."""
    assert [b.stop - b.start for b in blocking.blocks(3 * 2**20, 4)] == [2**20] * 3
    assert [count for _, count in blocking.row_blocks(4, 2**20)] == [4]
    assert [count for _, count in blocking.row_blocks(5, 2**20)] == [3, 2]
    assert [count for _, count in blocking.row_blocks(2, 2**23)] == [1, 1]


def test_moments_keep_one_sum_of_all_draws():
    """They take less than the four sums of each of twenty batches of draws, which the errors of an evaluation need."""
    posterior, rows = _posterior(Gaussian(0.5)), 20_000
    draws, x = _draws(posterior, 60), np.random.default_rng(3).normal(size=(rows, 2)).astype(np.float32)
    apart = predictive.sums(posterior, draws, x).moments()
    tracemalloc.start()
    moments = predictive.sums(posterior, draws, x, keep_parts=False).moments()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 4 * 4 * rows
    for first, second in zip(moments, apart, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-6, atol=1e-9)


# ---- a run's predictions -------------------------------------------------------------------------

SHORT: dict[str, Any] = {
    "chains": 2,
    "warmup": 100,
    "draws": 150,
    "init": "prior",
    "chain_method": "vectorized",
}


def _table(folder: Any, rows: int = 200, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(3, 2, rows), rng.normal(-50, 10, rows)
    return pd.DataFrame({"a": a, "b": b, "price": 1000 + 40 * a - 3 * b + 25 * rng.normal(size=rows)})


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    folder = tmp_path_factory.mktemp("regression")
    _table(folder).to_csv(folder / "houses.csv", index=False)
    run = bnnzoo.sample("linear", "mala", data=folder / "houses.csv", out=folder / "run.nc", **SHORT)
    return run, folder


@pytest.fixture(scope="module")
def classification(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classification")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 2))
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)
    return bnnzoo.sample("linear", "mala", data=(x, y), test_fraction=0.0, out=folder / "run.nc", **SHORT)


def test_columns_of_a_regression_are_in_original_units(regression):
    run, folder = regression
    table = _table(folder, 300, seed=9)
    predictions = run.predict(table)
    assert list(predictions.columns) == ["mean", "sd", "aleatoric_sd", "epistemic_sd", "q05", "q50", "q95"]
    truth = 1000 + 40 * table["a"] - 3 * table["b"]
    assert np.abs(predictions["mean"] - truth).max() < 25
    np.testing.assert_allclose(predictions["aleatoric_sd"], 25, rtol=0.25)
    np.testing.assert_allclose(
        predictions["sd"] ** 2, predictions["aleatoric_sd"] ** 2 + predictions["epistemic_sd"] ** 2, rtol=1e-3
    )
    assert (predictions["epistemic_sd"] < 0.5 * predictions["aleatoric_sd"]).all()
    np.testing.assert_allclose(
        (predictions["q95"] - predictions["q05"]).mean(), 2 * 1.645 * predictions["sd"].mean(), rtol=0.1
    )
    assert (predictions["q05"] < predictions["q50"]).all()
    assert (predictions["q50"] < predictions["q95"]).all()
    pd.testing.assert_frame_equal(run.predict(table), predictions)


def test_opening_a_file_leaves_jax_as_it_is(regression, monkeypatch):
    """JAX is neither configured nor cleared until the first computation, which enables the cache."""
    run, _ = regression
    calls: list[str] = []
    monkeypatch.setattr(jax.config, "update", lambda name, value: calls.append(name))
    monkeypatch.setattr(jax, "clear_caches", lambda: calls.append("clear_caches"))
    monkeypatch.setattr(backend, "keep_programs", lambda: calls.append("keep_programs"))
    opened = bnnzoo.open(run.path)
    assert opened.summary()["chains"] == 2
    assert calls == []
    opened.predict(np.zeros((1, 2)))
    assert calls == ["keep_programs"]


def test_a_run_of_other_plugins_predicts_with_a_warning(regression):
    run, _ = regression
    opened = bnnzoo.open(run.path)
    opened.posterior.attrs["plugins"] = json.dumps({"bnnzoo": "0.0.1"})
    with pytest.warns(
        BnnzooWarning,
        match=r"run\.nc: was made with plugins that differ from the installed plugins: bnnzoo was 0\.0\.1, is ",
    ):
        opened.predict(np.zeros((1, 2)))


def test_new_rows_are_drawn_of_a_density_alone(regression):
    run, _ = regression
    with pytest.raises(
        UsageError, match=r"new rows can be drawn from a density only .*; this run predicts targets from inputs"
    ):
        run.predict(draws=3)


@pytest.mark.parametrize("settings", [{"level": 0.8}, {"calibration": "test"}, {"unseen": "zero"}, {"exposure": [1.0]}])
def test_settings_of_inputs_are_refused_for_new_rows(regression, settings):
    (name,) = settings
    with pytest.raises(UsageError, match=rf"^{name}: is not supported for rows drawn from a density; remove {name}"):
        regression[0].predict(draws=3, **settings)


def _gaussians(means: np.ndarray) -> Predictor:
    """A density whose draws, of two chains, are Gaussians at `means` of sd 1e-4, in units of 2 about 10."""
    model, count = Density(1), len(means)
    outputs = np.stack([means, np.full(count, -30.0)], 1).astype(np.float32)
    network = model.build((0,), 2, key=jax.random.key(0))
    nothing = np.zeros((0, 1), np.float32)
    posterior = NetworkPosterior.of(network, Mixture(1), Normal(), nothing[:, :0], nothing)
    groups = {
        "posterior": {"outputs": (("chain", "draw", "output"), outputs.reshape(2, count // 2, 2))},
        "constant_data": {"x": (("row", "column"), np.arange(2001.0)[:, None])},
        "observed_data": {"y": (("row", "column"), np.arange(2001.0)[:, None])},
    }
    tree = xr.DataTree.from_dict({f"/{name}": xr.Dataset(variables) for name, variables in groups.items()})
    tree.attrs["precision"] = "float32"
    predictor = Predictor(Record(tree, None))
    predictor._restored_model = SimpleNamespace(
        posterior=posterior,
        kept_rows=None,
        signature=Signature(("x0",), (1,), "float32", ("x0",), "density"),
        scaler=Scaler(*(np.array([value], np.float32) for value in (0, 1, 10, 2))),
        arrange=model.arrange,
        inputs=model.arrange,
    )
    return predictor


def test_new_rows_use_different_draws_while_there_are_enough():
    """Four draws whose Gaussians are far from one another."""
    predictor = _gaussians(100.0 * np.arange(4))

    def draw_indices(count: int, **how: int) -> list[int]:
        """Return the draw from which each row comes."""
        rows = predictive_samples.new_rows(predictor, count, **how)
        assert list(rows) == ["x0"]
        numbers = (rows["x0"].to_numpy() - 10) / 200
        np.testing.assert_allclose(numbers, numbers.round(), atol=1e-4)
        return numbers.round().astype(int).tolist()

    assert len(draw_indices(1)) == 1
    assert sorted(draw_indices(3)) in [[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]]
    assert sorted(draw_indices(8)) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len({tuple(draw_indices(4, seed=seed)) for seed in range(4)}) > 1
    assert draw_indices(4, seed=1) == draw_indices(4, seed=1)
    for wrong in (0, -1):
        with pytest.raises(UsageError, match=rf"must be the number of new rows, 1 or more \(got {wrong}\)"):
            predictive_samples.new_rows(predictor, wrong)


def test_samples_are_at_least_a_thousand_a_row_and_of_every_draw_as_many():
    for draws, samples in ((6, 1002), (8, 1000)):
        predictor = _gaussians(100.0 * np.arange(draws))
        ((rows, values),) = predictive_samples.samples(predictor, np.zeros((3, 1), np.float32))
        assert (rows, values.shape) == (slice(0, 3), (samples, 3, 1))
        numbers = ((values[:, 0, 0] - 10) / 200).round().astype(int)
        np.testing.assert_array_equal(np.bincount(numbers), np.full(draws, samples // draws))


def test_the_best_draw_is_the_likeliest_of_two_thousand_training_rows(monkeypatch):
    """Far out in the first row not one draw is as bad as another: sums over rows decide."""
    predictor, requests = _gaussians(np.zeros(6)), []
    each = np.array([[-3.0, -2.0, -5.0], [-4.0, -1.0, -2.0]])

    def looked(x: Any, y: Any, indices: Any) -> Any:
        requests.append((x, y, indices))
        values = np.zeros((2, len(indices), len(x)))
        values[..., 1:] = each[:, indices, None]
        values[..., 0] = -10 * each[:, indices]
        return values

    monkeypatch.setattr(predictor, "log_likelihoods", looked)
    assert familiarity.best_draw(predictor) == 4
    ((x, y, indices),) = requests
    np.testing.assert_array_equal(x, y)
    assert (len(x), x[0], x[-1], indices.tolist()) == (2000, 0, 2000, [0, 1, 2])


@pytest.fixture
def of_two(monkeypatch) -> Predictor:
    """Return a regression run on two targets of units 2 and 5 about 10 and -1: 3 rows, 2 chains of 2 draws."""
    predictor = _gaussians(np.zeros(4))
    restored_model = predictor._restored_model
    restored_model.signature = Signature(("x0",), (1,), "float32", ("a", "b"), "regression")
    restored_model.scaler = Scaler(*(np.array(v, np.float32) for v in ([0], [1], [10, -1], [2, 5])))
    restored_model.inputs = lambda x: x
    return predictor


def test_a_table_of_several_targets_is_in_the_units_of_each(of_two, monkeypatch):
    mean = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, -1.0]])
    variances = (np.tile(of_each, (3, 1)) for of_each in ([9.0, 16.0], [16.0, 144.0]))
    parts = predictive.Moments(mean, *variances, np.zeros(3))
    monkeypatch.setattr(Predictor, "moments", lambda self, x: parts)
    quantiles = np.arange(18.0).reshape(3, 3, 2)
    monkeypatch.setattr(predictive_samples, "quantiles", lambda predictor, x, seed: quantiles)
    frame = prediction_table.table(of_two, np.zeros((3, 1), np.float32))
    names = list(PREDICTED_COLUMNS[:-2])  # the last two are the ends of intervals
    assert list(frame) == [f"{target}_{name}" for target in "ab" for name in names]
    for target, expected in (("a", (10, 10.0, 6.0, 8.0)), ("b", (4, 5 * 160**0.5, 20.0, 60.0))):
        np.testing.assert_allclose(
            frame.loc[0, [f"{target}_{name}" for name in names[:4]]].tolist(), expected, rtol=1e-6
        )
    np.testing.assert_allclose(frame["b_mean"], [4, 14, -6])
    np.testing.assert_array_equal(frame[["a_q05", "a_q50", "a_q95"]], quantiles[..., 0].T)
    np.testing.assert_array_equal(frame[["b_q05", "b_q50", "b_q95"]], quantiles[..., 1].T)


def test_targets_that_would_share_a_column_are_refused(of_two):
    """The sd of `a_aleatoric` and the aleatoric sd of `a` would both be `a_aleatoric_sd`."""
    message = "targets a and a_aleatoric: both would have the column a_aleatoric_sd in predictions; rename one"
    values = dict.fromkeys(PREDICTED_COLUMNS, np.zeros((1, 2)))
    with pytest.raises(UsageError, match=message):
        prediction_table.by_target(("a", "a_aleatoric"), values)
    assert len(set(prediction_table.by_target(("a", "a_mean"), values))) == 2 * len(values)
    assert list(prediction_table.by_target(("a",), {"mean": np.zeros((1, 1))})) == ["mean"]
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 3)), columns=["x", "a", "a_aleatoric"])
    with pytest.raises(UsageError, match=message):
        bnnzoo.sample("linear", "random-walk", data=frame, target=["a", "a_aleatoric"])
    density = {"warmup": 5, "draws": 5, "chains": 1, "init": "prior", "task": "density", "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BnnzooWarning)
        bnnzoo.sample("density", "random-walk", data=frame, **density)


def test_an_infinite_sd_is_warned_about(of_two, monkeypatch):
    parts = predictive.Moments(
        np.zeros((3, 2)), np.ones((3, 2)), np.array([[1.0, 1], [1, np.inf], [1, 1]]), np.zeros(3)
    )
    monkeypatch.setattr(Predictor, "moments", lambda self, x: parts)
    monkeypatch.setattr(predictive_samples, "quantiles", lambda predictor, x, seed: np.zeros((3, 3, 2)))
    with pytest.warns(BnnzooWarning, match="the predictive sd is not finite in 1 of 3 rows, first in row 2"):
        prediction_table.table(of_two, np.zeros((3, 1), np.float32))


def test_a_log_density_of_several_targets_is_of_the_data_as_they_came(of_two, monkeypatch):
    """Targets are in the units of the network, so the joint density differs by the product of the units."""
    requests: list[Any] = []

    def density(posterior: Any, draws: Any, x: Any, y: Any) -> np.ndarray:
        requests.append(y)
        return np.outer(np.arange(1.0, 1 + len(draws)), np.arange(1.0, 1 + len(x))).astype(np.float32)

    monkeypatch.setattr(per_draw, "log_likelihoods", density)
    x, y = np.zeros((3, 1), np.float32), np.array([[12.0, 4.0], [8.0, -1.0], [10.0, -6.0]], np.float32)
    log_density = of_two.log_likelihoods(x, y, np.array([1]))
    np.testing.assert_allclose(requests[0], [[1, 1], [-1, 0], [0, -1]])
    np.testing.assert_allclose(log_density, np.array([[[1, 2, 3]], [[2, 4, 6]]]) - np.log(10), rtol=1e-5)
    moments = predictive.Moments(np.zeros((3, 2)), np.zeros((3, 2)), np.zeros((3, 2)), np.arange(3.0))
    monkeypatch.setattr(Predictor, "moments", lambda self, x, y: moments)
    np.testing.assert_allclose(prediction_table.log_density(of_two, y), np.arange(3.0) - np.log(10), rtol=1e-6)


def test_rows_that_are_sampled_block_by_block_meet_their_own_targets(of_two, monkeypatch):
    """The targets are counts, whose transforms are randomised by row."""
    rng = np.random.default_rng(0)
    values, y = rng.poisson(3, (50, 7, 2)).astype(np.float32), rng.poisson(3, (7, 2)).astype(np.float32)

    def samples(self: Predictor, x: Any, numbers: Any) -> Any:
        np.testing.assert_array_equal(numbers, np.arange(7))
        yield from ((rows, values[:, rows]) for rows in (slice(0, 3), slice(3, 6), slice(6, 7)))

    monkeypatch.setattr(predictive_samples, "samples", samples)
    blockwise = evaluate.sampled_scores(of_two, np.zeros((7, 1), np.float32), y)
    expected = row_scores.sampled_scores(values, y, np.random.default_rng(0).uniform(size=(7, 2)))
    for first, second in zip(blockwise, expected, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("has_training_rows", [True, False])
def test_evaluate_stores_groups_of_test_and_training_rows(of_two, has_training_rows, monkeypatch):
    """The larger array limits the draws: four training rows of two targets are 8 numbers, three test rows 6."""
    sampled: list[tuple[Any, ...]] = []
    scored: list[tuple[Any, ...]] = []
    numbers: list[int] = []
    x, y = np.ones((4, 1), np.float32), np.ones((4, 2), np.float32)
    x_test, y_test = np.full((3, 1), 7.0, np.float32), np.full((3, 2), 8.0, np.float32)

    def sample_each(self: Predictor, x: Any, indices: Any, *, seed: int) -> np.ndarray:
        sampled.append((x, indices.tolist(), seed))
        return np.zeros((2, len(indices), len(x), 2))

    def log_likelihoods(self: Predictor, x: Any, y: Any, indices: Any) -> np.ndarray:
        scored.append((x, y, indices.tolist()))
        return np.ones((2, len(indices), len(x)))

    of_two.record = SimpleNamespace(
        training_rows=lambda most: (x[:most], y[:most]),
        has_training_rows=has_training_rows,
        kept_draws=lambda count: numbers.append(count) or np.array([0, 3]),
        attributes={"seed": 11},
    )
    monkeypatch.setattr(predictive_samples, "sample_each", sample_each)
    monkeypatch.setattr(Predictor, "log_likelihoods", log_likelihoods)
    groups = evaluate.groups(of_two, x_test, y_test)
    shapes = {group: values["y"].shape for group, values in groups.items()}
    of_test = {
        "predictions": (2, 2, 3, 2),
        "predictions_log_likelihood": (2, 2, 3),
        "predictions_constant_data": (3, 2),
    }
    of_training = {"posterior_predictive": (2, 2, 4, 2), "log_likelihood": (2, 2, 4)} if has_training_rows else {}
    assert shapes == of_test | of_training
    assert all(values["draw"].tolist() == [0, 3] for group, values in groups.items() if "constant" not in group)
    assert numbers == [8 if has_training_rows else 6]
    expected = [(x_test, y_test), (x, y)] if has_training_rows else [(x_test, y_test)]
    for (rows, targets), (sampled_rows, indices, seed), (of, at, of_draws) in zip(
        expected, sampled, scored, strict=True
    ):
        assert sampled_rows is of
        np.testing.assert_array_equal(of, rows)
        np.testing.assert_array_equal(at, targets)
        assert (indices, seed, of_draws) == ([0, 3], 11, [0, 3])


def test_the_cost_of_a_row_counts_multiplications():
    """Two filters of nine weights multiply and add at each of 36 pixels."""
    assert _gaussians(np.zeros(4)).row_cost == 2 * 2
    model = Cnn((2,), hidden=())
    x = np.zeros((3, 1, 6, 6), np.float32)
    network = model.build((1, 6, 6), 2, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Categorical(), Normal(), x, np.zeros(3, np.int32))
    predictor = _gaussians(np.zeros(4))
    predictor._restored_model.posterior = posterior
    predictor.__dict__["thetas"] = np.zeros((4, posterior.layout.dim), np.float32)
    predictor._restored_model.inputs = lambda rows: x[: len(rows)]
    products = 2 * 36 * 9
    assert 2 * products < predictor.row_cost < 4 * products


def test_a_thousand_parameters_represent_a_large_network():
    draws = np.random.default_rng(0).normal(size=(2, 3, 1500)).astype(np.float32)
    groups = {"/posterior": xr.Dataset({"theta": (("chain", "draw", "place"), draws)})}
    numbers, values = Predictor(Record(xr.DataTree.from_dict(groups), None)).some_parameters()
    assert (len(numbers), numbers[0], numbers[-1]) == (1000, 0, 1499)
    np.testing.assert_array_equal(values, draws[:, :, numbers])


def test_kept_predictions_are_found_by_their_inputs():
    """Inputs without kept predictions are refused with their row number, from 1."""
    tree = xr.DataTree.from_dict({"/constant_data": xr.Dataset({"x_kept": (("kept_row", "feature"), X)})})
    predictor = Predictor(Record(tree, None))
    predictor._restored_model = SimpleNamespace(kept_rows=X)
    np.testing.assert_array_equal(predictor.inputs(X[[3, 1, 1, 4]]), [3, 1, 1, 4])
    with pytest.raises(UsageError, match=r"only predictions at 5 inputs, and row 3 is not one of these inputs"):
        predictor.inputs(np.concatenate([X[:2], X[:2] + 1]))


def test_quantiles_are_of_a_rows_inputs_wherever_it_stands(regression):
    """Different rows have different noise; with common noise, the errors of their coverage would be dependent."""
    predictor = regression[0].predictor
    x = np.random.default_rng(0).normal(size=(6, *predictor.signature.shape)).astype(np.float32)
    x[0] = 0
    order = np.array([3, 0, 0, 5, 3, 1])
    all_rows, some, zero = (predictive_samples.quantiles(predictor, rows)[:, :, 0] for rows in (x, x[order], -x[:1]))
    np.testing.assert_allclose(some, all_rows[:, order], rtol=1e-5)
    np.testing.assert_array_equal(some[:, 1], some[:, 2])
    np.testing.assert_allclose(zero[:, 0], all_rows[:, 0], rtol=1e-5)
    ((_, alike),) = predictive_samples.samples(predictor, x[[0, 0]], np.zeros(2, np.uint32))
    ((_, apart),) = predictive_samples.samples(predictor, x[[0, 0]])
    np.testing.assert_array_equal(alike[:, 0], alike[:, 1])
    assert abs(np.corrcoef(apart[:, 0, 0], apart[:, 1, 0])[0, 1]) < 0.5


@pytest.mark.long
def test_inputs_too_far_for_float32_are_named_as_written(tmp_path):
    frame = pd.DataFrame({"a": [1e-30, 2e-30, 3e-30], "b": [1.0, 3, 2], "y": [1e-20, 2e-20, 3e-20]})
    run = bnnzoo.sample("linear", "mala", data=frame, out=tmp_path / "run.nc", test_fraction=0.0, **SHORT)
    (path := tmp_path / "new.csv").write_text("b,a,y\n1,1e-30,1e-20\n2,1e20,1e25\n")
    message = r": row 2, column a: 1e\+20 is too far from the training rows \(mean 2e-30, sd 8.16e-31\)"
    for predict in (run.predict, run.functions, functools.partial(new_rows.evaluation_rows, run.predictor)):
        for spec, where in ((path, "new.csv"), (pd.read_csv(path), "data")):
            with pytest.raises(UsageError, match=where + message):
                predict(spec)
    path.write_text("b,a,y\n1,1e-30,1e-20\n2,1e-30,1e25\n")
    with pytest.raises(UsageError, match=r"new.csv: row 2, column y: .* is too far"):
        new_rows.evaluation_rows(run.predictor, path)
    assert len(run.predict(path)) == 2


def test_columns_are_matched_by_name(regression, tmp_path):
    run, folder = regression
    table = _table(folder, 10, seed=9)
    expected = run.predict(table)
    path = tmp_path / "new.csv"
    table.assign(other=1.0)[["other", "b", "a"]].to_csv(path, index=False)
    pd.testing.assert_frame_equal(run.predict(path), expected, rtol=1e-4)
    order = np.arange(10)[::-1]
    turned = run.predict(table.iloc[order])["mean"].to_numpy()
    np.testing.assert_allclose(turned, expected["mean"].to_numpy()[order], rtol=1e-5)
    table[["a", "price"]].to_csv(path, index=False)
    with pytest.raises(UsageError, match="b"):
        run.predict(path)


def test_predictions_have_the_index_of_a_frame(regression, classification):
    new_rows = pd.DataFrame(np.zeros((6, 2)), columns=["x0", "x1"])
    for run, table in ((regression[0], _table(regression[1], 6, seed=9)), (classification, new_rows)):
        plain = run.predict(table)
        for index in (list("fedcba"), [3, 3, 1, 0, 0, 7]):
            indexed = table.set_axis(index)
            pd.testing.assert_frame_equal(run.predict(indexed), plain.set_axis(index))
            both = run.predict(indexed, interval="bayesian")
            ends = run.predict_interval(indexed, interval="bayesian")
            pd.testing.assert_frame_equal(both, pd.concat([plain, ends.reset_index(drop=True)], axis=1).set_axis(index))
            assert list(ends.index) == index
            assert csv_text(both) == csv_text(both.reset_index(drop=True))


def test_predict_to_files(regression, tmp_path):
    run, folder = regression
    table = _table(folder, 10, seed=9)
    expected = run.predict(table)
    csv = run.predict_to(table, tmp_path / "out.csv")
    pd.testing.assert_frame_equal(pd.read_csv(csv), expected, check_dtype=False, rtol=1e-5)
    netcdf = xr.open_dataset(run.predict_to(table, tmp_path / "out.nc"), engine="h5netcdf")
    np.testing.assert_allclose(netcdf["mean"].values, expected["mean"])
    for name, message in (("out.csv", "exists"), ("out.txt", "must end in .csv or .nc")):
        with pytest.raises(UsageError, match=message):
            run.predict_to(table, tmp_path / name)
    run.predict_to(table, csv, force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.csv", "out.nc"]


def test_columns_of_any_name_go_to_netcdf_whole_or_not_at_all(regression, tmp_path, monkeypatch):
    """The dimension is called `row`, and a / would make a group."""
    run, _ = regression
    frame = pd.DataFrame({"row": [1.5, 2.5]})
    monkeypatch.setattr(run, "predict", lambda *_, **__: frame)
    written = xr.open_dataset(run.predict_to(None, tmp_path / "row.nc"), engine="h5netcdf")
    np.testing.assert_array_equal(written["row"].values, frame["row"])
    assert written["row"].dims == ("row_",)
    frame["mg/dL"] = 1.0
    with pytest.raises(UsageError, match="column 'mg/dL'"):
        run.predict_to(None, tmp_path / "both.nc")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["row.nc"]


@pytest.mark.long
def test_several_targets_have_a_prefix():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = np.column_stack([x[:, 0], 100 * x[:, 1]]) + 0.1 * rng.normal(size=(60, 2))
    run = bnnzoo.sample("linear", "mala", data=(x, y), **{**SHORT, "draws": 20})
    predictions = run.predict(x)
    assert list(predictions.columns)[:2] == ["y0_mean", "y0_sd"]
    assert len(predictions.columns) == 14
    assert predictions["y1_mean"].std() > 20 * predictions["y0_mean"].std()
    run.evaluate()
    assert run.posterior["predictions"]["y"].shape == (2, 20, 6, 2)
    assert run.posterior["posterior_predictive"]["y"].shape == (2, 20, 54, 2)


@pytest.mark.slow
def test_slices_are_the_same_however_many_features_are_looked_at_at_once(monkeypatch, tmp_path):
    run = entrances.run_recipe(tiny.recipe("random-walk"), out=tmp_path / "run.nc")
    figure = run.plot("slices")
    monkeypatch.setattr(pictures, "_FEATURES_PER_CALL", 3)
    pd.testing.assert_frame_equal(run.plot("slices").table, figure.table, rtol=1e-5)
    monkeypatch.setattr(pictures, "_MAX_FEATURES", 9)
    with pytest.raises(UsageError, match=r"at most 9 features \(got 10\)"):
        run.plot("slices")


@pytest.mark.long
def test_slices_name_the_class_that_they_are_of():
    """The class has its own name: labels 1, 3 and 5 differ from their codes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    run = bnnzoo.sample("linear", "mala", data=(x, 1 + 2 * rng.integers(3, size=60)), **{**SHORT, "draws": 20})
    assert run.plot("slices").alt.startswith("probability of y = 3 along")
    assert run.plot("slices", target="5").alt.startswith("probability of y = 5 along")


def test_evaluate_agrees_with_the_file(regression):
    """The metrics from the groups that `evaluate` adds: by hand, in original units."""
    run, _ = regression
    scores = run.evaluate()
    assert scores["rows"] == 20
    tree = xr.open_datatree(run.path, engine="h5netcdf")
    y = tree["constant_data"]["y_test"].values
    x = tree["constant_data"]["x_test"].values
    about = {n: tree["constant_data"][n].values.astype(float) for n in ("x_mean", "x_sd", "y_mean", "y_sd")}
    posterior = tree["posterior"]
    weight, bias = (posterior[n].values.astype(float).reshape(300, -1) for n in ("weight", "bias"))
    scale = posterior["likelihood_scale"].values.astype(float).reshape(300, 1)
    mean = (x - about["x_mean"]) / about["x_sd"] @ weight.T + bias[:, 0]
    mean = mean.T * about["y_sd"] + about["y_mean"]
    terms = stats.norm.logpdf(y[:, 0], mean, scale * about["y_sd"])
    np.testing.assert_allclose(scores["nll"], np.log(300) - special.logsumexp(terms, 0).mean(), rtol=1e-4)
    np.testing.assert_allclose(scores["rmse"], np.sqrt(np.mean((y[:, 0] - mean.mean(0)) ** 2)), rtol=1e-4)
    assert 0.6 <= scores["coverage_90"] <= 1

    samples = tree["predictions"]["y"]
    assert samples.dims == ("chain", "draw", "test_row")
    assert samples.shape == (2, 150, 20)
    np.testing.assert_allclose(samples.values.mean((0, 1)), mean.mean(0), atol=10)
    rows = tree["log_likelihood"]["y"]
    assert rows.dims == ("chain", "draw", "row")
    x, y = tree["constant_data"]["x"].values, tree["observed_data"]["y"].values
    mean = ((x - about["x_mean"]) / about["x_sd"] @ weight.T + bias[:, 0]).T * about["y_sd"] + about["y_mean"]
    expected = stats.norm.logpdf(y, mean, scale * about["y_sd"])
    np.testing.assert_allclose(rows.values.reshape(300, -1), expected, rtol=1e-3, atol=1e-3)


def test_arviz_compares_what_evaluate_added(regression):
    import arviz_stats

    run, _ = regression
    run.evaluate()
    tree = xr.open_datatree(run.path, engine="h5netcdf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loo = arviz_stats.loo(tree)
    assert np.isfinite(float(loo.elpd))
    np.testing.assert_allclose(-float(loo.elpd) / 180, run.evaluate()["nll"], atol=0.5)


@pytest.mark.long
def test_evaluate_twice_and_on_other_data(regression, tmp_path):
    run, folder = regression
    assert run.evaluate() == run.evaluate()
    reopened = bnnzoo.open(run.path)
    assert reopened.evaluate() == run.evaluate()
    path = tmp_path / "test.csv"
    _table(folder, 50, seed=3)[["price", "b", "a"]].to_csv(path, index=False)
    assert run.evaluate(path)["rows"] == 50
    pd.read_csv(path).drop(columns="price").to_csv(path, index=False)
    with pytest.raises(UsageError, match="price"):
        run.evaluate(path)


def test_evaluate_closes_the_groups_that_it_replaces(regression, tmp_path):
    """An open group would keep its disk space as long as the run exists."""
    path = tmp_path / "copy.nc"
    shutil.copyfile(regression[0].path, path)
    run = bnnzoo.open(path)

    def held() -> list[str]:
        descriptors = [name for name in Path("/proc/self/fd").iterdir() if name.is_symlink()]
        return [target for target in map(os.readlink, descriptors) if target.startswith(str(path))]

    run.test_rows()
    assert held() == [str(path)]
    for _ in range(2):
        run.evaluate()
        assert held() == [str(path)]


@pytest.mark.usefixtures("as_options")
def test_classes(classification):
    run = classification
    with pytest.raises(UsageError, match=r"\.nc: has no test rows; .*evaluate with --data") as caught:
        run.evaluate()
    assert caught.value.exit_code == 2
    x = np.array([[2.0, 2.0], [-2.0, -2.0]])
    predictions = run.predict(x)
    assert list(predictions.columns) == ["p_0", "p_1", "p_2", "entropy", "predicted"]
    assert [int(label) for label in predictions["predicted"]] == [2, 0]
    np.testing.assert_allclose(predictions[["p_0", "p_1", "p_2"]].sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(
        predictions["entropy"], stats.entropy(predictions[["p_0", "p_1", "p_2"]], axis=1), rtol=1e-3, atol=1e-6
    )
    assert predictions["p_2"][0] > 0.8
    assert predictions["p_0"][1] > 0.8
    scores = run.evaluate((x, np.array([2, 0])))
    assert {"nll", "accuracy", "brier", "ece", "rows"} <= set(scores)
    assert scores["accuracy"] == 1
    np.testing.assert_allclose(scores["nll"], -np.log([predictions["p_2"][0], predictions["p_0"][1]]).mean(), rtol=1e-4)
