"""SGHMC, preconditioned SGLD, control variates of gradients and schedules, compared with closed forms.

Every formula is a stationary variance on a Gaussian target, divided by the posterior's. A change that moves these
samplers closer to the posterior must fail here.
"""

from __future__ import annotations

import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_mean import GaussianMean, Z, agrees, evolve, scores
from jaxtyping import Array, Float
from parabolas import parabolas
from scipy import linalg, stats

from bnnzoo.errors import UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.samplers import Psgld, Sghmc, Sgld, SmsUbu
from bnnzoo.samplers.sgmcmc.schedule import scheduled_step_size
from bnnzoo.samplers.sgmcmc.sms_ubu import SmsUbuState

N, CHAINS = 1000, 20_000


def _sghmc(length: float, keep: float, noise: float) -> float:
    """1 + eta V (1 + c) / (2 a (1 - c) (1 - eta a / 2)), V = noise, in units of the target's precision."""
    return 1 + length * noise * (1 + keep) / (2 * (1 - keep) * (1 - length / 2))


@pytest.mark.parametrize(
    ("num_data", "size", "keep", "length"),
    [
        (N, 100, 0.5, 0.1),
        (40, 40, 0.5, 0.8),
        pytest.param(N, 100, 0.9, 0.05, marks=pytest.mark.slow),
        pytest.param(N, 10, 0.3, 0.1, marks=pytest.mark.slow),
    ],
)
def test_the_stationary_variance_of_sghmc(num_data, size, keep, length):
    posterior = GaussianMean.of(num_data)
    is_full = size == num_data
    sampler = Sghmc(
        step_size=length * posterior.sd**2,
        momentum=keep,
        batch_size=size,
        sampling="disjoint" if is_full else "replacement",
    )
    noise = 0.0 if is_full else num_data**2 / size / (num_data + 1)
    ratio = _sghmc(length, keep, noise)
    starts = posterior.mean + ratio**0.5 * (posterior.draws(CHAINS, seed=1) - posterior.mean)
    final, _ = evolve(sampler, posterior, starts, steps=240 if keep > 0.5 else 60, seed=2)
    values = posterior.standardised(final)
    assert agrees(scores(values, variance=ratio))
    # Positive controls: SGLD's variance with that step size, and the posterior's own where they differ.
    assert abs(scores(values, variance=(1 + length * noise / 2) / (1 - length / 2))["variance"]) > 2 * Z
    assert is_full or scores(values)["variance"] > 2 * Z


class Line(AbstractPosterior):
    """theta ~ N(0, 1), y_i ~ N(x_i theta, 1): gradients whose differences depend on the datum."""

    data: Any
    likelihood_power: Any = np.float32(1.0)
    layout: Layout = eqx.field(static=True, default=Layout((Block("theta", (1,), 0),)))

    @classmethod
    def of(cls, num_data: int) -> Line:
        rng = np.random.default_rng(5)
        x = rng.normal(size=num_data).astype(np.float32)
        return cls((x, (0.5 * x + rng.normal(size=num_data)).astype(np.float32)))

    @property
    def precision(self) -> float:
        return 1 + float(np.sum(self.data[0].astype(float) ** 2))

    @property
    def mean(self) -> float:
        return float(np.sum(self.data[0].astype(float) * self.data[1])) / self.precision

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        return -(theta[0] ** 2) / 2

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        x, y = batch
        return -((y - x * theta[0]) ** 2) / 2


def _anchored(posterior: Line, length: float, size: int, distance: float) -> float:
    """The variance of SGLD whose anchor is `distance` standard deviations from the mean, over the posterior's.

    The noise of a gradient is N^2 / n Var(x^2) (theta - anchor)^2: v = (1 - eta a)^2 v + eta^2 s^2 (v + b^2) + 2 eta.
    """
    spread = posterior.num_data**2 / size * np.var(posterior.data[0].astype(float) ** 2) / posterior.precision**2
    return (2 * length + length**2 * spread * distance**2) / (1 - (1 - length) ** 2 - length**2 * spread)


def _z_of_variance(values: np.ndarray, variance: float) -> float:
    """Return z of the mean square, with its empirical standard error, because the distribution is not normal."""
    squares = values**2
    return float((squares.mean() - variance) / (squares.std(ddof=1) / len(squares) ** 0.5))


@pytest.mark.parametrize("order", ["first", pytest.param("second", marks=pytest.mark.slow)])
def test_the_stationary_variance_of_sgld_with_control_variates(order):
    posterior, length, distance = Line.of(200), 0.1, 2.0
    sd = posterior.precision**-0.5
    sampler = Sgld(step_size=length / posterior.precision, batch_size=1, control_variate=order)
    starts = np.full((CHAINS, 1), posterior.mean + distance * sd)
    final, _ = evolve(sampler, posterior, starts, steps=120, seed=3)
    values = (final[:, 0].astype(float) - posterior.mean) / sd
    discretised = 1 / (1 - length / 2)
    expected, wrong = _anchored(posterior, length, 1, distance), discretised
    if order == "second":  # the polynomial is the log-likelihood: no noise is left
        expected, wrong = discretised, _anchored(posterior, length, 1, distance)
    assert abs(values.mean()) < Z * (expected / CHAINS) ** 0.5
    assert abs(_z_of_variance(values, expected)) < Z
    assert abs(_z_of_variance(values, wrong)) > 2 * Z


@pytest.mark.parametrize("kind", [Sgld, Sghmc, Psgld])
def test_a_step_is_its_formula_in_each_of_two_parameters(kind, monkeypatch):
    """Compute the step by hand, with all rows and given noise: slopes of 1 and 40, separate momenta and noise."""
    eps, c, eta, power = np.array([1.5, -0.5]), 0.5, 0.02, 0.7
    monkeypatch.setattr(sys.modules[kind.__module__], "standard_normal", lambda like, *, key: jnp.asarray(eps))
    posterior = parabolas([1.0, 3.0], [0.2, -0.4], dim=2, power=power)
    sampler = kind(step_size=eta, batch_size=2, sampling="disjoint", **({"momentum": c} if kind is Sghmc else {}))
    theta = np.array([0.3, -7.0])
    slope = -theta - power * (theta - 0.2 + 3 * (theta + 0.4))
    state = sampler.init(posterior, jnp.asarray(theta, jnp.float32), num_warmup=0, key=jax.random.key(0))
    after, step_stats = sampler.step(posterior, state, key=jax.random.key(1))
    if kind is Sghmc:  # the initial momentum is eps
        h = (2 * eta) ** 0.5
        kicked = eps + h * slope
        renewed = c * kicked + (1 - c**2) ** 0.5 * eps
        np.testing.assert_allclose(after.momentum, renewed, rtol=1e-5)
        expected = theta + h / 2 * (kicked + renewed)
    else:
        own = eta / (0.01 + np.abs(slope) / 2) if kind is Psgld else eta
        expected = theta + own * slope + (2 * own) ** 0.5 * eps
    np.testing.assert_allclose(after.position, expected, rtol=1e-5)
    density = -theta @ theta / 2 - power * np.sum((theta - 0.2) ** 2 + 3 * (theta + 0.4) ** 2) / 2
    assert float(step_stats["lp_estimate"]) == pytest.approx(density, rel=1e-5)


def test_every_chain_begins_with_a_momentum_and_an_order_of_its_own():
    """The momentum is a draw of N(0, I), so that a chain from a draw of the target keeps this distribution."""
    posterior, keys = GaussianMean.of(100), jax.random.split(jax.random.key(0), 2000)
    for sampler in (Sghmc(batch_size=10), SmsUbu(batch_size=10)):
        start = jax.vmap(lambda key, s=sampler: s.init(posterior, jnp.zeros(3), num_warmup=0, key=key))
        states = start(keys)
        momenta = np.asarray(states.momentum, float)
        assert stats.kstest(momenta.ravel(), "norm").pvalue > 1e-6
        assert np.abs(np.corrcoef(momenta.T) - np.eye(3)).max() < Z / len(keys) ** 0.5
        if isinstance(states, SmsUbuState):
            batch = jax.vmap(lambda state, s=sampler: s._next_batch(posterior, state))
            assert len(np.unique(np.sort(batch(jax.tree.map(lambda a: a[:20], states)), 1), axis=0)) == 20


def test_psgld_takes_each_parameters_own_step():
    posterior, root, damping, length = GaussianMean.of(40), 0.3, 0.1, 0.4

    class Known(Psgld):
        def init(self, posterior, theta, *, num_warmup, key):
            state = super().init(posterior, theta, num_warmup=num_warmup, key=key)
            return eqx.tree_at(lambda s: s.square, state, jnp.full_like(theta, root**2))

    eta = length * posterior.sd**2 * (root + damping)
    sampler = Known(step_size=eta, damping=damping, batch_size=40, sampling="disjoint")
    ratio = 1 / (1 - length / 2)
    final, _ = evolve(sampler, posterior, posterior.draws(CHAINS, seed=1), steps=30, seed=2)
    values = posterior.standardised(final)
    assert agrees(scores(values, variance=ratio))
    # Positive controls: the step without its preconditioner, and the posterior's own variance.
    assert abs(scores(values, variance=1 / (1 - eta * 41 / 2))["variance"]) > 2 * Z
    assert scores(values)["variance"] > 2 * Z


def test_psgld_learns_in_warm_up_only():
    posterior = GaussianMean.of(N)
    sampler = Psgld(step_size=1e-6, alpha=0.25, batch_size=N, sampling="disjoint")
    theta = jnp.asarray([1.0])
    state = sampler.init(posterior, theta, num_warmup=0, key=jax.random.key(0))
    gradient = np.asarray(jax.grad(posterior.log_density)(theta)) / N
    np.testing.assert_allclose(state.square, gradient**2, rtol=1e-5)
    other = eqx.tree_at(lambda s: s.square, state, 3 * state.square)
    learned, _ = sampler.warmup_step(posterior, other, key=jax.random.key(1))
    np.testing.assert_allclose(learned.square, (0.25 * 3 + 0.75) * gradient**2, rtol=1e-5)
    state_after, _ = sampler.step(posterior, other, key=jax.random.key(1))
    np.testing.assert_array_equal(state_after.square, other.square)


def _ubu(length: float, keep: float) -> float:
    """The stationary variance of UBU without gradient noise on the target N(0, 1), by its linear map and noise.

    The flow's noise is the integral of e^(s A) Q e^(s A') by Van Loan's method, not by the sampler's formulas.
    """
    h = (2 * length) ** 0.5
    gamma = -np.log(keep) / h
    drift, spread = np.array([[0, 1], [0, -gamma]]), np.diag([0, 2 * gamma])
    propagator = linalg.expm(np.block([[-drift, spread], [np.zeros((2, 2)), drift.T]]) * h / 2)
    flow = propagator[2:, 2:].T
    noise = flow @ propagator[:2, 2:]
    kick = np.array([[1, 0], [-h, 1]])
    through = flow @ kick
    return linalg.solve_discrete_lyapunov(through @ flow, through @ noise @ through.T + noise)[0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("length", "keep"), [(0.8, 0.5), (0.4, 0.2)])
def test_the_stationary_variance_of_ubu(length, keep):
    posterior = GaussianMean.of(40)
    sampler = SmsUbu(step_size=length * posterior.sd**2, momentum=keep, batch_size=40)
    final, _ = evolve(sampler, posterior, posterior.draws(CHAINS, seed=1), steps=60, seed=2)
    values = posterior.standardised(final)
    assert agrees(scores(values, variance=_ubu(length, keep)))
    # Positive control: SGHMC's variance, which is that of the posterior.
    assert abs(scores(values)["variance"]) > 2 * Z


@pytest.mark.long
def test_symmetric_sweeps_cancel_the_noise_of_the_batches():
    """This removes four fifths of the variance that independent batches would add."""
    num_data, size, length, keep = 40, 10, 0.2, 0.5
    posterior = GaussianMean.of(num_data)
    fields = {"step_size": length * posterior.sd**2, "momentum": keep, "batch_size": size}
    noise = num_data**2 / size / (num_data + 1) * (num_data / (num_data - 1)) * (1 - size / num_data)
    added = _sghmc(length, keep, noise) - 1
    starts = posterior.draws(5000, seed=1)
    sweeps, _ = evolve(SmsUbu(**fields), posterior, starts, steps=64, seed=2)
    anew, _ = evolve(Sghmc(sampling="disjoint", **fields), posterior, starts, steps=64, seed=2)
    ratio = posterior.standardised(sweeps).var() / _ubu(length, keep)
    assert added > 0.5
    assert ratio - 1 < 0.2 * added
    assert posterior.standardised(anew).var() - 1 > 0.8 * added


@pytest.mark.long
def test_a_sweep_takes_every_row_twice():
    posterior = GaussianMean.of(100)
    sampler = SmsUbu(batch_size=30)
    state = sampler.init(posterior, jnp.asarray([0.0]), num_warmup=0, key=jax.random.key(0))
    rows = []
    for _ in range(12):
        rows.append(np.asarray(sampler._next_batch(posterior, state)))
        state, _ = sampler.step(posterior, state, key=jax.random.key(1))
    assert len(np.unique(np.concatenate(rows[:3]))) == 90
    for forwards, backwards in zip(rows[:3], rows[5:2:-1], strict=True):
        np.testing.assert_array_equal(forwards, backwards)
    assert len(np.unique(np.concatenate(rows[6:9]))) == 90
    assert not np.array_equal(rows[0], rows[6])


def test_the_anchor_moves_in_warm_up_alone():
    posterior = GaussianMean.of(N)
    sampler = Sghmc(control_variate="first")
    state = sampler.init(posterior, jnp.asarray([1.0]), num_warmup=10, key=jax.random.key(0))
    state, _ = sampler.step(posterior, state, key=jax.random.key(1))
    assert state.anchor is not None
    assert state.anchor.point == 1.0 != state.position
    for final in (False, True):
        state = sampler.settle(posterior, state, final=final, key=jax.random.key(2))
        np.testing.assert_array_equal(state.anchor.point, state.position)
        state, _ = sampler.step(posterior, state, key=jax.random.key(3))


def test_schedules():
    def at(schedule: Any, *counts: int) -> np.ndarray:
        steps = [
            scheduled_step_size(schedule, jnp.asarray(2.0), jnp.uint32(t), decay=0.5, delay=3.0, cycle=4)
            for t in counts
        ]
        return np.asarray(steps)

    np.testing.assert_array_equal(at("constant", 0, 5), 2.0)
    np.testing.assert_allclose(at("decreasing", 0, 9), [2.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(at("cyclical", 0, 1, 2, 3), 1 + np.cos(np.pi * np.arange(4) / 4), rtol=1e-6)
    np.testing.assert_array_equal(at("cyclical", 0, 1, 2, 3), at("cyclical", 4, 5, 6, 4_000_000_007))


@pytest.mark.parametrize("kind", [Sgld, Sghmc, Psgld, SmsUbu])
def test_the_step_size_follows_its_schedule(kind):
    sampler = kind(step_size=1e-4, batch_size=10, schedule="cyclical", cycle=3)
    posterior = GaussianMean.of(N)
    state = sampler.init(posterior, jnp.asarray([0.3]), num_warmup=0, key=jax.random.key(0))
    steps = []
    for seed in range(4):
        state, stats = sampler.step(posterior, state, key=jax.random.key(seed))
        steps.append(float(stats["step_size"]))
    np.testing.assert_allclose(steps, [1e-4, 7.5e-5, 2.5e-5, 1e-4], rtol=1e-5)


def _cycles(etas: np.ndarray, noise: float, exploration: float, draws: int) -> np.ndarray:
    """The variance of the draws of cyclical SGLD from exact ones on, v <- (1 - eta a)^2 v + eta^2 V + 2 eta, a = 1.

    The last term is not there in the first part of a cycle, of which there are no draws.
    """
    variance, result, count, cycle = 1.0, [], 0, len(etas)
    while len(result) < draws:
        eta, exploring = etas[count % cycle], count % cycle < exploration * cycle
        variance = (1 - eta) ** 2 * variance + eta**2 * noise + 2 * eta * (not exploring)
        result += [] if exploring else [variance]
        count += 1
    return np.array(result)


@pytest.mark.parametrize("size", [40, pytest.param(10, marks=pytest.mark.slow)])
def test_cyclical_sgld_explores_without_noise_and_draws_from_the_rest(size):
    """Its law at the first draw of a cycle, and at its last; the positive control has noise everywhere."""
    posterior, cycle, share = GaussianMean.of(40), 10, 0.4
    precision = posterior.sd**-2
    common = {"step_size": 0.5 / precision, "schedule": "cyclical", "cycle": cycle, "batch_size": size}
    sampler = Sgld(exploration=share, sampling="disjoint", **common)
    etas = 0.25 * (1 + np.cos(np.pi * np.arange(cycle) / cycle))
    noise = 0.0 if size == 40 else 40**2 / size * (40 / 39) * (1 - size / 40) / precision
    expected, noisy = (_cycles(etas, noise, beta, 18) for beta in (share, 0.0))
    for draw in (1, 13, 18):
        final, means = evolve(sampler, posterior, posterior.draws(CHAINS, seed=1), steps=draw, seed=4)
        values = posterior.standardised(final)
        assert agrees(scores(values, variance=expected[draw - 1]))
        assert abs(scores(values, variance=noisy[draw - 1])["variance"]) > 2 * Z or draw == 18
    assert means["n_steps"].mean() == pytest.approx(30 / 18)
    assert sampler.evaluations(posterior, {"n_steps": 1.5}) == 1.5 * size


@pytest.mark.usefixtures("as_options")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"exploration": 0.5}, "requires --sampler.schedule cyclical"),
        ({"exploration": 0.95, "schedule": "cyclical", "cycle": 10}, "at least one step of each cycle of 10 steps"),
    ],
)
def test_an_invalid_exploration_is_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        Sgld(batch_size=5, **fields).check(GaussianMean.of(40))
