"""The plugin is found; its samplers draw from known posteriors, have random numbers by step, and report their bias."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bnnzoo_blackjax.adjusted_mclmc import AdjustedMclmc
from bnnzoo_blackjax.kernels import Barker, Hmc, Nuts

import bnnzoo
from bnnzoo.plugins import registry
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.loop.loop import Keys, chunks
from bnnzoo.testing import TARGETS, check_sampler

SAMPLERS = {
    "adjusted-mclmc": AdjustedMclmc(),
    "blackjax-nuts": Nuts(max_tree_depth=5),
    "blackjax-hmc": Hmc(num_steps=5),
    "barker": Barker(),
}
TARGET = TARGETS["regression"]()
CHAINS, WARMUP, DRAWS = 4, 120, 20


def _run(sampler, **more):
    thetas = TARGET.start(np.random.default_rng(0), CHAINS).astype(np.float32)
    arguments = {"num_warmup": WARMUP, "num_draws": DRAWS, "chunk_seconds": 1e9, **more}
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


def _draws(result):
    return np.concatenate([chunk.draws for chunk in result if chunk.phase == "sampling"], 1)


@pytest.mark.parametrize("name", SAMPLERS)
def test_listed_and_loaded(name):
    entry = registry.find("samplers", name)
    assert (entry.distribution, entry.exactness) == ("bnnzoo-blackjax", SAMPLERS[name].exactness)
    assert registry.load("samplers", name) is type(SAMPLERS[name])


def test_listing_imports_no_jax():
    code = "import sys, bnnzoo_blackjax; print({'jax', 'blackjax'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


@pytest.mark.parametrize("name", SAMPLERS)
def test_chunks_and_resuming_change_no_bit(name):
    sampler = SAMPLERS[name]
    uninterrupted = _run(sampler)
    places = [len(np.unique(chain, axis=0)) for chain in _draws(uninterrupted)]
    assert min(places) > 1
    assert sum(places) > DRAWS
    cut = _run(sampler, chunk_seconds=1e-9)
    assert len(cut) > len(uninterrupted)
    np.testing.assert_array_equal(_draws(uninterrupted), _draws(cut))
    at = next(chunk for chunk in cut if chunk.next_step == WARMUP // 2)
    rest = _run(at.sampler, resume=(at.carry, at.next_step))
    np.testing.assert_array_equal(_draws(uninterrupted), _draws(rest))


@pytest.mark.parametrize("name", SAMPLERS)
def test_steps_are_proportional_to_the_standard_deviations_of_the_metric(name):
    variances = jnp.asarray([100.0, 1.0, 0.01])

    @jax.jit
    @jax.vmap
    def position_after_a_step(key):
        log_density = lambda theta: -jnp.sum(theta**2 / variances) / 2  # noqa: E731
        algorithm = SAMPLERS[name].algorithm(log_density, jnp.asarray(0.1), variances)
        return algorithm.step(key, algorithm.init(jnp.zeros(3), key))[0].position

    positions = position_after_a_step(jax.random.split(jax.random.key(0), 1000))
    ratio = np.std(positions, 0) / np.sqrt(variances)
    np.testing.assert_allclose(ratio / ratio.mean(), 1, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_passes_the_exactness_check(name):
    report = check_sampler(SAMPLERS[name], targets=("correlated-gaussian", "regression", "network"))
    assert report.passed, str(report)


def test_a_plan_knows_what_a_step_costs():
    """The number of gradients of a step, its requested limit, and two per step of McLachlan's integrator."""
    assert (Hmc(num_steps=7).gradients, Nuts(max_tree_depth=5).gradients) == (7, 31)
    assert AdjustedMclmc(max_steps=10).gradients == 2 * 19
    posterior, sampler = TARGET.posterior, AdjustedMclmc(step_size=0.1)
    thetas = jnp.zeros((1, posterior.layout.dim))
    assert Nuts().fit_budget(posterior, thetas, 40.0) == 5
    assert AdjustedMclmc(max_steps=AdjustedMclmc().fit_budget(posterior, thetas, 100.0)).gradients <= 100
    state = sampler.init(posterior, jnp.zeros(posterior.layout.dim), num_warmup=0, key=jax.random.key(0))
    stats = jax.jit(lambda key: sampler.step(posterior, state, key=key)[1])(jax.random.key(1))
    assert int(stats["n_steps"]) % 2 == 0
    assert sampler.evaluations(posterior, {"n_steps": 6.0}) == 6 * posterior.num_data


def test_a_proposal_without_density_is_refused_and_counted():
    target = TARGETS["regression"]()

    class Hole(type(target.posterior)):
        def log_prior(self, theta):
            return jnp.where(theta[0] > target.mean[0], jnp.nan, super().log_prior(theta))

    posterior = Hole(**{f.name: getattr(target.posterior, f.name) for f in dataclasses.fields(target.posterior)})
    sampler = Barker(step_size=float(np.sqrt(target.covariance[0, 0])))
    start = jnp.asarray(target.mean - 0.1, jnp.float32)
    state = sampler.init(posterior, start, num_warmup=0, key=jax.random.key(0))
    step_stats = jax.jit(jax.vmap(lambda key: sampler.step(posterior, state, key=key)))(
        jax.random.split(jax.random.key(1), 200)
    )
    moved, stats = step_stats
    assert (moved.position[:, 0] <= target.mean[0]).all()
    assert stats["diverging"].any()
    assert not stats["accepted"][stats["diverging"]].any()
    assert (stats["acceptance_rate"][stats["diverging"]] == 0).all()


def test_a_kernel_without_rejections_reports_no_acceptance_rate():
    class Unadjusted(Barker):
        def algorithm(self, log_density, step_size, inverse_mass):
            del inverse_mass
            return blackjax.mclmc(log_density, L=1.0, step_size=step_size)

    sampler = Unadjusted(step_size=0.1)
    start = jnp.asarray(TARGET.mean, jnp.float32)
    state = sampler.init(TARGET.posterior, start, num_warmup=0, key=jax.random.key(0))
    _, stats = sampler.step(TARGET.posterior, state, key=jax.random.key(1))
    assert {"lp", "diverging"} <= set(stats)
    assert "acceptance_rate" not in stats
    assert not stats["diverging"]


def test_one_parameter_is_too_few():
    with pytest.raises(bnnzoo.UsageError, match="at least 2 parameters"):
        AdjustedMclmc().check(TARGETS["gaussian"]().posterior)


def test_from_the_command_line(tmp_path):
    arguments = [
        "sample",
        "linear",
        "adjusted-mclmc",
        "--warmup",
        "60",
        "--draws",
        "20",
        "--chains",
        "2",
        "--init",
        "prior",
    ]
    command = [sys.executable, "-m", "bnnzoo", *arguments, "--quiet", "-o", str(tmp_path / "run.nc")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    run = bnnzoo.open(tmp_path / "run.nc")
    assert run.attributes["exactness"] == "exact"
    assert np.isfinite(run.posterior["sample_stats"]["acceptance_rate"].values).all()
