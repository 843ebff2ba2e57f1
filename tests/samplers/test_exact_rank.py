"""The exact rank test of a chain, per model and sampler: prior, data, kernel and density must all agree.

Gandy and Scott 2020, arXiv 2001.06465, algorithm 2: theta is drawn from the prior and the data given theta, so that
theta is a posterior draw; a reversible chain run from it both ways leaves its rank along the chain uniform. No closed
form and no convergence is needed, and the p-values are exact.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from scipy import stats

from bnnzoo.models import Cnn, Mdn, Mlp
from bnnzoo.posterior import Data, NetworkPosterior
from bnnzoo.posterior.ard import Ard
from bnnzoo.posterior.input_weights import InputWeightCoordinates
from bnnzoo.posterior.last_layer import LastLayerCoordinates
from bnnzoo.posterior.likelihoods import Categorical, Gaussian, Heteroscedastic, Mixture
from bnnzoo.posterior.priors import Laplace, Normal
from bnnzoo.samplers import Hmc, Mala, Mams, Penalty, RandomWalk, Sgld

pytestmark = pytest.mark.slow

ROWS, LENGTH = 20, 12
ROUNDS, GROWTH, ALPHA = 7, 4, 1e-5


@functools.cache
def _posterior(model: str) -> NetworkPosterior:
    """A small network whose targets `_ranks` draws."""
    rng, key = np.random.default_rng(0), jax.random.key(0)
    x = rng.normal(size=(ROWS, 2)).astype(np.float32)
    real = np.zeros((ROWS, 1), np.float32)
    if model == "cnn":
        images = rng.normal(size=(ROWS, 1, 4, 4)).astype(np.float32)
        network = Cnn((2,), hidden=()).build((1, 4, 4), 2, key=key)
        return NetworkPosterior.of(network, Categorical(), Normal(), images, np.zeros(ROWS, np.int32))
    if model == "mdn":
        network = Mdn((3,), components=2).build((2,), 6, key=key)
        return NetworkPosterior.of(network, Mixture(2), Laplace(0.7), x, real)
    likelihood = Heteroscedastic() if model == "noise-by-row" else Gaussian()
    network = Mlp((3,)).build((2,), likelihood.num_outputs(1), key=key)
    prior = Ard(df=2.0, input_scale=0.3) if model == "ard" else Normal()
    return NetworkPosterior.of(network, likelihood, prior, x, real)


def _statistics(posterior: NetworkPosterior, theta: Array) -> Array:
    """Return the ranked quantities: the log-likelihood, the first parameter, the first output at the first input."""
    output = posterior.outputs(theta, jnp.asarray(posterior.data.x)[:1])[0, 0]
    return jnp.stack([jnp.sum(posterior.log_likelihoods(theta)), theta[0], output])


@eqx.filter_jit
def _ranks(posterior: NetworkPosterior, wrong: Any, sampler: Any, keys: Array) -> Any:
    """Ranks [replicate, statistic] in 0..LENGTH-1 of the true theta, and acceptance rates."""

    def replicate(key: Array) -> Any:
        key_theta, key_data, key_place, key_ties, *both = jax.random.split(key, 6)
        theta = posterior.start(key=key_theta)
        outputs, likelihood = posterior.outputs(theta, jnp.asarray(posterior.data.x)), posterior.likelihood_at(theta)
        draw = lambda output, key: likelihood.sample(output, key=key)  # noqa: E731
        targets = jax.vmap(draw)(outputs, jax.random.split(key_data, ROWS))
        altered = eqx.tree_at(lambda p: p.data, posterior, Data(posterior.data.x, targets))
        altered = eqx.tree_at(lambda p: p.likelihood_power, altered, wrong)

        def walk(key: Array) -> Any:
            state = sampler.init(altered, theta, num_warmup=0, key=key)

            def step(state: Any, key: Array) -> Any:
                state, step_stats = sampler.step(altered, state, key=key)
                rate = step_stats.get("acceptance_rate", jnp.ones(()))
                # Equal positions are ties; their statistics may differ in the last bit.
                return state, (_statistics(altered, state.position), jnp.all(state.position == theta), rate)

            return jax.lax.scan(step, state, jax.random.split(key, LENGTH - 1))[1]

        (ahead, same_ahead, rate), (behind, same_behind, _) = walk(both[0]), walk(both[1])
        # The true theta is at a uniform place of a chain of LENGTH states.
        place, index = jax.random.randint(key_place, (), 0, LENGTH), jnp.arange(LENGTH - 1)
        statistics_here = _statistics(altered, theta)
        below, ties = jnp.zeros(3, jnp.int32), jnp.zeros((), jnp.int32)
        for values, same, steps in ((behind, same_behind, place), (ahead, same_ahead, LENGTH - 1 - place)):
            below += jnp.sum((values < statistics_here) & ((index < steps) & ~same)[:, None], 0)
            ties += jnp.sum(same & (index < steps))
        rank = below + jax.random.randint(key_ties, (3,), 0, ties + 1)
        return rank, jnp.mean(rate)

    return jax.lax.map(replicate, keys, batch_size=250)


def _least_p(posterior: Any, sampler: Any, power: float, count: int, seed: int) -> tuple[float, float]:
    """The least p-value times the number of statistics, and the mean acceptance."""
    keys = jax.random.split(jax.random.key(seed), count)
    ranks, rates = (np.asarray(a) for a in _ranks(posterior, np.float32(power), sampler, keys))
    p = [stats.chisquare(np.bincount(column, minlength=LENGTH)).pvalue for column in ranks.T]
    return len(p) * min(p), float(rates.mean())


def _passes(posterior: Any, sampler: Any, power: float = 1.0) -> bool:
    """Gandy and Scott's sequential test, algorithm 3: false alarms with probability below ALPHA."""
    beta = ALPHA / ROUNDS
    gamma, count = beta ** (1 / ROUNDS), 1000
    for round_number in range(ROUNDS):
        p, _ = _least_p(posterior, sampler, power, count, round_number)
        if p <= beta:
            return False
        if p > gamma + beta:
            return True
        beta /= gamma
        count = 1000 * GROWTH
    return True


STEPS = {"mlp": (0.1, 0.02), "mdn": (0.1, 0.02), "cnn": (0.2, 0.15), "noise-by-row": (0.1, 0.02), "ard": (0.1, 0.02)}
"""Step sizes of a random walk and of a Langevin proposal."""
ALL = {"batch_size": 4, "num_batches": 5, "sampling": "disjoint", "preconditioner": "identity"}
"""The penalty on all data: without noise, an exact kernel."""


def _sampler(name: str, model: str) -> Any:
    walk, langevin = STEPS[model]
    return {
        "random-walk": RandomWalk(step_size=walk),
        "mala": Mala(step_size=langevin),
        "penalty": Penalty(step_size=walk, **ALL),
        "sgld": Sgld(step_size=langevin, batch_size=ROWS, sampling="disjoint"),
        "mams": Mams(step_size=2.0, num_steps=2),
        "hmc": Hmc(step_size=0.15, num_steps=3),
    }[name]


PAIRS = [
    *itertools.product(["mlp", "mdn", "cnn"], ["random-walk", "mala"]),
    ("mlp", "penalty"),
    *itertools.product(["mlp", "noise-by-row", "ard"], ["mams", "hmc"]),
]


@pytest.mark.parametrize(("model", "sampler"), PAIRS)
def test_the_true_parameters_rank_uniformly(model, sampler):
    posterior, sampler_object = _posterior(model), _sampler(sampler, model)
    assert _passes(posterior, sampler_object)
    assert 0.15 < _least_p(posterior, sampler_object, 1.0, 1000, 0)[1] < 0.95


@pytest.mark.parametrize("model", STEPS)
def test_a_likelihood_of_half_the_power_is_seen(model):
    """The positive control: a chain for another density than the data's."""
    assert not _passes(_posterior(model), _sampler("random-walk", model), 0.5)


def test_steps_without_rejection_are_detected():
    """The positive control: the unadjusted Langevin algorithm."""
    assert not _passes(_posterior("mlp"), _sampler("sgld", "mlp"))


@pytest.mark.parametrize(("model", "sampler"), [("mlp", "mams"), ("mlp", "hmc"), ("noise-by-row", "mams")])
def test_a_whitened_last_layer_without_its_jacobian_is_detected(model, sampler, monkeypatch):
    """The positive control: the density of theta, used as if it were that of the coordinates."""
    to_theta = LastLayerCoordinates._to_theta
    wrong = lambda self, *arguments: (to_theta(self, *arguments)[0], jnp.zeros(()))  # noqa: E731
    monkeypatch.setattr(LastLayerCoordinates, "_to_theta", wrong)
    jax.clear_caches()  # compiled programs have the right map
    assert not _passes(_posterior(model), _sampler(sampler, model))
    jax.clear_caches()


@pytest.mark.parametrize("sampler", ["mams", "hmc"])
def test_light_tails_of_the_input_weights_without_their_jacobian_are_detected(sampler, monkeypatch):
    """The positive control: the density of theta, used as if it were that of the coordinates."""
    to_theta = InputWeightCoordinates.to_theta
    wrong = lambda self, u: (to_theta(self, u)[0], jnp.zeros(()))  # noqa: E731
    monkeypatch.setattr(InputWeightCoordinates, "to_theta", wrong)
    jax.clear_caches()  # compiled programs have the right map
    assert not _passes(_posterior("ard"), _sampler(sampler, "ard"))
    jax.clear_caches()
