"""Event files of the observer `tensorboard`, written by tensorboardX and read back."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from test_jsonl import CHUNK

from bnnzoo.errors import UsageError
from bnnzoo.observers import RunEnd, RunFailure, RunStart
from bnnzoo.observers.tensorboard import Tensorboard

pytest.importorskip("tensorboardX")

START = RunStart("run.nc", "0.1.0", "mlp", "nuts", 2, 20, 10, 1, 0, {"seed": 3})


def events(folder: Path) -> dict[str, tuple[int, float | str]]:
    """Return the last step and value of each tag."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, tuple[int, float | str]] = {}
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            for value in event.summary.value:
                text = value.tensor.string_val[0].decode() if value.tensor.string_val else value.simple_value
                found[value.tag] = event.step, text
    return found


def test_chunks_become_curves_and_the_verdict_a_text(tmp_path):
    log = Tensorboard(str(tmp_path / "logs"))
    assert not (tmp_path / "logs").exists()
    for report in (START, CHUNK, RunEnd("converged", 10, 2.0, {"rhat": 1.0})):
        log.observe(report)
    found = events(tmp_path / "logs")
    assert found["sampling/penalty"] == (30, 0.5)
    assert found["sampling/step_size/chain-0"] == (30, pytest.approx(0.1))
    assert found["verdict/text_summary"] == (30, "converged")
    assert '"seed": 3' in found["recipe/text_summary"][1]
    assert not any("log_density" in tag for tag in found)


def test_a_failure_is_a_text(tmp_path):
    log = Tensorboard(str(tmp_path))
    log.observe(START)
    log.observe(RunFailure("failed", "the disk is full", 3))
    assert events(tmp_path)["failed/text_summary"] == (0, "the disk is full")


@pytest.mark.parametrize(("name", "problem"), [("", "requires a folder"), ("file", "is not a folder")])
def test_other_values_are_refused(name, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=problem):
        Tensorboard(name)


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    Tensorboard("~/logs").observe(START)
    assert list((tmp_path / "logs").iterdir())
