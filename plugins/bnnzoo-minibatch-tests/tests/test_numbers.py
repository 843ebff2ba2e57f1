"""Constants, limits and formulas of the samplers on growing batches, each tested at its limit."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bnnzoo_minibatch_tests import Austerity, Confidence, MinibatchBarker
from bnnzoo_minibatch_tests.growing_batch import Estimate, Moments, estimate_ratio
from gaussian_mean import GaussianMean
from parabolas import Parabolas, parabolas

from bnnzoo.plugins import registry
from bnnzoo.recipe import fields_of

ONE, KEY = jnp.ones(()), jax.random.key(0)

GROWS = "step_size 0.01 > 0; batch_size 50 >= 2; control_variate none; target_acceptance 0.35 > 0, < 1"
FIELDS = {
    "minibatch-barker": f"{GROWS.replace('< 1', '< 0.5')}; preconditioner auto",
    "austerity": f"{GROWS}; preconditioner auto; error 0.05 > 0, < 0.5",
    "confidence": f"{GROWS}; preconditioner auto; error 0.1 > 0, < 1",
}


@pytest.mark.parametrize("name", FIELDS)
def test_the_defaults_and_limits_of_the_fields(name):
    described = []
    for field in fields_of(registry.load("samplers", name)):
        limits = field.accepts.allowed if any(sign in field.accepts.allowed for sign in "<>") else ""
        described.append(f"{field.name} {field.default_text} {limits}".strip())
    assert "; ".join(described) == FIELDS[name]


class Quartics(Parabolas):
    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        c, m = batch
        return -c * (theta[0] - m) ** 4


def test_the_estimate_from_some_of_the_rows_is_its_formula():
    d = np.array([0.5, -1.0, 2.0, 4.0, 0.0])
    moments = Moments.empty(jnp.float32).with_block(jnp.asarray(d, jnp.float32), jnp.ones(5, bool))
    estimate = estimate_ratio(moments, jnp.asarray(0.25), jnp.asarray(2), scale=jnp.asarray(3.0), total=8)
    centred = d - d.mean()
    third = np.mean(centred**3) / np.mean(centred**2) ** 1.5
    assert float(estimate.log_ratio) == pytest.approx(0.25 + 3 * d.mean(), rel=1e-5)
    assert float(estimate.sigma2) == pytest.approx(9 / 5 * d.var(ddof=1) * 3 / 8, rel=1e-5)
    assert float(estimate.skewness) == pytest.approx(third * (1 - 10 / 8) / (5 * 3 / 8) ** 0.5, rel=1e-4)
    assert float(estimate.width) == 15
    assert (float(estimate.num_seen), estimate.total, int(estimate.num_tests)) == (5.0, 8, 2)
    broken = moments._replace(squares=jnp.asarray(jnp.nan), cubes=jnp.asarray(jnp.nan))
    full_estimate = estimate_ratio(broken, jnp.zeros(()), jnp.asarray(2), scale=jnp.asarray(3.0), total=5)
    assert (float(full_estimate.sigma2), float(full_estimate.skewness)) == (0.0, 0.0)
    same = Moments.empty(jnp.float32).with_block(jnp.full(5, 0.25), jnp.ones(5, bool))
    skewness = jax.jit(lambda m: estimate_ratio(m, ONE, jnp.asarray(1), scale=ONE, total=8).skewness)
    assert float(skewness(same)) == 0
    np.testing.assert_allclose(
        skewness(moments._replace(squares=moments.squares * 1e-24, cubes=moments.cubes * 1e-36)),
        float(estimate.skewness),
        rtol=1e-4,
    )
    pair = Moments.empty(jnp.float32).with_block(jnp.asarray([1.0, 4.0]), jnp.ones(2, bool))
    two = estimate_ratio(pair, ONE, jnp.asarray(1), scale=ONE, total=8)
    assert float(two.sigma2) == pytest.approx(4.5 / 2 * 6 / 8, rel=1e-5)
    single = Moments.empty(jnp.float32).with_block(jnp.asarray([2.0]), jnp.ones(1, bool))
    assert float(estimate_ratio(single, ONE, jnp.asarray(1), scale=ONE, total=8).sigma2) == 0


def test_a_test_on_all_rows_reports_the_density_of_the_kept_position():
    posterior = parabolas([0.3, 0.5, 1.0, 0.2], [1.0, -1.0, 0.5, 2.0], power=0.5)
    sampler = MinibatchBarker(step_size=1.6, batch_size=50, preconditioner="identity")
    state = sampler.init(posterior, jnp.asarray([0.4]), num_warmup=0, key=KEY)
    step = jax.jit(jax.vmap(lambda key: sampler.step(posterior, state, key=key)))
    states, stats = step(jax.random.split(jax.random.key(1), 40))
    expected = np.asarray(jax.vmap(posterior.log_density)(states.position))
    np.testing.assert_allclose(stats["lp_estimate"], expected, rtol=1e-4, atol=1e-5)
    assert 0 < stats["accepted"].mean() < 1
    assert not stats["grown"].any()
    assert not stats["diverging"].any()
    assert (stats["rows_seen"] == 4).all()
    assert sampler.evaluations(posterior, {}) == 8
    assert MinibatchBarker(control_variate="second").evaluations(posterior, {"rows_seen": 3.0}) == 12
    broken = parabolas([0.3, float("nan")], [1.0, -1.0])
    after, stats = sampler.step(broken, state, key=KEY)
    assert bool(stats["diverging"])
    assert not bool(stats["accepted"])
    assert (float(stats["acceptance_rate"]), float(stats["test_error"])) == (0.0, 0.0)
    np.testing.assert_array_equal(after.position, state.position)


class Bounded(Parabolas):
    def log_prior(self, theta: Any) -> Any:
        return jnp.where(theta[0] < 0.4, 0.0, -jnp.inf)


@pytest.mark.parametrize("kind", [MinibatchBarker, Austerity, Confidence])
def test_a_proposal_without_density_is_an_ordinary_rejection(kind):
    posterior = Bounded((np.float32([0.3, 0.5, 1.0, 0.2]), np.float32([1.0, -1.0, 0.5, 2.0])))
    sampler = kind(step_size=0.1, batch_size=2, preconditioner="identity")
    state = sampler.init(posterior, jnp.asarray([0.39]), num_warmup=0, key=KEY)
    states, stats = jax.jit(jax.vmap(lambda key: sampler.step(posterior, state, key=key)))(jax.random.split(KEY, 40))
    beyond = np.isinf(stats["delta"])
    assert 0 < beyond.sum() < 40
    assert not stats["diverging"].any()
    assert (states.position[beyond] == state.position).all()
    assert (stats["acceptance_rate"][beyond] == 0).all()
    assert (stats["test_error"][beyond] == 0).all()


@pytest.mark.parametrize("order", ["first", "second"])
def test_the_control_variate_adds_back_its_sum_over_all_rows(order):
    """With all rows the log ratio equals that of the density with its likelihood power, for any anchor."""
    c, m = np.array([0.5, 2.0, 1.0]), np.array([0.4, -1.0, 0.1])
    posterior = Quartics((np.float32(c), np.float32(m)), likelihood_power=np.float32(0.7))
    sampler = MinibatchBarker(batch_size=3, control_variate=order)

    @jax.jit
    def look(position: Any, proposal: Any) -> Any:
        state = sampler.init(posterior, jnp.asarray([0.2]), num_warmup=0, key=KEY)
        state = eqx.tree_at(lambda s: s.position, state, position)
        estimate, *densities = sampler.estimate_ratio(posterior, state, proposal, ONE / 2, key=KEY)
        return estimate.log_ratio, densities

    log_ratio, densities = look(jnp.asarray([0.8]), jnp.asarray([-0.3]))
    expected = [-(theta**2) / 2 - 0.7 * np.sum(c * (theta - m) ** 4) for theta in (0.8, -0.3)]
    assert float(log_ratio) == pytest.approx(expected[1] - expected[0], rel=1e-4)
    np.testing.assert_allclose(densities, expected, rtol=1e-4)


def test_the_anchor_and_shape_of_a_growing_batch_move_before_the_last_window():
    posterior = parabolas([3.0, 0.5], [1.0, 0.0])
    sampler = MinibatchBarker(control_variate="second")
    state = sampler.init(posterior, jnp.asarray([2.0]), num_warmup=9, key=KEY)
    assert sampler.settle(posterior, state, final=True, key=KEY) is state
    after = sampler.settle(posterior, state, final=False, key=KEY)
    np.testing.assert_allclose(after.anchor.point, 3 / 4.5, rtol=1e-5)
    assert float(after.preconditioner.count) == 1
    assert MinibatchBarker().init(posterior, jnp.asarray([2.0]), num_warmup=0, key=KEY).anchor is None


def test_the_bound_beyond_half_of_the_rows_and_a_decision_of_all():
    sampler, unit = Confidence(error=0.2), jnp.ones(())
    level = np.log(5 * 1 * 2 / np.float32(0.2))

    def bound(rows_read: float) -> float:
        return float(sampler._bound(Estimate(unit, 4 * unit, unit, 3 * unit, rows_read * unit, 100, jnp.asarray(1))))

    for rows_read, ratio in ((50.0, 1 - 49 / 100), (80.0, 0.2 * (1 + 1 / 80))):
        spread = np.sqrt(2 * ratio * 4 / (1 - rows_read / 100) * (1 - 1 / rows_read) * level)
        assert bound(rows_read) == pytest.approx(spread + (7 / 3 + 3 / 2**0.5) * 3 * level / rows_read, rel=1e-5)
    for rows_read, error in ((99.0, 0.2), (100.0, 0.0)):
        verdict = sampler.decide(Estimate(unit, unit, unit, unit, rows_read * unit, 100, jnp.asarray(1)), unit / 2)
        assert float(verdict.error) == pytest.approx(error)
        assert bool(verdict.accepted)


def test_barkers_findings_begin_beyond_their_limits():
    sampler, posterior = MinibatchBarker(), GaussianMean(np.zeros(10))
    means = {"test_error": 0.004, "acceptance_rate": 0.01, "step_size": 0.1}
    assert sampler.findings(posterior, means) == ()
