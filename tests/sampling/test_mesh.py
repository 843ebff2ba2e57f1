"""One run on a mesh of devices: chains and rows are split over devices, and the draws stay the same."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import bnnzoo
from bnnzoo import assembly
from bnnzoo.api import entrances, keywords, resuming
from bnnzoo.data import load_recipe_data
from bnnzoo.errors import InterruptedRunError, UsageError
from bnnzoo.posterior import NetworkPosterior, passes
from bnnzoo.recipe import Recipe
from bnnzoo.recipe.mesh import Axes, axes
from bnnzoo.sampling.devices.placement import Placement, place_run

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
MORE = ("random-walk", "hmc", "nuts", "sgld", "gibbs", "bbb", "swag", "laplace", *tiny.GROWING[1:2])
"""A sampler for each use of rows: all rows, mini-batches, curvature, and growing batches if their plugin is loaded."""


WARMUP = {"hmc": 0, "nuts": 0}
"""With tuning, a different rounding changes the acceptance of trajectories."""
ROWS = 331
"""An odd number, which two devices cannot share evenly."""


def recipe(sampler: str, mesh: str | None = None, **more: Any) -> Recipe:
    """A short run of two chains."""
    return tiny.recipe(sampler, mesh=mesh, **{"chains": 2, "warmup": 20, "draws": 10, "test_fraction": 0.25, **more})


def draw(out: Path, sampler: str, mesh: str | None, **more: Any) -> np.ndarray:
    entrances.run_recipe(recipe(sampler, mesh, **more), out=out)
    return draws_of(out)


def draws_of(path: Path) -> np.ndarray:
    result = bnnzoo.open(path).posterior["posterior"]
    return np.concatenate([result[name].values.reshape(2, 10, -1) for name in sorted(map(str, result.data_vars))], 2)


def placed(sampler: str, mesh: str | None, **more: Any) -> Placement:
    problem = assembly.Problem.from_recipe(recipe(sampler, mesh, **more))
    return place_run(problem.recipe, problem.posterior, problem.sampler)


def posterior() -> Any:
    return assembly.Problem.from_recipe(recipe("mala")).posterior


@pytest.mark.parametrize(
    ("model", "sampler", "rows", "method"),
    [
        ("linear", "random-walk", 60_000, "vectorized"),
        ("linear", "mala", 60_000, "vectorized"),
        ("linear", "mala", 10_000, "parallel"),  # a cache holds the rows
        ("mlp", "mala", 60_000, "parallel"),  # computing takes longer than reading
        ("linear", "nuts", 60_000, "parallel"),  # trees differ in depth
        ("linear", "penalty", 60_000, "parallel"),  # uses few rows
    ],
)
def test_chains_are_vectorised_if_reading_rows_dominates(model, sampler, rows, method):
    x = np.random.default_rng(0).normal(size=(rows, 20)).astype(np.float32)
    requested = keywords.recipe_of(model, sampler, data=None, in_memory=True, test_fraction=0, chains=2)
    problem = assembly.Problem.from_recipe(requested, load_recipe_data(requested, (x, x @ np.ones(20))))
    assert place_run(requested, problem.posterior, problem.sampler).method == method
    sequential = dataclasses.replace(requested, chain_method="sequential")
    assert place_run(sequential, problem.posterior, problem.sampler).method == "sequential"


@pytest.mark.parametrize("text", ["", "chains", "chains=0", "chains=-1", "data=2,data=2", "chains=2;data=2", "rows=2"])
def test_an_invalid_mesh_is_refused(text):
    with pytest.raises(ValueError, match="must be chains=C, data=D"):
        axes(text)


def test_an_axis_that_is_left_out_is_one():
    assert axes("data=4") == Axes(1, 4)
    assert axes(" chains=2, data=3 ") == Axes(2, 3)


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["mala", slow("penalty"), slow("sgld")])
def test_chains_on_a_mesh_are_bit_for_bit_the_parallel_ones(sampler, tmp_path):
    alone = draw(tmp_path / "a.nc", sampler, None, chain_method="parallel")
    np.testing.assert_array_equal(draw(tmp_path / "b.nc", sampler, "chains=2"), alone)
    np.testing.assert_array_equal(draw(tmp_path / "c.nc", sampler, "chains=2,data=1"), alone)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the sampler's own check")
@pytest.mark.parametrize("sampler", ["mala", *map(slow, ("penalty", *MORE))])
def test_rows_on_two_devices_give_the_same_draws_but_for_rounding(sampler, tmp_path):
    alone = draw(tmp_path / "a.nc", sampler, None, warmup=WARMUP.get(sampler, 20))
    split = draw(tmp_path / "b.nc", sampler, "chains=2,data=2", warmup=WARMUP.get(sampler, 20))
    assert bnnzoo.open(tmp_path / "b.nc").posterior.attrs["placement"] == "parallel on 2 x 2"
    np.testing.assert_allclose(split[:, 0], alone[:, 0], rtol=2e-3, atol=2e-3)


@pytest.mark.long
def test_one_row_too_many_is_detected(tmp_path, monkeypatch):
    """Control of the test above: the copies that pad the last device's rows count as data."""
    alone = draw(tmp_path / "a.nc", "mala", None)
    padded = NetworkPosterior.padded
    monkeypatch.setattr(
        NetworkPosterior, "padded", lambda self, multiple: dataclasses.replace(padded(self, multiple), _rows=None)
    )
    split = draw(tmp_path / "b.nc", "mala", "data=4")
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(split[:, 0], alone[:, 0], rtol=2e-3, atol=2e-3)


@pytest.mark.long
@pytest.mark.parametrize("block", [2**20, 700], ids=["at once", "in blocks"])
@pytest.mark.parametrize("mesh", ["data=2", "chains=2,data=2", "data=4"])
def test_passes_over_rows_of_many_devices_are_those_over_all(mesh, block, monkeypatch):
    monkeypatch.setattr(passes, "_BLOCK_ELEMENTS", block)
    alone, placement = posterior(), placed("mala", mesh)
    spread = placement.put_posterior(alone)
    assert spread.num_data == alone.num_data == ROWS

    @jax.jit
    def looked(posterior: Any, theta: Any) -> Any:
        sums = posterior.sum_over_data(lambda batch, w: w @ posterior.log_likelihood(theta, batch), rows=50)
        return jax.value_and_grad(posterior.log_density)(theta), posterior.log_likelihoods(theta), sums

    theta = 0.1 * jnp.arange(alone.layout.dim, dtype=alone.dtype)
    expected = looked(alone, theta)
    with placement.mesh_context():
        result = looked(spread, theta)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-4), result, expected)


def test_rows_without_columns_are_split_over_devices():
    """The rows of a density have no inputs."""
    rows = jnp.zeros((36, 0)), jnp.zeros((36, 2))
    with placed("mala", "data=2").mesh_context():
        folded = jax.jit(lambda rows: passes._fold_by_device(rows, 2))(rows)
    assert [leaf.shape for leaf in folded] == [(2, 18, 0), (2, 18, 2)]


def test_devices_keep_their_rows_and_exchange_only_sums():
    """A gradient over all rows exchanges sums, which are smaller than the rows of a device."""
    placement = placed("mala", "chains=2,data=2")
    spread = placement.put_posterior(posterior())
    assert {shard.data.shape[0] for shard in spread.data.x.addressable_shards} == {166}

    @jax.jit
    def gradients(posterior: Any, thetas: Any) -> Any:
        return placement.all_chains(lambda p, theta: jax.grad(p.log_density)(theta), posterior, thetas)

    thetas = placement.put(jnp.zeros((2, spread.layout.dim)), 0)
    program = gradients.lower(spread, thetas).compile().as_text()
    sent = re.findall(r"= (.*?) (all-reduce|all-gather|all-to-all|collective-permute)(?:-start)?\(", program)
    assert {kind for _, kind in sent} == {"all-reduce"}
    shapes = [shape for operation, _ in sent for shape in re.findall(r"\[([\d,]*)\]", operation)]
    sizes = [np.prod([int(n) for n in shape.split(",") if n]) for shape in shapes]
    assert max(sizes) < 166


@pytest.mark.long
def test_a_run_on_a_mesh_resumes_to_the_same_bits(tmp_path):
    """It resumes only on the same mesh, because other groups of rows have other rounding."""
    uninterrupted = draw(tmp_path / "a.nc", "mala", "chains=2,data=2")
    with pytest.raises(InterruptedRunError):
        entrances.run_recipe(recipe("mala", "chains=2,data=2"), out=tmp_path / "b.nc", **tiny.stopped(4))
    resuming.resume(tmp_path / "b.nc")
    np.testing.assert_array_equal(draws_of(tmp_path / "b.nc"), uninterrupted)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("chains=3", "chains=3 must be a divisor of the number of chains, 2"),
        ("data=8", "needs 8 devices .*call bnnzoo.devices\\(8\\)"),
        ("data=100000", "needs 100000 devices \\(got 4: cpu\\); use a smaller mesh"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_with_the_reason(mesh, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        entrances.run_recipe(recipe("mala", mesh), out=tmp_path / "run.nc")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_from_the_command_line(tmp_path):
    arguments = ["sample", "linear", "mala", "--init", "prior", "--warmup", "50", "--draws", "50", "--json"]
    command = [sys.executable, "-m", "bnnzoo", *arguments, "--mesh", "chains=2,data=3", "-o", str(tmp_path / "run.nc")]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(process.stdout)["complete"] == 1
    assert bnnzoo.open(tmp_path / "run.nc").posterior.attrs["placement"] == "parallel on 2 x 3"
