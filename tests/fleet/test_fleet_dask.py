"""Fleets on a Dask cluster: a killed worker, machines without a shared folder, messages of errors."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_fleet import SHORT, assert_uninterrupted, start, writer_of

from bnnzoo import cli
from bnnzoo.errors import UsageError
from bnnzoo.fleet import DaskExecutor, Job, Outcome
from bnnzoo.fleet.children import Children
from bnnzoo.progress import Progress
from bnnzoo.recipe import read_layer, resolve

DASK = (sys.executable, "-m", "dask")


@pytest.fixture
def cluster(tmp_path):
    """A scheduler's address, and two workers; as docs/command-line.md starts them."""
    pytest.importorskip("distributed")
    file = tmp_path / "scheduler.json"
    arguments = ("scheduler", "--host", "127.0.0.1", "--port", 0, "--no-dashboard", "--scheduler-file", file)
    processes = [start(*arguments, folder=tmp_path, command=DASK)]
    try:
        end = time.monotonic() + 60
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.05)
        ours = ("--nthreads", 1, "--no-nanny", "--no-dashboard")
        workers = [start("worker", "--scheduler-file", file, *ours, folder=tmp_path, command=DASK) for _ in range(2)]
        processes += workers
        yield json.loads(file.read_text())["address"], workers
    finally:
        for process in reversed(processes):
            process.kill()
            process.communicate()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the worker of a run is looked up in /proc")
@pytest.mark.slow
def test_a_worker_that_is_killed(cluster, tmp_path):
    """Another one goes on from the last checkpoint, and the draws are those of a run in one piece."""
    address, workers = cluster
    (tmp_path / "short.yaml").write_text(f"model: linear\nsampler: random-walk\n{SHORT.format(thin=300)}")
    recipe, heard = resolve(None, None, [read_layer(tmp_path / "short.yaml")]), []
    job = Job("short", recipe, tmp_path / "short.nc", tmp_path)
    executor = DaskExecutor(address)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(lambda: list(executor.outcomes([job], lambda *event: heard.append(event))))
        first = writer_of(job.out, lambda: not ended.done())
        killed = parent_of(first)
        assert killed in [item.pid for item in workers]
        os.kill(killed, signal.SIGKILL)
        (outcome,) = ended.result(timeout=300)
    assert outcome[:2] == ("short", 0)
    assert "continuing from its last checkpoint" in [progress.note for _, progress in heard]
    with pytest.raises(ProcessLookupError):  # it ended with its worker
        os.kill(first, 0)
    assert sorted(path.name for path in tmp_path.glob("short*")) == ["short.nc", "short.yaml"]
    assert_uninterrupted(job.out, recipe)


@pytest.mark.slow
def test_the_command_of_the_docs(cluster, tmp_path):
    """A seed on each worker; the same command again runs nothing, with the cluster or without."""
    (tmp_path / "short.yaml").write_text(SHORT.format(thin=1))
    arguments = ("zoo", "run", "linear.random-w*", "--config", "short.yaml", "--seeds", "0-1", "-o", "runs", "--json")
    files = [tmp_path / "runs" / f"linear.random-walk,seed={seed}.nc" for seed in (0, 1)]
    result, changed = [], []
    for where in (("--scheduler", cluster[0]), ("--scheduler", cluster[0]), ()):
        with start(*arguments, *where, folder=tmp_path) as process:
            out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        result.append([{key: value for key, value in row.items() if key != "seconds"} for row in json.loads(out)])
        changed.append([run.stat().st_mtime_ns for run in files])
    assert [row["recipe"] for row in result[0]] == [run.stem for run in files]
    assert result[1:] == result[:1] * 2
    assert changed[1:] == changed[:1] * 2
    for run in files:
        assert_uninterrupted(run, resolve(None, None, [read_layer(run.with_name(f"{run.name}.yaml"))]))


def test_a_machine_that_does_not_share_the_folder(tmp_path, monkeypatch):
    """The file comes back as bytes; what failed there brings its reason and nothing else."""
    distributed = pytest.importorskip("distributed")

    def run(self, job, tell):
        tell(Progress("sampling", 5, 10))
        assert job.out.parent != tmp_path
        if job.name == "bad":
            return Outcome(job.name, 2, 1.0, "no such file")
        if job.name == "worse":
            raise ModuleNotFoundError("No module named 'plugin'")
        job.out.write_bytes(b"draws")
        return Outcome(job.name, 0, 1.0)

    monkeypatch.setattr(Children, "run", run)
    monkeypatch.setattr("bnnzoo.fleet.dask._is_shared", lambda *_: False)
    recipe, heard = resolve("linear", "nuts"), []
    jobs = [Job(name, recipe, tmp_path / f"{name}.nc", tmp_path) for name in ("good", "bad", "worse")]
    with distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
        executor = DaskExecutor(cluster.scheduler_address)
        outcomes = {item.name: item for item in executor.outcomes(jobs, lambda *event: heard.append(event))}
    assert outcomes["good"] == Outcome("good", 0, 1.0)
    assert outcomes["bad"] == Outcome("bad", 2, 1.0, "no such file")
    assert outcomes["worse"][:2] == ("worse", 1)
    assert outcomes["worse"].last_message == "on the worker: ModuleNotFoundError: No module named 'plugin'"
    assert ("good", Progress("sampling", 5, 10)) in heard
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("good.nc", b"draws")]


def test_without_dask_it_is_said_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    arguments = ["zoo", "run", "linear.nuts", "-o", str(tmp_path / "runs"), "--scheduler", "tcp://127.0.0.1:1"]
    assert cli.run(arguments) == 2
    assert "--scheduler: Dask is not installed; pip install 'bnnzoo[dask]'" in capsys.readouterr().err


def test_where_no_scheduler_answers(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("bnnzoo.fleet.connection._SECONDS_TO_CONNECT", 0.3)
    with pytest.raises(UsageError, match="no Dask scheduler at this address; start a scheduler with"):
        DaskExecutor("tcp://127.0.0.1:1")
