"""Logs of real runs: the lines of a JSON log, resumed runs, failures, and draws that do not depend on a log."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import xarray as xr

import bnnzoo
from bnnzoo import cli
from bnnzoo.api import entrances
from bnnzoo.errors import BnnzooError, BnnzooWarning, InterruptedRunError
from bnnzoo.observers import AbstractObserver, ChunkReport, RunEnd, RunFailure, RunStart
from bnnzoo.sampling import run_log
from bnnzoo.sampling.loop.loop import Chunk

pytestmark = pytest.mark.filterwarnings("ignore:the sampler's own check", "ignore:the convergence")


class Recorder(AbstractObserver):
    def __init__(self):
        self.reports: list[Any] = []

    def observe(self, report):
        self.reports.append(report)

    def of(self, kind: type) -> list[Any]:
        return [report for report in self.reports if isinstance(report, kind)]


def run(out: Path, sampler: str = "mala", *, log_to: Any, stop_at: int = 0, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stopped = tiny.stopped(stop_at) if stop_at else {}
        entrances.run_recipe(tiny.recipe(sampler, **options), out=out, log_to=log_to, **stopped)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def keys(kind: type) -> set[str]:
    return {"event", "time", *(field.name for field in dataclasses.fields(kind))}


@pytest.mark.long
def test_a_json_log_has_the_whole_run(tmp_path):
    run(tmp_path / "run.nc", "penalty", log_to=f"jsonl:{tmp_path / 'log.jsonl'}", draws=120)
    start, *chunks, end = lines(tmp_path / "log.jsonl")
    assert set(start) == keys(RunStart)
    assert (start["event"], start["model"], start["sampler"], start["steps"]) == ("start", "linear", "penalty", 0)
    assert start["recipe"]["likelihood"] == {"name": "gaussian", "scale": 0.7}
    assert start["recipe"]["warmup"] == start["warmup"] == tiny.WARMUP
    assert "log_to" not in start["recipe"]
    assert all(set(chunk) == keys(ChunkReport) and chunk["event"] == "chunk" for chunk in chunks)
    steps = [chunk["steps"] for chunk in chunks]
    assert steps == sorted(set(steps))
    assert steps[-1] == tiny.WARMUP + 120
    assert [c["steps"] - tiny.WARMUP if c["phase"] == "sampling" else 0 for c in chunks] == [c["draws"] for c in chunks]
    last = chunks[-1]
    assert 0 < last["acceptance"] <= 1
    assert last["divergences"] == 0
    assert len(last["step_size"]) == len(last["log_density"]) == tiny.CHAINS
    assert {"sigma2", "penalty"} <= set(last["statistics"])
    assert {"lp", "acceptance_rate", "diverging", "step_size"}.isdisjoint(last["statistics"])
    assert set(end) == keys(RunEnd)
    attributes = bnnzoo.open(tmp_path / "run.nc").attributes
    assert end["verdict"] == attributes["verdict_in_python"]
    assert end["metrics"]["rhat"] == pytest.approx(attributes["rhat"])
    assert end["draws"] == 120
    assert start["time"] < last["time"] < end["time"]
    assert 0 < last["seconds"] < end["seconds"]


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["mala", "sgld", "laplace"])
def test_a_log_changes_neither_draws_nor_attributes(sampler, tmp_path):
    run(tmp_path / "plain.nc", sampler, log_to=None)
    run(tmp_path / "logged.nc", sampler, log_to=[Recorder(), f"jsonl:{tmp_path / 'log.jsonl'}"])
    plain, logged = (bnnzoo.open(tmp_path / f"{name}.nc") for name in ("plain", "logged"))
    for group in ("posterior", "sample_stats"):
        xr.testing.assert_identical(plain.posterior[group].to_dataset(), logged.posterior[group].to_dataset())
    assert set(plain.attributes) == set(logged.attributes)
    assert plain.attributes["recipe"] == logged.attributes["recipe"]


def test_a_resumed_run_appends_to_the_same_log(tmp_path):
    log_to = f"jsonl:{tmp_path / 'log.jsonl'}"
    with pytest.raises(InterruptedRunError):
        run(tmp_path / "run.nc", log_to=log_to, stop_at=4)
    *_, last, failure = lines(tmp_path / "log.jsonl")
    assert (failure["event"], failure["reason"]) == ("failure", "interrupted")
    assert "bnnzoo.resume(" in failure["message"]
    before = len(lines(tmp_path / "log.jsonl"))
    bnnzoo.resume(tmp_path / "run.nc", log_to=log_to, progress=False)
    start, *chunks, end = lines(tmp_path / "log.jsonl")[before:]
    assert (start["event"], start["steps"], end["event"]) == ("start", last["steps"], "end")
    assert chunks[0]["steps"] > last["steps"]
    assert chunks[0]["seconds"] > last["seconds"]
    assert chunks[-1]["draws"] == end["draws"] == tiny.DRAWS


@pytest.mark.long
def test_draws_added_to_a_finished_run_are_logged(tmp_path):
    recorder = Recorder()
    run(tmp_path / "run.nc", log_to=None, draws=5)
    bnnzoo.resume(tmp_path / "run.nc", draws=12, log_to=recorder, progress=False)
    start, *chunks, end = recorder.reports
    assert (start.steps, start.draws) == (tiny.WARMUP + 5, 12)
    assert chunks[-1].draws == end.draws == 12


def test_an_observer_that_raises_does_not_stop_the_run(tmp_path):
    class Broken(AbstractObserver):
        def observe(self, report):
            raise ZeroDivisionError("oops")

    with pytest.warns(BnnzooWarning) as caught:
        entrances.run_recipe(tiny.recipe("mala"), out=tmp_path / "run.nc", log_to=Broken())
    messages = [str(warning.message) for warning in caught if "log_to" in str(warning.message)]
    assert messages == ["log_to: Broken: ZeroDivisionError: oops; the run continues, but its log is incomplete"]
    assert bnnzoo.open(tmp_path / "run.nc").attributes["complete"] == 1


def test_an_error_of_the_run_is_logged(tmp_path, monkeypatch):
    def fail(*_: Any, **__: Any):
        raise BnnzooError("the disk is full")

    recorder = Recorder()
    monkeypatch.setattr("bnnzoo.store.writer.Store.append", fail)
    with pytest.raises(BnnzooError):
        run(tmp_path / "run.nc", log_to=recorder)
    failure = recorder.reports[-1]
    assert isinstance(failure, RunFailure)
    assert (failure.reason, failure.draws) == ("failed", 0)
    assert failure.message.startswith("the disk is full")


def test_an_error_before_the_first_step_starts_no_log(tmp_path):
    recorder = Recorder()
    with pytest.raises(BnnzooError):
        run(tmp_path / "missing" / "run.nc", log_to=recorder)
    assert recorder.reports == []


def test_a_posterior_made_in_python_is_logged(tmp_path):
    recorder, problem = Recorder(), tiny.problem("mala")
    with pytest.warns(BnnzooWarning):
        bnnzoo.sample(problem.posterior, problem.sampler, warmup=20, draws=20, init="prior", log_to=recorder)
    (start,) = recorder.of(RunStart)
    assert start.recipe == {}
    assert start.sampler == "Mala"
    assert recorder.of(RunEnd)


@pytest.mark.long
def test_the_command_line_logs_and_show_ignores_the_option(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    command = [*tiny.arguments("mala"), "-o", str(tmp_path / "run.nc"), "--log-to", f"jsonl:{log}"]
    assert cli.run(command) == 0
    assert lines(log)[-1]["verdict"] == bnnzoo.open(tmp_path / "run.nc").attributes["verdict"]
    count = len(lines(log))
    more = ["--draws", "30", "--quiet", "--log-to", f"jsonl:{log}"]
    assert cli.run(["resume", str(tmp_path / "run.nc"), *more]) == 0
    assert lines(log)[count]["draws"] == 30
    assert cli.run(["show", "linear", "mala", "--log-to", "unused"]) == 0
    assert "log" not in capsys.readouterr().out.rpartition("model:")[2]


def test_divergences_count_steps_and_means_ignore_arrays():
    stats = {
        "diverging": np.array([[0.5, 0.0], [0.25, 0.0]]),
        "lp_estimate": np.array([[1.0, 2.0], [3.0, np.inf]]),
        "energy": np.array([[np.inf, -np.inf], [0.0, 0.0]]),
        "layers": np.zeros((2, 2, 3)),
    }
    chunk: Any = Chunk("sampling", np.zeros((2, 2, 1), np.float32), stats, None, np.int64(9), None)  # type: ignore[arg-type]
    report = run_log.chunk_report(chunk, draws=2, thin=4, seconds=1.0)
    assert report.divergences == 3
    assert report.log_density == [2.0, np.inf]
    assert report.acceptance is None
    assert report.step_size is None
    assert set(report.statistics) == {"energy"}
    assert np.isnan(report.statistics["energy"])
    assert set(report.scalars()) == {
        *("sampling/divergences", "sampling/energy"),
        *("sampling/log_density/chain-0", "sampling/log_density/chain-1"),
    }
