"""Predictions of a NumPyro model against closed forms and hand calculations, live and reopened; refused models."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import special, stats

import bnnzoo
from bnnzoo import NumpyroPosterior
from bnnzoo.assembly.by_hand import predicted_site
from bnnzoo.errors import UsageError

SHORT: dict[str, Any] = {"chains": 2, "init": "prior", "seed": 1, "chain_method": "vectorized"}
KEYS = ["mean", "sd", "aleatoric_sd", "epistemic_sd", "q05", "q50", "q95"]


def line(x, y, *, noise=0.5):
    """A conjugate regression."""
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.deterministic("length", jnp.sum(weight**2))
    numpyro.sample("y", dist.Normal(x @ weight, noise), obs=y)


def grouped(group, x, y):
    """Rows of groups whose levels have a common mean; a scale on the positive half line."""
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("groups", 4):
        level = numpyro.sample("level", dist.Normal(mean, 1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(level[group] + x, scale), obs=y)


def classes(x, y):
    """Three classes whose base rates are on a simplex: two numbers inside, three in the file."""
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2, 3]).to_event(2))
    base = numpyro.sample("base", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=x @ weight + jnp.log(base)), obs=y)


def level(y):
    """No inputs, and one distribution for all rows."""
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def _rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 2)).astype(np.float32)
    return x, (x @ [0.7, -0.4] + 0.5 * rng.normal(size=count)).astype(np.float32)


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    posterior = NumpyroPosterior.of(line, *_rows(40))
    out = tmp_path_factory.mktemp("line") / "run.nc"
    return posterior, bnnzoo.sample(posterior, bnnzoo.Nuts(), out=out, warmup=200, draws=2000, **SHORT)


def test_a_conjugate_regression_is_predicted_as_its_closed_form(regression):
    """Mean x'm, variance x'Cx + 0.25. With 1000 effective draws a mean errs by 3 % of an sd, an sd by 2 %."""
    (x, y), (new, _) = _rows(40), _rows(7, seed=1)
    _, run = regression
    cov = np.linalg.inv(np.eye(2) + x.T @ x / 0.25)
    mean, epistemic = new @ cov @ (x.T @ y / 0.25), np.sqrt(np.einsum("ij,jk,ik->i", new, cov, new))
    predictions = run.predict(new)
    assert list(predictions) == KEYS
    np.testing.assert_array_less(np.abs(predictions["mean"] - mean), 0.15 * epistemic)
    np.testing.assert_allclose(predictions["epistemic_sd"], epistemic, rtol=0.1)
    np.testing.assert_allclose(predictions["aleatoric_sd"], 0.5, rtol=1e-5)
    np.testing.assert_allclose(predictions["sd"], np.sqrt(epistemic**2 + 0.25), rtol=0.02)
    exact = stats.norm.ppf([0.05, 0.5, 0.95], mean[:, None], np.sqrt(epistemic**2 + 0.25)[:, None])
    np.testing.assert_allclose(predictions[["q05", "q50", "q95"]], exact, atol=0.06)
    draws = run.posterior["posterior"]["weight"].values
    np.testing.assert_allclose(run.functions(new)[..., 0], draws @ new.T, atol=1e-5)


def test_metrics_of_a_conjugate_regression_have_their_closed_form(regression):
    (x, y), (new, target) = _rows(40), _rows(300, seed=1)
    cov = np.linalg.inv(np.eye(2) + x.T @ x / 0.25)
    mean, sd = new @ cov @ (x.T @ y / 0.25), np.sqrt(np.einsum("ij,jk,ik->i", new, cov, new) + 0.25)
    evaluation = regression[1].evaluate((new, target))
    np.testing.assert_allclose(evaluation["nll"], -stats.norm.logpdf(target, mean, sd).mean(), atol=2e-3)
    np.testing.assert_allclose(evaluation["rmse"], np.sqrt(np.mean((target - mean) ** 2)), atol=2e-3)
    inside = np.abs(target - mean) < stats.norm.ppf(0.95) * sd
    assert abs(evaluation["coverage_90"] - inside.mean()) < 0.02
    assert {"crps", "coverage_50", "coverage_95", "nll_mcse", "calibration_gap"} <= set(evaluation)


@pytest.mark.parametrize("use", [bnnzoo.Run.evaluate, bnnzoo.Run.pit, lambda run: run.plot("calibration")])
def test_without_test_rows_the_advice_is_possible_for_a_posterior_made_in_python(regression, use):
    message = r"has no test rows; a posterior made in Python has only training rows; give other rows: run\.evaluate\("
    with pytest.raises(UsageError, match=message):
        use(regression[1])


def test_without_evidence_the_advice_is_a_call_with_the_posterior(regression):
    call = 'cannot be computed from Nuts draws; use bnnzoo.sample(posterior, bnnzoo.Importance(proposal="laplace"))'
    with pytest.raises(UsageError, match=re.escape(call)):
        regression[1].evidence()


def test_a_reopened_run_predicts_the_same(regression, tmp_path):
    posterior, run = regression
    new, target = _rows(7, seed=1)
    reopened = bnnzoo.open(run.path, model=NumpyroPosterior.of(line, *_rows(40)))
    assert reopened.predict(new).equals(run.predict(new))
    assert reopened.evaluate((new, target)) == run.evaluate((new, target))
    assert reopened.diagnose() == run.diagnose()
    run.save(tmp_path / "copy.nc")
    assert bnnzoo.open(tmp_path / "copy.nc", model=posterior).predict(new).equals(run.predict(new))


@pytest.mark.long
def test_a_numpyro_run_is_diagnosed_and_plotted(regression, tmp_path):
    _, run = regression
    diagnosis = run.diagnose()
    assert diagnosis["rhat_of"] in ("predictive means", "the log-likelihood of the training rows")
    assert diagnosis["rhat"] < 1.01
    assert diagnosis["remoteness"] < 3
    assert run.attributes["converged"] == 1
    np.testing.assert_allclose(run.attributes["rhat"], diagnosis["rhat"])
    text = run.report(tmp_path / "page.html").read_text()
    assert 'id="slices"' in text
    assert "of y at training row" in text
    assert (run.posterior["observed_data"]["y"].values == _rows(40)[1]).all()


def test_without_its_posterior_a_file_has_only_draws(regression, tmp_path):
    _, run = regression
    run_alone = bnnzoo.open(run.path)
    assert run_alone.diagnose()["rhat_of"] == "the parameters"
    run_alone.report(tmp_path / "page.html")
    for ask in (
        lambda: run_alone.predict(_rows(7)[0]),
        lambda: run_alone.evaluate(_rows(7)),
        lambda: run_alone.pit(_rows(7)),
    ):
        with pytest.raises(UsageError, match=r"made in Python, .* bnnzoo\.open\(path, model=posterior\)"):
            ask()


def test_another_posterior_is_not_taken_for_the_one_that_was_sampled(regression):
    _, run = regression
    other = bnnzoo.open(run.path, model=NumpyroPosterior.of(line, *_rows(40, seed=3)))
    with pytest.raises(
        UsageError,
        match=r"was sampled with data that differ from the data of the given posterior; give the posterior",
    ):
        other.predict(_rows(7)[0])

    def renamed(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ slope, 0.5), obs=y)

    with pytest.raises(UsageError, match="has no draws of the site slope of the given posterior"):
        bnnzoo.open(run.path, model=NumpyroPosterior.of(renamed, *_rows(40))).predict(_rows(7)[0])


@pytest.mark.slow
def test_class_probabilities_are_the_mean_of_the_draws(tmp_path):
    rng = np.random.default_rng(0)
    x, y = _rows(60)[0], rng.integers(0, 3, 60)
    run = bnnzoo.sample(NumpyroPosterior.of(classes, x, y), bnnzoo.RandomWalk(), warmup=60, draws=40, **SHORT)
    draws = {name: v.values.reshape(80, *v.shape[2:]) for name, v in run.posterior["posterior"].data_vars.items()}
    logits = x[:5] @ draws["weight"] + np.log(draws["base"])[:, None]
    mean = special.softmax(logits, 2).mean(0)
    predictions = run.predict(x[:5])
    assert list(predictions) == ["p_0", "p_1", "p_2", "entropy", "predicted"]
    np.testing.assert_allclose(predictions[["p_0", "p_1", "p_2"]], mean, atol=1e-5)
    np.testing.assert_allclose(predictions[["p_0", "p_1", "p_2"]].sum(axis=1), 1, atol=1e-5)
    assert list(predictions["predicted"]) == [str(c) for c in mean.argmax(1)]
    expected = special.softmax(x @ draws["weight"] + np.log(draws["base"])[:, None], 2).mean(0)
    scored = run.evaluate((x, y))
    np.testing.assert_allclose(scored["nll"], -np.log(expected[np.arange(60), y]).mean(), atol=1e-5)
    np.testing.assert_allclose(scored["accuracy"], np.mean(expected.argmax(1) == y))
    np.testing.assert_allclose(scored["brier"], ((expected - np.eye(3)[y]) ** 2).sum(1).mean(), atol=1e-5)
    assert run.diagnose()["surprise"] > 0
    with pytest.raises(UsageError, match="3"):
        run.evaluate((x, y + 1))


@pytest.mark.long
@pytest.mark.parametrize("kind", [int, bool, np.float32])
def test_labels_of_a_coin_may_be_of_any_type(kind):
    def coin(x, y):
        weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ weight), obs=y)

    x, y = _rows(30)
    site, rows = predicted_site(NumpyroPosterior.of(coin, x, (y > 0).astype(kind)))
    weight = jnp.array([0.3, -2.0])
    probabilities, outputs = site.predictive(weight, jnp.asarray(x[:4]))
    p = special.expit(x[:4] @ np.array([0.3, -2.0]))
    np.testing.assert_allclose(
        [probabilities.class_probabilities(o) for o in outputs], np.stack([1 - p, p], 1), rtol=1e-5
    )
    assert (rows.class_names, rows.y.tolist()) == (("0", "1"), (y > 0).astype(int).tolist())


@pytest.mark.slow
def test_several_arguments_are_columns_side_by_side(tmp_path):
    rng = np.random.default_rng(0)
    group, x = rng.integers(0, 4, 50), rng.normal(size=50).astype(np.float32)
    posterior = NumpyroPosterior.of(grouped, group, y=group + x, x=x)
    run = bnnzoo.sample(posterior, bnnzoo.RandomWalk(), warmup=60, draws=40, **SHORT)
    assert run.predictor.signature.feature_names == ("group", "x")
    levels = run.posterior["posterior"]["level"].values.reshape(80, 4)
    predictions = run.predict(np.stack([[3, 0, 1], [0.5, 0.5, -2]], 1))
    np.testing.assert_allclose(predictions["mean"], levels.mean(0)[[3, 0, 1]] + [0.5, 0.5, -2], atol=1e-4)
    scales = run.posterior["posterior"]["scale"].values
    np.testing.assert_allclose(predictions["aleatoric_sd"], np.sqrt(np.mean(scales**2)), rtol=1e-4)


@pytest.mark.long
def test_targets_of_a_row_may_depend_on_each_other():
    """The density is the joint one, the moments are each target's."""

    def pair(x, y):
        weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2, 2]).to_event(2))
        numpyro.sample("y", dist.MultivariateNormal(x @ weight, jnp.array([[1.0, 0.9], [0.9, 2.0]])), obs=y)

    x, y = _rows(30)
    both = np.stack([y, -y], 1)
    site, rows = predicted_site(NumpyroPosterior.of(pair, x, both))
    weight = np.array([[0.5, 1.0], [-1.0, 0.2]], np.float32)
    distribution, outputs = site.predictive(jnp.ravel(jnp.asarray(weight)), jnp.asarray(x[:3]))
    exact = [stats.multivariate_normal.logpdf(both[i], x[i] @ weight, [[1, 0.9], [0.9, 2]]) for i in range(3)]
    np.testing.assert_allclose(
        [distribution.log_prob(o, t) for o, t in zip(outputs, jnp.asarray(both), strict=False)], exact, rtol=1e-4
    )
    np.testing.assert_allclose(distribution.distribution(outputs[0]).mean, x[0] @ weight, rtol=1e-5)
    np.testing.assert_allclose(distribution.distribution(outputs[0]).variance, [1, 2], rtol=1e-5)
    assert rows.target_names == ("y0", "y1")


@pytest.mark.slow
def test_a_model_without_inputs_is_a_density():
    """p(y) = N(m, 0.25 + v), in closed form; its rows are drawn from it."""
    y = (1 + 0.5 * np.random.default_rng(0).normal(size=50)).astype(np.float32)
    run = bnnzoo.sample(NumpyroPosterior.of(level, y), bnnzoo.Nuts(), warmup=150, draws=1000, **SHORT)
    variance = 1 / (1 + 50 / 0.25)
    mean = variance * y.sum() / 0.25
    predictions = run.predict(np.float32([[0.2], [1.4]]))
    np.testing.assert_allclose(
        predictions["log_density"], stats.norm.logpdf([0.2, 1.4], mean, np.sqrt(0.25 + variance)), atol=0.02
    )
    rows = run.predict(draws=2000)["y"]
    assert abs(rows.mean() - mean) < 6 * 0.51 / 2000**0.5 + 0.01  # and the draws' own error
    assert run.evaluate(y[:, None])["nll"] < 1


def _observing(distribution: Any, observed: Any = lambda y: y):
    """A model whose site is `distribution(w x, y)`."""

    def model(x, y):
        weight = numpyro.sample("weight", dist.Normal(0, 1))
        numpyro.sample("y", distribution(weight * x[:, 0], y), obs=observed(y))

    return model


def _two(x, y):
    weight = numpyro.sample("weight", dist.Normal(0, 1))
    for name in ("y", "z"):
        numpyro.sample(name, dist.Normal(weight * x[:, 0], 1.0), obs=y)


def _halved(x, y):
    weight = numpyro.sample("weight", dist.Normal(0, 1))
    with numpyro.handlers.scale(scale=0.5):
        numpyro.sample("y", dist.Normal(weight * x[:, 0], 1.0), obs=y)


def _row_by_row(x, y):
    with numpyro.plate("rows", 30):
        own = numpyro.sample("own", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(own * x[:, 0], 1.0), obs=y)


def _never_alone(x, y):
    if len(y) < 2:
        raise RuntimeError("too few")
    _observing(lambda mean, y: dist.Normal(mean, 1.0))(x, y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_two, "cannot predict several observed sites (y and z); observe all targets at one site"),
        (_halved, "site y: the density of a row changes if the model is called with this row only"),
        (_observing(lambda mean, y: dist.Normal(mean, 1 + jnp.abs(y))), "not on observed values"),
        (
            _observing(lambda mean, y: dist.Normal(mean, 1.0), jnp.exp),
            "site y: the observed values must equal exactly one argument y of the model",
        ),
        (
            _observing(lambda mean, y: dist.Cauchy(mean, 1.0)),
            "site y: its distribution must have a mean and a variance",
        ),
        (_row_by_row, "cannot predict single rows: the rows of the model are not independent"),
        (
            _never_alone,
            "the model fails if it is called with one row (RuntimeError: too few); change the model so that the "
            "number of rows may be 1",
        ),
    ],
)
def test_a_model_without_predictions_is_sampled_and_gives_the_reason(model, message):
    posterior = NumpyroPosterior.of(model, *_rows(30))
    with pytest.raises(UsageError, match=re.escape(message)):
        predicted_site(posterior)


@pytest.mark.long
def test_labels_without_inputs_or_several_in_a_row_are_refused():
    def coins(x, y):
        weight = numpyro.sample("weight", dist.Normal(0, 1))
        numpyro.sample("y", dist.Bernoulli(logits=weight * x), obs=y)

    def coin(y):
        rate = numpyro.sample("rate", dist.Beta(1, 1))
        numpyro.sample("y", dist.Bernoulli(rate), obs=y)

    x = _rows(30)[0]
    with pytest.raises(UsageError, match=r"site y: a row of y has shape \[2\]"):
        predicted_site(NumpyroPosterior.of(coins, x, (x > 0.1).astype(int)))
    with pytest.raises(UsageError, match="site y: labels without inputs"):
        predicted_site(NumpyroPosterior.of(coin, (x[:, 0] > 0).astype(int)))


@pytest.mark.long
def test_a_run_that_does_not_predict_is_judged_by_its_parameters(tmp_path):
    run = bnnzoo.sample(NumpyroPosterior.of(_two, *_rows(30)), bnnzoo.RandomWalk(), warmup=30, draws=30, **SHORT)
    assert run.diagnose()["rhat_of"] == "the parameters"
    with pytest.raises(UsageError, match=r"cannot predict several observed sites \(y and z\)"):
        run.predict(_rows(3)[0])
    with pytest.raises(UsageError, match=r"cannot predict several observed sites \(y and z\)"):
        run.evaluate(_rows(3))
    run.report(tmp_path / "page.html")


def test_runs_of_a_numpyro_model_are_not_joined(regression):
    with pytest.raises(UsageError, match=r"made in Python, .* sample one run with more chains"):
        bnnzoo.concat([regression[1], regression[1]])
