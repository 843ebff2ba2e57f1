"""Every sampler uses the likelihood power: power b with noise sd s is equivalent to noise sd s / sqrt(b).

Two posteriors have the same log density up to a constant, one with a power; the same key must give the same draws. The
positive control is the first posterior without its power; its draws must differ.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_mean import NormalPrior
from jaxtyping import Array, Float

from bnnzoo.models import Linear
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.samplers import (
    Bbb,
    Dropout,
    Ensemble,
    Gibbs,
    Importance,
    Laplace,
    Mala,
    Mams,
    Mclmc,
    Penalty,
    Psgld,
    RandomWalk,
    Rejection,
    Sghmc,
    Sgld,
    SmsUbu,
    Swag,
)
from bnnzoo.samplers.mcmc import gibbs, mala, random_walk
from bnnzoo.samplers.variational import training

ROWS = 6
RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(ROWS, 1)).astype(np.float32), RNG.normal(size=(ROWS, 1)).astype(np.float32)


def _posterior(scale: float, power: float, prior: float = 1.0) -> NetworkPosterior:
    network = Linear().build((1,), 1, key=jax.random.key(0))
    return NetworkPosterior.of(network, Gaussian(scale=scale), Normal(scale=prior), X, Y, likelihood_power=power)


class Line(NormalPrior):
    """The same line written by hand, which compiles faster."""

    layout: Layout = eqx.field(static=True, default=Layout((Block("theta", (2,), 0),)))
    scale: Any = np.float32(1.0)

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        x, y = batch
        return -(((y - x * theta[0] - theta[1]) / self.scale)[:, 0] ** 2) / 2

    def sample_prior(self, *, key: Any) -> Float[Array, " dim"]:
        return jax.random.normal(key, (2,))

    def log_likelihood_bounds(self, batch: Any) -> Float[Array, " batch"]:
        return jnp.zeros(len(batch[0]))


PAIRS = ((0.5, 0.25), (1.0, 1.0), (0.5, 1.0))
"""Noise and power of three posteriors: with the power, without it, and the control."""
LINES = tuple(Line((X, Y), likelihood_power=np.float32(power), scale=np.float32(scale)) for scale, power in PAIRS)
NETWORKS = tuple(_posterior(scale, power) for scale, power in PAIRS)
CONTROL = NETWORKS[2]
BATCH = {"batch_size": 3}
NOISY = {"step_size": 0.2, "batch_size": 3, "num_batches": 2}
DRIFTING = {**NOISY, "step_size": 0.05, "proposal": "langevin"}

STEPS = {
    "random-walk": RandomWalk(step_size=0.6),
    "mala": Mala(step_size=0.05),
    "gibbs": Gibbs(step_size=0.6),
    "rejection": Rejection(block=8),
    "mams": Mams(step_size=0.3),
    "mclmc": Mclmc(step_size=0.3),
    "penalty": Penalty(**NOISY),
    "penalty, first order": Penalty(**NOISY, control_variate="first"),
    "penalty, second order": Penalty(**DRIFTING, control_variate="second"),
    "penalty, langevin": Penalty(**DRIFTING),
    "penalty, importance": Penalty(**NOISY, sampling="importance"),
    "sgld": Sgld(step_size=0.05, **BATCH),
    "sgld, first order": Sgld(step_size=0.05, **BATCH, control_variate="first"),
    "sghmc": Sghmc(step_size=0.05, **BATCH),
    "psgld": Psgld(step_size=0.05, **BATCH),
    "sms-ubu": SmsUbu(step_size=0.05, **BATCH),
}
"""Samplers whose steps use the likelihood."""


def _stepped(sampler: Any, posterior: AbstractPosterior, *, warming: bool = False) -> np.ndarray:
    """Return the positions after a few steps with fixed keys, and the reported densities."""

    @eqx.filter_jit
    def run(sampler, posterior, theta, keys):
        state = sampler.init(posterior, theta, num_warmup=20 if warming else 0, key=keys[0])
        step = sampler.warmup_step if warming else sampler.step

        def advance(state, key):
            state, stats = step(posterior, state, key=key)
            statistics = [stats[name] for name in ("acceptance_rate", "n_steps", "energy_error") if name in stats]
            trained = [stats[name] for name in ("lp_estimate", "elbo_estimate") if name in stats and warming]
            return state, (state.position, statistics, trained)

        return jax.lax.scan(advance, state, keys)[1]

    keys = jax.random.split(jax.random.key(2), 12)
    position, statistics, trained = run(sampler, posterior, jnp.asarray([0.4, -0.3]), keys)
    # Each density has its own constant.
    columns = [np.asarray(item, float) for item in statistics] + [
        np.asarray(item) - np.asarray(item)[0] for item in trained
    ]
    return np.column_stack([position, *columns])


def _same(result: Any, posteriors: Any) -> None:
    """`found(posterior)` is the same with and without the power where the densities are, and differs in the control."""
    first, other, control = (np.asarray(result(posterior), float) for posterior in posteriors)
    np.testing.assert_allclose(first, other, rtol=1e-3, atol=1e-4)
    assert np.abs(first - control).max() > 0.01


@pytest.mark.long
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("name", STEPS)
def test_steps_go_by_the_power(name):
    _same(lambda posterior: _stepped(STEPS[name], posterior), LINES)


def _by_hand(theta: np.ndarray) -> tuple[float, np.ndarray]:
    """The log density of the first of `LINES` and its slope, in float64."""
    (scale, power), x, y = PAIRS[0], X[:, 0].astype(float), Y[:, 0].astype(float)
    residuals = y - x * theta[0] - theta[1]
    slope = power / scale**2 * np.array([residuals @ x, residuals.sum()]) - theta
    return float(-power * residuals @ residuals / scale**2 / 2 - theta @ theta / 2), slope


@pytest.mark.parametrize(
    ("module", "sampler", "noise"),
    [
        (random_walk, RandomWalk(step_size=0.6), (-0.5, -1.5)),
        (gibbs, Gibbs(step_size=0.6), (-0.5, -1.5)),
        (mala, Mala(step_size=0.18), (0.5, 0.5)),
    ],
    ids=["random-walk", "gibbs", "mala"],
)
def test_a_step_is_accepted_by_the_sum_over_all_rows(module, sampler, noise, monkeypatch):
    """Compute the ratio of the densities and of Langevin proposals by hand. A mean over the rows would differ."""
    theta, eps = np.array([0.4, -0.3]), np.array(noise)
    density, slope = _by_hand(theta)
    eta = sampler.step_size
    langevin = isinstance(sampler, Mala)
    proposal = theta + (eta * slope + (2 * eta) ** 0.5 * eps if langevin else eta * eps)
    density_there, slope_there = _by_hand(proposal)
    log_ratio = density_there - density
    if langevin:
        back = theta - proposal - eta * slope_there
        log_ratio += eps @ eps / 2 - back @ back / (4 * eta)
    monkeypatch.setattr(module, "standard_normal", lambda like, *, key: jnp.asarray(eps, like.dtype))
    state = sampler.init(LINES[0], jnp.asarray(theta, jnp.float32), num_warmup=0, key=jax.random.key(0))
    after, stats = sampler.step(LINES[0], state, key=jax.random.key(1))
    assert 0.05 < np.exp(log_ratio) < 0.95
    assert float(stats["acceptance_rate"]) == pytest.approx(np.exp(log_ratio), rel=1e-4)
    np.testing.assert_allclose(after.position, proposal if stats["accepted"] else theta, rtol=1e-5)


@pytest.mark.parametrize("sampler", [Bbb(batch_size=3), Ensemble(batch_size=3)], ids=["bbb", "ensemble"])
def test_training_goes_by_the_power(sampler):
    _same(lambda posterior: _stepped(sampler, posterior, warming=True), NETWORKS)


@pytest.mark.long
def test_laplace_goes_by_the_power():
    theta = jnp.asarray([0.4, -0.3])
    for covariance in ("full", "diagonal", "kronecker"):
        sampler = Laplace(covariance=covariance)
        draws = eqx.filter_jit(
            lambda p, s: s.init(p, theta, num_warmup=0, key=jax.random.key(1)).factor.correlate(jnp.ones(2))
        )
        _same(lambda p, draws=draws, s=sampler: draws(p, s), NETWORKS)


def test_the_weights_of_importance_go_by_the_power():
    @eqx.filter_jit
    def weights(posterior):
        sampler = Importance()
        state = sampler.init(posterior, jnp.zeros(2), num_warmup=0, key=jax.random.key(1))
        keys = jax.random.split(jax.random.key(2), 5)
        stats = jax.vmap(lambda key: sampler.step(posterior, state, key=key)[1]["log_weight"])(keys)
        return stats - stats[0]  # the normaliser's constant

    _same(weights, LINES)


def test_the_training_loss_is_the_log_density_for_each_datum():
    """Its prior and its power: what `--init map`, Laplace, dropout, ensembles and SWAG train with."""
    theta = jnp.asarray([0.4, -0.3])
    for posterior in (*NETWORKS, _posterior(0.5, 1.0, prior=0.1)):
        expected = -posterior.log_density(theta) / ROWS
        np.testing.assert_allclose(training.loss(posterior, theta, posterior.data), expected, rtol=1e-5)


@pytest.mark.parametrize("sampler", [Laplace(), Ensemble(), Swag()], ids=["laplace", "ensemble", "swag"])
def test_training_reports_the_log_density_of_the_posterior(sampler):
    """If all rows are equal, every batch gives the exact value."""
    network, row = Linear().build((1,), 1, key=jax.random.key(0)), np.ones((ROWS, 1), np.float32)
    posterior = NetworkPosterior.of(network, Gaussian(scale=0.5), Normal(), 0.7 * row, -row, likelihood_power=0.25)
    theta = jnp.asarray([0.4, -0.3])
    state = sampler.init(posterior, theta, num_warmup=20, key=jax.random.key(1))
    _, stats = sampler.warmup_step(posterior, state, key=jax.random.key(2))
    each = -np.log(0.5 * np.sqrt(2 * np.pi)) - (-1 - 0.7 * 0.4 + 0.3) ** 2 / 0.5**2 / 2
    expected = 0.25 * ROWS * each - np.log(2 * np.pi) - (0.4**2 + 0.3**2) / 2
    assert float(stats["lp_estimate"]) == pytest.approx(expected, rel=1e-5)


def test_dropout_trains_the_network_that_it_draws():
    """With all rows, a warm-up step increases the density under one of the two masks, never without a mask."""
    theta, sampler = jnp.asarray([0.4, -0.3]), Dropout(rate=0.5, masks=1, batch_size=ROWS)
    state = sampler.init(CONTROL, theta, num_warmup=20, key=jax.random.key(1))
    step = jax.jit(jax.vmap(lambda key: sampler.warmup_step(CONTROL, state, key=key)[1]["lp_estimate"]))
    result = np.unique(np.asarray(step(jax.random.split(jax.random.key(2), 20))))
    masked = [theta * jnp.asarray([factor, 1.0]) for factor in (0.0, 2.0)]
    expected = [float(jnp.sum(CONTROL.log_likelihoods(parameters)) + CONTROL.log_prior(theta)) for parameters in masked]
    np.testing.assert_allclose(result, np.sort(expected), rtol=1e-4)
    assert np.abs(result - float(CONTROL.log_density(theta))).min() > 0.01
