"""Chains that start far away reach the posterior in warm-up; a stuck chain does not affect the others."""

from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jaxtyping import Array, Float

import bnnzoo
from bnnzoo.api import entrances
from bnnzoo.errors import BnnzooError, BnnzooWarning, InterruptedRunError
from bnnzoo.evaluation.formulas.rhat import convergence
from bnnzoo.finding import sentence
from bnnzoo.models import Linear, Mlp
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.samplers import AbstractSampler, Gibbs, Hmc, Mala, Penalty, RandomWalk
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import Placement
from bnnzoo.sampling.initial.transport import transport
from bnnzoo.sampling.loop import loop
from bnnzoo.sampling.loop.loop import Chunk, Keys, chunks
from bnnzoo.sampling.loop.stragglers import find_stragglers, restart_stragglers
from bnnzoo.sampling.loop.stuck_chains import count_rejected_steps, find_stuck_chains, refuse_all_stuck, stuck_finding

VECTORIZED = Placement("vectorized", None)
CHAINS = 64


@functools.cache
def line(rows: int, inputs: int, prior: float, noise: Any = 0.3) -> NetworkPosterior:
    """A linear model of standardised inputs, under N(0, prior^2)."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, inputs)).astype(np.float32)
    y = x @ random.normal(size=inputs) + 0.5 + 0.3 * random.normal(size=rows)
    network = Linear().build((inputs,), 1, key=jax.random.key(0))
    return NetworkPosterior.of(network, Gaussian(scale=noise), Normal(scale=prior), x, y[:, None].astype(np.float32))


def from_prior(posterior: AbstractPosterior, chains: int = CHAINS) -> Float[Array, "chain dim"]:
    return jax.vmap(lambda key: posterior.sample_prior(key=key))(jax.random.split(jax.random.key(1), chains))


def run(posterior: AbstractPosterior, sampler: AbstractSampler, *, far: bool = True, **more: Any) -> list[Chunk]:
    arguments: dict[str, Any] = {"num_warmup": 400, "num_draws": 200, "thin": 4, **more}
    thetas, keys = from_prior(posterior), Keys.from_seed(0)
    if far:
        thetas = transported(posterior, thetas, key=keys.transport, num_warmup=arguments["num_warmup"])
    return list(chunks(posterior, sampler, thetas, keys=keys, placement=VECTORIZED, **arguments))


def transported(
    posterior: AbstractPosterior, thetas: Float[Array, "chain dim"], **how: Any
) -> Float[Array, "chain dim"]:
    """Return the positions after transport."""
    *_, (_, arrived) = transport(posterior, thetas, placement=VECTORIZED, **how)
    return arrived


def rhat(result: list[Chunk]) -> float:
    draws = np.concatenate([chunk.draws for chunk in result if chunk.phase == "sampling"], 1)
    return convergence(draws)["rhat"]


# ---- transport -------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("noise", [0.3, "learned"])
@pytest.mark.parametrize("rows", [100, 1500])
def test_transport_brings_every_chain_to_the_posterior(rows, noise):
    posterior = line(rows, 5, 25.0, noise)
    density = jax.jit(jax.vmap(posterior.log_density))
    before = from_prior(posterior, 16)
    after = transported(posterior, before, key=jax.random.key(2), num_warmup=200)
    best = np.max(np.asarray(density(after)))
    assert np.all(np.asarray(density(before)) < best - 100 * rows**0.5)
    assert np.all(np.asarray(density(after)) > best - 25)


def test_transport_moves_no_chain_downhill():
    """A chain stays if no better position is found."""
    posterior = line(100, 5, 25.0)
    best = transported(posterior, from_prior(posterior, 16), key=jax.random.key(2), num_warmup=200)
    repeat = transported(posterior, best, key=jax.random.key(3), num_warmup=1)
    np.testing.assert_array_equal(repeat, best)


@pytest.mark.long
@pytest.mark.parametrize("asked", [1, 3])
def test_transport_is_shown_and_can_be_stopped(asked, tmp_path):
    """It can be stopped between its three calls of 200 steps; no file is left then."""
    reports: list[tuple[int, int]] = []

    def watch(progress):
        if progress.note == "moving the chains to the posterior":
            reports.append((progress.done, progress.total))

    def stop() -> int:
        return 2 if len(reports) == asked else 0

    with pytest.raises(InterruptedRunError, match="stopped while moving the chains to the posterior: nothing was"):
        entrances.run_recipe(tiny.recipe("random-walk"), out=tmp_path / "run.nc", observer=watch, stop=stop)
    assert reports == [(200, 450), (400, 450), (450, 450)][:asked]
    assert not list(tmp_path.iterdir())


# ---- chains left behind ----------------------------------------------------------------------------------------------


def test_stragglers_are_far_below_at_least_two_chains():
    assert find_stragglers(np.array([0.0, -3, -5, -15]), 3).tolist() == [False] * 4
    assert find_stragglers(np.array([0.0, -3, -5, -25]), 3).tolist() == [False, False, False, True]
    # At least two chains must be ahead; a single best chain is no evidence about the others.
    assert find_stragglers(np.array([1000.0, -3, -5, -8]), 3).tolist() == [False] * 4
    assert find_stragglers(np.array([0.0, np.nan, -5, -np.inf]), 3).tolist() == [False, True, False, True]
    assert find_stragglers(np.array([0.0, -1e6]), 3).tolist() == [False, False]
    assert find_stragglers(np.array([-1e6]), 3).tolist() == [False]
    # With nine chains, the others are compared with the third best.
    ahead = [0.0, -1, -2, -3, -4, -5, -6, -7]
    for dim in (0, 1, 50):
        for below, behind in ((10 + 2 * dim, False), (10.1 + 2 * dim, True)):
            assert find_stragglers(np.array([*ahead, -2 - below]), dim).tolist() == [False] * 8 + [behind]


class _State(NamedTuple):
    position: Any
    step_size: Any


class _Carry(NamedTuple):
    states: Any
    restarted: Any


def test_a_straggler_restarts_at_another_chain_and_is_counted():
    posterior = line(100, 5, 25.0)
    position = transported(posterior, from_prior(posterior, 8), key=jax.random.key(2), num_warmup=99)
    position = position.at[jnp.array([2, 5])].add(3.0)
    carry = _Carry(_State(position, jnp.arange(8.0)), jnp.zeros(8, jnp.int32))
    after = restart_stragglers(posterior, carry, key=jax.random.key(0))
    assert after.restarted.tolist() == [0, 0, 1, 0, 0, 1, 0, 0]
    source = after.states.step_size.astype(int)
    assert not {2, 5} & set(source.tolist())
    np.testing.assert_array_equal(after.states.position, position[source])
    assert restart_stragglers(posterior, after, key=jax.random.key(0)) is after


def test_stragglers_restart_at_different_chains():
    position = jnp.where(jnp.arange(64) < 32, jnp.linspace(-1, 1, 64), 50.0)[:, None]
    carry = _Carry(_State(position, jnp.arange(64)), jnp.arange(64, dtype=jnp.int32))
    after = restart_stragglers(Spiked(), carry, key=jax.random.key(0))
    source = np.asarray(after.states.step_size)
    np.testing.assert_array_equal(source[:32], np.arange(32))
    assert source[32:].max() < 32
    assert len(set(source[32:].tolist())) > 12  # 32 draws from 32 positions
    assert after.restarted.tolist() == [*range(32), *range(33, 65)]  # the count belongs to the chain


# ---- whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sixty_four_chains_from_a_wide_prior_agree(monkeypatch):
    """Positive control: without transport and restarts, chains on batches of these rows do not agree."""
    posterior = line(1500, 5, 25.0)
    sampler = Penalty(proposal="langevin")
    assert rhat(run(posterior, sampler)) <= 1.01
    monkeypatch.setattr(loop, "restart_stragglers", lambda posterior, carry, *, key: carry)
    try:
        alone = rhat(run(posterior, Penalty(proposal="langevin", sampling="replacement"), far=False))
    except BnnzooError:
        alone = np.inf
    assert alone > 1.1


FAR = {"line": (2000, 2, 1.0), "wide": (1500, 5, 10.0), "wider": (1500, 5, 25.0), "few rows": (100, 5, 25.0)}
SAMPLERS = {
    "auto": (Penalty(), 400, 4),
    "random-walk": (Penalty(proposal="random-walk"), 1500, 30),
    "langevin": (Penalty(proposal="langevin"), 800, 8),
    "hmc": (Penalty(proposal="hmc"), 400, 4),
    "on batches": (Penalty(proposal="langevin", sampling="replacement"), 1500, 30),
    "full random-walk": (RandomWalk(), 1500, 30),
    "mala": (Mala(), 800, 8),
    "gibbs": (Gibbs(blocks="coordinate"), 800, 20),
    "full hmc": (Hmc(num_steps=8), 400, 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SAMPLERS))
@pytest.mark.parametrize("problem", list(FAR))
def test_samplers_with_an_accept_step_reach_the_posterior(problem, name):
    sampler, num_warmup, thin = SAMPLERS[name]
    assert rhat(run(line(*FAR[problem]), sampler, num_warmup=num_warmup, thin=thin, num_draws=200)) <= 1.01


@pytest.mark.slow
def test_networks_on_few_rows_reach_the_posterior():
    """Data like the yacht table: 308 rows and six inputs, a few of which have nearly all of the effect."""
    random = np.random.default_rng(3)
    x = random.uniform(-1.7, 1.7, size=(277, 6)).astype(np.float32)
    y = np.exp(1.5 * x[:, 5]) + 0.1 * x[:, 0] * x[:, 5]
    y = ((y - y.mean()) / y.std() + 0.03 * random.normal(size=277)).astype(np.float32)
    network = Mlp(hidden=(8,)).build((6,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Gaussian(), Normal(), x, y[:, None])
    result = run(posterior, Penalty(), num_warmup=1000, num_draws=50)
    density = jax.jit(jax.vmap(posterior.log_density))
    reached = np.asarray(density(jnp.asarray(result[-1].draws[:, -1])))
    assert not find_stragglers(reached, posterior.layout.dim).any()


# ---- chains that stand still -----------------------------------------------------------------------------------------


def test_steps_without_an_acceptance_are_counted_across_chunks():
    quiet = np.zeros(3, int)
    moved = np.array([[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]) > 0
    quiet = count_rejected_steps(moved, quiet, 2)
    assert quiet.tolist() == [6, 8, 0]
    assert count_rejected_steps(moved, quiet, 2).tolist() == [6, 16, 0]


def test_a_run_ends_only_if_all_chains_are_stuck():
    refuse_all_stuck(np.array([5000, 999]), 6000)
    with pytest.raises(BnnzooError, match="each of the 2 chains: no proposal accepted for 1000 steps up to step 7"):
        refuse_all_stuck(np.array([5000, 1000]), 7)


def test_stuck_chains_are_listed_for_a_finished_run():
    accepted = np.ones((4, 3000), bool)
    accepted[1, 500:1500] = False
    accepted[2, 500:1499] = False
    accepted[3, 1:] = False
    assert find_stuck_chains(accepted, 1) == {1: 1000, 3: 2999}
    # The count has the precision of a thinned draw.
    assert find_stuck_chains(accepted[:, ::2], 2) == {1: 1000, 2: 1000, 3: 2998}
    (finding,) = stuck_finding({3: 2999})
    assert finding.label.startswith("chain 3 accepted no proposal for 2999 steps")
    assert stuck_finding({}) == ()


class Spiked(AbstractPosterior):
    """N(0, 1) with a narrow spike at 100 that no proposal leaves."""

    data: Any
    likelihood_power: Any

    def __init__(self):
        self.data, self.likelihood_power = np.zeros((1, 1), np.float32), np.float32(1.0)

    @property
    def layout(self) -> Layout:
        return Layout((Block("theta", (1,), 0),))

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        return jnp.where(theta[0] == 100, 1e6, -0.5 * jnp.square(theta[0]))

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        return jnp.zeros(batch.shape[0]) * theta[0]


def test_one_stuck_chain_is_named_and_the_others_continue(tmp_path):
    start = np.array([[0.0], [100.0], [0.5]], np.float32)
    with pytest.warns(BnnzooWarning, match="chain 1 accepted no proposal for 1500 steps.*use a smaller"):
        run = bnnzoo.sample(
            Spiked(),
            RandomWalk(step_size=2.0),
            out=tmp_path / "run.nc",
            chains=3,
            warmup=0,
            draws=1500,
            init=start,
            chain_method="vectorized",
        )
    about = run.attributes
    assert about["complete"] == 1
    assert json.loads(about["stuck_chains"]) == [1]
    assert about["regime_ok"] == 0
    assert run.summary()["stuck_chains"] == "[1]"
    draws = run.posterior["posterior"]["theta"].values[:, :, 0]
    assert np.all(draws[1] == 100)
    assert abs(draws[[0, 2]].mean()) < 0.5
    failed = [sentence(finding) for finding in run.findings()]
    assert any("chain 1 accepted no proposal" in item for item in failed)


@pytest.mark.long
def test_a_run_reports_the_number_of_restarted_chains(tmp_path):
    with jax_settings.arithmetic("float32"):
        run = bnnzoo.sample(
            Spiked(), RandomWalk(), out=tmp_path / "run.nc", chains=2, warmup=0, draws=5, init=np.zeros((2, 1))
        )
    assert run.attributes["restarted"] == 0
    assert "restarted" not in run.summary()
    # The restart is in the first of eleven windows, and later windows keep its count.
    start = np.array([[0.0], [1e6], [0.5], [-0.5]])
    with jax_settings.arithmetic("float32"):
        run = bnnzoo.sample(Spiked(), RandomWalk(), out=tmp_path / "far.nc", chains=4, warmup=200, draws=5, init=start)
    assert run.attributes["restarted"] == run.summary()["restarted"] == 1
    assert np.abs(run.posterior["posterior"]["theta"].values).max() < 10
