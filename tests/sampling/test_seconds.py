"""All seconds of a command are accounted for, and a run with many short parts is written quickly."""

import json
import subprocess
import sys
import time

import h5netcdf
import numpy as np
import pytest

import bnnzoo
from bnnzoo import store
from bnnzoo.progress import Progress

PARTS = ("start", "compile", "warmup", "sampling", "judging", "writing")
SHORT = {"chains": 2, "warmup": 20, "draws": 40, "start_steps": 250}


def total(about):
    return sum(about[f"seconds_{part}"] for part in PARTS)


@pytest.mark.long
@pytest.mark.parametrize("arguments_chosen", [False, True])
def test_the_parts_of_a_command_add_up_to_its_wall_time(tmp_path, arguments_chosen):
    how = ["linear", "random-walk"] if not arguments_chosen else ["linear", "random-walk", "--budget", "1s"]
    args = ["sample", *how, "--chains", "2", "--warmup", "20", "--draws", "40", "--start-steps", "250", "--json"]
    began = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-m", "bnnzoo", *args, "-o", str(tmp_path / "run.nc")], capture_output=True, text=True
    )
    wall = time.monotonic() - began
    assert process.returncode == 0, process.stderr
    # One second, or more on a busy machine: the end of the process is not in the file.
    assert 0 <= wall - total(json.loads(process.stdout)) < 1 + 0.1 * wall
    assert ("take about" in process.stderr) == arguments_chosen


@pytest.mark.long
def test_the_parts_of_a_run_in_python_add_up_to_the_time_of_the_call(tmp_path):
    zoo = bnnzoo.sample  # imported before the call
    began = time.perf_counter()
    run = zoo("linear", "random-walk", out=tmp_path / "run.nc", **SHORT)
    wall = time.perf_counter() - began
    assert all(run.attributes[f"seconds_{part}"] > 0 for part in PARTS)
    assert 0 <= wall - total(run.attributes) < 1 + 0.1 * wall


@pytest.mark.long
def test_progress_tells_the_test_of_convergence_from_writing(tmp_path):
    calls: list[Progress] = []
    bnnzoo.sample("linear", "random-walk", out=tmp_path / "run.nc", observer=calls.append, **SHORT)
    phases = list(dict.fromkeys(progress.phase for progress in calls))
    assert phases[-3:] == ["sampling", "judging", "writing"]
    assert {progress.note for progress in calls if progress.phase == "judging"} == {"testing convergence"}


@pytest.mark.long
def test_hundreds_of_short_parts_become_a_few_writes(tmp_path, monkeypatch):
    run = bnnzoo.sample("linear", "random-walk", out=tmp_path / "run.nc", **SHORT)
    tree, dims = run.posterior, {}
    groups = {g: {k: v.values for k, v in tree[g].data_vars.items()} for g in ("posterior", "sample_stats")}
    writer = store.Store(tmp_path / "parts.nc")
    writer.claim(force=False)
    about = {k: v for k, v in run.attributes.items() if k != "digests"} | {"draws_done": 400}
    writer.create(about, dims, {})
    for _ in range(10):
        for draw in range(40):
            writer.append({g: {k: v[:, draw : draw + 1] for k, v in values.items()} for g, values in groups.items()})
    writes = []
    original = h5netcdf.Variable.__setitem__
    monkeypatch.setattr(h5netcdf.Variable, "__setitem__", lambda *args: writes.append(1) or original(*args))
    writer.finish(complete=True)
    assert len(writes) < 40
    result = store.open_tree(tmp_path / "parts.nc")
    for name, values in groups["posterior"].items():
        np.testing.assert_array_equal(result["posterior"][name].values, np.concatenate([values] * 10, 1))
