"""Runs whose training rows are in temporary files."""

from __future__ import annotations

import dataclasses
import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bnnzoo
from bnnzoo.assembly import Problem, row_source
from bnnzoo.errors import DamagedError, UsageError
from bnnzoo.evaluation.evidence import estimators
from bnnzoo.files import mapped
from bnnzoo.plugins import registry
from bnnzoo.posterior import passes
from bnnzoo.posterior.permutation import permuted
from bnnzoo.recipe import resolve

ROWS = 600
OPTIONS = {"chains": 2, "warmup": 0, "draws": 40, "likelihood": "gaussian", "seed": 5, "progress": False}
SGLD = {"name": "sgld", "batch_size": 20, "step_size": 1e-6}


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 4))
    np.save(path := tmp_path / "rows.npy", np.column_stack([x, np.sin(x).sum(1) + 0.1 * rng.normal(size=ROWS)]))
    return path


@pytest.fixture
def make_large(monkeypatch):
    return lambda: monkeypatch.setattr(mapped, "LARGE_BYTES", 0)


def sampled(data, out, sampler=SGLD, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnnzoo.BnnzooWarning)
        return bnnzoo.sample({"name": "mlp", "hidden": (5,)}, sampler, data=str(data), out=out, **OPTIONS | options)


def draws_of(run):
    return {str(name): values.to_numpy() for name, values in run.predictor.record.tree["posterior"].data_vars.items()}


def assert_same_draws(run, other):
    draws, other_draws = draws_of(run), draws_of(other)
    assert draws.keys() == other_draws.keys()
    for name, values in draws.items():
        assert np.array_equal(values, other_draws[name]), name


@pytest.mark.long
def test_draws_equal_those_of_rows_in_memory(data, make_large, tmp_path):
    run = sampled(data, tmp_path / "memory.nc", init="prior")
    make_large()
    large = sampled(data, tmp_path / "large.nc", init="prior")
    assert_same_draws(run, large)
    assert large.attributes["data_sha256"] == run.attributes["data_sha256"]
    assert large.attributes["rows"] == run.attributes["rows"] == 540
    source = json.loads(large.attributes["row_source"])
    assert source == {"path": str(data), "bytes": data.stat().st_size}
    assert "row_source" not in run.attributes
    assert large.predictor.record.tree["constant_data"]["x"].shape == (0, 4)
    assert run.predictor.record.tree["constant_data"]["x"].shape == (540, 4)
    assert np.array_equal(
        large.predictor.record.tree["constant_data"]["x_test"], run.predictor.record.tree["constant_data"]["x_test"]
    )
    for name, value in run.evaluate().items():
        if name in ("nll", "rmse", "coverage_90"):
            assert large.evaluate()[name] == value, name


@pytest.mark.long
@pytest.mark.parametrize("model", [{"name": "mlp", "hidden": (5,)}, {"name": "cnn", "channels": (2,), "hidden": (4,)}])
def test_draws_equal_those_of_images_in_memory(model, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for name, array in (("images-idx3", rng.integers(0, 256, (90, 6, 6))), ("labels-idx1", rng.integers(0, 3, 90))):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        (tmp_path / f"train-{name}-ubyte").write_bytes(header + array.astype(np.uint8).tobytes())
    monkeypatch.setattr(mapped, "_BLOCK_BYTES", 700)
    options = OPTIONS | {"init": "prior", "likelihood": "categorical"}
    run = bnnzoo.sample(model, SGLD, data=str(tmp_path), out=tmp_path / "memory.nc", **options)
    monkeypatch.setattr(mapped, "LARGE_BYTES", 0)
    large = bnnzoo.sample(model, SGLD, data=str(tmp_path), out=tmp_path / "large.nc", **options)
    assert "row_source" in large.attributes
    assert large.predictor.record.tree["constant_data"]["x"].shape == (0, 6, 6)
    assert_same_draws(run, large)
    assert large.evaluate()["nll"] == run.evaluate()["nll"]


def test_the_size_of_a_folder_is_that_of_its_data_files(tmp_path):
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz", "t10k-images.idx3-ubyte")
    for name in (*names, "run.nc", "_SUCCESS"):
        (tmp_path / name).write_bytes(b"four")
    assert row_source._num_bytes(tmp_path) == 12
    (tmp_path / "part.parquet").write_bytes(b"parquet")
    assert row_source._num_bytes(tmp_path) == 7


@pytest.mark.long
@pytest.mark.parametrize("stochastic", ["last", "identified"])
def test_penalty_samples_rows_in_temporary_files(stochastic, data, make_large, tmp_path):
    make_large()
    penalty = {"name": "penalty", "batch_size": 10, "num_batches": 5}
    run = sampled(data, tmp_path / "run.nc", penalty, stochastic=stochastic, start_steps=250, warmup=50)
    assert run.attributes["complete"] == 1
    assert np.isfinite(run.evaluate()["nll"])
    assert all(np.isfinite(values).all() for values in draws_of(run).values())


@pytest.mark.long
def test_a_run_is_extended_with_the_rows_of_its_data_file(data, make_large, tmp_path):
    make_large()
    long = sampled(data, tmp_path / "long.nc", init="prior", draws=80)
    sampled(data, tmp_path / "short.nc", init="prior")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnnzoo.BnnzooWarning)
        extended = bnnzoo.resume(tmp_path / "short.nc", draws=80, progress=False)
    assert_same_draws(long, extended)


def test_a_run_on_a_registered_data_set_is_resumed_with_rows_in_temporary_files(
    data, make_large, tmp_path, monkeypatch
):
    make_large()
    rows, load_part = bnnzoo.data.load(data), registry.load
    monkeypatch.setattr(registry, "load", lambda kind, name: load_part(kind, name) if name != "big" else lambda: rows)
    run = sampled("big", tmp_path / "run.nc", init="prior", draws=5)
    assert run.attributes["rows_in_files"] == 1
    assert "row_source" not in run.attributes
    record = run.predictor.record
    problem = Problem.restored(record.attributes, record.group("constant_data"), record.group("observed_data"))
    assert problem.has_mapped_rows
    assert problem.network_posterior.adds_by_block


def test_a_data_set_in_temporary_files_has_no_file_to_refer_to(data, make_large):
    make_large()
    recipe, rows = resolve("mlp", "nuts", [], {"data": str(data)}), bnnzoo.data.load(data)
    assert row_source.row_attributes(recipe, rows).keys() == {"row_source"}
    for other in ({"data": None}, {"data": "digits"}, {"prior_from": "earlier.nc"}):
        assert row_source.row_attributes(dataclasses.replace(recipe, **other), rows) == {"rows_in_files": 1}


def test_rows_in_temporary_files_are_not_padded(data, make_large):
    recipe = resolve("mlp", "nuts", [], {"data": str(data)})
    assert Problem.from_recipe(recipe).in_bucket().posterior.num_data == 576
    make_large()
    problem = Problem.from_recipe(recipe)
    assert problem.in_bucket() is problem


@pytest.mark.long
@pytest.mark.parametrize("change", ["value", "length", "missing"])
def test_a_changed_data_file_is_refused(change, data, make_large, tmp_path):
    make_large()
    run = sampled(data, out := tmp_path / "run.nc", init="prior")
    rows = np.load(data)
    if change == "value":
        rows[-1, 0] += 1e-3
    np.save(data, rows[:-1] if change == "length" else rows)
    if change == "missing":
        data.unlink()
    problem = {
        "value": r"the training rows in this file are not those of the run \(got SHA-256 .*expected ",
        "length": r"has changed since the start of the run \(got \d+ bytes, expected \d+\)",
        "missing": "no such file, but the run needs the training rows in this file",
    }[change]
    with pytest.raises(UsageError, match=problem) as error:
        bnnzoo.resume(out, draws=80, progress=False)
    assert not isinstance(error.value, DamagedError)  # the run file is intact
    assert_same_draws(bnnzoo.open(out), run)


@pytest.mark.long
def test_results_of_a_run_on_a_large_file(data, make_large, tmp_path):
    """`compare` and `audit` work; a path of powers needs the training rows, and must not sum over no rows."""
    make_large()
    runs = [sampled(data, tmp_path / f"run{seed}.nc", init="prior", seed=seed) for seed in (0, 1)]
    assert {"nll", "rmse", "crps"} <= {difference.metric for difference in bnnzoo.compare(runs).paired}
    assert runs[0].audit(chains=4, seconds=1.0).outcome in ("passed", "drifted", "undecided")
    with pytest.raises(UsageError, match="evidence needs the training rows, but the file of this run does not"):
        estimators.log_likelihoods(runs[0].predictor, np.arange(3))


def test_the_file_has_a_limited_number_of_test_rows(data, make_large, tmp_path, monkeypatch):
    make_large()
    monkeypatch.setattr(row_source, "MAX_TEST_ROWS", 7)
    run = sampled(data, tmp_path / "run.nc", init="prior")
    assert run.predictor.record.tree["constant_data"]["x_test"].shape == (7, 4)


@pytest.mark.parametrize("total", [65, 100, 1 << 12, (1 << 12) + 1])
def test_permuted_positions_are_a_permutation(total):
    orders = [permuted(jnp.arange(total, dtype=jnp.uint32), total, key=jax.random.key(seed)) for seed in (0, 1)]
    for order in orders:
        assert np.array_equal(np.sort(order), np.arange(total))
    assert not np.array_equal(*orders)


@pytest.mark.parametrize("rows", [10, 64, 1000, 1024])
def test_the_total_of_blocks_and_its_gradient_equal_the_sum_of_the_values(rows, monkeypatch):
    monkeypatch.setattr(passes, "_BLOCK_ELEMENTS", 64)  # the smallest block has 64 rows
    data = np.random.default_rng(0).normal(size=(rows, 1)).astype(np.float32)

    def total(theta, add):
        return add(data, rows, lambda batch: jnp.sin(theta * batch[:, 0]))

    for function in (lambda f: f, jax.grad):
        by_block = function(lambda t: total(t, passes.total))(jnp.float32(0.7))
        values = function(lambda t: jnp.sum(total(t, passes.over_blocks)))(jnp.float32(0.7))
        np.testing.assert_allclose(by_block, values, rtol=1e-4, atol=1e-4)
