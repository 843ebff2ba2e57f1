"""Control variates: the polynomial's parts add up, deltas stay unbiased, and chains draw from the exact law."""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bnnzoo.errors import UsageError
from bnnzoo.models import Linear, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Bernoulli, Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.samplers import Penalty
from bnnzoo.samplers.common.control_variate import Anchor, make_anchor, next_anchor
from bnnzoo.sampling.devices import jax_settings

ORDERS = pytest.mark.parametrize("order", ["none", "first", "second"])
CHAINS, STEPS = 10_000, 30
THRESHOLD = 4.89
"""Quantile of a standard normal for one false alarm in a million."""


def network(rows: int = 6, power: float = 0.7) -> NetworkPosterior:
    """Return a small network whose log-likelihood is not a polynomial."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 2)).astype(np.float64)
    y = (x[:, 0] > rng.normal(size=rows)).astype(np.int32)
    model = Mlp((3,), "tanh").build((2,), 1, key=jax.random.key(0))
    return NetworkPosterior.of(model, Bernoulli(), Normal(1.3), x, y, likelihood_power=power)


def slope_only(rows: int = 300) -> NetworkPosterior:
    """Logistic regression without a bias: one parameter, whose law a grid tells exactly."""
    rng = np.random.default_rng(5)
    x = (1 + rng.normal(size=(rows, 1))).astype(np.float32)
    y = (rng.uniform(size=rows) < 1 / (1 + np.exp(-1.5 * x[:, 0]))).astype(np.int32)
    network = Linear().build((1,), 1, key=jax.random.key(0))
    slope = eqx.tree_at(lambda m: m.bias, network, jnp.zeros((1,)))
    weight_only = jax.tree.map(lambda leaf: leaf is slope.weight, slope)
    return NetworkPosterior.of(slope, Bernoulli(), Normal(1.0), x, y, sampled=weight_only)


def anchor_of(posterior: NetworkPosterior, order: str, point) -> Anchor | None:
    """Return the anchor at a point."""
    if order == "none":
        return None

    def total(theta):
        return jnp.sum(posterior.log_likelihoods(theta))

    gradient, hessian = jax.jit(lambda t: (jax.grad(total)(t), jax.hessian(total)(t)))(point)
    return Anchor(point, gradient, hessian if order == "second" else None)


@pytest.mark.parametrize("order", ["first", "second"])
def test_the_whole_part_is_the_sum_of_the_batch_part(order):
    with jax_settings.arithmetic("float64"):
        posterior = network()
        point, start, end = 0.5 * jax.random.normal(jax.random.key(1), (3, posterior.layout.dim))
        anchor = anchor_of(posterior, order, point)
        assert anchor is not None
        parts = eqx.filter_jit(anchor.batch_part)(posterior, start, end, posterior.data)
        np.testing.assert_allclose(parts.sum(), anchor.whole_part(start, end), rtol=1e-12)

        # q_i against the polynomial written out, datum by datum.
        def row_part(theta, i):
            return posterior.log_likelihood(theta, posterior.take(i[None]))[0]

        @jax.jit
        def polynomial(theta, i):
            away = theta - point
            value = jax.grad(row_part)(point, i) @ away
            return value + (away @ jax.hessian(row_part)(point, i) @ away / 2 if order == "second" else 0.0)

        for i in range(posterior.num_data):
            row = jnp.asarray(i)
            np.testing.assert_allclose(parts[i], polynomial(end, row) - polynomial(start, row), rtol=1e-10)


@ORDERS
@pytest.mark.parametrize("sampling", ["replacement", "disjoint"])
def test_delta_and_sigma2_are_unbiased_over_all_batches(order, sampling):
    with jax_settings.arithmetic("float64"):
        posterior = network()
        point, start, end = 0.5 * jax.random.normal(jax.random.key(1), (3, posterior.layout.dim))
        sampler = Penalty(batch_size=3, num_batches=1, sampling=sampling, control_variate=order)
        anchor = anchor_of(posterior, order, point)
        at = jax.jit(lambda theta: posterior.log_likelihood(theta, posterior.data))
        d = at(end) - at(start)
        expected = posterior.log_prior(end) - posterior.log_prior(start)
        truth = -float(expected + posterior.likelihood_power * jnp.sum(d))
        if anchor is not None:
            d = d - eqx.filter_jit(anchor.batch_part)(posterior, start, end, posterior.data)
            expected = expected + posterior.likelihood_power * anchor.whole_part(start, end)
        all_rows = range(posterior.num_data)
        batches = (
            itertools.permutations(all_rows, 3) if sampling == "disjoint" else itertools.product(all_rows, repeat=3)
        )
        each = jax.jit(jax.vmap(lambda rows: sampler.difference(posterior, d[rows], expected)))
        result = each(jnp.array(list(batches)))
        np.testing.assert_allclose(np.mean(result.delta), truth, rtol=1e-12)
        np.testing.assert_allclose(np.mean(result.sigma2), np.var(result.delta), rtol=1e-10)


def test_the_anchor_is_at_the_mode_when_a_newton_step_reaches_it():
    with jax_settings.arithmetic("float64"):
        posterior = slope_only()
        far = jnp.array([2.5])
        near = jax.jit(lambda theta: make_anchor(posterior, theta, second=True))(far)
        np.testing.assert_array_equal(near.point, far)
        move = jax.jit(lambda anchor: next_anchor(anchor, posterior, anchor.point))
        for _ in range(5):
            near = move(near)
        assert abs(float(jax.jit(jax.grad(posterior.log_density))(near.point)[0])) < 0.05
        by_hand = anchor_of(posterior, "second", near.point)
        np.testing.assert_allclose(near.hessian, by_hand.hessian)
        np.testing.assert_allclose(near.gradient, by_hand.gradient, atol=1e-10)
        first = jax.jit(lambda theta: next_anchor(make_anchor(posterior, theta, second=False), posterior, theta + 1))(
            far
        )
        assert first.hessian is None
        np.testing.assert_array_equal(first.point, far + 1)


def test_a_gaussian_log_likelihood_leaves_no_noise_at_second_order():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, 3)).astype(np.float32)
    y = x @ np.ones((3, 1), np.float32) + rng.normal(size=(5000, 1)).astype(np.float32)
    posterior = NetworkPosterior.of(
        Linear().build((3,), 1, key=jax.random.key(0)), Gaussian(1.0), Normal(1.0), x, y.astype(np.float32)
    )
    for order, most in (("second", 1e-3), ("none", np.inf)):
        sampler = Penalty(batch_size=20, num_batches=2, control_variate=order, proposal="langevin", step_size=1e-5)
        state = eqx.filter_jit(sampler.init)(posterior, jnp.ones((4,)), num_warmup=0, key=jax.random.key(1))
        sigma2 = float(eqx.filter_jit(sampler.step)(posterior, state, key=jax.random.key(2))[1]["sigma2"])
        assert sigma2 < most
    assert sigma2 > 0.1


@pytest.mark.long
def test_a_langevin_proposal_is_one_leapfrog_step():
    posterior = network(50)
    theta = 0.3 * jax.random.normal(jax.random.key(0), (posterior.layout.dim,))
    for order in ("none", "second"):
        common = {"batch_size": 10, "num_batches": 2, "control_variate": order}
        results = []
        for sampler in (
            Penalty(proposal="langevin", step_size=0.02, **common),
            Penalty(proposal="hmc", num_steps=1, step_size=0.2, **common),
        ):
            state = eqx.filter_jit(sampler.init)(posterior, theta, num_warmup=0, key=jax.random.key(1))
            results.append(eqx.filter_jit(sampler.step)(posterior, state, key=jax.random.key(2))[1])
        for name in ("delta", "sigma2", "acceptance_rate"):
            np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-4)


@pytest.mark.usefixtures("as_options")
def test_a_hessian_that_is_too_large_is_refused():
    model = Mlp((50, 50), "tanh").build((2,), 1, key=jax.random.key(0))
    data = np.zeros((10, 2), np.float32), np.zeros(10, np.int32)
    posterior = NetworkPosterior.of(model, Bernoulli(), Normal(1.0), *data)
    with pytest.raises(UsageError, match=r"--sampler\.control-variate second.*use --sampler.control-variate first"):
        Penalty(control_variate="second").check(posterior)
    Penalty(control_variate="first").check(posterior)


# ---- the law of the chain ------------------------------------------------------------------------


def exact_law(posterior: NetworkPosterior) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid and the distribution function on it."""
    with jax_settings.arithmetic("float64"):
        grid = jnp.linspace(-1.0, 5.0, 4001)
        log_density = np.asarray(jax.lax.map(lambda t: posterior.log_density(t[None]), grid))
    weights = np.exp(log_density - log_density.max())
    return np.asarray(grid), np.cumsum(weights) / weights.sum()


def ends(posterior: NetworkPosterior, sampler: Penalty, starts: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return the final positions of chains with a fixed step size, their mean acceptance and sigma2."""

    def chain(theta, key):
        state = sampler.init(posterior, theta, num_warmup=0, key=key)
        if state.anchor is not None:
            near = make_anchor(posterior, jnp.array([1.2]), second=state.anchor.hessian is not None)
            state = eqx.tree_at(lambda s: s.anchor, state, near)

        def step(state, key):
            state, result = sampler.step(posterior, state, key=key)
            return state, (result["acceptance_rate"], result["sigma2"])

        state, (rate, sigma2) = jax.lax.scan(step, state, jax.random.split(key, STEPS))
        return state.position[0], rate.mean(), sigma2.mean()

    keys = jax.random.split(jax.random.key(42), len(starts))
    result = jax.jit(jax.vmap(chain))(jnp.asarray(starts, jnp.float32)[:, None], keys)
    return np.asarray(result[0], float), float(result[1].mean()), float(result[2].mean())


def scores(draws: np.ndarray, grid: np.ndarray, law: np.ndarray) -> np.ndarray:
    """z of the mean and of the second moment of independent draws pushed through their law, and of Kolmogorov's D."""
    normal = stats.norm.ppf(np.clip(np.interp(draws, grid, law), 1e-9, 1 - 1e-9))
    count = len(normal)
    p = stats.kstest(normal, "norm").pvalue
    return np.array([normal.mean() * count**0.5, (np.mean(normal**2) - 1) * (count / 2) ** 0.5, stats.norm.isf(p / 2)])


@pytest.mark.parametrize(
    ("order", "proposal"),
    [
        ("second", "langevin"),
        *(
            pytest.param(order, proposal, marks=pytest.mark.slow)
            for order, proposal in (
                ("first", "random-walk"),
                ("first", "langevin"),
                ("first", "hmc"),
                ("second", "random-walk"),
                ("second", "hmc"),
            )
        ),
    ],
)
def test_exact_draws_stay_exact(order, proposal):
    posterior = slope_only()
    grid, law = exact_law(posterior)
    starts = np.interp(np.random.default_rng(1).uniform(size=CHAINS), law, grid)
    step = {"random-walk": 0.2, "langevin": 0.02, "hmc": 0.1}[proposal]
    sampler = Penalty(
        batch_size=20, num_batches=2, control_variate=order, proposal=proposal, step_size=step, num_steps=4
    )
    draws, acceptance, sigma2 = ends(posterior, sampler, starts)
    assert 0.4 < acceptance < 0.97
    assert sigma2 < 1.0
    assert np.abs(scores(draws, grid, law)).max() < THRESHOLD
    assert np.corrcoef(draws, starts)[0, 1] < 0.9


@pytest.mark.parametrize("proposal", ["random-walk", pytest.param("langevin", marks=pytest.mark.slow)])
def test_chains_from_distant_positions_converge(proposal):
    posterior = slope_only()
    grid, law = exact_law(posterior)
    step = {"random-walk": 0.3, "langevin": 0.04}[proposal]
    sampler = Penalty(batch_size=20, num_batches=2, control_variate="second", proposal=proposal, step_size=step)
    starts = np.full(CHAINS, np.interp(0.999, law, grid))
    draws, _, _ = ends(posterior, sampler, starts)
    assert np.abs(scores(draws, grid, law)).max() < THRESHOLD


@pytest.mark.long
def test_a_missing_sum_over_all_rows_is_detected(monkeypatch):
    posterior = slope_only()
    grid, law = exact_law(posterior)
    starts = np.interp(np.random.default_rng(1).uniform(size=CHAINS), law, grid)
    monkeypatch.setattr(Anchor, "whole_part", lambda self, start, end: jnp.zeros(()))
    sampler = Penalty(batch_size=20, num_batches=2, control_variate="second", step_size=0.2)
    draws, _, _ = ends(posterior, sampler, starts)
    assert np.abs(scores(draws, grid, law)).max() > THRESHOLD
