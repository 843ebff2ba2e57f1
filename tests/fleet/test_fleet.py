"""Fleets: the runs of a sweep; a kill, a cancelled sweep or a dead worker cost only time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_plugins
import numpy as np
import pytest
import tiny

import bnnzoo
from bnnzoo import cli, store
from bnnzoo.api import entrances
from bnnzoo.cli import job as child
from bnnzoo.cli.fleet_runs import RunFiles, missing_jobs, row_of
from bnnzoo.cli.fleet_screen import FleetScreen, PlainLine
from bnnzoo.cli.zoo import _packages
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.fleet import Job, Outcome, parse_seeds, points
from bnnzoo.fleet.children import Children
from bnnzoo.fleet.executor import JOB_MESSAGE
from bnnzoo.progress import Progress
from bnnzoo.recipe import Recipe, Value, read_layer, resolve

BNNZOO = (sys.executable, "-m", "bnnzoo")
SHORT = "chains: 2\nwarmup: 50\ndraws: 400\nthin: {thin}\ninit: prior\ncheckpoint_every: 0.2\n"
"""Lengths that take a few seconds, so that a run can be killed in the middle."""


def start(*arguments: Any, folder: Path, command: tuple[str, ...] = BNNZOO) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*command, *map(str, arguments)], cwd=folder, text=True, **pipes)


def writer_of(run: Path, is_under_way: Callable[[], bool]) -> int:
    """Return the process that writes a run, once it has a checkpoint with draws."""
    folder, end = run.with_name(f"{run.name}.parts"), time.monotonic() + 300
    while time.monotonic() < end:
        assert is_under_way()
        if (folder / "checkpoint.npz").exists() and (folder / "p000-000000.npz").exists():
            return json.loads((folder / "owner.json").read_text())["pid"]
        time.sleep(0.01)
    raise TimeoutError(run)


def assert_uninterrupted(run: Path, recipe: Recipe) -> None:
    """Check that the draws equal those of the same recipe, run without interruption in this process."""
    written = bnnzoo.open(run)
    uninterrupted = entrances.run_recipe(recipe, out=run.with_name("whole.nc"), force=True)
    for name, values in written.posterior["posterior"].data_vars.items():
        np.testing.assert_array_equal(values, uninterrupted.posterior["posterior"][name])


@pytest.mark.parametrize(
    ("text", "seeds"), [("0-3", [0, 1, 2, 3]), ("0,3,5-7", [0, 3, 5, 6, 7]), ("4", [4]), ("1,0-2", [1, 0, 2])]
)
def test_seeds_are_parsed_from_text(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.usefixtures("as_options")
@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1-", "0,,1", "0-99999999"])
def test_invalid_seeds_are_refused(text):
    with pytest.raises(UsageError, match="--seeds"):
        parse_seeds(text)


def test_the_points_of_a_sweep():
    values = {"sampler.step_size": [Value(1e-4, ""), Value(0.5, "")], "model.hidden": [Value([5, 5], ""), Value(9, "")]}
    result = points(values)
    assert [point.suffix for point in result] == [
        ",sampler.step_size=0.0001,model.hidden=5x5",
        ",sampler.step_size=0.0001,model.hidden=9",
        ",sampler.step_size=0.5,model.hidden=5x5",
        ",sampler.step_size=0.5,model.hidden=9",
    ]
    assert result[2].options["sampler.step_size"].raw == 0.5
    assert [point.suffix for point in points({})] == [""]
    with pytest.raises(UsageError, match="two runs have the same name"):
        points({"data": [Value("a/b.csv", ""), Value("a_b.csv", "")]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sweep: 3\n", "r.yaml:3:1: sweep: must be a mapping"),
        ("sweep: {seed: 3}\n", "r.yaml:3:9: sweep.seed: must be a list of one or more values"),
        ("sweep: {sed: [0, 1]}\n", "r.yaml:3:15: sed: unknown key; did you mean 'seed'?"),
        ("sweep:\n  seed: [0, one]\n", "r.yaml:4:13: seed: must be an integer"),
        ("sweep: {sampler.step_size: [1e-3, -1]}\n", "r.yaml:3:35: sampler.step_size: must be > 0"),
        (f"sweep: {{columns: [{'x' * 250}, a]}}\n", "r.yaml: the name of a run is too long for a file (got r,col"),
        ("sweep: {sampler: [mala, malta]}\n", "no sampler named 'malta'"),
        ("seed: 0\n", "--seeds: must be"),
    ],
)
def test_a_wrong_sweep_is_refused_before_a_run_begins(text, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(f"model: linear\nsampler: mala\n{text}")
    seeds = ["--seeds", "x"] if message.startswith("--seeds") else []
    assert cli.run(["zoo", "run", "r.yaml", "-o", "runs", *seeds]) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_sweep_is_several_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text("model: linear\nsampler: mala\nsweep: {seed: [0, 1]}\n")
    assert cli.run(["sample", "--config", "r.yaml"]) == 2
    assert (
        "r.yaml: sweep: defines several runs, but this command makes one run; use bnnzoo zoo run r.yaml"
        in capsys.readouterr().err
    )
    Path("my r.yaml").write_text("sweep: {seed: [0, 1]}\n")
    assert cli.run(["sample", "linear", "mala", "--config", "my r.yaml"]) == 2
    assert "use bnnzoo zoo run linear.mala --config 'my r.yaml'\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "2", "--scheduler", "tcp://127.0.0.1:1"], "--workers"),
        (["--seed", "1", "--seeds", "0-1"], "--seed: conflicts with --seeds"),
    ],
)
def test_options_that_exclude_each_other(arguments, message, capsys):
    assert cli.run(["zoo", "run", "linear.nuts", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"bnnzoo: {message}")


def test_the_screen_shows_the_progress_of_all_jobs():
    clock, lines = [0.0], list[str]()
    screen = FleetScreen(3, 1, lines.append, PlainLine(lines.append, lambda: clock[0]), lambda: clock[0])
    screen.tell("a", Progress("sampling", 0, 100))
    clock[0] = 4.0
    screen.tell("b", Progress("warm-up", 10, 50))
    screen.tell("b", Progress(JOB_MESSAGE, 0, 0, note="warning: no"))
    clock[0] = 8.0
    screen.tell("a", Progress("sampling", 80, 100))
    screen.end(Outcome("a", 0, 9.0))
    screen.tell("b", Progress("warm-up", 20, 50))
    clock[0] = 14.0
    screen.tell("b", Progress("warm-up", 40, 50))
    assert lines == [
        "bnnzoo: b: warning: no",
        "bnnzoo: 1 of 3 done; a: sampling 80/100, 10/s, 2 s left; b: warm-up 10/50",
        "bnnzoo: a: done in 9 s (2 of 3)",
        "bnnzoo: 2 of 3 done; b: warm-up 40/50, 3/s, 4 s left",
    ]
    quiet = FleetScreen(1, 0, lines.append, None)
    quiet.tell("a", Progress("note", 0, 0, note="budget"))
    quiet.tell("a", Progress(JOB_MESSAGE, 0, 0, note="warning: no"))
    quiet.end(Outcome("a", 0, 9.0))
    assert lines[4:] == ["bnnzoo: a: warning: no"]


@pytest.mark.parametrize(
    ("codes", "ends", "message"),
    [
        ([-9, 143, 0], 0, ["killed by SIGKILL", "stopped by SIGTERM"]),
        ([143] * 4, 1, ["stopped by SIGTERM"] * 3),
        ([2], 2, []),
    ],
)
def test_a_job_that_is_ended_from_outside_goes_on(codes, ends, message, tmp_path, monkeypatch):
    """The job is killed, or gets a termination signal; its own error would end it."""
    codes_left, messages = iter(codes), list[str]()
    monkeypatch.setattr(Children, "_run_once", lambda *_: (next(codes_left), "its last line"))
    job = Job("a", resolve("linear", "mala"), tmp_path / "a.nc", tmp_path)
    outcome = Children().run(job, lambda progress: messages.append(progress.note))
    assert outcome.code == ends
    assert messages == [f"{item}; continuing from its last checkpoint" for item in message]
    assert list(codes_left) == []


@pytest.mark.slow
def test_a_kill_a_cancelled_sweep_and_the_same_command_again(tmp_path):
    """A killed run is resumed automatically, a cancelled one by the same command; complete runs are unchanged."""
    (tmp_path / "short.yaml").write_text(SHORT.format(thin=300))
    arguments = ("zoo", "run", "linear.random-walk", "--config", "short.yaml", "--seeds", "0-1", "-o", "runs")
    first, second = (tmp_path / "runs" / f"linear.random-walk,seed={seed}.nc" for seed in (0, 1))
    with start(*arguments, "--quiet", folder=tmp_path) as process:
        under_way = lambda: process.poll() is None  # noqa: E731
        os.kill(writer_of(first, under_way), signal.SIGKILL)
        writer_of(second, under_way)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=300)
    assert process.returncode == 143, errors
    assert "linear.random-walk,seed=0: killed by SIGKILL; continuing from its last checkpoint" in errors
    assert errors.endswith("bnnzoo: stopped by SIGTERM: 1 of 2 runs are done; run the same command again to continue\n")
    assert out == ""
    assert first.exists()
    requests = [resolve(None, None, [read_layer(run.with_name(f"{run.name}.yaml"))]) for run in (first, second)]
    assert_uninterrupted(first, requests[0])

    before = first.stat().st_mtime_ns
    finished = subprocess.run([*BNNZOO, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "linear.random-walk,seed=1: note: continuing from its last checkpoint" in finished.stderr
    assert "(2 of 2)" in finished.stderr
    assert first.stat().st_mtime_ns == before
    assert [line.split()[0] for line in finished.stdout.splitlines()[1:3]] == [first.stem, second.stem]
    merge = f"bnnzoo merge runs/{first.stem[:-1]}*.nc -o runs/linear.random-walk.nc"
    assert finished.stdout.splitlines()[-1] == f"next  {merge}"
    assert_uninterrupted(second, requests[1])


def test_a_run_by_another_recipe_is_not_taken_for_this_one(tmp_path, capsys):
    (tmp_path / "linear.nuts.nc").write_text("")
    arguments = ["zoo", "run", "linear.nuts", "-o", str(tmp_path)]
    assert cli.run(arguments) == 2
    assert "linear.nuts.nc: was made with another recipe" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["linear.nuts.nc"]


@pytest.mark.parametrize("state", ["complete", "resumable"])
def test_a_job_whose_run_another_process_has_finished_meanwhile_is_done(state, tmp_path, monkeypatch):
    """It finished between the check of its state and the attempt to resume it."""
    states = iter(["resumable", state])
    monkeypatch.setattr(store, "run_state", lambda _: next(states))
    job = Job("one", tiny.recipe("nuts"), tmp_path / "one.nc", tmp_path, False)
    if state == "complete":
        assert child._run(job) == 0
    else:
        with pytest.raises(UsageError, match="no such run"):
            child._run(job)


@pytest.mark.long
def test_a_job_does_not_import_files_of_the_working_directory(tmp_path):
    (tmp_path / "random.py").write_text("raise SystemExit('not the standard library')")
    job = Job("one", tiny.recipe("nuts", data="gone.csv"), tmp_path / "one.nc", tmp_path, False)
    outcome = Children().run(job, lambda _: None)
    assert outcome.code == 2
    assert "gone.csv" in outcome.last_message


@pytest.mark.long
def test_a_run_of_other_rows_is_not_taken_for_one_of_these(tmp_path):
    table, how = tmp_path / "t.csv", {"data": str(tmp_path / "t.csv"), "warmup": 5, "draws": 5}
    lines = ["a,b", *(f"{i % 9},{i % 7 + 0.5}" for i in range(40))]
    table.write_text("\n".join(lines))
    jobs = [
        Job(name, tiny.recipe("random-walk", chains=chains, **how), tmp_path / f"{name}.nc", tmp_path, False)
        for name, chains in (("one", 1), ("two", 2))
    ]
    RunFiles().prepare(jobs, force=False)
    entrances.run_recipe(jobs[0].recipe, out=jobs[0].out)
    assert missing_jobs(jobs, force=False) == jobs[1:]
    table.write_text("\n".join(line.replace("3,", "4,") for line in lines))
    with pytest.raises(
        UsageError, match=r"one\.nc: the rows of .*t\.csv have changed since this run; use another folder with -o"
    ):
        missing_jobs(jobs, force=False)
    assert missing_jobs(jobs, force=True) == jobs
    table.unlink()
    with pytest.warns(
        BnnzooWarning, match=r"one\.nc: cannot test whether its rows have changed: .*t\.csv: no such file"
    ):
        assert missing_jobs(jobs, force=False) == jobs[1:]


@pytest.mark.slow
def test_a_run_without_test_rows_has_a_row_without_scores(tmp_path):
    job = Job("one", tiny.recipe("random-walk", test_fraction=0), tmp_path / "one.nc", tmp_path, False)
    entrances.run_recipe(job.recipe, out=job.out)
    row = row_of(job, Outcome("one", 0, 1.0, ""))
    assert "error" not in row
    assert "nll" not in row
    assert row["rhat"] > 0


@pytest.mark.usefixtures("as_options")
def test_a_damaged_run_is_named_before_another_begins(tmp_path):
    """If it is damaged later, only its own row is lost."""
    job = Job("one", tiny.recipe("nuts"), tmp_path / "one.nc", tmp_path, False)
    RunFiles().prepare([job], force=False)
    job.out.write_bytes(b"half")
    with pytest.raises(
        UsageError, match=r"one\.nc: not a NetCDF file .*; remove the file, or use --force to replace it"
    ):
        missing_jobs([job], force=False)
    assert missing_jobs([job], force=True) == [job]
    assert "one.nc: not a NetCDF file" in row_of(job, None)["error"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    job = Job("one", tiny.recipe("nuts"), tmp_path / "file" / "runs" / "one.nc", tmp_path, False)
    with pytest.raises(UsageError, match=r"runs: cannot be created: Not a directory; use another out"):
        RunFiles().prepare([job], force=False)


@pytest.mark.slow
def test_stopped_runs_are_checked_for_their_rows(tmp_path):
    table = tmp_path / "t.csv"
    lines = ["a,b", *(f"{i % 9},{i % 7 + 0.5}" for i in range(40))]
    table.write_text("\n".join(lines))
    recipe = tiny.recipe("random-walk", data=str(table))
    job = Job("one", recipe, tmp_path / "one.nc", tmp_path, False)
    RunFiles().prepare([job], force=False)
    with pytest.raises(bnnzoo.errors.InterruptedRunError):
        entrances.run_recipe(recipe, out=job.out, **tiny.stopped(1))
    assert missing_jobs([job], force=False) == [job]
    table.write_text("\n".join(line.replace("3,", "4,") for line in lines))
    with pytest.raises(UsageError, match=r"one\.nc: the rows of"):
        missing_jobs([job], force=False)


def test_parts_of_a_stopped_run_are_not_a_run(tmp_path):
    job = Job("one", tiny.recipe("random-walk", warmup=20, draws=4000), tmp_path / "one.nc", tmp_path, False)
    RunFiles().prepare([job], force=False)
    with pytest.raises(bnnzoo.errors.InterruptedRunError):
        entrances.run_recipe(job.recipe, out=job.out, **tiny.stopped(6))
    shutil.rmtree(store.parts_folder(job.out))
    assert store.run_state(job.out) == "partial"
    with pytest.raises(UsageError, match=r"one\.nc: the run stopped before its end"):
        missing_jobs([job], force=False)
    with pytest.raises(
        UsageError,
        match=r"the run stopped before its end, and its folder one\.nc\.parts is missing; start the run again",
    ):
        bnnzoo.resume(job.out)
    with pytest.raises(UsageError, match="the run is not finished"):
        bnnzoo.open(job.out).save(tmp_path / "copy.nc")


@pytest.mark.long
def test_a_run_stays_until_another_has_taken_its_place(tmp_path):
    old, new = (tiny.recipe("random-walk", seed=seed) for seed in (0, 1))
    jobs = [Job("one", recipe, tmp_path / "one.nc", tmp_path, False) for recipe in (old, new)]
    RunFiles().prepare(jobs[:1], force=False)
    entrances.run_recipe(old, out=jobs[0].out)
    before = jobs[0].out.read_bytes()
    room = RunFiles()
    (job,) = room.prepare(jobs[1:], force=True)
    assert jobs[0].out.read_bytes() == before
    assert missing_jobs(jobs[:1], force=False) == []  # should nothing come of it
    with pytest.raises(UsageError, match="was made with another recipe"):
        missing_jobs(jobs[1:], force=False)
    # Killed on the way, and tried again: it goes on, and the old run is not taken for its own.
    with pytest.raises(bnnzoo.errors.InterruptedRunError):
        entrances.run_recipe(new, out=job.out, force=True, **tiny.stopped(1))
    assert jobs[0].out.read_bytes() == before
    assert child._state(job) == "resumable"
    bnnzoo.open(jobs[0].out).evaluate()  # which writes to it
    assert child._state(job) == "resumable"
    assert child._run(job) == 0
    assert child._state(job) == "complete"
    room.end(job, Outcome("one", 0, 1.0))
    assert bnnzoo.open(job.out).attributes["seed"] == 1
    assert missing_jobs(jobs[1:], force=False) == []


def test_files_of_another_fleet_are_not_removed(tmp_path):
    job = Job("one", tiny.recipe("random-walk"), tmp_path / "one.nc", tmp_path, False)
    first, second = RunFiles(), RunFiles()
    first.prepare([job], force=False)
    second.prepare([job], force=False)
    second.tidy([job])
    recipe_file = tmp_path / "one.nc.yaml"
    assert recipe_file.exists()
    store.parts_folder(job.out).mkdir()  # claimed, nothing drawn
    first.tidy([job])
    assert recipe_file.exists()
    store.parts_folder(job.out).rmdir()
    first.tidy([job])
    assert not recipe_file.exists()


def test_an_exception_of_a_plugin_fails_one_run(tmp_path, monkeypatch):
    job = Job("one", tiny.recipe("random-walk"), tmp_path / "one.nc", tmp_path, False)
    monkeypatch.setattr(bnnzoo.api.entrances, "open", lambda path: {}[path])
    assert row_of(job, None)["error"].startswith("KeyError: ")


def test_a_machine_with_another_zoo_is_refused(tmp_path):
    job = Job("one", tiny.recipe("random-walk"), tmp_path / "one.nc", tmp_path, False, (("bnnzoo", "0.0"), ("x", "1")))
    with pytest.raises(
        UsageError, match=r"one: this machine has other package versions: bnnzoo is .*, expected 0\.0, x is absent"
    ):
        child._run(job)


def test_a_job_needs_the_packages_of_its_parts_and_of_its_data(site):
    hook = "from bnnzoo import Entry, hookimpl\n\n@hookimpl\ndef bnnzoo_datasets():\n    return [{}]\n"
    fake_plugins.install(site, "good", hook.format("Entry('rows', 'good_target:rows', 'rows')"))
    for options, names in (({}, {"bnnzoo"}), ({"data": "rows"}, {"bnnzoo", "good"})):
        assert set(dict(_packages(tiny.recipe("mala", **options)))) == names
    assert "good" in dict(_packages(tiny.recipe("mala", keep="predictions", keep_at="good:rows")))


def test_one_option_of_a_sweep_has_one_name(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("model: mlp\nsampler: mala\nsweep: {sampler.step_size: [1e-4], sampler.step-size: [1e-2]}\n")
    with pytest.raises(UsageError, match=r"sweep\.sampler\.step_size: repeated, because - and _ are equal"):
        resolve(None, None, [read_layer(path)], {"seed": 0})
