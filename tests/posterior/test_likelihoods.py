"""Likelihoods against closed forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import tiny
from scipy import special, stats

import bnnzoo
from bnnzoo import assembly
from bnnzoo.assembly.recipe_parts import check_likelihood
from bnnzoo.errors import UsageError
from bnnzoo.posterior.likelihoods import (
    AbstractLikelihood,
    Bernoulli,
    Categorical,
    Gaussian,
    Heteroscedastic,
    Mixture,
    MixturePerTarget,
    Poisson,
    StudentT,
)


def _softplus(value):
    return np.log1p(np.exp(value)) + 1e-4


def _mixture(output, target):
    """Two components, two targets: logits, then means by component, then scales."""
    logits, means, raw = output[:2], output[2:6].reshape(2, 2), output[6:].reshape(2, 2)
    terms = stats.norm.logpdf(target, means, _softplus(raw)).sum(1)
    return special.logsumexp(special.log_softmax(logits) + terms)


def _mixtures(output, target):
    """Two components for each of two targets: logits, means, scales of the first, then of the second."""
    total = 0.0
    for (a, b, first, other, r, s), value in zip(output.reshape(2, 6), target, strict=True):
        terms = stats.norm.logpdf(value, [first, other], _softplus(np.array([r, s])))
        total += special.logsumexp(special.log_softmax([a, b]) + terms)
    return total


OUTPUT = np.array([0.3, -0.7, 1.1, 0.4, -0.2, 0.9, -1.3, 0.6, 0.1, -0.5, 0.7, -0.9])
PAIR = np.array([0.5, -1.2])
CASES = {
    "gaussian": (Gaussian(0.4), 2, PAIR, lambda o, y: stats.norm.logpdf(y, o, 0.4).sum()),
    "student-t": (StudentT(8.0, 0.4), 2, PAIR, lambda o, y: stats.t.logpdf(y, 8, o, 0.4).sum()),
    "heteroscedastic": (
        Heteroscedastic(),
        4,
        PAIR,
        lambda o, y: stats.norm.logpdf(y, o[:2], _softplus(o[2:])).sum(),
    ),
    "heteroscedastic t": (
        Heteroscedastic(8.0),
        4,
        PAIR,
        lambda o, y: stats.t.logpdf(y, 8, o[:2], _softplus(o[2:])).sum(),
    ),
    "mixture": (Mixture(2), 10, PAIR, _mixture),
    "mixture-per-target": (MixturePerTarget(2), 12, PAIR, _mixtures),
    "poisson": (Poisson(), 2, np.array([3.0, 0.0]), lambda o, y: stats.poisson.logpmf(y, np.exp(o)).sum()),
    "categorical": (Categorical(), 5, np.int32(3), lambda o, y: special.log_softmax(o)[y]),
    "bernoulli 1": (Bernoulli(), 1, np.int32(1), lambda o, y: np.log(special.expit(o[0]))),
    "bernoulli 0": (Bernoulli(), 1, np.int32(0), lambda o, y: np.log(special.expit(-o[0]))),
}
EACH = pytest.mark.parametrize(("likelihood", "size", "target", "log_density"), CASES.values(), ids=CASES)


@EACH
def test_log_density(likelihood, size, target, log_density):
    output = OUTPUT[:size]
    assert likelihood.num_outputs({5: 5, 1: 2}.get(size, 2)) == size
    value = target.astype(np.float32) if target.ndim else target
    log_densities = likelihood.log_prob(jnp.asarray(output, jnp.float32), jnp.asarray(value))
    assert log_densities.shape == ()
    assert log_densities.dtype == jnp.float32
    np.testing.assert_allclose(log_densities, log_density(output, target), rtol=2e-5)


@EACH
def test_double_precision(likelihood, size, target, log_density):
    output = OUTPUT[:size]
    with jax.enable_x64(True):
        log_densities = np.asarray(likelihood.log_prob(jnp.asarray(output), jnp.asarray(target)))
    assert log_densities.dtype == np.float64
    # A scale is a float32 number in any arithmetic.
    np.testing.assert_allclose(log_densities, log_density(output, target), rtol=1e-6)


@EACH
def test_samples_have_the_moments_of_the_distribution(likelihood, size, target, log_density):
    output = jnp.asarray(OUTPUT[:size], jnp.float32)
    keys = jax.random.split(jax.random.key(0), 40_000)
    draws = np.asarray(jax.jit(jax.vmap(lambda key: likelihood.sample(output, key=key)))(keys))
    assert draws.shape == (40_000, *target.shape)
    if isinstance(likelihood, Categorical | Bernoulli):
        expected = np.asarray(likelihood.class_probabilities(output), np.float64)
        counts = np.bincount(draws, minlength=len(expected))
        assert stats.chisquare(counts, 40_000 * expected / expected.sum()).pvalue > 1e-6
        return
    distribution = likelihood.distribution(output)
    mean, variance = np.asarray(distribution.mean), np.asarray(distribution.variance)
    assert (np.abs(draws.mean(0) - mean) < 5 * np.sqrt(variance / 40_000)).all()
    square = (draws - mean) ** 2
    assert (np.abs(square.mean(0) - variance) < 5 * square.std(0) / 200).all()


@EACH
def test_no_output_makes_a_target_likelier_than_its_bound(likelihood, size, target, log_density):
    value = jnp.asarray(target.astype(np.float32) if target.ndim else target)
    bound = float(likelihood.upper_bound(value))
    outputs = np.random.default_rng(0).normal(0, 3, size=(2000, size)).astype(np.float32)
    # The best output: the target itself, its logarithm, or an extreme logit.
    best = {
        StudentT: target,
        Gaussian: target,
        Poisson: np.log(np.maximum(target, 1e-30)),
        Bernoulli: np.full(size, 50.0 if np.all(target) else -50.0),
        Categorical: 50 * np.eye(size)[3 % size],
    }.get(type(likelihood), OUTPUT[:size])
    log_densities = np.asarray(jax.vmap(lambda o: likelihood.log_prob(o, value))(jnp.asarray(outputs)))
    if isinstance(likelihood, Mixture | MixturePerTarget | Heteroscedastic):
        assert bound == np.inf
        return
    assert log_densities.max() <= bound + 1e-5
    np.testing.assert_allclose(likelihood.log_prob(jnp.asarray(best, jnp.float32), value), bound, atol=1e-5)


def test_a_likelihood_of_one_number_a_target_is_refused(monkeypatch):
    """A mean over the targets would give a different posterior."""
    monkeypatch.setattr(Gaussian, "log_prob", lambda self, output, y: dist.Normal(output, self.scale).log_prob(y))
    with pytest.raises(UsageError, match=r"likelihood gaussian: log_prob .* shape \(1,\).* with \.to_event\(1\)"):
        assembly.Problem.from_recipe(tiny.recipe("mala"))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (AbstractLikelihood.class_probabilities, "needs the method class_probabilities"),
        (lambda self, output: output[:3], r"class_probabilities must have shape \(10,\) \(got \(3,\)\)"),
    ],
)
def test_a_likelihood_without_class_probabilities_is_refused(method, message, monkeypatch):
    monkeypatch.setattr(Categorical, "class_probabilities", method)
    options = {"data": "digits", "likelihood": "categorical", "likelihood.scale": None}
    with pytest.raises(UsageError, match=f"likelihood categorical: .*{message}"):
        assembly.Problem.from_recipe(tiny.recipe("mala", **options))


def test_one_component_is_the_heteroscedastic_gaussian():
    output, target = jnp.asarray(OUTPUT[:4], jnp.float32), jnp.asarray(PAIR, jnp.float32)
    first, other = Mixture(1), Heteroscedastic()
    assert first.num_outputs(2) == other.num_outputs(2) == 4
    np.testing.assert_array_equal(first.log_prob(output, target), other.log_prob(output, target))
    key = jax.random.key(0)
    np.testing.assert_array_equal(first.sample(output, key=key), other.sample(output, key=key))


@pytest.mark.parametrize(
    ("likelihood", "targets", "outputs"),
    [
        (Gaussian(0.5), 3, 3),
        (StudentT(scale=0.5), 3, 3),
        (Heteroscedastic(), 3, 6),
        (Mixture(1), 3, 6),
        (Mixture(2), 1, 6),
        (Mixture(3), 2, 15),
        (MixturePerTarget(1), 3, 6),
        (MixturePerTarget(3), 2, 18),
        (Categorical(), 7, 7),
        (Bernoulli(), 2, 1),
        (Poisson(), 4, 4),
    ],
)
def test_number_of_outputs(likelihood, targets, outputs):
    assert likelihood.num_outputs(targets) == outputs
    distribution = likelihood.distribution(jnp.zeros(outputs))
    expected = () if likelihood.task == "classification" else (targets,)
    assert distribution.event_shape == expected
    assert distribution.batch_shape == ()


@pytest.mark.parametrize("raw", [-30.0, 30.0])
def test_a_scale_is_positive_and_finite(raw):
    for likelihood, output in ((Heteroscedastic(), [0.0, raw]), (Mixture(2), [0.0, 0.0, 0.0, 0.0, raw, raw])):
        result, gradient = jax.value_and_grad(likelihood.log_prob)(jnp.asarray(output), jnp.zeros(1))
        assert np.isfinite(result)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("kind", [Gaussian, StudentT])
def test_the_learned_scale_is_half_normal_on_its_own_scale(kind):
    (parameter,) = kind().parameters()
    assert np.isinf(kind().upper_bound(jnp.zeros(1)))
    assert parameter.name == "scale"
    assert parameter.shape == ()
    assert kind(scale=0.5).parameters() == ()
    u = np.linspace(-3, 1, 9)
    result = [parameter.log_prior(jnp.asarray(v, jnp.float32)) for v in u]
    np.testing.assert_allclose(result, stats.halfnorm.logpdf(np.exp(u)) + u, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(parameter.natural(u), np.exp(u))
    grid = np.linspace(-15, 3, 20_001)
    density = np.exp([float(v) for v in jax.vmap(parameter.log_prior)(jnp.asarray(grid))])
    np.testing.assert_allclose(np.trapezoid(density, grid), 1.0, atol=1e-4)


@pytest.mark.parametrize("kind", [Gaussian, StudentT])
def test_each_target_has_a_learned_scale_of_its_own(kind):
    """Each of three targets has its own place and prior, is drawn separately, and belongs to its target."""
    (parameter,) = kind().of_targets(3).parameters()
    assert parameter.shape == (3,)
    assert kind(scale=0.5).of_targets(3).parameters() == ()
    u = np.array([-1.0, 0.3, 0.8])
    result = parameter.log_prior(jnp.asarray(u, jnp.float32))
    np.testing.assert_allclose(result, np.sum(stats.halfnorm.logpdf(np.exp(u)) + u), rtol=1e-5)
    draws = np.asarray(jax.vmap(parameter.draw)(jax.random.split(jax.random.key(0), 2000)))
    assert np.abs(np.corrcoef(draws.T) - np.eye(3)).max() < 5 / 2000**0.5
    assert stats.kstest(np.exp(draws[:, 2]), stats.halfnorm.cdf).pvalue > 1e-6
    fixed = kind().of_targets(3).with_parameters({"scale": jnp.asarray([0.3, 2.0, 1.0])})
    law = stats.norm if kind is Gaussian else stats.t(4)
    expected = np.sum(law.logpdf(np.array([1.0, -2.0, 0.5]) / [0.3, 2.0, 1.0]) - np.log([0.3, 2.0, 1.0]))
    result = fixed.log_prob(jnp.zeros(3), jnp.asarray([1.0, -2.0, 0.5]))
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_a_learned_scale_is_set_by_its_value():
    fixed = Gaussian().with_parameters({"scale": jnp.asarray(0.3)})
    log_density = fixed.log_prob(jnp.zeros(1), jnp.ones(1))
    np.testing.assert_allclose(log_density, stats.norm.logpdf(1, 0, 0.3), rtol=1e-6)
    fixed = StudentT(5.0).with_parameters({"scale": jnp.asarray(0.3)})
    np.testing.assert_allclose(fixed.log_prob(jnp.zeros(1), jnp.ones(1)), stats.t.logpdf(1, 5, 0, 0.3), rtol=1e-5)
    assert Gaussian(0.5).with_parameters({}) == Gaussian(0.5)


@pytest.mark.parametrize(
    ("bad", "message"), [(-1.0, r"row 2, target 1: not a count \(got -1\)"), (0.5, "row 2"), (1e-3, "row 2")]
)
def test_poisson_refuses_targets_that_are_not_counts(bad, message):
    with pytest.raises(UsageError, match=message):
        Poisson().check(np.array([[1.0], [bad], [2.0]]), 1)
    Poisson().check(np.array([[0.0], [7.0]]), 1)


@pytest.mark.parametrize(("y", "f"), [(0, -90.0), (0, 90.0), (3, 90.0), (3, -90.0), (1e6, 0.0)])
def test_poisson_gradients_are_finite(y, f):
    value, gradient = jax.value_and_grad(lambda f: Poisson().log_prob(f[None], jnp.array([float(y)])))(jnp.float32(f))
    assert not np.isnan(value)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(gradient, np.float32(y - np.exp(f)), rtol=1e-5, atol=1e-6)


def test_poisson_keeps_its_digits_for_rare_counts():
    """A million rows with count 0: each log density is about 1e-5, and the differences are summed over all rows."""
    outputs = np.array([-14.0, -7.6], np.float32)
    at = jax.vmap(lambda f: Poisson().log_prob(f[None], jnp.zeros(1)))
    result = np.asarray(at(jnp.asarray(outputs)) - at(jnp.asarray(outputs + np.float32(0.3))), np.float64)
    expected = np.exp(np.asarray(outputs + np.float32(0.3), np.float64)) - np.exp(np.asarray(outputs, np.float64))
    np.testing.assert_allclose(result, expected, rtol=2e-6)


def test_poisson_of_whole_numbers_is_that_of_the_same_reals():
    target = np.array([0, 3, 9, 10, 65536, 2_000_000])
    look = jax.vmap(lambda y: Poisson().log_prob(jnp.array([11.0]), y[None]))
    bound = jax.vmap(lambda y: Poisson().upper_bound(y[None]))
    for of in (look, bound):
        np.testing.assert_array_equal(of(jnp.asarray(target, jnp.int32)), of(jnp.asarray(target, jnp.float32)))


@pytest.mark.parametrize("y", [0, 1, 2, 9, 10, 11, 300, 100_000, 1_000_000])
def test_poisson_keeps_its_digits_for_large_counts(y):
    target, most = jnp.array([float(y)]), np.longdouble(max(y, 1))
    outputs = (np.log(float(most)) + np.linspace(-2, 2, 41) / float(most) ** 0.5).astype(np.float32)
    log_density = np.asarray(jax.vmap(lambda f: Poisson().log_prob(f[None], target))(jnp.asarray(outputs)))
    log_factorial = np.sum(np.log(np.arange(1, y + 1, dtype=np.longdouble)))
    expected = y * outputs.astype(np.longdouble) - np.exp(outputs.astype(np.longdouble)) - log_factorial
    # An output of 13 is itself known to 5e-7, which a count of a million feels.
    np.testing.assert_allclose(log_density, expected.astype(float), rtol=2e-6, atol=2e-6 * max(y, 1) ** 0.5)
    assert log_density.max() <= Poisson().upper_bound(target)


@pytest.mark.usefixtures("as_options")
def test_bernoulli_refuses_three_classes():
    with pytest.raises(UsageError, match=r"needs 2 classes \(got 3\); use --likelihood categorical"):
        Bernoulli().check(np.array([0, 1, 2]), 3)
    Bernoulli().check(np.array([0, 1]), 2)


def test_class_probabilities():
    logits = jnp.asarray([0.3, -2.0, 4.0])
    np.testing.assert_allclose(Categorical().class_probabilities(logits), special.softmax(logits), rtol=1e-6)
    np.testing.assert_allclose(
        Bernoulli().class_probabilities(jnp.asarray([40.0])), [special.expit(-40.0), 1.0], rtol=1e-5
    )
    with pytest.raises(NotImplementedError):
        Gaussian().class_probabilities(logits)


class _Law(AbstractLikelihood):
    task = "regression"
    law: str

    def num_outputs(self, num_targets: int) -> int:
        return 2 * num_targets

    def distribution(self, output):
        first, two = output[:1], output[1:]
        laws = {
            "wide": lambda: dist.Normal(output, 1.0),
            "gompertz": lambda: dist.Gompertz(jnp.exp(first), jnp.exp(two)),
            "gumbel": lambda: dist.Gumbel(first, jnp.exp(two)),
        }
        return laws[self.law]().to_event(1)


@pytest.mark.parametrize(
    ("law", "message"), [("gompertz", "must have a mean and a variance"), ("wide", "mean and variance must have shape")]
)
def test_a_law_without_mean_or_variance_is_refused_before_a_run(law, message):
    targets = np.zeros((5, 1), np.float32)
    with pytest.raises(UsageError, match=message):
        check_likelihood(_Law(law), 1, targets)
    check_likelihood(_Law("gumbel"), 1, targets)


def test_an_invalid_count_is_reported_with_its_table_row():
    frame = pd.DataFrame({"a": np.arange(60) % 7, "y": [3 + i % 5 - (i == 57) * 6 for i in range(60)]})
    for seed in range(4):
        with pytest.raises(UsageError, match=r"data: likelihood poisson: row 58, target 1: not a count \(got -1\)"):
            bnnzoo.sample("linear", "nuts", data=frame, task="regression", likelihood="poisson", split_seed=seed)


@pytest.mark.long
def test_invalid_counts_are_not_scored(tmp_path):
    frame = pd.DataFrame({"a": np.arange(60) % 7, "y": np.arange(60) % 5})
    lengths = {"chains": 2, "warmup": 20, "draws": 20, "init": "prior", "out": tmp_path / "run.nc"}
    run = bnnzoo.sample("linear", "random-walk", data=frame, task="regression", likelihood="poisson", **lengths)
    with pytest.raises(UsageError, match=r"row 2, target 1: not a count \(got 2.5\)"):
        run.evaluate(pd.DataFrame({"a": [1, 2], "y": [3, 2.5]}))
