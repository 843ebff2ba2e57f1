"""Metropolis-adjusted microcanonical trajectories: the integrator, the accept step, the metric."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parabolas import Flat

from bnnzoo.errors import UsageError
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.samplers import Mams
from bnnzoo.samplers.kernel import density, metropolis
from bnnzoo.samplers.mcmc import isokinetic, mams
from bnnzoo.samplers.mcmc.isokinetic import Point
from bnnzoo.samplers.mcmc.low_rank import LowRankMetric
from bnnzoo.testing import TARGETS, check_sampler

TARGET = TARGETS["regression"]()


class Bowl(Flat):
    """A density without symmetry, whose curvature changes."""

    def log_prior(self, theta: Any) -> Any:
        return -(theta[0] ** 4) / 4 - jnp.sum((theta[0] - 2 * theta[1:]) ** 2) / 2


def _bowl(dim: int) -> Bowl:
    return Bowl(np.zeros(1, np.float32), layout=Layout((Block("theta", (dim,), 0),)))


def _metric(scale: Any, direction: Any, stretch: float) -> LowRankMetric:
    """Return a metric with these scales and one direction."""
    metric = LowRankMetric.identity(jnp.asarray(scale, jnp.float32), 0)
    directions = metric.directions.at[0].set(isokinetic.normalise(jnp.asarray(direction, jnp.float32)))
    new = jnp.asarray(scale, jnp.float32), directions, metric.stretches.at[0].set(stretch)
    return eqx.tree_at(lambda m: (m.scale, m.directions, m.stretches), metric, new)


def _start(posterior: Any, theta: Any, direction: Any) -> Point:
    return Point(theta, direction, *density(posterior, theta))


def test_a_trajectory_from_its_end_in_the_opposite_direction_returns_to_its_start():
    posterior, dim = _bowl(5), 5
    rng = np.random.default_rng(0)
    theta = jnp.asarray(rng.normal(size=dim), jnp.float32)
    direction = isokinetic.normalise(jnp.asarray(rng.normal(size=dim), jnp.float32))
    metric = _metric(rng.uniform(0.5, 2.0, size=dim), rng.normal(size=dim), 1.7)

    slopes = partial(density, posterior)

    @partial(jax.jit, static_argnums=1)
    def follow(point, num_steps=5):
        return isokinetic.integrate(slopes, point, step_size=jnp.float32(0.2), metric=metric, num_steps=num_steps)

    start = _start(posterior, theta, direction)
    end, gained = follow(start)
    point, total = start, 0.0
    for _ in range(5):
        point, gain = follow(point, 1)
        total += gain
    np.testing.assert_allclose(end.position, point.position, atol=2e-5)
    np.testing.assert_allclose(end.direction, point.direction, atol=2e-5)
    assert float(gained) == pytest.approx(float(total), abs=2e-3)
    assert float(jnp.linalg.norm(end.position - theta)) > 0.05
    back, lost = follow(end._replace(direction=-end.direction))
    np.testing.assert_allclose(back.position, theta, atol=2e-5)
    np.testing.assert_allclose(back.direction, -direction, atol=2e-5)
    assert float(gained) == pytest.approx(-float(lost), abs=2e-3)
    assert abs(float(gained)) > 0.01


def test_the_kinetic_energy_gained_is_the_log_of_the_contraction_of_volume():
    """In two dimensions, where the direction is an angle: log |det d(end) / d(start)| = -(kinetic energy gained)."""

    posterior, metric = _bowl(2), _metric([0.7, 1.6], [0.6, 0.8], 0.5)

    def follow(values):
        theta, angle = values[:2], values[2]
        direction = jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        start = _start(posterior, theta, direction)
        slopes = partial(density, posterior)
        point, kinetic = isokinetic.integrate(slopes, start, step_size=jnp.float32(0.3), metric=metric)
        return jnp.append(point.position, jnp.arctan2(point.direction[1], point.direction[0])), kinetic

    gains = []
    jacobian_of = jax.jit(jax.jacfwd(follow, has_aux=True))
    for values in np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32):
        jacobian, gained = jacobian_of(jnp.asarray(values))
        assert float(jnp.log(jnp.abs(jnp.linalg.det(jacobian)))) == pytest.approx(-float(gained), abs=1e-3)
        gains.append(abs(float(gained)))
    assert max(gains) > 0.1


@pytest.mark.long
def test_the_end_is_accepted_with_the_probability_of_its_energy_error():
    sampler = Mams(step_size=0.22, num_steps=4)
    theta = jnp.asarray(np.random.default_rng(0).normal(size=TARGET.posterior.layout.dim), jnp.float32)
    state = sampler.init(TARGET.posterior, theta, num_warmup=0, key=jax.random.key(0))
    step = eqx.filter_jit(lambda key: sampler.step(TARGET.posterior, state, key=key))
    outcomes = set()
    for seed in range(20):
        key = jax.random.key(seed)
        next_state, stats = step(key)
        accepted, rate, _ = metropolis(-stats["energy_error"], key=jax.random.split(key, 4)[3])
        assert bool(stats["accepted"]) == bool(accepted)
        assert float(stats["acceptance_rate"]) == pytest.approx(float(rate), rel=1e-5)
        assert bool(jnp.all(next_state.position == theta)) != bool(accepted)
        fresh = density(TARGET.posterior, next_state.position)
        np.testing.assert_allclose(next_state.gradient, fresh[2], rtol=1e-3, atol=1e-3)
        assert float(stats["lp"]) == pytest.approx(float(fresh[0] + jnp.sum(fresh[1])), rel=1e-5)
        outcomes.add(bool(accepted))
    assert outcomes == {True, False}


def test_a_trajectory_that_overflows_is_rejected_and_diverges():
    sampler = Mams(step_size=1e30)
    theta = jnp.ones(TARGET.posterior.layout.dim)
    state = sampler.init(TARGET.posterior, theta, num_warmup=0, key=jax.random.key(0))
    next_state, stats = sampler.step(TARGET.posterior, state, key=jax.random.key(1))
    assert bool(stats["diverging"])
    assert float(stats["energy_error"]) == 0
    np.testing.assert_array_equal(next_state.position, theta)


@pytest.mark.long
def test_only_draws_with_the_accept_step_have_the_law_of_the_posterior(monkeypatch):
    """64 independent chains at the false-alarm level of `check_sampler`; with long steps rejections are important."""
    options = {"targets": ("correlated-gaussian",), "chains": 64, "draws": 2048}
    settings = {"num_steps": 3, "target_acceptance": 0.5}
    report = check_sampler(Mams(**settings), **options)
    assert report.passed, str(report)

    class Unadjusted(Mams):
        """A separate class, so that no program compiled for Mams is used."""

    def accept(log_ratio, *, key):
        _, rate, diverging = metropolis(log_ratio, key=key)
        return ~diverging, rate, diverging

    monkeypatch.setattr(mams, "metropolis", accept)
    assert not check_sampler(Unadjusted(**settings), **options).passed


def test_each_integrator_step_counts_two_gradients():
    assert Mams(num_steps=5).gradients == 10
    assert Mams(num_steps=5).evaluations(TARGET.posterior, {}) == 10 * TARGET.posterior.num_data


def test_a_posterior_with_one_parameter_is_refused():
    with pytest.raises(UsageError, match="at least 2 parameters"):
        Mams().check(TARGETS["gaussian"]().posterior)


def test_a_budget_chooses_trajectories_of_four_to_512_steps_in_powers_of_two():
    posterior, thetas = TARGET.posterior, jnp.zeros((1, TARGET.posterior.layout.dim))
    steps = {
        gradients: Mams().fit_budget(posterior, thetas, gradients) for gradients in (1.0, 9.0, 17.0, 32.0, 1023.0, 1e6)
    }
    assert steps == {1.0: 4, 9.0: 4, 17.0: 8, 32.0: 16, 1023.0: 256, 1e6: 512}


def test_one_draw_in_eight_has_short_steps(monkeypatch):
    """The energy error of each key equals that of the short or the long trajectory."""
    sampler = Mams(step_size=0.2, num_steps=4)
    state = sampler.init(TARGET.posterior, jnp.asarray([0.7, -0.4, 0.3]), num_warmup=0, key=jax.random.key(0))

    def energy_errors(fraction):
        monkeypatch.setattr(mams, "_SHORT_FRACTION", fraction)
        step = eqx.filter_jit(lambda key: sampler.step(TARGET.posterior, state, key=key)[1]["energy_error"])
        return np.array([float(step(jax.random.key(seed))) for seed in range(64)])

    short, long, mixed = energy_errors(1.0), energy_errors(0.0), energy_errors(1 / 8)
    assert np.abs(short).max() < np.abs(long).max() / 10
    is_short = np.isclose(mixed, short, rtol=1e-5, atol=1e-6)
    assert (is_short | np.isclose(mixed, long, rtol=1e-5, atol=1e-6)).all()
    assert 2 <= is_short.sum() <= 19  # binomial with 64 trials and probability 1/8: beyond with probability 2e-3
