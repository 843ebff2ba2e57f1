"""Samplers on mini-batch gradients estimate their own bias, which agrees with closed forms."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_mean import GaussianMean, evolve
from scipy import linalg

from bnnzoo.models import Linear
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.samplers import Psgld, Sghmc, Sgld, SmsUbu
from bnnzoo.samplers.sgmcmc.auto_steps import TARGET

N, LENGTH = 1000, 0.1
"""Number of data, and eta in units of the posterior's variance."""


def _inspected(sampler: Any, posterior: GaussianMean, *, chains: int = 8, seed: int = 3) -> tuple[float, float]:
    """Return the mean of the chains' estimates, and its standard error."""
    starts = jnp.asarray(posterior.draws(chains, seed=1), jnp.float32)

    @eqx.filter_jit
    def look(start, key):
        state = sampler.init(posterior, start, num_warmup=0, key=key)
        return sampler.inspect(posterior, state, key=key)

    result = jax.vmap(look)(starts, jax.random.split(jax.random.key(seed), chains))
    ratio, error = (np.asarray(result[name], float) for name in ("variance_ratio", "variance_ratio_se"))
    return float(ratio.mean()), float((error**2).sum() ** 0.5 / chains)


@pytest.mark.parametrize("size", [10, 100])
def test_sgld_measures_its_stationary_variance(size):
    posterior = GaussianMean.of(N)
    sampler = Sgld(step_size=LENGTH * posterior.sd**2, batch_size=size)
    expected = (1 + LENGTH * N**2 / size / (N + 1) / 2) / (1 - LENGTH / 2)
    assert expected == pytest.approx({10: 6.31, 100: 1.578}[size], abs=0.01)
    ratio, error = _inspected(sampler, posterior)
    assert abs(ratio - expected) < 4 * error
    assert error < 0.1 * (expected - 1)


@pytest.mark.long
def test_the_bias_estimate_agrees_with_the_actual_error():
    """Only the bias of the step size remains without noise.

    psgld has its own effective step size, and the momentum of sghmc multiplies the noise.
    """
    posterior = GaussianMean.of(N)
    eta = LENGTH * posterior.sd**2
    inspected, error = _inspected(Sgld(step_size=eta, batch_size=N, sampling="disjoint"), posterior)
    assert inspected == pytest.approx(1 / (1 - LENGTH / 2), rel=1e-3)
    assert error < 1e-3
    root, damping = 0.3, 0.1

    class Known(Psgld):
        def init(self, posterior, theta, *, num_warmup, key):
            state = super().init(posterior, theta, num_warmup=num_warmup, key=key)
            return eqx.tree_at(lambda s: s.square, state, jnp.full_like(theta, root**2))

    own, error = _inspected(Known(step_size=eta * (root + damping), damping=damping, batch_size=100), posterior)
    assert abs(own - 1.578) < 4 * error < 0.4
    noise = LENGTH * N**2 / 100 / (N + 1)
    heavy, error = _inspected(Sghmc(step_size=eta, momentum=0.5, batch_size=100), posterior)
    assert abs(heavy - 1 - noise * 1.5 / (2 * 0.5 * (1 - LENGTH / 2))) < 4 * error < 1.0


@pytest.mark.long
@pytest.mark.parametrize("kind", [Sgld, Sghmc, Psgld])
def test_the_estimate_is_of_the_noise_that_a_control_variate_leaves(kind):
    """Slopes of rows differ by constants, so that a control variate removes all noise; without it much is left."""
    posterior = GaussianMean.of(N)
    fields: Any = {"step_size": LENGTH * posterior.sd**2 * (0.01 if kind is Psgld else 1), "batch_size": 10}
    (ratio, error), (plain, _) = (
        _inspected(kind(control_variate=order, **fields), posterior, chains=2) for order in ("first", "none")
    )
    assert error < 1e-3
    assert plain > 1.1 > ratio


def _scheduled_ratio(steps_done: int, **schedule: Any) -> dict[str, float]:
    posterior = GaussianMean.of(N)
    fields: Any = {"step_size": LENGTH * posterior.sd**2, "batch_size": N, "sampling": "disjoint"}
    sampler = Sgld(**schedule, **fields)
    state = sampler.init(posterior, jnp.asarray([posterior.mean], jnp.float32), num_warmup=0, key=jax.random.key(0))
    at = eqx.tree_at(lambda s: s.count, state, jnp.uint32(steps_done))
    inspection = eqx.filter_jit(sampler.inspect)(posterior, at, key=jax.random.key(1))
    return {name: float(value) for name, value in inspection.items()} | {"step_size": fields["step_size"]}


@pytest.mark.parametrize("exploration", [0.0, 0.5])
def test_the_estimate_is_of_a_whole_cycle_without_its_exploration(exploration):
    """The last step of a cycle hardly moves, but earlier draws were made with longer steps."""
    result = _scheduled_ratio(1000, schedule="cyclical", cycle=1000, exploration=exploration)
    phases = np.linspace(exploration, 1, 1000)
    length = LENGTH * np.mean(1 + np.cos(np.pi * phases)) / 2
    assert result["variance_ratio"] == pytest.approx(1 / (1 - length / 2), rel=1e-3)
    # The recommended step size is the value of the option, which is the longest of a cycle.
    expected = 2 * (1 - 1 / TARGET) * LENGTH / length / LENGTH * result["step_size"]
    assert result["unbiased_step_size"] == pytest.approx(expected, rel=0.15)


def test_the_estimate_is_of_all_steps_of_a_decreasing_step_size():
    result = _scheduled_ratio(4000, schedule="decreasing", decay=1.0, delay=500.0)
    length = LENGTH * np.mean(1 / (1 + np.arange(4000) / 500))
    assert result["variance_ratio"] == pytest.approx(1 / (1 - length / 2), rel=1e-3)


@pytest.mark.long
def test_the_worst_direction_is_measured_beside_the_average_one():
    """One of thirty weights is stiff, or noisy because only a few rows, far from the line, have its input."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 30)).astype(np.float32)
    network = Linear().build((30,), 1, key=jax.random.key(0))

    def look(x: np.ndarray, y: np.ndarray, **fields: Any) -> dict[str, float]:
        posterior = NetworkPosterior.of(network, Gaussian(scale=0.5), Normal(), x, y)
        sampler = Sgld(**fields)
        state = sampler.init(posterior, jnp.zeros(31), num_warmup=0, key=jax.random.key(0))
        inspection = eqx.filter_jit(sampler.inspect)(posterior, state, key=jax.random.key(1))
        return {name: float(value) for name, value in inspection.items()}

    def noise() -> np.ndarray:
        return (0.5 * rng.normal(size=(1000, 1))).astype(np.float32)

    even = look(x, noise(), step_size=0.1 / 4000, batch_size=1000, sampling="disjoint")
    assert even["variance_ratio"] < even["variance_ratio_worst"] < 1.1
    stiff = x * np.where(np.arange(30) == 3, 8, 1).astype(np.float32)
    wide = look(stiff, noise(), step_size=0.8 / 256_000, batch_size=1000, sampling="disjoint")
    curvature = np.linalg.eigvalsh(stiff.T.astype(float) @ stiff / 0.25)[-1]
    assert wide["variance_ratio"] < 1.05
    assert wide["variance_ratio_worst"] == pytest.approx(1 / (1 - 0.4 * curvature / 256_000), rel=0.05)
    assert wide["unbiased_step_size"] == pytest.approx(2 * (1 - 1 / TARGET) / curvature, rel=0.15)
    rare, y = x.copy(), noise()
    rare[:, 3] = np.where(np.arange(1000) < 30, 2, 0)
    y[:30] += 15 * rng.normal(size=(30, 1)).astype(np.float32)
    wide = look(rare, y, step_size=1e-8, batch_size=50)
    # The variance for a batch of n from N rows is (N^2 / n) times the variance of a row's gradient.
    slopes = rare * y / 0.25
    covariance = 1000**2 / 50 * np.cov(np.c_[slopes, y / 0.25].T)
    assert wide["variance_ratio"] == pytest.approx(1 + 1e-8 * np.trace(covariance) / 31 / 2, rel=0.02)
    assert wide["variance_ratio_worst"] == pytest.approx(1 + 1e-8 * np.linalg.eigvalsh(covariance)[-1] / 2, rel=0.3)


@pytest.mark.long
def test_a_chain_that_diverges_says_so():
    posterior = GaussianMean.of(N)
    for kind in (Sgld, Sghmc, SmsUbu):
        ratio, _ = _inspected(kind(step_size=2.5 * posterior.sd**2, batch_size=100), posterior, chains=2)
        assert ratio == np.inf


def _ubu(length: float, keep: float) -> float:
    """Return the stationary variance without mini-batch noise, with the flow by Van Loan's method."""
    h = (2 * length) ** 0.5
    gamma = -np.log(keep) / h
    drift, spread = np.array([[0, 1], [0, -gamma]]), np.diag([0, 2 * gamma])
    propagator = linalg.expm(np.block([[-drift, spread], [np.zeros((2, 2)), drift.T]]) * h / 2)
    flow = propagator[2:, 2:].T
    noise = flow @ propagator[:2, 2:]
    through = flow @ np.array([[1, 0], [-h, 1]])
    return linalg.solve_discrete_lyapunov(through @ flow, through @ noise @ through.T + noise)[0, 0]


def _swept(length: float, noise: float, keep: float, rows: int, size: int) -> float:
    """Return the mean stationary variance over a sweep in float64, from the response to each batch's error."""
    h, batches = (2 * length) ** 0.5, rows // size
    gamma = -np.log(keep) / h
    flow = linalg.expm(np.array([[0, 1], [0, -gamma]]) * h / 2)
    step = flow @ np.array([[1, 0], [-h, 1]]) @ flow
    alike = -size / (rows - size)
    errors = noise / length * ((1 - alike) * np.eye(batches) + alike)
    answer, power, noises = np.zeros((2, batches)), np.eye(2), []
    for batch in [*range(batches), *reversed(range(batches))]:
        answer, power = step @ answer, step @ power
        answer[:, batch] += h * flow[:, 1]
        noises.append((power, answer @ errors @ answer.T))
    start = linalg.solve_discrete_lyapunov(power, noises[-1][1])
    return _ubu(length, keep) + float(np.mean([(p @ start @ p.T + added_noise)[0, 0] for p, added_noise in noises]))


@pytest.mark.parametrize(("rows", "size"), [(99, 50), (149, 50), (75, 20), (100, 50), (1000, 50)])
@pytest.mark.parametrize("length", [1e-2, 1e-4])
def test_rows_left_over_of_a_sweep_are_noise_that_does_not_cancel(rows, size, length):
    sampler = SmsUbu(batch_size=size)
    result = jax.jit(lambda length, noise: sampler.variance_ratio(length, noise, num_data=rows))(length, 10 * length)
    assert float(result) == pytest.approx(_swept(length, 10 * length, 0.9, rows, size), rel=1e-4)


@pytest.mark.slow
def test_symmetric_sweeps_measure_what_rows_left_over_do():
    posterior, length = GaussianMean.of(149), 0.01
    expected = _swept(length, length * 149**2 / 50 * (1 - 50 / 149) * 149 / 148 / 150, 0.9, 149, 50)
    assert expected == pytest.approx(1.179, abs=1e-3)
    ratio, error = _inspected(SmsUbu(step_size=length * posterior.sd**2, batch_size=50), posterior)
    assert abs(ratio - expected) < 4 * error < 0.08


@pytest.mark.slow
def test_symmetric_sweeps_are_followed():
    """The estimate is the exact variance of the map without noise, and agrees with simulated chains with noise."""
    posterior, length, keep = GaussianMean.of(40), 0.4, 0.5
    fields = {"step_size": length * posterior.sd**2, "momentum": keep}
    inspected, _ = _inspected(SmsUbu(batch_size=40, **fields), posterior)
    assert inspected == pytest.approx(_ubu(length, keep), rel=1e-3)
    sampler = SmsUbu(batch_size=4, **fields)
    ends = [evolve(sampler, posterior, posterior.draws(4000, seed=1), steps=steps, seed=2)[0] for steps in (60, 69)]
    final = np.concatenate(ends)
    variance = posterior.standardised(final).var()
    ratio, _ = _inspected(sampler, posterior)
    # Chains are compared at two places of a sweep, while the estimate averages over all places.
    assert ratio == pytest.approx(variance, rel=0.2)
    assert ratio > 3 * inspected
