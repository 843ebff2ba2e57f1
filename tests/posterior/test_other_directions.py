"""Predictions add the directions that a subspace does not sample (`--other-directions linearised`)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import bnnzoo
from bnnzoo.errors import DamagedError, UsageError
from bnnzoo.models import Linear, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.layout import network_layout
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.posterior.subspace import InducedNormal, SubspaceNetwork
from bnnzoo.samplers.common import directions

KEY = jax.random.key(0)
NOISE, SCALE, COLUMNS = 0.5, 0.8, 4


@pytest.fixture(scope="module")
def line() -> tuple[NetworkPosterior, np.ndarray]:
    """Return the posterior of two of five directions of a linear model, and the exact covariance of the parameters."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(40, COLUMNS)) * [3.0, 1.0, 0.2, 0.05]).astype(np.float32)
    y = (x @ rng.normal(size=(COLUMNS, 1)) + NOISE * rng.normal(size=(40, 1))).astype(np.float32)
    network = Linear().build((COLUMNS,), 1, key=KEY)
    dim = network_layout(network).dim
    design = np.column_stack([x, np.ones(len(x))]).astype(float)
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(dim) / SCALE**2)
    values, vectors = np.linalg.eigh(covariance)  # in ascending order: the data determine the first directions best
    columns = vectors * np.sqrt(values)
    mode = covariance @ design.T @ y[:, 0].astype(float) / NOISE**2
    fixed = {"mode": mode, "basis": columns[:, :2], "centre": np.zeros(2), "others": columns[:, 2:]}
    restricted = SubspaceNetwork.restrict(network, fixed, num_own=0, is_linearised=False)
    prior = InducedNormal.of_subspace(Normal(SCALE), restricted)
    posterior = NetworkPosterior.of(restricted, Gaussian(NOISE), prior, x, y, sampled=lambda a: a is restricted.z)
    return posterior, covariance


def _variances(posterior: NetworkPosterior, x: np.ndarray, draws: int = 20_000) -> np.ndarray:
    """Return the variance of the predicted means over independent draws of z from its exact posterior N(0, I)."""
    z = jax.random.normal(jax.random.key(5), (draws, 2))
    outputs = jax.jit(jax.vmap(lambda draw: posterior.predictive(draw, jnp.asarray(x))[1][:, 0]))(z)
    return np.var(np.asarray(outputs, float), 0)


def test_with_the_other_directions_the_variance_of_predictions_is_that_of_the_whole_posterior(line):
    """The standard error of a variance of 20 000 draws is 1 %. Without the other directions it is far too small."""
    posterior, covariance = line
    x = np.random.default_rng(1).normal(size=(6, COLUMNS)).astype(np.float32)
    design = np.column_stack([x, np.ones(len(x))]).astype(float)
    exact = np.einsum("ri,ij,rj->r", design, covariance, design)
    whole = _variances(dataclasses.replace(posterior, adds_unsampled=True), x)
    np.testing.assert_allclose(whole, exact, rtol=0.05)
    assert np.all(_variances(posterior, x) < 0.5 * exact)


def test_a_draw_has_always_the_same_other_directions_and_another_draw_has_independent_ones(line):
    posterior = dataclasses.replace(line[0], adds_unsampled=True)
    x = jnp.eye(COLUMNS)
    change = jax.jit(lambda z: posterior.predictive(z, x)[1] - line[0].predictive(z, x)[1])
    z = jnp.asarray([0.3, -1.2])
    np.testing.assert_array_equal(change(z), change(z))
    split = [posterior.predictive(z, x[rows])[1] for rows in (slice(0, 1), slice(1, None))]
    np.testing.assert_allclose(jnp.concatenate(split), posterior.predictive(z, x)[1], atol=1e-6)
    # Draws that differ in the last bit of a number, or in the order of the numbers.
    steps = 0.3 + np.spacing(np.float32(0.3)) * np.arange(500, dtype=np.float32)
    changes = np.stack([np.asarray(change(jnp.asarray([step, -1.2])))[0, 0] for step in steps])
    assert len(np.unique(changes)) == len(steps)
    assert abs(np.corrcoef(changes[1:], changes[:-1])[0, 1]) < 0.18  # four standard errors
    assert not np.allclose(change(z), change(z[::-1]))


def test_the_likelihood_does_not_use_the_other_directions(line):
    posterior, z = line[0], jnp.asarray([0.3, -1.2])
    with_others = dataclasses.replace(posterior, adds_unsampled=True)
    assert with_others.log_density(z) == posterior.log_density(z)


# ---- runs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2)).astype(np.float32)
    return x, (np.sin(2 * x[:, :1]) + 0.3 * rng.normal(size=(80, 1))).astype(np.float32)


def _sample(table: Any, out: Any, **options: Any) -> bnnzoo.Run:
    lengths = {"chains": 2, "warmup": 50, "draws": 40, "start_steps": 250, "progress": False}
    words = {"stochastic": "identified:20", "likelihood": "gaussian", **lengths, **options}
    return bnnzoo.sample(Mlp((3,), "tanh"), bnnzoo.Mala(), data=table, out=out, **words)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_only_predictions_add_them_and_the_tests_of_convergence_do_not(table, tmp_path):
    fixed, added = (_sample(table, tmp_path / f"{kind}.nc", other_directions=kind) for kind in ("fixed", "linearised"))
    np.testing.assert_array_equal(fixed.posterior["posterior"]["z"], added.posterior["posterior"]["z"])
    far = 3 * np.ones((5, 2))
    sds = [np.std(run.predictor.functions(far), (0, 1)) for run in (fixed, added)]
    assert np.all(sds[1] > 1.2 * sds[0])
    summaries = [run.summary() for run in (fixed, added)]
    assert [summary["other_directions"] for summary in summaries] == ["fixed", "linearised"]
    assert summaries[0]["rhat"] == summaries[1]["rhat"]
    assert "others" not in fixed.posterior["constant_data"]
    directions_of_run = summaries[1]["directions"]
    assert added.posterior["constant_data"]["fixed_others"].shape == (13, 13 - directions_of_run)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_file_without_them_is_damaged(table, tmp_path):
    path = tmp_path / "run.nc"
    _sample(table, path, other_directions="linearised").posterior.close()
    tree = xr.open_datatree(path).load()
    tree.close()
    tree["constant_data"] = xr.DataTree(tree["constant_data"].to_dataset().drop_vars("fixed_others"))
    damaged = tmp_path / "damaged.nc"
    tree.to_netcdf(damaged, engine="h5netcdf")
    with pytest.raises(DamagedError, match="damaged"):
        bnnzoo.open(damaged, model=Mlp((3,), "tanh")).predict(table[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stochastic": "all"}, 'requires stochastic="identified" or linearised'),
        ({"keep": "predictions"}, 'not supported with keep="predictions"'),
        ({}, "supported for networks of at most 5 parameters"),
    ],
)
def test_what_is_not_supported_is_refused(options, message, table, tmp_path, monkeypatch):
    monkeypatch.setattr(directions, "EXACT_UP_TO", 5)
    with pytest.raises(UsageError, match=message):
        _sample(table, tmp_path / "run.nc", other_directions="linearised", **options)
