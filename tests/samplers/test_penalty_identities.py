"""Exact identities of the noise penalty, without randomness: all batches are enumerated."""

from __future__ import annotations

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_mean import GaussianMean
from jaxtyping import Array
from scipy import integrate, special, stats

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers import Penalty
from bnnzoo.samplers.kernel import metropolis
from bnnzoo.samplers.subsampled.noise_penalty import noise_penalty
from bnnzoo.sampling.devices import jax_settings

PLACES = np.array([0.25, 1.0, 3.0])
VARIANCES = [0.25, 2.0, 4.0]
"""Variances other than 1, because for 1 the standard deviation is equal to the variance."""


# ---- T01: detailed balance under normal noise of known variance ----------------------------------


def _acceptance(change: float, sigma2: float, rate: Any) -> float:
    """E rate(x) over x ~ N(change, sigma2): Gauss and Legendre on either side of the kink at rate = 1."""
    sd = sigma2**0.5
    low, high = change - 9 * sd, change + 9 * sd
    kink = np.clip(-sigma2 / 2, low, high)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    total = 0.0
    for start, stop in ((low, kink), (kink, high)):
        x = start + (stop - start) * (nodes + 1) / 2
        mass = stats.norm.pdf(x, change, sd) * weights * (stop - start) / 2
        total += float(mass @ np.asarray(rate(x, sigma2), float))
    return total


def _real_rate(x: np.ndarray, sigma2: float) -> Array:
    """Return the acceptance probability of an estimate `x` with known variance (infinitely many degrees of freedom)."""
    penalty = noise_penalty(jnp.asarray(sigma2), jnp.inf, 3)
    rate = lambda delta: metropolis(-delta - penalty, key=jax.random.key(0))[1]  # noqa: E731
    return jax.vmap(rate)(jnp.asarray(x))


def _imbalance(change: float, sigma2: float, rate: Any) -> float:
    """Return log A(change) - log A(-change) + change, which is zero under detailed balance."""
    return np.log(_acceptance(change, sigma2, rate) / _acceptance(-change, sigma2, rate)) + change


@pytest.mark.parametrize(("precision", "bound"), [("float64", 1e-6), ("float32", 1e-3)])
def test_the_penalised_acceptance_is_in_detailed_balance(precision, bound):
    with jax_settings.arithmetic(precision):
        for change, sigma2 in itertools.product(PLACES, VARIANCES):
            assert abs(_imbalance(change, sigma2, _real_rate)) <= bound, (change, sigma2)


@pytest.mark.parametrize("sigma2", VARIANCES)
def test_the_acceptance_at_no_change_is_the_closed_form(sigma2):
    with jax_settings.arithmetic("float64"):
        np.testing.assert_allclose(_acceptance(0.0, sigma2, _real_rate), special.erfc((sigma2 / 8) ** 0.5), rtol=1e-6)


WRONG = {
    "no penalty": lambda x, s: np.exp(np.minimum(-x, 0)),
    "sigma2 / 4": lambda x, s: np.exp(np.minimum(-x - s / 4, 0)),
    "sigma2": lambda x, s: np.exp(np.minimum(-x - s, 0)),
    "standard deviation": lambda x, s: np.exp(np.minimum(-x - s**0.5 / 2, 0)),
    "outside the minimum": lambda x, s: np.exp(np.minimum(-x, 0) - s / 2),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_penalty_is_out_of_balance(wrong):
    """The positive controls."""
    assert max(abs(_imbalance(c, s, WRONG[wrong])) for c, s in itertools.product(PLACES, VARIANCES)) > 0.05


def test_a_step_accepts_with_its_penalised_ratio():
    """min(1, exp(-delta - u)), u inside the minimum and by the series of the step's own sigma2."""
    sampler = Penalty(step_size=0.3, batch_size=5, num_batches=4, preconditioner="identity")
    step_stats = _steps(sampler, GaussianMean.of(50), 200)
    np.testing.assert_allclose(step_stats["penalty"], _series(step_stats["sigma2"], 19.0, 3), rtol=1e-5)
    ratio = np.exp(np.minimum(-step_stats["delta"] - step_stats["penalty"], 0))
    np.testing.assert_allclose(step_stats["acceptance_rate"], ratio, rtol=1e-5, atol=1e-30)
    assert 0.1 < ratio.mean() < 0.9


def _steps(sampler: Penalty, posterior: AbstractPosterior, count: int) -> dict[str, np.ndarray]:
    """Return the statistics [step] of single steps from one position with `count` keys."""
    theta = jnp.asarray([0.25], posterior.dtype)
    state = sampler.init(posterior, theta, num_warmup=0, key=jax.random.key(0))
    step = jax.jit(jax.vmap(lambda key: sampler.step(posterior, state, key=key)[1]))
    result = step(jax.random.split(jax.random.key(1), count))
    return {name: np.asarray(value) for name, value in result.items()}


# ---- T02: the series for an estimated variance ---------------------------------------------------


def _penalties(sigma2: np.ndarray, dof: int, terms: int) -> np.ndarray:
    return np.asarray(jax.vmap(lambda s: noise_penalty(s, dof, terms))(jnp.asarray(sigma2)))


def _rayleigh(chi2: np.ndarray | float, dof: float) -> list[Any]:
    """The first four terms of -log 0F1(; dof/2; -dof chi2/4), by Rayleigh's sums over the zeros of J_v."""
    v, square = dof / 2 - 1, dof * chi2
    sums = (
        1 / (4 * (v + 1)),
        1 / (16 * (v + 1) ** 2 * (v + 2)),
        1 / (32 * (v + 1) ** 3 * (v + 2) * (v + 3)),
        (5 * v + 11) / (256 * (v + 1) ** 4 * (v + 2) ** 2 * (v + 3) * (v + 4)),
    )
    return [square**n * each / n for n, each in enumerate(sums, 1)]


def _series(sigma2: Any, dof: float, terms: int) -> Any:
    return sum(_rayleigh(sigma2, dof)[:terms])


@pytest.mark.parametrize("dof", [4, 10, 18, 98])
@pytest.mark.parametrize("terms", [1, 2, 3])
def test_the_penalty_is_the_logarithm_of_the_function_to_the_next_term(dof, terms):
    """All terms are positive and fall at least like powers of dof chi2 / z^2, z the first zero of J_{dof/2 - 1}."""
    first_zero = special.jn_zeros(dof // 2 - 1, 1)[0]
    with jax_settings.arithmetic("float64"):
        for chi2 in np.linspace(0.01, 0.25, 7) * dof:
            exact = -np.log(special.hyp0f1(dof / 2, -dof * chi2 / 4))
            rest = exact - float(noise_penalty(jnp.asarray(chi2), dof, terms))
            following = _rayleigh(chi2, dof)[terms]
            assert 0.99 * following < rest < following / (1 - dof * chi2 / first_zero**2), chi2


@pytest.mark.parametrize("dof", [1, 4, 19, 99])
@pytest.mark.parametrize("sigma2", [0.25, 1.0, 2.0])
def test_the_function_has_the_mean_of_a_known_variance(dof, sigma2):
    """E 0F1(; dof/2; -dof chi2/4) = exp(-sigma2/2) over chi2 ~ sigma2 chi^2_dof / dof: what the series is one of."""
    # Substituted by chi2 = sigma2 r^2 / dof, whose density is smooth at 0.
    value = integrate.quad(
        lambda r: special.hyp0f1(dof / 2, -sigma2 * r**2 / 4) * stats.chi.pdf(r, dof),
        0,
        dof**0.5 + 12,
        epsabs=1e-11,
        limit=400,
    )[0]
    assert abs(value - np.exp(-sigma2 / 2)) <= 1e-8


@pytest.mark.parametrize("sigma2", [0.25, 1.0, 2.0])
def test_more_terms_come_closer_to_that_mean(sigma2):
    dof = 19
    quantiles = stats.chi2.ppf((np.arange(20_000) + 0.5) / 20_000, dof) / dof
    with jax_settings.arithmetic("float64"):
        errors = [
            abs(np.log(np.exp(-_penalties(sigma2 * quantiles, dof, terms)).mean()) + sigma2 / 2) for terms in (1, 2, 3)
        ]
    assert errors[0] > 3 * errors[1] > 9 * errors[2]
    assert errors[2] < 2e-3


def test_the_penalty_with_no_terms_or_infinite_degrees_of_freedom():
    with jax_settings.arithmetic("float64"):
        sigma2 = np.array([0.1, 1.0, 10.0])
        np.testing.assert_array_equal(_penalties(sigma2, 5, 0), 0.0)
        np.testing.assert_allclose(_penalties(sigma2, 10**12, 3), sigma2 / 2, rtol=1e-9)


def test_beyond_a_quarter_of_the_degrees_of_freedom_the_penalty_is_finite_and_the_step_is_counted():
    with jax_settings.arithmetic("float64"):
        values = _penalties(np.array([1.0, 10.0, 100.0, 1e4]), 2, 3)
    assert np.isfinite(values).all()
    assert (np.diff(values) > 0).all()
    posterior = GaussianMean.of(50)
    # The differences of 8 data scaled by 50: sigma2 is of the order of 50 / 8.
    sampler = Penalty(step_size=0.3, batch_size=4, num_batches=2, variance="batch-means", preconditioner="identity")
    step_stats = _steps(sampler, posterior, 200)
    np.testing.assert_array_equal(step_stats["regime_dof"], step_stats["sigma2"] > 0.25)
    assert 0.1 < step_stats["regime_dof"].mean() < 1


# ---- T03: every batch there is -------------------------------------------------------------------

N, SIZE, BATCHES = 6, 2, 2
ASYMMETRIC = np.array([0.0, 0.1, 0.4, 1.0, 2.5, 6.0])


def _every_batch(sampling: str) -> np.ndarray:
    """Return all equally likely index tuples of a step [tuple, K]."""
    draws = SIZE * BATCHES
    every = itertools.product(range(N), repeat=draws)
    return np.array(list(every if sampling == "replacement" else itertools.permutations(range(N), draws)))


class GivenBatch(GaussianMean):
    """A posterior that draws given rows instead of random ones."""

    indices: Any = None

    def minibatch(self, size: int, *, replace: bool = True, key: Any) -> Array:
        del replace, key
        assert self.indices.shape == (size,)
        return self.take(self.indices)


EACH_SCHEME = pytest.mark.parametrize("sampling", ["replacement", "disjoint"])
EACH_VARIANCE = pytest.mark.parametrize("variance", ["pooled", "batch-means"])


@EACH_SCHEME
@EACH_VARIANCE
@pytest.mark.parametrize("power", [1.0, 0.25])
def test_delta_and_its_variance_are_unbiased_over_all_batches(sampling, variance, power):
    with jax_settings.arithmetic("float64"):
        posterior = eqx.tree_at(lambda p: p.likelihood_power, GaussianMean.of(N, ASYMMETRIC), np.float64(power))
        sampler = _sampler(sampling, variance)
        theta, proposal = jnp.asarray([0.4]), jnp.asarray([0.9])
        each = posterior.log_likelihoods(proposal) - posterior.log_likelihoods(theta)
        prior = posterior.log_prior(proposal) - posterior.log_prior(theta)
        estimate = jax.jit(jax.vmap(lambda batch: sampler.difference(posterior, each[batch], prior)))
        result = estimate(jnp.asarray(_every_batch(sampling)))
        exact = float(posterior.log_density(theta) - posterior.log_density(proposal))
    _check_unbiased(np.asarray(result.delta), np.asarray(result.sigma2), exact)


@EACH_SCHEME
def test_the_skewness_is_that_of_means_over_all_batches(sampling):
    """The log ratio -delta is tested at nine tenths of the data, with one false alarm in a million."""
    total, used = 400, 360
    with jax_settings.arithmetic("float64"):
        posterior = GaussianMean.of(total, np.random.default_rng(0).exponential(size=total))
        sampler = Penalty(batch_size=used // 20, num_batches=20, sampling=sampling)
        each = jnp.asarray(posterior.data)
        rng = np.random.default_rng(1)
        draw = (
            (lambda: rng.integers(0, total, used))
            if sampling == "replacement"
            else (lambda: rng.permutation(total)[:used])
        )
        batches = jnp.asarray(np.array([draw() for _ in range(40_000)]))
        result = jax.jit(
            lambda b: jax.lax.map(
                lambda item: sampler.difference(posterior, each[item], jnp.zeros(())), b, batch_size=1000
            )
        )(batches)
    delta, skewness = -np.asarray(result.delta), np.asarray(result.skewness)
    centred = (delta - delta.mean()) / delta.std()
    third_moment, error = (centred**3).mean(), (centred**3).std() / len(delta) ** 0.5
    assert abs(skewness.mean() - third_moment) < 4.89 * error
    # Positive control: without the factor for the unused fraction.
    ratio = -0.8 / 0.1**0.5 if sampling == "disjoint" else -1.0
    assert abs(skewness.mean() / ratio - third_moment) > 4.89 * error


@EACH_SCHEME
@EACH_VARIANCE
def test_a_step_is_unbiased_over_all_batches(sampling, variance):
    """The same for a complete step with fixed proposal and uniform number."""
    with jax_settings.arithmetic("float64"):
        posterior, sampler = GivenBatch.of(N, ASYMMETRIC), _sampler(sampling, variance)
        state = sampler.init(posterior, jnp.asarray([0.9]), num_warmup=0, key=jax.random.key(0))

        def step(indices):
            altered = eqx.tree_at(lambda p: p.indices, posterior, indices, is_leaf=lambda leaf: leaf is None)
            return sampler.step(altered, state, key=jax.random.key(3))

        states, result = jax.jit(jax.vmap(step))(jnp.asarray(_every_batch(sampling)))
        accepted = np.asarray(result["accepted"])
        (proposal,) = np.unique(np.asarray(states.position)[accepted])
        assert proposal != 0.9
        exact = float(posterior.log_density(state.position) - posterior.log_density(jnp.asarray([proposal])))
    _check_unbiased(np.asarray(result["delta"]), np.asarray(result["sigma2"]), exact)


def _sampler(sampling: Any, variance: Any) -> Penalty:
    return Penalty(
        step_size=0.6,
        batch_size=SIZE,
        num_batches=BATCHES,
        sampling=sampling,
        variance=variance,
        preconditioner="identity",
    )


def _check_unbiased(delta: np.ndarray, sigma2: np.ndarray, exact: float) -> None:
    np.testing.assert_allclose(delta.mean(), exact, rtol=1e-12)
    np.testing.assert_allclose(sigma2.mean(), delta.var(), rtol=1e-12)
    assert delta.var() > 0.01
    assert sigma2.std() > 0.01


# ---- T04: antisymmetry and statelessness ---------------------------------------------------------


@EACH_SCHEME
@EACH_VARIANCE
def test_the_way_back_has_minus_the_difference(sampling, variance):
    with jax_settings.arithmetic("float64"):
        posterior, sampler = GaussianMean.of(N, ASYMMETRIC), _sampler(sampling, variance)
        d, prior = jnp.asarray([0.3, -1.0, 2.0, 0.7]), jnp.asarray(0.4)
        forward, back = sampler.difference(posterior, d, prior), sampler.difference(posterior, -d, -prior)
    np.testing.assert_allclose(back.delta, -forward.delta, rtol=1e-12)
    np.testing.assert_allclose(back.sigma2, forward.sigma2, rtol=1e-12)
    np.testing.assert_allclose(back.skewness, -forward.skewness, rtol=1e-12)
    assert float(forward.delta) != 0


def _walk(**more: Any) -> tuple[GaussianMean, Penalty, Any]:
    """Return a posterior, a sampler, and a state after a few steps."""
    posterior = GaussianMean.of(50)
    sampler = Penalty(batch_size=5, num_batches=4, preconditioner="identity", **{"step_size": 0.3, **more})
    state = sampler.init(posterior, jnp.asarray([0.2]), num_warmup=0, key=jax.random.key(0))
    for key in jax.random.split(jax.random.key(7), 8):
        state, _ = eqx.filter_jit(sampler.step)(posterior, state, key=key)
    return posterior, sampler, state


def test_a_step_of_length_zero_has_no_difference():
    """Both points use the same batch, so with theta' = theta every difference is exactly zero."""
    posterior, sampler, state = _walk()
    still = eqx.tree_at(lambda s: s.step_size, state, jnp.zeros(()))
    step = eqx.filter_jit(sampler.step)
    for key in jax.random.split(jax.random.key(8), 5):
        _, result = step(posterior, still, key=key)
        assert result["delta"] == result["sigma2"] == result["penalty"] == 0
        assert result["acceptance_rate"] == 1


def test_a_step_without_differences_has_finite_statistics():
    """A saturated likelihood, or a proposal that rounds to theta, leaves all differences equal."""
    posterior, sampler, state = _walk()
    still = eqx.tree_at(lambda s: s.step_size, state, jnp.zeros(()))
    _, result = eqx.filter_jit(sampler.step)(posterior, still, key=jax.random.key(8))
    assert {name for name, value in result.items() if not np.isfinite(value)} == set()


def test_a_step_depends_only_on_the_position_and_the_proposal():
    """All numbers of the state that a proposal does not need are NaN, so a remembered loss would be visible."""
    posterior, sampler, state = _walk()
    needed = (state.position, state.step_size, state.preconditioner.factor)
    numbers = lambda leaf: eqx.is_inexact_array(leaf) and all(leaf is not n for n in needed)  # noqa: E731
    planted = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan) if numbers(leaf) else leaf, state)
    assert any(np.isnan(leaf).any() for leaf in jax.tree.leaves(planted))
    step = eqx.filter_jit(sampler.step)
    moved = False
    for key in jax.random.split(jax.random.key(9), 10):
        (first, result), (other, same) = step(posterior, state, key=key), step(posterior, planted, key=key)
        np.testing.assert_array_equal(first.position, other.position)
        for name in result:
            np.testing.assert_array_equal(result[name], same[name], err_msg=name)
        moved |= bool(result["accepted"])
    assert moved
