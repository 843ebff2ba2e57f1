"""Lines of a JSON log: keys, numbers that JSON cannot represent, and files that are refused."""

from __future__ import annotations

import json
import math
import os
from datetime import datetime

import pytest

from bnnzoo.errors import UsageError
from bnnzoo.observers import ChunkReport, RunFailure
from bnnzoo.observers.jsonl import Jsonl

CHUNK = ChunkReport(
    phase="sampling",
    steps=30,
    draws=10,
    seconds=1.5,
    acceptance=math.nan,
    divergences=None,
    step_size=[0.1, math.inf],
    log_density=None,
    statistics={"sigma2": -math.inf, "penalty": 0.5},
)


def test_numbers_that_are_not_finite_become_null(tmp_path):
    Jsonl(str(tmp_path / "log.jsonl")).observe(CHUNK)
    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    values = json.loads(line, parse_constant=pytest.fail)
    assert datetime.fromisoformat(values.pop("time")).utcoffset().total_seconds() == 0
    assert values == {
        "event": "chunk",
        "phase": "sampling",
        "steps": 30,
        "draws": 10,
        "seconds": 1.5,
        "acceptance": None,
        "divergences": None,
        "step_size": [0.1, None],
        "log_density": None,
        "statistics": {"sigma2": None, "penalty": 0.5},
    }


def test_lines_are_appended_and_a_message_stays_on_one_line(tmp_path):
    for _ in range(2):
        Jsonl(str(tmp_path / "log.jsonl")).observe(RunFailure("failed", "größer\nals", 3))
    lines = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["größer\nals"] * 2


def test_a_log_that_was_moved_away_is_begun_again(tmp_path):
    log = Jsonl(str(tmp_path / "log.jsonl"))
    log.observe(CHUNK)
    (tmp_path / "log.jsonl").rename(tmp_path / "old.jsonl")
    log.observe(CHUNK)
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "requires a file"),
        ("missing/log.jsonl", "does not exist; create it"),
        ("run.nc", "is not a log"),
        (".", "is not"),
        ("data.csv", "is not a log"),
        ("fifo", "is not a log"),
    ],
)
def test_other_files_are_refused_and_unchanged(name, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text("x,y\n")
    os.mkfifo("fifo")
    with pytest.raises(UsageError, match=problem):
        Jsonl(name)
    assert (tmp_path / "data.csv").read_text() == "x,y\n"
    assert not (tmp_path / "run.nc").exists()


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="cannot be written"):
        Jsonl(str(tmp_path / "log.jsonl"))


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    Jsonl("~/log.jsonl").observe(CHUNK)
    assert (tmp_path / "log.jsonl").exists()
