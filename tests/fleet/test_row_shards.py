"""Passes over the rows on the workers of a Dask cluster equal those of one machine within rounding."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle

import numpy as np
import pandas as pd
import pytest
import tiny

import bnnzoo
from bnnzoo import cli
from bnnzoo.api import entrances
from bnnzoo.errors import BnnzooError, BnnzooWarning, UsageError
from bnnzoo.fleet import row_shards
from bnnzoo.posterior.row_map import LostWorkersError, map_locally
from bnnzoo.samplers.common.control_variate import make_anchor
from bnnzoo.sampling.initial import shared_anchor

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as made:
        yield made


@pytest.fixture
def shards(cluster):
    with row_shards.row_shards(cluster.scheduler_address) as made:
        yield made


def _scaled_sum(factor, x, y):
    return factor * x.sum() + (0 if y is None else y.sum())


def test_each_worker_evaluates_its_shard_in_the_order_of_the_rows(shards):
    x, y = np.arange(7.0), np.arange(14.0).reshape(7, 2)
    parts = shards(_scaled_sum, 10.0, x, y)
    assert parts == [10 * x[:4].sum() + y[:4].sum(), 10 * x[4:].sum() + y[4:].sum()]
    assert shards(_scaled_sum, 10.0, x, None) == [10 * x[:4].sum(), 10 * x[4:].sum()]
    assert shards(_scaled_sum, 10.0, x[:1], None) == [0.0]
    assert map_locally(_scaled_sum, 10.0, x, y) == [10 * x.sum() + y.sum()]


def _fail(shared, x):
    raise UsageError("a reason")


def test_an_error_of_the_function_is_raised(shards):
    with pytest.raises(UsageError, match="a reason"):
        shards(_fail, None, np.zeros(3))


def _fail_as_dask_does(shared, x):
    raise KeyError("a key")


def test_an_error_of_the_function_is_not_a_lost_worker(shards):
    with pytest.raises(BnnzooError, match=r"a worker failed \(KeyError: 'a key'\)") as caught:
        shards(_fail_as_dask_does, None, np.zeros(3))
    assert not isinstance(caught.value, LostWorkersError)


@pytest.mark.usefixtures("as_options")
def test_a_scheduler_without_workers_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(row_shards.RowShards, "_workers", lambda _: [])
    with pytest.raises(UsageError, match=r"--scheduler inproc.*: the scheduler has no workers; start a worker on each"):
        row_shards.RowShards(cluster.scheduler_address)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the sampler's own check")
def test_the_shared_anchor_is_that_of_one_machine(shards, tmp_path, monkeypatch):
    """The gradient and the Hessian are sums over the rows of all shards. The worker threads use float64, as the run."""
    calls = []

    def record(problem, *arguments):
        result, count = original(problem, *arguments)
        posterior = problem.network_posterior
        calls.append((make_anchor(posterior, posterior.centre(), second=True), result.network_posterior.expansion))
        return result, count

    original = shared_anchor.with_shared_anchor
    monkeypatch.setattr(shared_anchor, "with_shared_anchor", record)
    options = {"stochastic": "identified:20", "precision": "float64", "init": "map", "start_steps": 250}
    options |= {"model.hidden": "[3]", "sampler.control_variate": "second"}
    recipe = tiny.recipe("penalty", model="mlp", **options)
    run = entrances.run_recipe(recipe, out=tmp_path / "run.nc", scheduler=shards.address)
    ((expected_anchor, shared),) = calls
    assert run.attributes["row_shards"] == 2
    for name in ("gradient", "hessian"):
        expected, actual = np.asarray(getattr(expected_anchor, name)), np.asarray(getattr(shared, name))
        assert np.abs(expected).max() > 0.1
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-11)
        assert actual.dtype == np.float64
    direct = entrances.run_recipe(recipe, out=tmp_path / "direct.nc")
    z = [r.posterior["posterior"]["z"].values for r in (run, direct)]
    np.testing.assert_allclose(z[0][:, :3], z[1][:, :3], atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_metrics_on_workers_are_those_of_one_machine(shards, tmp_path, likelihood):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(60, 2))
    y = np.round(x[:, 0] + 0.3 * rng.normal(size=60), 1)
    target = np.where(y > 0, "yes", "no") if likelihood == "bernoulli" else y
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": target})
    run = bnnzoo.sample(
        "linear", "mala", data=frame, draws=50, warmup=50, chains=2, likelihood=likelihood, out=tmp_path / "run.nc"
    )
    local, remote = (run.evaluate(save=False, scheduler=address) for address in (None, shards.address))
    assert local.keys() == remote.keys()
    assert "nll_rounded" in local or likelihood == "bernoulli"
    for name, value in local.items():
        assert remote[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def _never(*_, **__):
    raise LostWorkersError("--scheduler: a worker was lost during a pass over the rows; try again")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the sampler's own check")
def test_without_workers_the_anchor_is_computed_on_this_machine(tmp_path, monkeypatch):
    """The training before the pass is not lost. The work of a shard can be pickled."""
    problems = []

    def record(problem, *arguments):
        problems.append((problem, arguments))
        return original(problem, *arguments[:-1], _never)

    original = shared_anchor.with_shared_anchor
    monkeypatch.setattr(shared_anchor, "with_shared_anchor", record)
    monkeypatch.setattr(entrances, "row_shards", lambda _: contextlib.nullcontext(_never))
    options = {"stochastic": "identified:20", "init": "map", "start_steps": 250, "sampler.control_variate": "second"}
    recipe = tiny.recipe("penalty", model="mlp", **options, **{"model.hidden": "[3]"})
    with pytest.warns(BnnzooWarning, match="a worker was lost, so the derivatives .* on this machine"):
        run = entrances.run_recipe(recipe, out=tmp_path / "run.nc", scheduler="tcp://127.0.0.1:1")
    assert run.attributes["complete"]
    assert run.attributes["row_shards"] == 1
    ((problem, (fixed, *_)),) = problems
    centre = np.asarray(problem.posterior.centre())
    work = shared_anchor.Work(
        dataclasses.replace(problem.recipe, where={}), problem.description, fixed, centre, is_second_order=False
    )
    copied = pickle.loads(pickle.dumps(work))
    x, y = (np.asarray(leaf) for leaf in problem.posterior.data)
    np.testing.assert_array_equal(shared_anchor.anchor_part(copied, x, y)[0], shared_anchor.anchor_part(work, x, y)[0])


def test_a_worker_with_another_version_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(row_shards, "installed_version", lambda: "0.0.1")
    monkeypatch.setattr(row_shards.metadata, "version", lambda _: "0.1.0")
    client = row_shards.connect(cluster.scheduler_address)
    monkeypatch.setattr(type(client), "run", lambda *_: {"worker": "0.0.0"})
    with pytest.raises(UsageError, match=r"the worker worker has bnnzoo 0.0.0, but this machine has 0.0.1; install"):
        row_shards.RowShards(cluster.scheduler_address)
    client.close()


@pytest.mark.long
def test_a_predictor_can_be_pickled_with_its_file(tmp_path):
    run = entrances.run_recipe(tiny.recipe("mala", draws=20, warmup=20), out=tmp_path / "run.nc")
    content = pickle.dumps(run.predictor)
    (tmp_path / "run.nc").unlink()
    x = run.test_rows()[0] if run.predictor.record.has_test_rows else run.predictor.record.training_rows(5)[0]
    copied = pickle.loads(content)
    np.testing.assert_array_equal(copied.functions(x), run.predictor.functions(x))


@pytest.mark.long
def test_a_predictor_of_an_unfinished_run_is_pickled_with_its_part_files(tmp_path):
    """A file of an earlier stop may be beside the part files, but has fewer draws."""
    recipe = tiny.recipe("mala", draws=20_000, warmup=20, thin=1000)
    with pytest.raises(BnnzooError, match="of 20000 draws"):
        entrances.run_recipe(recipe, out=tmp_path / "run.nc", **tiny.stopped(12))
    predictor = bnnzoo.open(tmp_path / "run.nc").predictor
    (tmp_path / "run.nc").write_bytes(b"an earlier file")
    copied = pickle.loads(pickle.dumps(predictor))
    assert copied.record.shape == predictor.record.shape
    x = predictor.record.training_rows(5)[0]
    np.testing.assert_array_equal(copied.functions(x), predictor.functions(x))


def test_a_scheduler_needs_a_pass_over_all_rows(tmp_path, capsys):
    words = ["sample", "linear", "mala", "--scheduler", "tcp://127.0.0.1:1", "-o", str(tmp_path / "run.nc")]
    assert cli.run(words) == 2
    message = capsys.readouterr().err
    assert "--scheduler tcp://127.0.0.1:1: requires --stochastic identified or --stochastic linearised" in message


def test_a_lost_worker_is_reported(shards, monkeypatch):
    def lose(*_, **__):
        raise distributed.scheduler.KilledWorker("task", "worker", 3)

    monkeypatch.setattr(shards._client, "gather", lose)
    with pytest.raises(BnnzooError, match="a worker was lost during a pass over the rows; try again"):
        shards(_scaled_sum, 1.0, np.arange(3.0), None)
