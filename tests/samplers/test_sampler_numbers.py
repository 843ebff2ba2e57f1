"""Common properties of samplers, and kernels on all data: constants and limits, each tested at its limit."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_mean import GaussianMean
from parabolas import Flat, Parabolas, of_size, parabolas

from bnnzoo.errors import UsageError
from bnnzoo.finding import spell_settings
from bnnzoo.plugins import registry
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.recipe import fields_of
from bnnzoo.samplers import Gibbs, Hmc, Mclmc, Nuts, RandomWalk, Rejection, Sgld, Swag, kernel
from bnnzoo.samplers.mcmc import conjugate, gibbs, isokinetic, mclmc, numpyro_kernels
from bnnzoo.samplers.mcmc.coordinates import Coordinates
from bnnzoo.sampling.loop import loop

ONE, KEY = jnp.ones(()), jax.random.key(0)

# ---- what every sampler has ----------------------------------------------------------------------


def test_defaults_of_a_sampler():
    posterior = GaussianMean(np.zeros(10))
    sampler: Any = RandomWalk(target_acceptance=0.4)
    np.testing.assert_allclose(sampler.headroom({"acceptance_rate": jnp.asarray(0.6)}), [0.5], rtol=1e-5)
    assert sampler.headroom({}).shape == (0,)
    assert Sgld().headroom({"acceptance_rate": ONE}).shape == (0,)
    assert sampler.evaluations(posterior, {}) == 10
    for warmup in (False, True):
        assert sampler.evaluations(posterior, {"n_steps": 3.0}, warmup=warmup) == 30
    assert (sampler.gradients, sampler.guarded, sampler.inspect, sampler.budget_field) == (1, False, None, "")


def test_numbers_that_are_not_finite_call_for_smaller_steps():
    def advice(sampler: Any, spelling: Any) -> str:
        return spell_settings(loop._advise_smaller_steps(sampler), spelling)

    assert advice(RandomWalk(), "options") == "use a smaller --sampler.step-size"
    assert advice(Swag(), "keywords") == "use a smaller learning_rate"
    assert advice(Rejection(), "options") == "use --precision float64, or another sampler"


NOISY = (
    "step_size 0.01 > 0; num_steps 10 >= 1; batch_size auto >= 1 | auto; num_batches auto >= 1 | auto; "
    "budget 10000 >= 40; variance pooled; control_variate auto; target_acceptance 0.45 > 0, < 1; "
    "target_sigma2 1.5 > 0; preconditioner auto"
)
FIELDS = {
    "random-walk": "step_size 0.01 > 0; target_acceptance 0.35 > 0, < 1; preconditioner auto",
    "mala": "step_size 1e-04 > 0; target_acceptance 0.574 > 0, < 1; preconditioner auto",
    "penalty": f"correction 3 >= 0, <= 3; proposal auto; sampling auto; {NOISY}",
    "batched": f"correction 0; proposal random-walk; sampling replacement; {NOISY}",
    "gibbs": "blocks layer; conditionals metropolis; step_size 0.01 > 0; target_acceptance 0.35 > 0, < 1",
    "hmc": (
        "step_size 0.01 > 0; num_steps 32 >= 1; jitter 0.2 >= 0, < 1; target_acceptance 0.8 > 0, < 1; "
        "whiten_last_layer true"
    ),
    "nuts": (
        "step_size 0.01 > 0; max_tree_depth 10 >= 1, <= 15; warmup_tree_depth 5 >= 1, <= 15; "
        "target_acceptance 0.8 > 0, < 1; whiten_last_layer true"
    ),
    "mams": (
        "step_size 0.01 > 0; num_steps 16 >= 1; jitter 0.2 >= 0, < 1; target_acceptance 0.9 > 0, < 1; "
        "whiten_last_layer true"
    ),
    "mclmc": "step_size 0.01 > 0; length 1.0 > 0; energy_variance 0.0005 > 0",
    "rejection": (
        "block 64 >= 1; max_proposals 1000000 >= 1, <= 1000000000; proposal prior; log_bound auto; "
        "proposal_scale 1.1 > 0; pilot 4000 >= 100"
    ),
    "importance": "proposal prior; proposal_scale 1.1 > 0; pilot 4000 >= 100",
}
"""Defaults and limits, which affect all draws with default settings. A change of one changes the results of runs."""


@pytest.mark.parametrize("name", FIELDS)
def test_defaults_and_limits_of_sampler_fields(name):
    results = []
    for field in fields_of(registry.load("samplers", name)):
        limits = field.accepts.allowed if any(sign in field.accepts.allowed for sign in "<>") else ""
        results.append(f"{field.name} {field.default_text} {limits}".strip())
    assert "; ".join(results) == FIELDS[name]


def test_a_ratio_is_accepted_with_its_own_probability(monkeypatch):
    for log_ratio in (-0.5, -40.0, 0.3):
        rate = float(kernel.metropolis(jnp.asarray(log_ratio), key=KEY)[1])
        assert rate == pytest.approx(math.exp(min(log_ratio, 0.0)), rel=1e-5)
    word = jnp.zeros(())
    monkeypatch.setattr(jax.random, "uniform", lambda key, dtype: word)
    assert not bool(kernel.metropolis(jnp.asarray(-jnp.inf), key=KEY)[0])
    assert bool(kernel.metropolis(jnp.asarray(-40.0), key=KEY)[0])


# ---- microcanonical ------------------------------------------------------------------------------


def test_the_momentum_is_refreshed_over_the_length():
    """Without a gradient, only the refreshment noise changes the direction."""
    posterior, theta = Flat(np.zeros(2, np.float32)), jnp.zeros(4)
    for step_size, length in ((0.5, 1.0), (0.5, 3.0), (2.0, 1.0)):
        sampler = Mclmc(step_size=step_size, length=length)
        state = sampler.init(posterior, theta, num_warmup=0, key=jax.random.key(1))
        new, _ = sampler.step(posterior, state, key=jax.random.key(2))
        noise = kernel.standard_normal(theta, key=jax.random.split(jax.random.key(2))[0])
        strength = np.sqrt(np.expm1(2 * step_size / (length * 2)) / 4)
        expected = np.asarray(state.direction) + strength * np.asarray(noise)
        expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(new.direction, expected, atol=1e-5)
        np.testing.assert_allclose(new.position, step_size * expected, atol=1e-5)


class Loose(Parabolas):
    """Rows with log-likelihood -(y - x'theta)^2 / 2, and no prior."""

    def log_prior(self, theta: Any) -> Any:
        return 0.0 * jnp.sum(theta)

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        x, y = batch
        return -((y - x @ theta) ** 2) / 2


def test_a_metric_is_a_change_of_coordinates():
    """A step with the metric A is one without a metric on z = A^-1 theta, and its energy error the same."""
    rng, scale = np.random.default_rng(2), np.float32([0.2, 3.0, 1.0])
    x, y = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    direction_of_metric = np.float32([[0.6, 0.0, 0.8]])
    matrix = np.diag(scale) @ (np.eye(3) + (2.5 - 1) * direction_of_metric.T @ direction_of_metric).astype(np.float32)
    layout, sampler, start = (
        blocks_of(("a", 3)),
        Mclmc(step_size=0.6, energy_variance=10.0),
        jnp.asarray([0.3, -0.2, 1.0]),
    )

    @jax.jit
    def stepped(x: Any, start: Any, metric: Any) -> Any:
        posterior = Loose((x, y), layout=layout)
        state = sampler.init(posterior, start, num_warmup=0, key=KEY)
        state = eqx.tree_at(lambda s: (s.metric.scale, s.metric.directions, s.metric.stretches), state, metric)
        after, stats = sampler.step(posterior, state, key=jax.random.key(1))
        return after.position, after.direction, stats["energy_error"], stats["diverging"]

    rest = np.zeros((2, 3), np.float32)
    without: Any = jnp.ones(3), jnp.zeros((3, 3)), jnp.ones(3)
    with_metric: Any = (
        jnp.asarray(scale),
        jnp.asarray(np.concatenate([direction_of_metric, rest])),
        jnp.asarray([2.5, 1, 1]),
    )
    position, direction, error, diverging = stepped(x @ matrix, start, without)
    assert abs(float(error)) > 1e-3
    assert not diverging
    result = stepped(jnp.asarray(x), matrix @ start, with_metric)
    np.testing.assert_allclose(result[0], matrix @ position, rtol=1e-4)
    np.testing.assert_allclose(result[1], direction, rtol=1e-4, atol=1e-5)
    assert float(result[2]) == pytest.approx(float(error), rel=1e-2)


def test_a_step_is_taken_up_to_a_thousand_times_the_energy_that_is_wanted():
    posterior, theta = parabolas([3.0], [1.0], dim=3), jnp.asarray([1.0, 2.0, -1.0])
    state = Mclmc(step_size=0.4).init(posterior, theta, num_warmup=0, key=KEY)
    _, free = Mclmc(energy_variance=1e6).step(posterior, state, key=jax.random.key(1))
    error = float(free["energy_error"])
    assert abs(error) > 1e-3
    for times, diverges in ((1.02, False), (0.98, True)):
        sampler = Mclmc(energy_variance=times * error**2 / 3000)
        _, stats = sampler.step(posterior, state, key=jax.random.key(1))
        assert bool(stats["diverging"]) == diverges
        assert float(stats["energy_error"]) == pytest.approx(0.0 if diverges else error, rel=1e-5)


@pytest.mark.parametrize("slope", [float("nan"), float("inf"), 1e30])
def test_a_step_to_a_nan_gradient_is_not_taken(slope, monkeypatch):
    """Though the densities are: the direction would be none, and where its square overflows neither."""
    posterior, sampler = Flat(np.zeros(2, np.float32)), Mclmc(step_size=0.5)
    state = sampler.init(posterior, jnp.zeros(4), num_warmup=0, key=jax.random.key(1))
    for last in (0.0, slope):
        slopes = iter([jnp.zeros(4), jnp.asarray([last, 1.0, 0.0, 0.0])])
        monkeypatch.setattr(
            mclmc, "density", lambda p, t, slopes_left=slopes: (0.0 * t[0], jnp.zeros(2), next(slopes_left))
        )
        new, stats = sampler.step(posterior, state, key=KEY)
        assert bool(stats["diverging"]) == (last != 0)
    np.testing.assert_array_equal(new.position, state.position)
    np.testing.assert_array_equal(new.gradient, 0.0)
    assert float(stats["energy_error"]) == 0
    assert float(jnp.linalg.norm(new.direction)) == pytest.approx(1, rel=1e-5)
    assert not np.allclose(new.direction, state.direction)


class Told(Mclmc):
    """A sampler with given energy errors that does not move."""

    error: Any = np.float32(0)
    failed: Any = np.bool_(False)

    def step(self, posterior: Any, state: Any, *, key: Any) -> Any:
        return state, {"energy_error": jnp.asarray(self.error), "diverging": jnp.asarray(self.failed)}


def _adapted(error: float, weight: float, excess: float, *, failed: bool = False) -> tuple[float, float, float]:
    posterior = parabolas([1.0], [0.0], dim=2)
    sampler = Told(step_size=0.5, energy_variance=0.01, error=np.float32(error), failed=np.bool_(failed))
    state = sampler.init(posterior, jnp.ones(2), num_warmup=9, key=KEY)
    state = kernel.replace(state, weight=jnp.asarray(weight), excess=jnp.asarray(excess))
    new, _ = sampler.warmup_step(posterior, state, key=KEY)
    assert float(new.metric.count) == 1
    return float(new.step_size), float(new.weight), float(new.excess)


@pytest.mark.parametrize(("error", "weight", "excess"), [(0.1, 0.0, 0.0), (0.3, 2.0, 40.0), (0.05, 1.0, 200.0)])
def test_the_step_size_follows_the_weighted_mean_of_the_excess(error, weight, excess):
    xi = error**2 / (2 * 0.01) + 1e-8
    current_weight = np.exp(-((np.log(xi) / 9) ** 2) / 2)
    memory = 149 / 151
    weight, excess = memory * weight, memory * excess
    weight, excess = weight + current_weight, excess + current_weight * xi / 0.5**6
    result = _adapted(
        error, weight=(weight - current_weight) / memory, excess=(excess - current_weight * xi / 0.5**6) / memory
    )
    np.testing.assert_allclose(result, [(excess / weight) ** (-1 / 6), weight, excess], rtol=1e-4)


def test_the_step_size_at_most_doubles_or_halves_and_falls_by_a_fifth_after_a_failure():
    assert _adapted(1e-6, 0.0, 0.0)[0] == pytest.approx(1.0)
    assert _adapted(50.0, 0.0, 0.0)[0] == pytest.approx(0.25)
    np.testing.assert_allclose(_adapted(0.0, 3.0, 40.0, failed=True), [0.4, 0.0, 0.0], rtol=1e-6)
    # An error of zero counts as 1e-8 of the target value.
    weight = np.exp(-((np.log(1e-8) / 9) ** 2) / 2)
    assert _adapted(0.0, 0.0, 0.0)[1] == pytest.approx(weight, rel=1e-3)


def test_a_window_starts_the_adaptation_of_the_step_size_again():
    posterior = parabolas([1.0], [0.0], dim=2)
    sampler = Mclmc()
    state = sampler.init(posterior, jnp.ones(2), num_warmup=9, key=KEY)
    state = kernel.replace(state, weight=jnp.asarray(3.0), excess=jnp.asarray(4.0))
    assert sampler.settle(posterior, state, final=True, key=KEY) is state
    after = sampler.settle(posterior, state, final=False, key=KEY)
    assert (float(after.weight), float(after.excess)) == (0.0, 0.0)
    isokinetic.check_dim(of_size(2))
    with pytest.raises(UsageError, match="at least 2"):
        isokinetic.check_dim(of_size(1))


# ---- Gibbs and the kernels of NumPyro ------------------------------------------------------------


def blocks_of(*sizes: tuple[str, int]) -> Layout:
    blocks: list[Block] = []
    for name, size in sizes:
        blocks.append(Block(name, (size,), blocks[-1].stop if blocks else 0))
    return Layout(tuple(blocks))


def _three() -> Parabolas:
    layout = blocks_of(("a_weight", 2), ("a_bias", 1), ("b_weight", 2))
    return Parabolas((np.ones(3, np.float32), np.zeros(3, np.float32)), layout=layout)


def test_gibbs_assigns_parameters_to_blocks():
    posterior = _three()
    for blocks, expected in (("layer", [0, 0, 0, 1, 1]), ("array", [0, 0, 1, 2, 2]), ("coordinate", [0, 1, 2, 3, 4])):
        sampler = Gibbs(blocks=blocks, step_size=0.25)
        np.testing.assert_array_equal(sampler.block_indices(posterior), expected)
        assert sampler.evaluations(posterior, {}) == 3 * (expected[-1] + 1)
        state = sampler.init(posterior, jnp.zeros(5), num_warmup=0, key=KEY)
        np.testing.assert_allclose(state.scales, [0.25] * (expected[-1] + 1))


def test_each_block_adapts_to_its_own_acceptance():
    posterior = _three()
    sampler = Gibbs(step_size=0.8, target_acceptance=0.4)
    state = sampler.init(posterior, 0.3 * jnp.ones(5), num_warmup=9, key=KEY)
    for count in (1, 2, 3):
        rates = np.asarray(sampler._sweep(posterior, state, key=jax.random.key(count))[2], float)
        after, stats = sampler.warmup_step(posterior, state, key=jax.random.key(count))
        expected = np.asarray(state.scales) * np.exp(count**-0.6 * (rates - 0.4))
        np.testing.assert_allclose(after.scales, expected, rtol=1e-4)
        assert float(after.count) == count
        assert float(stats["acceptance_rate"]) == pytest.approx(rates.mean(), rel=1e-4)
        assert float(stats["step_size"]) == pytest.approx(float(np.mean(state.scales)), rel=1e-5)
        assert float(stats["lp"]) == pytest.approx(float(posterior.log_density(after.position)), rel=1e-4)
        state = after
    assert rates[0] != rates[1]


class Coupled(Parabolas):
    """Rows (y - x'theta)^2 / 2, in which every block of theta meets every other."""

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        x, y = batch
        return -((y - x @ theta) ** 2) / 2


def test_a_block_is_judged_from_where_the_blocks_before_left_the_chain(monkeypatch):
    """Two blocks by hand: the acceptance of the second depends on whether the first was accepted. Their decisions are
    independent: both, either one and none are seen, though one uniform number for both would never take one alone."""
    x, y = np.array([[-1.8, -1.3, 1.2], [-0.5, -0.6, -1.2], [0.8, 0.6, -0.4]]), np.array([0.2, -1.0, 0.9])
    layout = blocks_of(("a_weight", 2), ("b_weight", 1))
    posterior = Coupled((np.float32(x), np.float32(y)), likelihood_power=np.float32(0.7), layout=layout)
    here, noise, scales = np.array([-0.1, 0.7, -0.3]), np.array([1.5, -1.9, 1.6]), np.array([0.7, 1.1])

    def density(theta: np.ndarray) -> float:
        return float(-0.7 * np.sum((y - x @ theta) ** 2) / 2 - theta @ theta / 2)

    moves = [scales[0] * noise * [1, 1, 0], scales[1] * noise * [0, 0, 1]]
    first = np.exp(density(here + moves[0]) - density(here))
    second = {
        accepted: np.exp(density(here + accepted * moves[0] + moves[1]) - density(here + accepted * moves[0]))
        for accepted in (False, True)
    }
    assert 0.2 < second[False] < first < second[True] < 0.8
    monkeypatch.setattr(gibbs, "standard_normal", lambda like, *, key: jnp.asarray(noise, like.dtype))
    sampler = Gibbs()
    state = sampler.init(posterior, jnp.asarray(here, jnp.float32), num_warmup=0, key=KEY)
    state = eqx.tree_at(lambda s: s.scales, state, jnp.asarray(scales, jnp.float32))
    sweep = jax.jit(jax.vmap(lambda key: sampler._sweep(posterior, state, key=key)))
    states, statistics, rates = sweep(jax.random.split(jax.random.key(1), 60))
    moved = np.asarray(states.position != state.position)[:, [0, 2]]
    for accepted, position, rate, lp in zip(moved, states.position, rates, statistics["lp"], strict=True):
        expected = here + accepted[0] * moves[0] + accepted[1] * moves[1]
        np.testing.assert_allclose(position, expected, rtol=1e-5)
        np.testing.assert_allclose(rate, [first, second[bool(accepted[0])]], rtol=1e-4)
        assert float(lp) == pytest.approx(density(expected), rel=1e-4)
    assert len(np.unique(moved, axis=0)) == 4


def test_a_sweep_is_accepted_where_one_block_is():
    posterior = _three()
    sampler = Gibbs(step_size=0.8)
    state = sampler.init(posterior, 0.3 * jnp.ones(5), num_warmup=9, key=KEY)
    state = eqx.tree_at(lambda s: s.scales, state, jnp.asarray([1e-6, 1e6]))
    after, stats = sampler.step(posterior, state, key=jax.random.key(1))
    assert bool(stats["accepted"])
    assert not bool(stats["diverging"])
    np.testing.assert_array_equal(after.position[3:], state.position[3:])


def test_a_nan_draw_from_a_conditional_is_rejected(monkeypatch):
    posterior = _three()
    sampler = Gibbs(conditionals="conjugate", step_size=1e-6)
    expected = conjugate.Conjugate(slice(3, 5), slice(0, 0))
    monkeypatch.setattr(gibbs, "conjugate", lambda posterior: expected)
    state = sampler.init(posterior, 0.3 * jnp.ones(5), num_warmup=0, key=KEY)
    np.testing.assert_array_equal(sampler.block_indices(posterior), [0, 0, 0, -1, -1])
    for value, rate, broken in ((7.0, 1.0, False), (jnp.nan, 0.5, True)):
        monkeypatch.setattr(gibbs, "draw_layer", lambda p, s, t, *, key, value=value: t.at[s].set(value))
        after, stats = sampler.step(posterior, state, key=jax.random.key(1))
        assert bool(stats["diverging"]) == broken
        assert float(stats["acceptance_rate"]) == pytest.approx(rate, abs=1e-4)
        np.testing.assert_allclose(after.position[3:], 0.3 if broken else 7.0, rtol=1e-5)
        assert np.isfinite(after.position).all()
    assert sampler.evaluations(posterior, {}) == 3 * (1 + 2 + 1)
    expected = conjugate.Conjugate(slice(0, 0), slice(3, 5))
    assert sampler.evaluations(posterior, {}) == 3 * (1 + 1 + 1)
    expected = conjugate.Conjugate(slice(0, 3), slice(3, 5))
    assert sampler.evaluations(posterior, {}) == 3 * (0 + 3 + 1)
    expected = conjugate.Conjugate(slice(0, 0), slice(3, 5))
    sampler.check(of_size(5, num_data=2, power=0.5))


def test_conditional_draws_use_their_own_key(monkeypatch):
    """They differ from the keys of the earlier blocks; otherwise the draws would depend on these blocks."""
    posterior, keys = _three(), []
    monkeypatch.setattr(gibbs, "conjugate", lambda posterior: conjugate.Conjugate(slice(4, 5), slice(0, 0)))
    monkeypatch.setattr(gibbs, "draw_layer", lambda p, s, theta, *, key: keys.append(key) or theta)
    sampler = Gibbs(conditionals="conjugate", blocks="coordinate")
    state = sampler.init(posterior, 0.3 * jnp.ones(5), num_warmup=0, key=KEY)
    sampler.step(posterior, state, key=jax.random.key(3))
    used = [k for block in range(4) for k in jax.random.split(jax.random.fold_in(jax.random.key(3), block))]
    assert not {str(jax.random.key_data(k)) for k in keys} & {str(jax.random.key_data(k)) for k in used}


class Edged(Parabolas):
    """No prior above 100 and no likelihood below -100, of the last parameter."""

    def log_prior(self, theta: Any) -> Any:
        return jnp.where(theta[-1] > 100, -jnp.inf, super().log_prior(theta))

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        return jnp.where((theta[-1] < -100) & (batch[1] > 1), -jnp.inf, super().log_likelihood(theta, batch))


@pytest.mark.parametrize(("value", "broken"), [(99.0, False), (101.0, True), (-99.0, False), (-101.0, True)])
def test_a_conditional_draw_without_density_is_rejected(value, broken, monkeypatch):
    posterior = Edged((np.ones(3, np.float32), np.float32([0, 1, 2])), layout=blocks_of(("a", 2), ("b", 2)))
    expected = conjugate.Conjugate(slice(2, 4), slice(0, 0))
    monkeypatch.setattr(gibbs, "conjugate", lambda posterior: expected)
    monkeypatch.setattr(gibbs, "draw_layer", lambda p, s, t, *, key: t.at[s].set(value))
    sampler = Gibbs(conditionals="conjugate", step_size=1e-6)
    state = sampler.init(posterior, 0.3 * jnp.ones(4), num_warmup=0, key=KEY)
    after, stats = sampler.step(posterior, state, key=jax.random.key(1))
    assert bool(stats["diverging"]) == broken
    np.testing.assert_allclose(after.position[2:], 0.3 if broken else value, rtol=1e-5)
    assert float(stats["lp"]) == pytest.approx(float(posterior.log_density(after.position)), rel=1e-5)
    assert np.isfinite(stats["lp"])


def _hamiltonian(sampler: Any, posterior: Any, theta: Any, step_size: float = 0.3) -> Any:
    """Return the state of a chain at `theta` with this step size."""
    state = sampler.init(posterior, jnp.asarray(theta), num_warmup=0, key=KEY)
    return kernel.replace(state, step_size=jnp.asarray(step_size))


@pytest.mark.long
def test_a_trajectory_reports_its_step_size_without_the_jitter():
    posterior = parabolas([1.0, 3.0], [0.5, -1.0], power=0.5)
    sizes: list[Any] = []

    class Recording(Hmc):
        """A sampler that keeps the step sizes of its kernels."""

        def kernel(self, potential, step_size, *, warmup):
            sizes.append(step_size)
            return super().kernel(potential, step_size, warmup=warmup)

    def used(key: Any, jitter: float) -> Any:
        sampler = Recording(jitter=jitter)
        _, stats = sampler.step(posterior, _hamiltonian(sampler, posterior, [0.7]), key=key)
        return sizes[-1], stats["step_size"]

    keys = jax.random.split(jax.random.key(1), 400)
    taken, reported = jax.vmap(lambda key: used(key, 0.2))(keys)
    assert 0.8 <= float(taken.min()) / 0.3 < 0.81
    assert 1.19 < float(taken.max()) / 0.3 <= 1.2
    np.testing.assert_allclose(reported, 0.3, rtol=1e-6)
    taken, _ = jax.vmap(lambda key: used(key, 0.0))(keys)
    np.testing.assert_allclose(taken, 0.3, rtol=1e-6)


def test_a_trajectory_follows_the_leapfrog_steps_in_the_coordinates_of_the_metric():
    """Three steps in z, with u = A z, by hand; the momentum is the one that NumPyro draws."""
    posterior = parabolas([1.0, 3.0], [0.5, -1.0], power=0.5)
    sampler = Hmc(num_steps=3, jitter=0.0)
    state = _hamiltonian(sampler, posterior, [0.7])
    state = eqx.tree_at(lambda s: s.metric.scale, state, jnp.asarray([2.0]))
    (moved, stats), other = (
        eqx.filter_jit(sampler.step)(posterior, state, key=jax.random.key(3)),
        sampler.init(posterior, state.position, num_warmup=0, key=KEY),
    )
    assert int(stats["n_steps"]) == 3
    assert float(stats["lp"]) == pytest.approx(float(posterior.log_density(moved.position)), rel=1e-5)
    np.testing.assert_allclose(
        moved.gradient, jax.grad(posterior.log_density)(moved.position), rtol=1e-4, err_msg="of the new position"
    )
    assert float(moved.potential_energy) == pytest.approx(-float(posterior.log_density(moved.position)), rel=1e-5)
    # The energy of the start minus its potential energy is that of the momentum.
    kinetic = float(stats["energy"]) - float(moved.potential_energy)
    slope = jax.grad(lambda z: -posterior.log_density(2 * z))
    for sign in (-1.0, 1.0):
        z, momentum = moved.position / 2, sign * jnp.sqrt(2 * jnp.asarray([kinetic]))
        for _ in range(3):  # backwards from the end
            half = momentum - 0.15 * slope(z)
            z = z + 0.3 * half
            momentum = half - 0.15 * slope(z)
        if abs(float(2 * z[0]) - 0.7) < 1e-4:
            break
    else:
        raise AssertionError("the end point is not on a leapfrog trajectory from the start")
    np.testing.assert_array_equal(other.position, other.coordinates)


def test_a_kernel_of_numpyros_has_the_fields_that_were_given():
    posterior = parabolas([1.0, 3.0], [0.5, -1.0], power=0.5)
    energy = numpyro_kernels.potential(Coordinates(posterior, None, None))
    fixed = Hmc(num_steps=7).kernel(energy, 0.3, warmup=False)
    tree = Nuts().kernel(energy, 0.3, warmup=False)
    for numpyro_kernel in (fixed, tree):
        assert float(numpyro_kernel._step_size) == pytest.approx(0.3)
        assert not numpyro_kernel._adapt_step_size
        assert not numpyro_kernel._adapt_mass_matrix
        assert not numpyro_kernel._dense_mass
        theta = jnp.asarray([0.7])
        assert float(numpyro_kernel._potential_fn(theta)) == pytest.approx(-float(posterior.log_density(theta)))
    assert (fixed._num_steps, fixed._trajectory_length) == (7, None)


def test_warm_up_of_a_hamiltonian_sampler_keeps_its_positions_for_the_metric():
    posterior = parabolas([1.0], [0.5])
    sampler = Nuts()
    state = sampler.init(posterior, jnp.asarray([0.7]), num_warmup=100, key=KEY)
    moved, _ = eqx.filter_jit(sampler.warmup_step)(posterior, state, key=KEY)
    np.testing.assert_array_equal(moved.metric.positions[0], moved.coordinates)
    np.testing.assert_array_equal(moved.metric.gradients[0], moved.gradient)
    assert int(moved.metric.count) == 1
    drawn, _ = eqx.filter_jit(sampler.step)(posterior, state, key=KEY)
    assert int(drawn.metric.count) == 0


def test_trees_are_as_deep_as_gradients_allow(monkeypatch):
    assert Hmc(num_steps=7).gradients == 7
    assert Nuts(max_tree_depth=3).gradients == 7
    posterior, thetas = parabolas([1.0], [0.0]), jnp.zeros((1, 1))
    for gradients, depth in ((1023, 10), (1022, 9), (31, 5), (30, 4), (1, 4), (10**9, 10)):
        assert Nuts(max_tree_depth=10).fit_budget(posterior, thetas, float(gradients)) == depth
    assert Nuts(max_tree_depth=3).fit_budget(posterior, thetas, 1.0) == 3
    for fields, (early, late) in (({}, (5, 10)), ({"max_tree_depth": 5}, (5, 5)), ({"warmup_tree_depth": 2}, (2, 10))):
        for warmup, depth in ((True, early), (False, late)):
            assert Nuts(**fields).kernel(jnp.sum, 0.1, warmup=warmup)._max_tree_depth == depth
    sampler, state = Nuts(), Nuts().init(parabolas([1.0], [0.0]), jnp.zeros(1), num_warmup=0, key=KEY)
    for steps, depth in ((1, 1), (3, 2), (4, 3), (7, 3), (8, 4)):
        statistics = {"n_steps": jnp.asarray(steps), "lp": ONE}
        monkeypatch.setattr(
            numpyro_kernels.AbstractHamiltonianSampler,
            "move",
            lambda *a, statistics=statistics, **k: (state, statistics),
        )
        stats = sampler.step(posterior, state, key=KEY)[1]
        assert float(stats["tree_depth"]) == depth
    assert float(Hmc(target_acceptance=0.5).headroom({"acceptance_rate": ONE})[0]) == 1.0
    assert Gibbs().headroom({"acceptance_rate": ONE}).shape == (0,)
