"""The predictive distribution as an object: against SciPy, against `predict` and `evaluate`, and its errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import optimize, special, stats

import bnnzoo
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.predictions import mixture, predictive_samples
from bnnzoo.evaluation.predictions.mixture import DrawMixture
from bnnzoo.evaluation.predictions.predictive_distribution import check_level
from bnnzoo.models import Linear
from bnnzoo.posterior import NetworkPosterior, marginals
from bnnzoo.posterior.backend import arithmetic
from bnnzoo.posterior.counts import NegativeBinomial, ZeroInflatedPoisson
from bnnzoo.posterior.likelihoods import (
    Gaussian,
    Heteroscedastic,
    Mixture,
    MixturePerTarget,
    Poisson,
    StudentT,
)
from bnnzoo.posterior.priors import Normal
from bnnzoo.sklearn import BayesianClassifier, BayesianRegressor

X = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
DRAWS = 7
LEVELS = np.array([0.01, 0.3, 0.5, 0.95])
SHORT: dict[str, Any] = {"chains": 2, "warmup": 100, "draws": 100, "init": "map", "start_steps": 250}
quiet = pytest.mark.filterwarnings("ignore:.*has not converged:bnnzoo.errors.BnnzooWarning")


def _mixture(likelihood: Any, targets: int) -> tuple[DrawMixture, np.ndarray, np.ndarray, np.ndarray]:
    """Return a mixture of weighted draws of a linear network, with draws, outputs and weights by NumPy."""
    likelihood = likelihood.of_targets(targets)
    network = Linear().build((2,), likelihood.num_outputs(targets), key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, likelihood, Normal(), X[:0], np.zeros((0, targets), np.float32))
    draws = np.random.default_rng(1).normal(size=(DRAWS, posterior.layout.dim)).astype(np.float32) / 2
    if own := sum(int(np.prod(parameter.shape)) for parameter in likelihood.parameters()):
        draws[:, -own:] = np.exp(draws[:, -own:])
    with arithmetic("float32"):
        arrays, rest, found_outputs = mixture._likelihoods_and_outputs(posterior, jnp.asarray(draws), jnp.asarray(X))
    weights = np.random.default_rng(2).dirichlet(np.ones(DRAWS))
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), arrays)
    values = posterior.layout.unflatten(draws.astype(float))
    numbers = np.einsum("soi,ri->sro", values["weight"], X.astype(float)) + values["bias"][:, None]
    np.testing.assert_allclose(found_outputs, numbers, atol=1e-5)
    outputs = np.asarray(found_outputs, np.float64)
    return DrawMixture(exact, rest, outputs, np.log(weights)), draws, outputs, weights


def _softplus(raw: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(raw)) + 1e-4


def _components(likelihood: Any, draws: np.ndarray, out: np.ndarray) -> list[tuple[np.ndarray, Any]]:
    """Return weights [draw, row] and frozen distributions of SciPy for a single target."""
    own = draws[:, -1:].astype(float)
    weights = np.ones(out.shape[:2])
    match likelihood:
        case Gaussian():
            return [(weights, stats.norm(out[..., 0], own))]
        case StudentT():
            return [(weights, stats.t(4.0, out[..., 0], own))]
        case Heteroscedastic():
            return [(weights, stats.norm(out[..., 0], _softplus(out[..., 1])))]
        case Mixture() | MixturePerTarget():
            share = special.softmax(out[..., :2], -1)
            return [(share[..., k], stats.norm(out[..., 2 + k], _softplus(out[..., 4 + k]))) for k in (0, 1)]
        case Poisson():
            return [(weights, stats.poisson(np.exp(out[..., 0])))]
        case NegativeBinomial():
            return [(weights, stats.nbinom(1 / own, 1 / (1 + own * np.exp(out[..., 0]))))]
        case ZeroInflatedPoisson():
            extra = special.expit(out[..., 1])
            return [(extra, stats.poisson(0 * out[..., 0])), (1 - extra, stats.poisson(np.exp(out[..., 0])))]
    raise AssertionError


CONTINUOUS = [Gaussian(), StudentT(), Heteroscedastic(), Mixture(2), MixturePerTarget(2)]
COUNTS = [Poisson(), NegativeBinomial(), ZeroInflatedPoisson()]


@pytest.mark.long
@pytest.mark.parametrize("likelihood", [*CONTINUOUS, *COUNTS], ids=lambda likelihood: type(likelihood).__name__)
def test_a_mixture_agrees_with_scipy(likelihood):
    """Densities, distribution functions and quantiles, for values of all sizes, and impossible ones."""
    draws_mixture, draws, out, weights = _mixture(likelihood, 1)
    parts, counts = _components(likelihood, draws, out), type(likelihood) in map(type, COUNTS)
    points = np.array([-1.0, 0.0, 0.5, 1.0, 3.0, 40.0]) if counts else np.array([-9.0, -1.0, 0.0, 0.3, 2.0, 30.0])
    y = np.broadcast_to(points[:, None, None], (len(points), 3, 1))
    with arithmetic("float64"):
        cdf = np.asarray(mixture.cdf(draws_mixture, y))[..., 0]
        density = np.exp(np.asarray(mixture.log_density(draws_mixture, y)))
        ends = np.asarray(mixture.cdf(draws_mixture, np.array([-np.inf, np.inf])[:, None, None] * np.ones((2, 3, 1))))

    def total(of: Any) -> np.ndarray:
        return sum(np.einsum("s,sr,psr->pr", weights, share, of(part)) for share, part in parts)

    at = points[:, None, None]
    np.testing.assert_allclose(cdf, total(lambda part: part.cdf(at)), rtol=1e-5, atol=1e-9)
    expected = total(lambda part: part.pmf(at) if counts else part.pdf(at))
    np.testing.assert_allclose(density, expected, rtol=1e-4, atol=1e-12)
    np.testing.assert_allclose(ends[..., 0], [[0] * 3, [1] * 3], atol=1e-12)

    moments = np.zeros((3, 1)), np.ones((3, 1))
    with arithmetic("float64"):
        quantiles = np.asarray(mixture.quantiles(draws_mixture, LEVELS, *moments))[..., 0]

    def row_cdf(value: float, row: int) -> float:
        return float(sum(weights @ (share * part.cdf(value))[:, row] for share, part in parts))

    for (i, level), row in ((pair, row) for pair in enumerate(LEVELS) for row in range(3)):
        if counts:
            expected = next(k for k in range(10_000) if row_cdf(k, row) >= level)
        else:
            expected = optimize.brentq(lambda v, row=row, level=level: row_cdf(v, row) - level, -500, 500, xtol=1e-10)
        assert quantiles[i, row] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "likelihood", [Gaussian(), Mixture(2), MixturePerTarget(2)], ids=lambda likelihood: type(likelihood).__name__
)
def test_several_targets_have_marginals_and_a_joint_density(likelihood):
    """A sample's frequencies are those of the marginals, and the integral over one target leaves the other."""
    draws_mixture, *_ = _mixture(likelihood, 2)
    grid = np.linspace(-12, 12, 801)
    with arithmetic("float64"):
        y = np.stack(np.broadcast_arrays(grid[:, None], np.full(3, 0.4)), -1)
        joint = np.exp(np.asarray(mixture.log_density(draws_mixture, y)))
        step = 1e-3
        cdf = np.asarray(mixture.cdf(draws_mixture, np.full((2, 3, 2), 0.4) + np.array([-step, step])[:, None, None]))
    integral = np.trapezoid(joint, grid, axis=0)
    np.testing.assert_allclose(integral, (cdf[1] - cdf[0])[:, 1] / (2 * step), rtol=2e-3)


@pytest.mark.parametrize("df", [2.01, 3, 4, 10, 99, 101, 1e3, 1e6])
def test_students_distribution_function(df):
    t = np.concatenate(
        [[-np.inf, -1e200, -1e6, 0, 1e200, np.inf], 5 * np.random.default_rng(0).standard_t(2, size=500)]
    )
    with arithmetic("float64"):
        result = marginals.marginal_cdf(dist.StudentT(jnp.asarray(df)), jnp.asarray(t))
    np.testing.assert_allclose(result, stats.t.cdf(t, df), atol=1e-8)


COUNT_VALUES = np.array([-np.inf, -1.0, -0.5, 0.0, 0.5, 1.0, 5.0, 30.9, 31.0, 31.9, 32.0, 60.0, 1e6, np.inf])
"""Values around the largest count whose distribution function is a sum of probabilities."""


@pytest.mark.parametrize("mean", [1e-9, 0.5, 20.0, 40.0, 700.0, 1e4, 1e12])
def test_the_distribution_functions_of_counts(mean):
    whole = np.clip(np.floor(COUNT_VALUES), 0, 1e15)
    with arithmetic("float64"):
        poisson = marginals.marginal_cdf(dist.Poisson(jnp.asarray(mean)), jnp.asarray(COUNT_VALUES))
        np.testing.assert_allclose(poisson, np.where(COUNT_VALUES < 0, 0, special.pdtr(whole, mean)), atol=1e-12)
        for size in (1e-3, 0.5, 50.0, 1e9):
            negative = dist.GammaPoisson(jnp.asarray(size), jnp.asarray(size / mean))
            expected = np.where(COUNT_VALUES < 0, 0, stats.nbinom.cdf(whole, size, size / (size + mean)))
            result = marginals.marginal_cdf(negative, jnp.asarray(COUNT_VALUES))
            np.testing.assert_allclose(result[:-1], expected[:-1], atol=1e-6)
            assert result[-1] == 1


@pytest.mark.long
def test_marginals_of_other_distributions_of_numpyro():
    value = jnp.array([-1.0, 0.7])
    with arithmetic("float64"):
        joint = dist.MultivariateNormal(jnp.zeros(2), jnp.array([[4.0, 1.0], [1.0, 9.0]]))
        cdf = marginals.marginal_cdf(joint, value)
        gamma = marginals.marginal_cdf(dist.Gamma(2.0, jnp.ones(2)).to_event(1), value)
        uniform = marginals.marginal_cdf(dist.Uniform(jnp.zeros(2), 0.5).to_event(1), value)
        inside = marginals.in_support(dist.Gamma(2.0, jnp.ones(2)).to_event(1), value)
        with pytest.raises(NotImplementedError):
            marginals.marginal_cdf(dist.Dirichlet(jnp.ones(2)), value)
    np.testing.assert_allclose(cdf, stats.norm.cdf([-0.5, 0.7 / 3]), rtol=1e-6)
    np.testing.assert_allclose(gamma, [0, stats.gamma.cdf(0.7, 2.0)], rtol=1e-5)
    assert uniform.tolist() == [0, 1]
    assert inside.tolist() == [False, True]


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("likelihood", [Gaussian(), StudentT(), Poisson()])
def test_extreme_quantiles_are_as_far_out_as_the_distribution(likelihood, precision):
    """The weights need not add up to 1 exactly, so that the distribution function may end below a level."""
    draws_mixture, draws, outputs, weights = _mixture(likelihood, 1)
    as_precision = jax.tree.map(lambda leaf: np.asarray(leaf, precision), draws_mixture.arrays)
    log_weights = (np.log(weights) - 1e-6).astype(precision)
    draws_mixture = DrawMixture(as_precision, draws_mixture.rest, outputs.astype(precision), log_weights)
    ((_, frozen),) = _components(likelihood, draws, outputs)
    mean = np.tensordot(weights, frozen.mean(), 1)
    sd = np.sqrt(np.tensordot(weights, frozen.var() + (frozen.mean() - mean) ** 2, 1))
    levels = np.array([1e-300, 1e-30, 1e-7, 1 - 1e-7, 1 - 1e-12, 1 - 1e-16])
    with arithmetic(precision):
        quantiles = np.asarray(mixture.quantiles(draws_mixture, levels, mean[:, None], sd[:, None]))[..., 0]
    highest, lowest = 1 - 4 * np.finfo(precision).eps, 2 * np.finfo(precision).tiny
    for level, found in zip(levels, quantiles.astype(float), strict=True):
        is_above = level > 0.5
        tail, expected = (frozen.sf, 1 - min(level, highest)) if is_above else (frozen.cdf, max(level, lowest))
        slack = 4 * np.finfo(precision).eps if is_above else 0.0
        points = (found - 1, found) if isinstance(likelihood, Poisson) else (found, found)
        low, high = sorted((np.tensordot(weights, tail(point), 1) for point in points), key=np.sum)
        assert (low <= 3 * expected + slack).all(), (level, found)
        assert (3 * high >= expected - slack).all(), (level, found)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(120, 1))
    y = 1000 + 50 * (x + 0.3 * rng.standard_t(4, size=x.shape))
    where = tmp_path_factory.mktemp("distribution") / "run.nc"
    return bnnzoo.sample(
        "linear", "nuts", data=(x, y), likelihood="student-t", test_fraction=0.25, out=where, progress=False, **SHORT
    )


@quiet
def test_it_agrees_with_predict_and_evaluate(run):
    x, y = run.test_rows()
    distribution, table = run.predictive(x), run.predict(x)
    np.testing.assert_allclose(distribution.mean, table["mean"], rtol=1e-6)
    for name in ("sd", "aleatoric_sd", "epistemic_sd"):
        np.testing.assert_allclose(getattr(distribution, name), table[name], rtol=1e-5)
    # 1000 samples a row: their 5 % quantile is 0.007 of probability from its place, in one standard error.
    for level, name in ((0.05, "q05"), (0.5, "q50"), (0.95, "q95")):
        error = distribution.cdf(table[name]) - level
        assert np.abs(error).max() < 5 * np.sqrt(level * (1 - level) / 1000)
    nll = run.evaluate(save=False)["nll"]
    assert -distribution.log_prob(y[:, 0]).mean() == pytest.approx(nll, abs=1e-4)


@quiet
def test_fewer_draws_are_evenly_spaced_over_every_chain(run):
    x, _ = run.test_rows()
    chains, count = run.predictor.record.shape
    per_draw = run.predictor.functions(x)[..., 0] * run.predictor.scaler.y_sd + run.predictor.scaler.y_mean
    for draws, stride in ((chains * count, 1), (chains * -(-count // 3), 3), (1, count)):
        expected = per_draw[:, ::stride].mean((0, 1))
        np.testing.assert_allclose(run.predictive(x, draws=draws).mean, expected, rtol=1e-5)
    with pytest.raises(UsageError, match="draws: must be at least 1"):
        run.predictive(x, draws=0)


@pytest.mark.long
@quiet
def test_quantiles_invert_the_distribution_function(run):
    distribution = run.predictive([[-0.5], [0.0], [3.0]])
    levels = np.linspace(0.001, 0.999, 9)
    quantiles = distribution.quantile(levels)
    assert quantiles.shape == (9, 3)
    np.testing.assert_allclose(distribution.cdf(quantiles), levels[:, None] * np.ones(3), atol=1e-6)
    np.testing.assert_allclose(distribution.interval(0.8), distribution.quantile([0.1, 0.9]))
    assert distribution.quantile(0.5).shape == (3,)
    grid = np.linspace(900, 1100, 4001)
    density = np.exp(distribution.log_prob(grid[:, None]))
    assert density.shape == (4001, 3)
    np.testing.assert_allclose(np.trapezoid(density, grid, axis=0)[:2], 1, atol=0.02)
    between = np.trapezoid(density[1000:2001], grid[1000:2001], axis=0)
    np.testing.assert_allclose(distribution.cdf(1000) - distribution.cdf(950), between, atol=1e-4)


@pytest.mark.long
@quiet
def test_samples_and_entropy(run):
    distribution = run.predictive([[-0.5], [0.5]], seed=3)
    samples = distribution.sample(4000)
    assert samples.shape == (4000, 2)
    for row in range(2):
        pit = distribution.cdf(samples)[:, row]
        assert stats.kstest(pit, "uniform").pvalue > 1e-3
    np.testing.assert_array_equal(samples, distribution.sample(4000, seed=3))
    assert not np.array_equal(samples, distribution.sample(4000, seed=4))
    grid = np.linspace(0, 2000, 8001)
    logs = distribution.log_prob(grid[:, None])
    np.testing.assert_allclose(distribution.entropy, -np.trapezoid(np.exp(logs) * logs, grid, axis=0), atol=0.12)


@pytest.mark.long
@quiet
def test_rows_and_points_come_in_blocks(run, monkeypatch):
    x, levels, grid = np.linspace(-1, 1, 5)[:, None], [0.1, 0.5], np.linspace(950, 1050, 7)[:, None]
    expected_distribution = run.predictive(x)
    expected = (
        expected_distribution.cdf(grid),
        expected_distribution.log_prob(grid),
        expected_distribution.quantile(levels),
    )
    monkeypatch.setattr("bnnzoo.evaluation.predictions.mixture.ELEMENTS", 2 * 200)
    distribution = run.predictive(x)
    for first, second in zip(
        (distribution.cdf(grid), distribution.log_prob(grid), distribution.quantile(levels)), expected, strict=True
    ):
        np.testing.assert_allclose(first, second, rtol=1e-6)


@quiet
def test_inapplicable_methods_are_refused(run):
    distribution = run.predictive([[0.0]])
    assert "1 rows, 200 draws, targets ['y']" in repr(distribution)
    assert (len(distribution), distribution.target_names) == (1, ("y",))
    with pytest.raises(UsageError, match=r"quantile: q must be above 0 and below 1 \(got \[1.0\]\)"):
        distribution.quantile(1.0)
    for name in ("probabilities", "mutual_information"):
        with pytest.raises(UsageError, match=rf"{name}: is supported for classes only; use mean"):
            getattr(distribution, name)
    with pytest.raises(UsageError, match=r"y has shape \[4\], which cannot be broadcast against \[2\]; put"):
        run.predictive([[0.0], [1.0]]).cdf(np.zeros(4))
    with pytest.raises(UsageError, match="y: must contain numbers only"):
        distribution.log_prob(["abc"])
    with pytest.raises(UsageError, match=r"n: must be a whole number, 1 or more \(got 0\)"):
        distribution.sample(0)
    for count in (1.5, "a"):
        with pytest.raises(UsageError, match=rf"n: must be a whole number, 1 or more \(got {count!r}\)"):
            predictive_samples.check_count("n", count)
    with pytest.raises(UsageError, match="q: must contain numbers only"):
        distribution.quantile("a")
    for level in ("a", None, 1.0):
        with pytest.raises(UsageError, match=rf"level: must be above 0 and below 1 \(got {level}\)"):
            check_level(level)


@quiet
def test_a_missing_target_has_no_probability(run):
    distribution = run.predictive([[0.0], [0.5]])
    for values in (distribution.cdf([np.nan, 1000.0]), distribution.log_prob([[np.nan, 1000.0], [np.nan, np.nan]])[0]):
        np.testing.assert_array_equal(np.isnan(values), [True, False])


@pytest.mark.long
@quiet
def test_a_density_is_refused():
    rows = np.random.default_rng(0).normal(size=(30, 2))
    run = bnnzoo.sample("density", "random-walk", data=rows, warmup=20, draws=20, chains=1, progress=False)
    with pytest.raises(UsageError, match="predictive: a density has no inputs"):
        run.predictive(rows)


@pytest.mark.long
@quiet
def test_counts_with_an_exposure_and_several_targets():
    rng = np.random.default_rng(0)
    x, time = rng.normal(size=(80, 1)), rng.uniform(1, 3, size=80)
    y = rng.poisson(np.exp(0.5 * x + [[0.0, 1.0]]) * time[:, None]).astype(float)
    run = bnnzoo.sample(
        "linear", "nuts", data=(x, y), exposure=time, likelihood="poisson", test_fraction=0, progress=False, **SHORT
    )
    distribution = run.predictive(x[:4], exposure=np.full(4, 2.0))
    table = run.predict(x[:4], exposure=np.full(4, 2.0))
    np.testing.assert_allclose(distribution.mean, table[["y0_mean", "y1_mean"]], rtol=1e-5)
    assert distribution.quantile(0.5).shape == (4, 2)
    assert (distribution.quantile(0.5) % 1 == 0).all()
    counts = np.arange(200)
    chances = np.exp(distribution.log_prob(np.stack(np.broadcast_arrays(counts[:, None, None], np.zeros((4, 2))))[0]))
    assert chances.shape == (200, 4)
    marginal = distribution.cdf(np.broadcast_to(counts[:, None, None], (200, 4, 2)))
    np.testing.assert_allclose(
        (np.diff(marginal, axis=0) * counts[1:, None, None]).sum(0), distribution.mean, rtol=1e-3
    )
    assert distribution.log_prob(np.full((4, 2), -1.0)).tolist() == [-np.inf] * 4
    assert distribution.log_prob(np.full((4, 2), 0.5)).tolist() == [-np.inf] * 4
    assert distribution.cdf(-1.0).tolist() == [[0.0, 0.0]] * 4


@pytest.mark.long
@quiet
@pytest.mark.filterwarnings("ignore:.*rows left out:bnnzoo.errors.BnnzooWarning")
def test_classes_of_a_run_and_of_an_estimator():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = np.where(x[:, 0] > 0.3, 10, np.where(x[:, 1] > 0, 9, 2))
    estimator = BayesianClassifier("linear", "nuts", **SHORT).fit(x, y)
    distribution = estimator.predict_distribution(x[:5])
    assert distribution.classes.tolist() == [2, 9, 10]
    np.testing.assert_allclose(distribution.probabilities, estimator.predict_proba(x[:5]), rtol=1e-6)
    np.testing.assert_array_equal(distribution.mode, estimator.predict(x[:5]))
    np.testing.assert_allclose(np.exp(distribution.log_prob(distribution.mode)), distribution.probabilities.max(1))
    np.testing.assert_allclose(np.exp(distribution.log_prob(distribution.classes[:, None])).sum(0), 1, rtol=1e-6)
    np.testing.assert_allclose(distribution.entropy, stats.entropy(distribution.probabilities, axis=1), rtol=1e-5)
    samples = distribution.sample(20_000)
    for number, label in enumerate(distribution.classes):
        np.testing.assert_allclose((samples == label).mean(0), distribution.probabilities[:, number], atol=0.04)
    of_draws = estimator.run_.functions(x[:5]).reshape(-1, 5, 3)
    information = stats.entropy(of_draws.mean(0), axis=1) - stats.entropy(of_draws, axis=2).mean(0)
    np.testing.assert_allclose(distribution.mutual_information, information, atol=1e-5)
    by_name = estimator.run_.predictive(x[:5])
    assert set(by_name.mode) <= {"2", "9", "10"}
    with pytest.raises(UsageError, match=r"mean: is not supported for classes; use probabilities"):
        _ = distribution.mean
    for member in ("aleatoric_sd", "epistemic_sd"):
        with pytest.raises(UsageError, match=f"{member}: is not supported for classes"):
            getattr(distribution, member)
    for member in ("cdf", "quantile", "interval"):
        with pytest.raises(UsageError, match=f"{member}: is not supported for classes"):
            getattr(distribution, member)(0.5)
    with pytest.raises(UsageError, match=r"unknown class 3; the classes are \[2, 9, 10\]"):
        distribution.log_prob(3)
    for label in (2.5, np.nan):
        with pytest.raises(UsageError, match=rf"unknown class {label}; the classes are"):
            distribution.log_prob([2.0, 9.0, 10.0, 2.0, label])
    with pytest.raises(UsageError, match=r"unknown class abc"):
        distribution.log_prob("abc")
    for labels in ([2, 9], np.full((2, 4), 2)):
        with pytest.raises(UsageError, match=r"cannot be broadcast against \[5\]"):
            distribution.log_prob(labels)
    with pytest.raises(UsageError, match=r"y has shape \[3\], which cannot be broadcast against \[1\]"):
        estimator.predict_distribution(x[:1]).log_prob([2, 9, 10])


@pytest.mark.long
@quiet
def test_an_estimator_of_numbers():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=50), "colour": rng.choice(["red", "blue"], 50)})
    price = 200 + 20 * frame["size"] + 30 * (frame["colour"] == "red") + rng.normal(size=50)
    estimator = BayesianRegressor("linear", "nuts", **SHORT).fit(frame, price)
    distribution = estimator.predict_distribution(frame)
    mean, sd = estimator.predict(frame, return_std=True)
    np.testing.assert_allclose(distribution.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(distribution.sd, sd, rtol=1e-5)
    assert 0.5 < np.mean(distribution.cdf(price) < 0.75) < 1


@pytest.mark.long
@quiet
def test_a_numpyro_model_with_and_without_a_distribution_function():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 1)).astype("float32")
    y = np.exp(0.3 * x[:, 0] + 0.1 * rng.normal(size=40)).astype("float32")

    def model(of: Any) -> Any:
        def growth(x, y):
            weight = numpyro.sample("weight", dist.Normal(0, 1))
            numpyro.sample("y", of(jnp.exp(weight * x[:, 0])), obs=y)

        return bnnzoo.NumpyroPosterior.of(growth, x, y)

    class Hidden(dist.Gamma):
        def cdf(self, x):
            raise NotImplementedError("Hidden has no cdf")

    for kind in (dist.Gamma, Hidden):
        sampled = model(lambda mean, kind=kind: kind(50.0, 50.0 / mean))
        short = {"chains": 2, "warmup": 50, "draws": 100, "init": "prior", "progress": False}
        distribution = bnnzoo.sample(sampled, bnnzoo.Nuts(), **short).predictive([[0.0], [1.0]])
        quantiles = distribution.quantile([0.1, 0.9])
        assert quantiles[0, 0] == pytest.approx(0.82, abs=0.03)
        assert distribution.log_prob(-1.0).tolist() == [-np.inf] * 2
        if kind is Hidden:
            with pytest.raises(UsageError, match=r"cdf: Hidden has no cdf; use sample\(n\) instead"):
                distribution.cdf(1.0)
        else:
            np.testing.assert_allclose(distribution.cdf(quantiles), [[0.1] * 2, [0.9] * 2], atol=1e-5)
            assert distribution.cdf(-1.0).tolist() == [0, 0]
