"""Counts: likelihoods with more spread or more zeros than Poisson's, an exposure, and what `evaluate` says of both."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

import bnnzoo
from bnnzoo import cli
from bnnzoo.api.run_predictions import AbstractRunPredictions
from bnnzoo.assembly import Problem
from bnnzoo.data import Signature, load, load_inputs, load_like
from bnnzoo.data.formats.frames import with_exposure
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.formulas import metrics
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.evaluation.predictions import new_rows, predictive_samples
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.evaluation.scores import count_tests
from bnnzoo.models.linear import Linear
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.counts import NegativeBinomial, ZeroInflatedPoisson
from bnnzoo.posterior.likelihoods import Poisson
from bnnzoo.posterior.outputs import Outputs
from bnnzoo.posterior.priors import Normal
from bnnzoo.recipe import resolve

pytestmark = pytest.mark.usefixtures("as_options")

CASES = Path(__file__).parents[3] / "shared" / "data" / "cases"
ALL = [Poisson(), NegativeBinomial(0.5), ZeroInflatedPoisson()]


def _logpmf(y: float, f: float, dispersion: float) -> float:
    size = 1 / float(dispersion)
    return float(stats.nbinom.logpmf(y, size, size / (size + np.exp(float(f)))))


@pytest.mark.parametrize("dispersion", [1e-3, 0.1, 1.0, 30.0])
def test_the_negative_binomial_density_is_exact(dispersion):
    look = jax.jit(jax.vmap(lambda f, y: NegativeBinomial(dispersion).log_prob(f[None], y[None])))
    y, f = (a.ravel() for a in np.meshgrid([0, 1, 9, 10, 300, 4000], np.linspace(-4, 9, 14)))
    log_density = look(jnp.asarray(f, jnp.float32), jnp.asarray(y, jnp.float32))
    expected = [_logpmf(a, np.float32(b), np.float32(dispersion)) for a, b in zip(y, f, strict=True)]
    np.testing.assert_allclose(log_density, expected, rtol=2e-5, atol=2e-5)


def test_the_negative_binomial_without_dispersion_is_poisson():
    target, f = jnp.array([0.0, 3.0, 500.0]), jnp.array([0.3, 1.5, 6.0])
    log_density = NegativeBinomial(1e-20).of_targets(3).log_prob(f, target)
    np.testing.assert_allclose(log_density, Poisson().log_prob(f, target), rtol=2e-5)


@pytest.mark.parametrize("y", [0, 1, 12, 10**6, 10**9])
@pytest.mark.parametrize("dispersion", [1e-6, 0.5, 40.0])
def test_large_counts_keep_digits_and_finite_gradients(y, dispersion):
    """Tested with the ratio of neighbouring means, which naive single precision loses completely."""
    at, target = np.log(max(y, 1)), jnp.array([float(y)])

    def density(f: jax.Array, a: jax.Array) -> jax.Array:
        return NegativeBinomial(a).log_prob(f[None], target)

    a, density_of = jnp.float32(dispersion), jax.jit(density)
    gradients = jax.jit(jax.grad(density, (0, 1)))
    for f in (at - 80, at - 0.5, at, at + 0.5, at + 80, 1000.0):
        assert np.isfinite(gradients(jnp.float32(f), a)).all()
    low, high = (jnp.float32(at + step) for step in (-0.5, 0.5))
    difference = float(density_of(high, a) - density_of(low, a))
    size = 1 / float(np.float32(dispersion))
    expected = y * (float(high) - float(low)) - (y + size) * (
        np.logaddexp(np.log(size), float(high)) - np.logaddexp(np.log(size), float(low))
    )
    # Near a log density of a hundred thousand, single precision has steps of 0.008.
    np.testing.assert_allclose(difference, expected, rtol=1e-3, atol=1e-3 + 3e-6 * abs(float(density_of(high, a))))


@pytest.mark.parametrize("y", [0, 1, 7, 10**6])
def test_the_zero_inflated_density_is_exact(y):
    for f, logit in ((-3.0, 0.5), (2.0, -6.0), (12.0, 3.0)):
        value, gradient = jax.value_and_grad(lambda o: ZeroInflatedPoisson().log_prob(o, jnp.array([float(y)])))(
            jnp.array([f, logit])
        )
        gate = special.expit(logit)
        expected = np.log1p(-gate) + stats.poisson.logpmf(y, np.exp(f))
        expected = np.logaddexp(np.log(gate), expected) if y == 0 else expected
        np.testing.assert_allclose(value, expected, rtol=2e-5)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("y", [0.0, 5.0])
def test_rates_beyond_single_precision_have_no_nan(y):
    for logit in (-200.0, 200.0):
        gradient = jax.grad(lambda o: ZeroInflatedPoisson().log_prob(o, jnp.array([y])))(jnp.array([200.0, logit]))
        assert not np.isnan(gradient).any()


@pytest.mark.long
@pytest.mark.parametrize(
    "likelihood", [NegativeBinomial(0.7), ZeroInflatedPoisson()], ids=lambda likelihood: type(likelihood).__name__
)
def test_samples_agree_with_the_density_and_its_bound(likelihood):
    output = jnp.array([0.6, -0.4])[: likelihood.num_outputs(1)]
    y = np.arange(60.0)
    logs = np.asarray(jax.vmap(lambda y: likelihood.log_prob(output, y[None]))(jnp.asarray(y, jnp.float32)), float)
    np.testing.assert_allclose(special.logsumexp(logs), 0.0, atol=1e-4)
    law, mass = likelihood.distribution(output), np.exp(logs)
    mean = np.sum(mass * y)
    np.testing.assert_allclose([law.mean[0], law.variance[0]], [mean, np.sum(mass * (y - mean) ** 2)], rtol=1e-3)
    draws = np.asarray(
        jax.jit(jax.vmap(lambda k: likelihood.sample(output, key=k)))(jax.random.split(jax.random.key(0), 4000))
    )
    counts_ = np.bincount(np.minimum(draws.ravel(), 6).astype(int), minlength=7)
    expected = 4000 * np.append(mass[:6], 1 - mass[:6].sum())
    assert stats.chisquare(counts_, expected, sum_check=False).pvalue > 1e-6
    bounds = jax.vmap(lambda y: likelihood.upper_bound(y[None]))(jnp.asarray(y, jnp.float32))
    best = jax.vmap(
        lambda y: jnp.max(
            jax.vmap(lambda f: likelihood.log_prob(jnp.array([f, -30.0])[: len(output)], y[None]))(
                jnp.log(jnp.maximum(y, 1e-20)) + jnp.linspace(-0.1, 0.1, 21)
            )
        )
    )(jnp.asarray(y, jnp.float32))
    np.testing.assert_allclose(best, bounds, atol=1e-4)


def test_the_learned_dispersion_is_a_parameter_with_a_half_normal_prior():
    (parameter,) = NegativeBinomial().of_targets(2).parameters()
    assert (parameter.name, parameter.shape) == ("dispersion", (2,))
    u = np.array([-1.0, 0.3])
    log_prior = parameter.log_prior(jnp.asarray(u, jnp.float32))
    np.testing.assert_allclose(log_prior, np.sum(stats.halfnorm.logpdf(np.exp(u)) + u), rtol=1e-5)
    fixed = NegativeBinomial().with_parameters({"dispersion": jnp.asarray(0.3)})
    np.testing.assert_allclose(fixed.log_prob(jnp.zeros(1), jnp.ones(1)), _logpmf(1, 0.0, 0.3), rtol=1e-5)


@pytest.mark.parametrize(
    ("likelihood", "name"),
    [(NegativeBinomial(), "negative-binomial"), (ZeroInflatedPoisson(), "zero-inflated-poisson")],
)
def test_targets_that_are_not_counts_are_refused(likelihood, name):
    with pytest.raises(UsageError, match=rf"likelihood {name}: row 2, target 1: not a count \(got 0.5\)"):
        likelihood.check(np.array([[1.0], [0.5]]), 1)


# An exposure.

X = np.random.default_rng(0).normal(size=(40, 1))
DAYS = np.random.default_rng(1).choice([5.0, 10.0, 40.0], 40)
Y = np.random.default_rng(2).poisson(DAYS * np.exp(0.4 + 0.8 * X[:, 0])).astype(float)
FRAME = pd.DataFrame({"days": DAYS, "x": X[:, 0], "y": Y})


def _problem(frame: pd.DataFrame = FRAME, likelihood: str = "poisson", **options: Any) -> Problem:
    given_options = {"likelihood": likelihood, "exposure": "days", "warmup": 10, "draws": 10, **options}
    recipe = resolve("linear", "mala", options=given_options, in_memory=True)
    return Problem.from_recipe(
        recipe, load(frame, target=["y"], exposure="days", missing=options.get("missing", "error"))
    )


@pytest.mark.parametrize("likelihood", ALL, ids=lambda likelihood: type(likelihood).__name__)
def test_the_log_exposure_is_added_to_the_log_rate_alone(likelihood):
    width = likelihood.num_outputs(1)
    network = Linear().build((1,), width, key=jax.random.key(0))
    x = np.column_stack([X, DAYS]).astype(np.float32)
    posterior = NetworkPosterior.of(network, likelihood, Normal(), x, Y[:, None].astype(np.float32), has_exposure=True)
    assert posterior.layout.dim == 2 * width
    theta = jnp.arange(1.0, 2 * width + 1) / 3
    plain = np.asarray(jax.vmap(posterior.network_at(theta))(jnp.asarray(X, jnp.float32)))
    shift = np.zeros((len(X), width))
    shift[:, 0] = np.log(DAYS)
    np.testing.assert_allclose(posterior.outputs(theta, jnp.asarray(x)), plain + shift, rtol=1e-5, atol=1e-5)
    outputs, targets = jnp.asarray(plain + shift, jnp.float32), jnp.asarray(Y[:, None], jnp.float32)
    expected = jax.vmap(likelihood.log_prob)(outputs, targets)
    np.testing.assert_allclose(posterior.log_likelihoods(theta), np.asarray(expected), rtol=1e-4, atol=1e-4)


def test_the_exposure_is_the_last_column_and_is_not_scaled():
    problem = _problem(test_fraction=0.0)
    description = problem.require_description()
    assert description.signature.feature_names == ("x", "days")
    assert description.signature.exposure == "days"
    np.testing.assert_array_equal(np.asarray(problem.network_posterior.data.x)[:, 1], DAYS.astype(np.float32))
    architecture = description.architecture
    assert (architecture.input_shape, architecture.num_outputs) == ((1,), 1)
    assert problem.posterior.layout.dim == 2


def test_only_the_last_layer_sampled_keeps_the_exposure():
    data = load(FRAME, target=["y"], exposure="days")
    shared = {"likelihood": "poisson", "exposure": "days", "stochastic": "last", "test_fraction": 0.0}
    problem = Problem.from_recipe(resolve("mlp", "mala", options={**shared, "model.hidden": "4"}, in_memory=True), data)
    fixed = {k: np.ones_like(v) / 3 for k, v in (("layers_0_weight", np.zeros((4, 1))), ("layers_0_bias", np.zeros(4)))}
    last = problem.with_fixed(fixed)
    theta = jnp.arange(5.0) / 7
    standard = (X - X.mean()) / X.std()
    hidden = np.tanh(np.tile(standard / 3 + 1 / 3, (1, 4)))
    rates = hidden @ np.asarray(theta[:4]) + float(theta[4]) + np.log(DAYS)
    np.testing.assert_allclose(
        last.posterior.log_likelihoods(theta), stats.poisson.logpmf(Y, np.exp(rates)), rtol=1e-3, atol=1e-3
    )


def test_kept_predictions_hold_the_exposure_once():
    problem = _problem(test_fraction=0.0)
    posterior, x = problem.network_posterior, problem.network_posterior.data.x
    outputs, theta = Outputs.at_inputs(posterior, np.asarray(x)), jnp.array([0.3, -0.2])
    _, outputs_found = outputs.table().predictive(outputs.values_at(theta), jnp.arange(len(X)))
    np.testing.assert_allclose(outputs_found, posterior.outputs(theta, jnp.asarray(x)), rtol=1e-6)


@pytest.mark.parametrize(
    ("exposure", "message"),
    [
        ({"days": np.where(np.arange(40) == 3, 0.0, DAYS)}, r"row 4, column days: .* positive and finite \(got 0"),
        ({"days": np.where(np.arange(40) == 3, -2.0, DAYS)}, r"row 4, column days: .* \(got -2"),
        ({"days": np.where(np.arange(40) == 3, np.inf, DAYS)}, r"row 4, column days: .* \(got inf"),
        ({"days": np.where(np.arange(40) == 3, np.nan, DAYS)}, r"row 4, column days: an exposure is missing"),
    ],
)
@pytest.mark.parametrize("missing", ["error", "median"])
def test_an_exposure_must_be_a_positive_number(exposure, message, missing):
    with pytest.raises(UsageError, match=message):
        _problem(FRAME.assign(**exposure), missing=missing)


def test_other_likelihoods_refuse_an_exposure_in_one_line():
    for likelihood in ("gaussian", "heteroscedastic"):
        with pytest.raises(UsageError, match=f"--exposure days: likelihood {likelihood} has no rate") as error:
            _problem(likelihood=likelihood)
        assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": ["days"]}, "column days is both the exposure and the target"),
        ({"target": ["y"], "drop": ["days"]}, "column days is both the exposure and dropped"),
        ({"target": ["y"], "task": "classification"}, "--exposure days is for counts"),
    ],
)
def test_an_exposure_is_an_input_of_a_regression(options, message):
    with pytest.raises(UsageError, match=message):
        load(FRAME, exposure="days", **options)
    with pytest.raises(UsageError, match="no column named dais"):
        load(FRAME, exposure="dais", target=["y"])


def test_new_rows_need_the_exposure():
    like = _problem().require_description().signature
    with pytest.raises(UsageError, match="no column named days, the exposure of the training rows"):
        load_like(FRAME.drop(columns="days"), like)
    reloaded = load_like(FRAME[["y", "x", "days"]], like)
    np.testing.assert_array_equal(reloaded.x[:, 1], DAYS.astype(np.float32))
    with pytest.raises(UsageError, match=r"the exposure is missing; give the columns days, x$"):
        load_inputs(X, like)


@pytest.mark.slow
@pytest.mark.skipif(not CASES.is_dir(), reason="the public cases are not here")
def test_counts_at_different_exposures_have_their_exact_means(tmp_path, capsys):
    """Public case c01, against the exact posterior means by quadrature of the same model."""
    data = str(CASES / "c01_exposure.csv")
    arguments = ["--likelihood", "poisson", "--exposure", "exposure", "--test-fraction", "0", "--warmup", "300"]
    out = str(tmp_path / "run.nc")
    assert (
        cli.run(["sample", "linear", "nuts", "--data", data, *arguments, "--draws", "500", "-o", out, "--quiet"]) == 0
    )
    new = tmp_path / "new.csv"
    new.write_text("x,exposure\n0,10\n0,40\n1,10\n")
    frame = pd.read_csv(data)
    x, e, y = (frame[name].to_numpy() for name in ("x", "exposure", "y"))
    slope, bias = np.meshgrid(np.linspace(0.5, 1.1, 201), np.linspace(0.2, 0.9, 201))
    rates = slope[..., None] * (x - x.mean()) / x.std() + bias[..., None] + np.log(e)
    logs = (y * rates - np.exp(rates)).sum(-1) - (slope**2 + bias**2) / 2
    weight = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    expected = [
        np.sum(weight * exposure * np.exp(slope * (at - x.mean()) / x.std() + bias))
        for at, exposure in ((0, 10), (0, 40), (1, 10))
    ]
    means = bnnzoo.open(out).predict(str(new))["mean"].to_numpy()
    np.testing.assert_allclose(means, expected, rtol=0.01)
    np.testing.assert_allclose(means, [15.25, 60.14, 33.87], rtol=0.03)
    np.testing.assert_allclose(means[1] / means[0], 4.0, rtol=1e-5)


# Exact posteriors.


@pytest.mark.slow
def test_a_negative_binomial_line_has_its_exact_posterior():
    """Slope, bias and learned dispersion by nuts against quadrature on a grid."""
    random = np.random.default_rng(3)
    x = random.normal(size=60)
    x = ((x - x.mean()) / x.std()).astype(np.float32)
    y = random.negative_binomial(1.5, 1.5 / (1.5 + np.exp(1.0 + 0.5 * x))).astype(np.float32)
    options: dict[str, Any] = {"standardise": False, "test_fraction": 0, "warmup": 500, "draws": 1500, "seed": 1}
    run = bnnzoo.sample(
        "linear", "nuts", data=(x[:, None], y), likelihood="negative-binomial", task="regression", **options
    )
    slope, bias, u = np.meshgrid(np.linspace(-0.7, 1.7, 61), np.linspace(0, 2, 61), np.linspace(-4, 1.5, 61))
    size = np.exp(-u)[..., None]
    rate = np.exp(slope[..., None] * x + bias[..., None])
    logs = stats.nbinom.logpmf(y, size, size / (size + rate)).sum(-1) - (slope**2 + bias**2) / 2
    logs += stats.halfnorm.logpdf(np.exp(u)) + u
    weight = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    draws = run.posterior["posterior"]
    for name, values in (("weight", slope), ("bias", bias), ("likelihood_dispersion", np.exp(u))):
        drawn = draws[name].to_numpy().reshape(-1)
        mean = np.sum(weight * values)
        sd = np.sqrt(np.sum(weight * (values - mean) ** 2))
        assert abs(drawn.mean() - mean) < 0.12 * sd, name
        assert abs(drawn.std() / sd - 1) < 0.1, name


@pytest.mark.slow
def test_zero_inflated_constants_have_their_exact_posterior():
    """Four parameters; at x = 0 the biases alone, and slopes of their prior."""
    random = np.random.default_rng(4)
    y = (random.poisson(3.0, 80) * (random.uniform(size=80) > 0.4)).astype(np.float32)
    options: dict[str, Any] = {"standardise": False, "test_fraction": 0, "warmup": 500, "draws": 1500, "seed": 1}
    x = np.zeros((80, 1), np.float32)
    run = bnnzoo.sample("linear", "nuts", data=(x, y), likelihood="zero-inflated-poisson", task="regression", **options)
    f, logit = np.meshgrid(np.linspace(0.3, 1.8, 201), np.linspace(-3, 2, 201))
    gate, rate = special.expit(logit), np.exp(f)
    logs = -(f**2 + logit**2) / 2
    for value in y:
        counted = (1 - gate) * stats.poisson.pmf(value, rate)
        logs += np.log(counted + gate * (value == 0))
    weight = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    draws = run.posterior["posterior"]["bias"].to_numpy().reshape(-1, 2)
    for column, values in enumerate((f, logit)):
        mean = np.sum(weight * values)
        sd = np.sqrt(np.sum(weight * (values - mean) ** 2))
        assert abs(draws[:, column].mean() - mean) < 0.12 * sd
        assert abs(draws[:, column].std() / sd - 1) < 0.1


# Spread and zeros.


class _Exact(Predictor):
    """A predictor of counts with samples from `_poisson`."""

    has_counts: Any = True
    posterior: Any = SimpleNamespace(likelihood=Poisson())

    def __init__(self):
        self.record: Any = SimpleNamespace(weights=None, shape=(4, 250))


def _poisson(predictor: Predictor, x: np.ndarray, indices: np.ndarray, *, seed: int) -> np.ndarray:
    """Return samples in which every draw is the true Poisson with mean 3."""
    return np.random.default_rng(seed).poisson(3.0, size=(4, len(indices), len(x), 1)).astype(np.float32)


def _judged(y: np.ndarray) -> tuple[str, dict[str, Estimate]]:
    x, targets_of_one = np.zeros((len(y), 1)), np.ones((len(y), 1))
    moments = count_tests.Moments(3.0 * targets_of_one, 3.0 * targets_of_one, 0.0 * targets_of_one, np.zeros(len(y)))
    predictor = _Exact()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictive_samples, "sample_each", _poisson)
        findings_found = count_tests.of_rows(predictor, x, y[:, None].astype(np.float32), moments)
    return count_tests.caveat(predictor, findings_found), findings_found


def test_poisson_counts_are_called_too_spread_as_seldom_as_stated():
    """One percent of correct runs: 300 sets of 40 rows give at most 10 alarms (more have p < 0.001)."""
    random = np.random.default_rng(0)
    alarms = sum(bool(_judged(random.poisson(3.0, 40))[0]) for _ in range(300))
    assert alarms <= 10


def test_overdispersed_and_inflated_counts_are_named_with_a_likelihood_to_try():
    random = np.random.default_rng(1)
    messages, findings_found = _judged(random.negative_binomial(1.0, 1 / 4.0, 100))
    assert messages.startswith("the intervals are too narrow, because the counts are overdispersed")
    assert "try --likelihood negative-binomial" in messages
    assert findings_found["dispersion"].value > 2
    # Counts with Poisson's variance, but with zeros in place of ones and twos.
    y = np.where(np.arange(100) < 14, 0, 2 + random.binomial(4, 0.4, 100))
    messages, findings_found = _judged(y)
    assert messages.startswith("too few zeros are predicted"), (
        messages,
        {k: v.value for k, v in findings_found.items()},
    )
    assert "try --likelihood zero-inflated-poisson" in messages
    assert metrics.flat(findings_found)["zeros"] == 0.14


def test_an_impossible_count_in_new_rows_is_named_with_its_place(tmp_path, monkeypatch):
    frame = pd.concat([FRAME, pd.DataFrame({"days": [5.0], "x": [np.nan], "y": [1.0]})])
    problem = _problem(frame, missing="drop")
    predictor: Any = Predictor.__new__(Predictor)
    predictor.record = SimpleNamespace(has_training_rows=False)
    description = problem.require_description()
    values = {"signature": description.signature, "scaler": description.scaler, "posterior": problem.posterior}
    for name, value in values.items():
        monkeypatch.setattr(Predictor, name, value)
    new = FRAME[:5].assign(x=[0.1, None, 0.2, 0.3, 0.4], y=[1.0, 2, 3, -1, 0])
    new.to_csv(path := tmp_path / "new.csv", index=False)
    place = "of the 4 rows without missing cells, likelihood poisson: row 3, target 1: not a count"
    with pytest.warns(UserWarning, match="1 of 5 rows left out"), pytest.raises(UsageError) as error:
        new_rows.evaluation_rows(predictor, path)
    assert str(error.value).startswith(f"{path}: {place}")


@pytest.mark.parametrize("columns", [["days", "x", "z"], ["x", "days", "z"], ["x", "z", "days"]])
def test_columns_of_an_array_are_those_of_the_training_table_in_its_order(columns, monkeypatch):
    frame = FRAME.assign(z=Y + 1)[[*columns, "y"]]
    train = load(frame, target=["y"], exposure="days")
    signature = Signature.from_json(train.signature.to_json())
    array = frame[columns].to_numpy()
    np.testing.assert_array_equal(load_inputs(array, signature), train.x)
    np.testing.assert_array_equal(load_like((array, Y), signature).x, train.x)
    monkeypatch.setattr(new_rows, "inputs_of", lambda predictor, x, unseen: load_inputs(x, predictor.signature))
    run: Any = SimpleNamespace(predictor=SimpleNamespace(signature=signature))
    for others in (frame.drop(columns=["y", "days"]), frame.drop(columns=["y", "days"]).to_numpy()):
        np.testing.assert_array_equal(AbstractRunPredictions._rows(run, others, None, DAYS), train.x)


def test_booleans_beside_an_exposure_are_inputs_of_a_prediction(monkeypatch):
    x = X > 0
    problem = _problem(with_exposure(x, DAYS).rename(columns={"exposure": "days"}).assign(y=Y), test_fraction=0.0)
    predictor: Any = SimpleNamespace(signature=problem.train.signature)
    monkeypatch.setattr(new_rows, "inputs_of", lambda predictor, x, unseen: load_inputs(x, predictor.signature))
    rows = AbstractRunPredictions._rows(SimpleNamespace(predictor=predictor), x, None, DAYS)
    np.testing.assert_array_equal(rows, problem.train.x)
