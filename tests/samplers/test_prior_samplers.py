"""Rejection and importance sampling: draws of the prior, on the network whose posterior is known."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from scipy import stats

import bnnzoo
from bnnzoo import cli
from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.evaluation.formulas import weight_tail
from bnnzoo.finding import sentence
from bnnzoo.samplers import Importance, Rejection
from bnnzoo.samplers.independent.rejection import _log_uniform
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.loop.loop import Keys, chunks
from bnnzoo.testing.targets import (
    NETWORK_AT,
    NETWORK_MEAN,
    NETWORK_SD,
    gaussian,
    network,
    regression,
    skewed,
    small_network,
)

pytestmark = pytest.mark.usefixtures("optimised")

Z = 4.89
ACCEPTANCE = 1.70e-3


def draw(sampler: Any, chains: int, draws: int) -> dict[str, np.ndarray]:
    posterior = small_network().posterior
    start = np.zeros((chains, posterior.layout.dim), np.float32)
    stream = chunks(
        posterior,
        sampler,
        start,
        keys=Keys.from_seed(3),
        num_warmup=0,
        num_draws=draws,
        placement=place_chains("vectorized", chains),
    )
    run_chunks = tiny.joined(list(stream))
    return {name: value.reshape(chains * draws, -1).squeeze() for name, value in run_chunks.items()}


def moments(theta: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean and sd of f at `NETWORK_AT` over weighted draws, and the standard error of the mean."""
    values = network(theta.astype(float), NETWORK_AT)
    shares = weights / weights.sum()
    mean = shares @ values
    error = np.sqrt(shares**2 @ (values - mean) ** 2)
    return mean, np.sqrt(shares @ (values - mean) ** 2), error


@pytest.fixture(scope="module")
def weighted() -> dict[str, np.ndarray]:
    return draw(Importance(), 32, 16_384)


@pytest.mark.long
def test_rejection_accepts_as_often_as_is_known():
    result = draw(Rejection(), 16, 64)
    tries = result["n_steps"]
    # The number of proposals is geometric, so its standard deviation is about its mean.
    assert abs(tries.mean() * ACCEPTANCE - 1) < (Z + 1) / len(tries) ** 0.5
    assert stats.kstest(tries, stats.geom(1 / tries.mean()).cdf).pvalue > 1e-6
    mean, sd, error = moments(result["theta"], np.ones(len(tries)))
    assert (np.abs(mean - NETWORK_MEAN) < Z * error).all()
    # Positive control: draws of the prior have other moments.
    prior = np.random.default_rng(0).normal(size=result["theta"].shape)
    assert (moments(prior, np.ones(len(tries)))[1] > 2 * sd).all()


def test_acceptance_below_the_grid_of_a_uniform_number_is_what_it_says():
    """All pairs of the words near 0 are there: P(log u < -t) is exp(-t), to the grid's square, down to e^-31."""
    grid = float(np.finfo(np.float32).eps)
    tails = (np.arange(2**12) + np.float32(0.5)) / np.float32(2**12)
    lowest = 1 - np.arange(1, 4, dtype=np.float32) * np.float32(grid)
    logs = jax.jit(jax.vmap(jax.vmap(_log_uniform, (None, 0)), (0, None)))(lowest, tails.astype(np.float32))
    np.testing.assert_allclose(
        np.exp(np.sort(np.ravel(logs).astype(float))), (np.arange(3 * 2**12) + 0.5) * grid / 2**12, rtol=1e-3
    )
    last = np.float32(1 - grid)
    assert np.exp(float(_log_uniform(jnp.float32(last), jnp.float32(last)))) == pytest.approx(grid**2 / 2, rel=1e-5)
    assert float(_log_uniform(jnp.float32(0), jnp.float32(0))) <= 0


@pytest.mark.long
def test_importance_has_the_known_moments(weighted):
    weights = np.exp(weighted["log_weight"].astype(float))
    mean, sd, error = moments(weighted["theta"], weights)
    assert (np.abs(mean - NETWORK_MEAN) < Z * error).all()
    assert (np.abs(sd / NETWORK_SD - 1) < 0.1).all()
    # The mean of L / L_max is the acceptance probability of rejection.
    spread = weights.std() / len(weights) ** 0.5
    assert abs(weights.mean() - ACCEPTANCE) < Z * spread + 5e-6
    # Positive control: without their weights the draws are the prior's.
    assert (moments(weighted["theta"], np.ones_like(weights))[1] > 2 * NETWORK_SD).all()


def test_the_finding_of_weights(weighted):
    log_weights = weighted["log_weight"]
    assert weight_tail.of_weights(log_weights) == ()
    (finding,) = weight_tail.of_weights(log_weights[:500])
    assert finding.kind == "weights"
    assert finding.value > finding.limit
    assert sentence(finding).startswith("Pareto k of the weights ")
    assert "for 500 draws" in finding.advice
    (none,) = weight_tail.of_weights(np.full(100, -np.inf, np.float32))
    assert "only 0.0 for 100 draws" in none.advice
    (wide,) = weight_tail.of_weights(np.linspace(-1e6, 0, 1000))
    assert wide.value == np.inf
    assert "only 1.0 for 1000 draws" in wide.advice


def test_the_shape_of_the_tail():
    """The largest of N Pareto variables with shape 1/k have this k."""
    for k in (0.3, 1.5):
        log_weights = k * np.random.default_rng(0).exponential(size=100_000)
        assert abs(weight_tail.pareto_k(log_weights) - k) < 0.15


def test_rejection_refuses_what_it_cannot_do():
    with pytest.raises(UsageError, match="no upper bound"):
        Rejection().check(skewed().posterior)
    with pytest.raises(UsageError, match="cannot draw from its prior"):
        Importance().check(skewed().posterior)
    with pytest.raises(UsageError, match=r"accepted with probability 1e-\d\d"):
        Rejection().check(gaussian().posterior)
    with pytest.raises(UsageError, match=r"probability \S+ \(estimated from 16384 draws\).*max_proposals=1000;"):
        Rejection(max_proposals=1000).check(small_network().posterior)
    Rejection().check(small_network().posterior)


@pytest.mark.usefixtures("as_options")
def test_rejection_ends_rather_than_make_up_a_draw():
    with pytest.raises(BnnzooError, match=r"none of 128 proposals was accepted; use a larger --sampler\.max-proposals"):
        draw(Rejection(max_proposals=128), 2, 50)


@pytest.fixture
def short_table(tmp_path):
    """Return eight rows of a line."""
    x = np.linspace(-1, 1, 8)
    path = tmp_path / "few.csv"
    np.savetxt(path, np.column_stack([x, 0.5 * x + [0.1, -0.1] * 4]), delimiter=",", header="x,y", comments="")
    return ["--data", str(path), "--test-fraction", "0", "--likelihood.scale", "0.7", "--chains", "2", "--quiet"]


@pytest.mark.long
def test_rejection_from_the_command_line(short_table, tmp_path, capsys):
    out = tmp_path / "run.nc"
    assert cli.run(["sample", "linear", "rejection", *short_table, "--draws", "200", "-o", str(out)]) == 0, (
        capsys.readouterr()
    )
    run = bnnzoo.open(out)
    assert run.attributes["exactness"] == "exact"
    assert run.attributes["target_evaluations"] == 8 * run.posterior["sample_stats"]["n_steps"].values.sum()
    assert (
        cli.run(["sample", "linear", "rejection", *short_table, "--likelihood.scale", "learned", "-o", str(out)]) == 2
    )
    assert "no upper bound; fix its scale" in capsys.readouterr().err


@pytest.mark.long
def test_importance_from_the_command_line(short_table, tmp_path, capsys):
    out, poor = tmp_path / "run.nc", tmp_path / "poor.nc"
    assert cli.run(["sample", "linear", "importance", *short_table, "--draws", "1000", "-o", str(out)]) == 0
    run = bnnzoo.open(out)
    assert (run.attributes["exactness"], run.attributes["regime_ok"]) == ("approximate", 1)
    assert run.posterior["sample_stats"]["log_weight"].shape == (2, 1000)
    arguments = [
        "sample",
        "linear",
        "importance",
        *short_table,
        "--likelihood.scale",
        "0.05",
        "--draws",
        "100",
        "-o",
        str(poor),
    ]
    capsys.readouterr()
    assert cli.run(arguments) == 0
    assert "the sampler's own check failed: Pareto k of the weights" in capsys.readouterr().err
    assert bnnzoo.open(poor).attributes["regime_ok"] == 0


def test_the_targets_bound_their_likelihoods():
    posterior = regression().posterior
    bounds = np.asarray(posterior.log_likelihood_bounds(posterior.data))
    np.testing.assert_allclose(bounds, stats.norm(0, 0.5).logpdf(0), rtol=1e-6)
