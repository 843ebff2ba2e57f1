"""Langevin proposals on a skewed target, which reveals a reversed or missing proposal ratio."""

from __future__ import annotations

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_mean import Z, agrees, evolve, scores
from jaxtyping import Array, Float
from scipy import stats

from bnnzoo.models import Linear
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.samplers import Mala, Penalty, Sgld
from bnnzoo.samplers.mcmc import mala
from bnnzoo.samplers.subsampled import metropolis
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.keys import Keys
from bnnzoo.sampling.loop.loop import chunks


class Skewed(AbstractPosterior):
    """p(theta) = exp(theta - e^theta), the law of log E, E exponential; slopes that sum to zero are the likelihood.

    The data cancel out of the posterior and are noise in any mini-batch of it.
    """

    data: Any
    likelihood_power: Any = np.float32(1.0)
    layout: Layout = eqx.field(static=True, default=Layout((Block("theta", (1,), 0),)))

    @classmethod
    def of(cls, num_data: int, scale: float) -> Skewed:
        slopes = stats.norm.ppf((np.arange(num_data) + 0.5) / num_data)
        return cls(scale * slopes / slopes.std())

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        return theta[0] - jnp.exp(theta[0])

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        return batch * theta[0]


def _normal_scores(theta: np.ndarray) -> np.ndarray:
    """Return values that are N(0, 1) for exact draws, [count]."""
    with np.errstate(divide="ignore"):
        return stats.norm.isf(np.exp(-np.exp(np.asarray(theta, float)[:, 0])))


# ---- (i) detailed balance of the real step -------------------------------------------------------

ETA = 0.4


def _acceptance(module: Any, sampler: Any, posterior: Any, theta: Array, proposal: Array, gradient: Any) -> Array:
    """A(here -> there): the step's own, given the noise that leads there."""
    drift = theta + ETA * gradient(theta)
    eps = (proposal - drift) / np.sqrt(2 * ETA)
    state = sampler.init(posterior, theta[None], num_warmup=0, key=jax.random.key(0))
    state = eqx.tree_at(lambda s: s.step_size, state, jnp.asarray(ETA))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "standard_normal", lambda like, *, key: eps[None])
        return sampler.step(posterior, state, key=jax.random.key(0))[1]["acceptance_rate"]


def _imbalance(acceptance: np.ndarray, grid: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """log pi(x) q(x -> y) A(x -> y) minus the same from y to x, [x, y]."""
    forward = -((grid - grid[:, None] - ETA * gradient[:, None]) ** 2) / (4 * ETA)
    flow = (grid - np.exp(grid))[:, None] + forward + np.log(acceptance)
    return flow - flow.T


@pytest.mark.parametrize(("precision", "bound"), [("float64", 1e-9), ("float32", 1e-4)])
def test_mala_is_in_detailed_balance(precision, bound):
    grid = np.linspace(-4, 1.8, 200)
    slope = lambda x: 1 - jnp.exp(x)  # noqa: E731
    with jax_settings.arithmetic(precision):
        posterior, points = Skewed.of(4, 0.3), jnp.asarray(grid)

        def flow(theta: Array, proposal: Array) -> Array:
            return _acceptance(mala, Mala(preconditioner="identity"), posterior, theta, proposal, slope)

        rate = np.asarray(jax.jit(jax.vmap(jax.vmap(flow, (None, 0)), (0, None)))(points, points), float)
    assert 0.1 < rate.mean() < 0.9
    imbalance = _imbalance(rate, np.asarray(points, float), 1 - np.exp(np.asarray(points, float)))
    assert np.abs(imbalance).max() <= bound
    # The positive control: without its proposal ratio the same kernel is far from balance.
    density = grid - np.exp(grid)
    plain = np.exp(np.minimum(density - density[:, None], 0))
    assert np.abs(_imbalance(plain, grid, 1 - np.exp(grid))).max() > 1


class TwoBatches(Skewed):
    """Gives the rows it is told to the first caller of a step, the drift, and all of them to the second."""

    drift: Any = None
    calls: list = eqx.field(static=True, default_factory=list)

    def minibatch(self, size: int, *, replace: bool = True, key: Any) -> Array:
        del replace
        assert size == self.num_data
        self.calls.append(key)
        return self.take(self.drift) if len(self.calls) == 1 else jnp.asarray(self.data)


def test_a_drift_on_any_mini_batch_is_in_detailed_balance():
    """Four data, every drift batch of four with replacement, an acceptance on all data without noise.

    Given its batch the proposal is an ordinary one: in balance with that batch's own proposal ratio.
    """
    grid = np.linspace(-3, 1.5, 12)
    every = np.array(list(itertools.product(range(4), repeat=4)))
    with jax_settings.arithmetic("float64"):
        posterior, points = TwoBatches.of(4, 0.3), jnp.asarray(grid)
        sampler = Penalty(
            proposal="langevin", batch_size=2, num_batches=2, sampling="disjoint", preconditioner="identity"
        )

        def flow(batch: Array, theta: Array, proposal: Array) -> Array:
            altered = eqx.tree_at(lambda p: p.drift, posterior, batch, is_leaf=lambda leaf: leaf is None)
            altered.calls.clear()
            slope = lambda x: 1 - jnp.exp(x) + jnp.sum(jnp.asarray(posterior.data)[batch])  # noqa: E731
            rate = _acceptance(metropolis, sampler, altered, theta, proposal, slope)
            assert len(altered.calls) == 2
            return rate

        over_pairs = jax.vmap(jax.vmap(flow, (None, None, 0)), (None, 0, None))
        rates = np.asarray(jax.jit(jax.vmap(over_pairs, (0, None, None)))(jnp.asarray(every), points, points))
    noise = np.asarray(posterior.data)[every].sum(1)
    assert noise.std() > 0.3
    for rate, shift in zip(rates, noise, strict=True):
        assert np.abs(_imbalance(rate, grid, 1 - np.exp(grid) + shift)).max() <= 1e-9
    # The positive control: the ratio of another batch does not balance.
    assert np.abs(_imbalance(rates[0], grid, 1 - np.exp(grid))).max() > 0.1


@pytest.mark.parametrize("proposal", ["langevin", "hmc"])
def test_the_drift_has_a_key_of_its_own(proposal):
    posterior = TwoBatches.of(4, 0.3)
    altered = eqx.tree_at(lambda p: p.drift, posterior, jnp.arange(4), is_leaf=lambda leaf: leaf is None)
    sampler = Penalty(proposal=proposal, batch_size=2, num_batches=2, sampling="disjoint", preconditioner="identity")
    state = sampler.init(altered, jnp.zeros(1), num_warmup=0, key=jax.random.key(0))
    altered.calls.clear()
    sampler.step(altered, state, key=jax.random.key(5))
    drift, acceptance = (tuple(np.asarray(jax.random.key_data(key))) for key in altered.calls)
    assert drift != acceptance


# ---- (ii) invariance -----------------------------------------------------------------------------

SAMPLERS = {
    "mala": Mala(step_size=0.7, preconditioner="identity"),
    "langevin": Penalty(step_size=0.4, proposal="langevin", batch_size=6, num_batches=20, preconditioner="identity"),
    "hmc": Penalty(step_size=0.5, proposal="hmc", num_steps=3, batch_size=6, num_batches=20, preconditioner="identity"),
}


def _final(sampler: Any, *, far: bool = False) -> tuple[dict[str, float], dict[str, float]]:
    """Scores of the final states and means of the statistics, from exact draws or from theta = -6."""
    chains = 10_000 if far else 20_000
    starts = np.log(np.random.default_rng(1).exponential(size=(chains, 1)))
    starts = np.full_like(starts, -6.0) if far else starts
    posterior = Skewed.of(120, 0.065)
    final, means = evolve(sampler, posterior, starts, steps=200 if far else 20, seed=2)
    return scores(_normal_scores(final)), {name: float(value.mean()) for name, value in means.items()}


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("sampler", ["mala", "langevin", pytest.param("hmc", marks=pytest.mark.slow)])
def test_langevin_samplers_keep_the_skewed_target(sampler):
    result, means = _final(SAMPLERS[sampler])
    assert agrees(result), result
    assert 0.3 < means["acceptance_rate"] < 0.95
    if sampler != "mala":
        assert 0.1 < means["sigma2"] < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_chains_reach_the_skewed_target_from_distant_positions(sampler):
    result, _ = _final(SAMPLERS[sampler], far=True)
    assert agrees(result), result


def test_langevin_steps_that_are_never_rejected_are_seen():
    """The positive control: the unadjusted algorithm."""
    result, _ = _final(Sgld(step_size=0.3, batch_size=120, sampling="disjoint"))
    assert not agrees(result)
    assert abs(result["variance"]) > 2 * Z


@pytest.mark.long
def test_a_short_warm_up_crosses_from_one_unit_to_the_other():
    """At 20 000 rows MALA's step with no preconditioner is a twenty thousandth of one in the units of the curvature."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 5)).astype(np.float32)
    y = (x.sum(1, keepdims=True) + rng.normal(size=(len(x), 1))).astype(np.float32)
    network = Linear().build((5,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Gaussian(1.0), Normal(1.0), x, y)
    thetas = np.tile(posterior.position(posterior.network_at(jnp.ones(6)))[None], (4, 1))
    run = {"keys": Keys.from_seed(0), "num_warmup": 100, "num_draws": 200, "placement": place_chains("vectorized", 4)}
    result = [chunk.stats for chunk in chunks(posterior, Mala(), thetas, **run) if chunk.phase == "sampling"]
    rate = np.concatenate([stats["acceptance_rate"] for stats in result], 1).mean()
    assert 0.45 < rate < 0.75
