"""Calls of the observer `wandb`, on a small replacement of its library."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from test_jsonl import CHUNK
from test_tensorboard import START

from bnnzoo.errors import UsageError
from bnnzoo.observers import RunEnd, RunFailure
from bnnzoo.observers.selection import select_observers
from bnnzoo.observers.wandb import Wandb


@pytest.fixture
def calls(monkeypatch):
    """The calls of a replacement of wandb, in order."""
    made: list[tuple] = []
    run = SimpleNamespace(
        log=lambda numbers, step: made.append(("log", numbers, step)),
        summary=SimpleNamespace(update=lambda values: made.append(("summary", values))),
        finish=lambda exit_code=0: made.append(("finish", exit_code)),
    )
    library = SimpleNamespace(
        login=lambda: made.append(("login",)), init=lambda **options: made.append(("init", options)) or run
    )
    monkeypatch.setitem(sys.modules, "wandb", library)
    return made


@pytest.mark.parametrize(
    ("text", "entity", "project"), [("", None, "bnnzoo"), ("demo", None, "demo"), ("team/demo", "team", "demo")]
)
def test_a_run_is_logged(text, entity, project, calls):
    log = Wandb(text)
    assert calls == [("login",)]
    for report in (START, CHUNK, RunEnd("converged", 10, 2.0, {"rhat": 1.0})):
        log.observe(report)
    (_, options), (_, numbers, step), summary, finish = calls[1:]
    assert (options["entity"], options["project"], options["name"]) == (entity, project, "run")
    assert options["config"]["recipe"] == {"seed": 3}
    assert step == 30
    assert numbers["sampling/penalty"] == 0.5
    assert summary == ("summary", {"verdict": "converged", "rhat": 1.0})
    assert finish == ("finish", 0)


def test_a_failure_ends_the_run_with_an_exit_code(calls):
    log = Wandb("")
    log.observe(START)
    log.observe(RunFailure("interrupted", "SIGINT", 3))
    assert calls[-2:] == [("summary", {"interrupted": "SIGINT"}), ("finish", 1)]


def test_a_refused_login_is_an_error_before_the_run(calls, monkeypatch):
    def refuse():
        raise RuntimeError("no API key")

    monkeypatch.setattr(sys.modules["wandb"], "login", refuse)
    with pytest.raises(UsageError, match="log_to: wandb: RuntimeError: no API key"):
        select_observers("wandb")
