"""Microcanonical Langevin: integrator, energy error, bias and metric."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import bnnzoo
from bnnzoo.models import Linear
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.samplers import Mclmc
from bnnzoo.samplers.mcmc.isokinetic import turn
from bnnzoo.samplers.mcmc.metric import Metric
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.loop.loop import Keys, chunks
from bnnzoo.testing import TARGETS, check_sampler

TARGET = TARGETS["regression"]()
CHAINS = 4


def _run(sampler, **more):
    thetas = TARGET.start(np.random.default_rng(0), CHAINS).astype(np.float32)
    arguments = {"num_warmup": 2000, "num_draws": 2000, **more}
    return list(
        chunks(
            TARGET.posterior,
            sampler,
            thetas,
            keys=Keys.from_seed(0),
            placement=place_chains("vectorized", CHAINS),
            **arguments,
        )
    )


def _variances(sampler):
    report = check_sampler(sampler, targets=("correlated-gaussian",), chains=64, draws=4096)
    return [row.effect for row in report.rows if row.statistic == "variance"], report


@pytest.mark.long
def test_the_bias_agrees_with_the_energy_variance():
    """At the default no bias is detected (10 % would be); far too long steps must be detected."""
    _, report = _variances(Mclmc())
    assert report.passed, str(report)
    large, report = _variances(Mclmc(energy_variance=5.0))
    assert not report.passed
    assert max(large) < -0.1


@pytest.mark.long
def test_warm_up_reaches_the_requested_energy_variance():
    for variance in (5e-4, 5e-3):
        result = _run(Mclmc(energy_variance=variance))
        errors = np.concatenate([c.stats["energy_error"] for c in result if c.phase == "sampling"], 1)
        per_parameter = np.mean(errors**2) / TARGET.posterior.layout.dim
        assert variance / 3 < per_parameter < variance * 3


@pytest.mark.long
def test_the_energy_error_of_many_data_is_not_that_of_rounding():
    """Residuals of 30 standard deviations: the log density is near -1e6, whose float32 neighbours are 0.06 apart."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2000, 3)).astype(np.float32), np.repeat([30.0, -30.0], 1000).astype(np.float32)[:, None]
    network = Linear().build((3,), 1, key=jax.random.key(0))
    posterior, sampler = NetworkPosterior.of(network, Gaussian(scale=1.0), Normal(), x, y), Mclmc(step_size=2e-4)
    state = sampler.init(posterior, jnp.zeros(4), num_warmup=0, key=jax.random.key(0))
    step = jax.jit(jax.vmap(lambda key: sampler.step(posterior, state, key=key)[1]))
    result = step(jax.random.split(jax.random.key(1), 32))
    assert float(jnp.max(result["lp"])) < -8e5
    assert float(jnp.sqrt(jnp.mean(result["energy_error"] ** 2))) < 0.01


def test_the_metric_is_the_variance_of_the_positions():
    values = jnp.asarray(np.random.default_rng(0).normal(size=(400, 3)) * [0.1, 1.0, 10.0], jnp.float32)
    metric = Metric.identity(values[0])
    for value in values[:40]:
        metric = metric.with_position(value)
    np.testing.assert_array_equal(metric.updated().inverse_mass, 1.0)
    step = jax.jit(lambda m, v: m.with_position(v))
    for value in values[40:]:
        metric = step(metric, value)
    expected = 400 / 405 * np.var(values, 0) + 5 / 405 * 1e-3
    np.testing.assert_allclose(metric.updated().inverse_mass, expected, rtol=1e-3)
    assert metric.updated().count == 0


def test_the_direction_follows_its_differential_equation():
    """du/dt = (I - u u') g / (dim - 1), and the kinetic energy grows by u'g: solved by many small steps in float64."""
    random = np.random.default_rng(1)
    for size in (1e-3, 1.0, 30.0):
        u = random.normal(size=5)
        u /= np.linalg.norm(u)
        g, steps = size * random.normal(size=5), 20_000
        result, gained = turn(jnp.asarray(u, jnp.float32), jnp.asarray(g, jnp.float32), jnp.float32(0.7))
        kinetic = 0.0
        for _ in range(steps):
            middle = u + (g - (u @ g) * u) / 4 * (0.35 / steps)
            u = u + (g - (middle @ g) * middle) / 4 * (0.7 / steps)
            u /= np.linalg.norm(u)
            kinetic += (middle @ g) * 0.7 / steps
        np.testing.assert_allclose(result, u, atol=2e-5)
        np.testing.assert_allclose(gained, kinetic, rtol=1e-3, atol=1e-6)


@pytest.mark.long
def test_the_energy_error_of_a_step_falls_with_its_cube():
    """The splitting is of second order; a wrong length of one part would make it first order."""
    with jax_settings.arithmetic("float64"):
        target = TARGETS["regression"]()
        posterior, theta = target.posterior, jnp.asarray(target.start(np.random.default_rng(0), 1)[0])
        sampler = Mclmc(length=1e6, energy_variance=1e6)
        keys = jax.random.split(jax.random.key(1), 64)
        states = jax.vmap(lambda key: sampler.init(posterior, theta, num_warmup=0, key=key))(keys)

        @jax.jit
        def error(step_size: Array) -> Array:
            at = bnnzoo.replace(states, step_size=jnp.full(64, step_size))
            _, stats = jax.vmap(lambda state, key: sampler.step(posterior, state, key=key))(at, keys)
            return jnp.sqrt(jnp.mean(jnp.square(stats["energy_error"])))

        coarse, middle, fine = (float(error(jnp.asarray(step))) for step in (0.04, 0.02, 0.01))
    assert coarse / middle == pytest.approx(8, rel=0.2)
    assert middle / fine == pytest.approx(8, rel=0.1)


@pytest.mark.long
def test_a_step_with_too_large_an_energy_error_is_not_taken():
    posterior, theta = TARGET.posterior, jnp.asarray(TARGET.start(np.random.default_rng(0), 1)[0], jnp.float32)
    sampler = Mclmc(step_size=1e6)
    state = sampler.init(posterior, theta, num_warmup=0, key=jax.random.key(0))
    new, stats = jax.jit(sampler.step)(posterior, state, key=jax.random.key(1))
    assert bool(stats["diverging"])
    np.testing.assert_array_equal(new.position, theta)
    assert float(jnp.linalg.norm(new.direction)) == pytest.approx(1, rel=1e-5)
    assert not np.allclose(new.direction, state.direction)


def test_a_step_takes_two_gradients_of_all_data():
    assert Mclmc().evaluations(TARGET.posterior, {}) == 2 * TARGET.posterior.num_data


def test_one_parameter_is_too_few():
    with pytest.raises(bnnzoo.UsageError, match="at least 2 parameters"):
        Mclmc().check(TARGETS["gaussian"]().posterior)
