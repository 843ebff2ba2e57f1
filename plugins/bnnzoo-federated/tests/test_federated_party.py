"""Faults at a party: errors that quote a row, a full disk, an invalid secret."""

from __future__ import annotations

import json
import os
import resource
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bnnzoo_federated import Coordinator, Party, read_log, show_log
from bnnzoo_federated.messages import Request
from test_federated import _draws, _short, tables

from bnnzoo.errors import BnnzooError, BnnzooWarning, UsageError

VALUE = 123.456


# ---- refusals ------------------------------------------------------------------------------------


def test_a_refusal_holds_no_row_and_the_log_says_why(tmp_path):
    x, y = tables()[0]
    y[:], y[2] = 1, VALUE
    party = Party((x, y), tmp_path / "a", batch_size=20)
    with pytest.raises(BnnzooError) as error:
        Coordinator({"a": party}).sample("linear", out=tmp_path / "run.nc", likelihood="poisson")
    assert str(error.value) == "party a: agree: UsageError; the reason is in the party's log"
    *_, last = read_log(tmp_path / "a")
    assert last["sent"] == {"refused": {"shape": [], "values": str(error.value).removeprefix("party a: ")}}
    assert str(VALUE) in last["kept"]
    assert f"agree: {last['kept']}" in show_log(tmp_path / "a").splitlines()[-1]


POSITIONS: dict[str, Any] = Request("x", 0, (1, 2), np.zeros((2, 3)), np.zeros((2, 3))).words()


@pytest.mark.parametrize(
    ("question", "fields", "kind"),
    [
        ("sums", {**POSITIONS, "step": float("inf")}, "OverflowError"),
        ("sums", {**POSITIONS, "step": float("nan")}, "ValueError"),
        ("sums", {**POSITIONS, "chains": 7}, "ValueError"),
        ("sums", {**POSITIONS, "here": None}, "TypeError"),
        ("sums", {}, "KeyError"),
        ("agree", {"recipe": 1}, "TypeError"),
        ("agree", {"recipe": "", "signature": "", "scaling": {}, "terms": (), "run": ""}, "_Refusal"),
        ("rows", {}, "KeyError"),
        ("\x1b[2J", {}, "KeyError"),
    ],
)
def test_a_party_survives_any_request(question, fields, kind, tmp_path):
    party = Party(tables()[0], tmp_path / "a", batch_size=20)
    message = party.answer(question, fields)["refused"]
    assert message.isprintable()
    if kind != "_Refusal":
        assert message.endswith(f"{kind}; the reason is in the party's log")
    assert "rows" in party.answer("offer", {})


# ---- the log -------------------------------------------------------------------------------------


class Full:
    """Limits the size of files."""

    def __init__(self, size: int):
        self.size = size

    def __enter__(self) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.mark.parametrize("room", [0, 1, 300])
def test_a_reply_that_cannot_be_logged_is_not_sent(room, tmp_path):
    party = Party(tables()[0], tmp_path / "a", batch_size=20)
    party.answer("sums", {"step": 0})
    log = tmp_path / "a" / "sent.jsonl"
    before = log.read_bytes()
    with (
        Full(len(before) + room),
        pytest.warns(BnnzooWarning, match="the answer was not sent"),
        pytest.raises(OSError, match="too large"),
    ):
        party.answer("offer", {"step": 1})
    assert log.read_bytes() == before
    party.answer("offer", {"step": 2})
    assert [line["step"] for line in read_log(tmp_path / "a")] == [0, 2]
    assert show_log(tmp_path / "a").splitlines()[-2].startswith("2 answers sent")


@pytest.mark.parametrize("torn", [b'{"at": "2026', b"\0" * 9000, b'{"at": 1}'])
def test_a_line_that_a_kill_left_half_written_is_taken_back(torn, tmp_path):
    party = Party(tables()[0], tmp_path / "a", batch_size=20)
    log = tmp_path / "a" / "sent.jsonl"
    for step in range(3):
        party.answer("offer", {"step": step})
        with log.open("ab") as file:
            file.write(torn)
        assert [line["step"] for line in read_log(tmp_path / "a")] == list(range(step + 1))
    log.write_bytes(log.read_bytes().replace(b'"step": 1', b'"step"; 1'))
    with pytest.raises(UsageError, match=r"sent\.jsonl: line 2 is damaged"):
        show_log(tmp_path / "a")


def test_a_reply_is_on_disk_before_it_is_sent(tmp_path, monkeypatch):
    party, synced = Party(tables()[0], tmp_path / "a", batch_size=20), []
    log = tmp_path / "a" / "sent.jsonl"
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(log.read_bytes()))
    party.answer("offer", {"step": 5})
    assert [json.loads(text)["step"] for text in synced] == [5]


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_a_run_continues_once_disk_space_is_free(tmp_path, monkeypatch):
    first = _short(Coordinator({"a": Party(tables()[0], tmp_path / "a", batch_size=20)}), tmp_path / "1.nc", warmup=0)
    party, real, failing = Party(tables()[0], tmp_path / "a", batch_size=20), os.fsync, [5, 6, 20]
    calls = iter(range(999))

    def fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == (tmp_path / "a" / "sent.jsonl").stat().st_ino and next(calls) in failing:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    coordinator = Coordinator({"a": party})
    repeated_run = _short(coordinator, tmp_path / "2.nc", warmup=0)
    assert json.loads(repeated_run.attributes["asked_again"]) == {"a": 3}
    assert np.array_equal(_draws(first), _draws(repeated_run))
    next_run = _short(coordinator, tmp_path / "3.nc", warmup=0)
    assert json.loads(next_run.attributes["asked_again"]) == {"a": 0}


# ---- the secret ----------------------------------------------------------------------------------


def test_a_secret_is_32_bytes_for_the_party_alone(tmp_path):
    def make(**more: Any) -> Party:
        return Party(tables()[0], tmp_path / "a", batch_size=20, **more)

    make()
    path = tmp_path / "a" / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    assert len(content) == 32
    make()
    assert path.read_bytes() == content
    for wrong in (b"", content[:31]):
        path.write_bytes(wrong)
        with pytest.raises(UsageError, match=rf"a/secret: must have 32 bytes \(got {len(wrong)}\); restore the file"):
            make()
        with pytest.raises(UsageError, match=rf"^secret: must have 32 bytes \(got {len(wrong)}\); use the secret"):
            make(secret=wrong)


def test_a_secret_that_does_not_fit_on_the_disk_is_not_created(tmp_path):
    with Full(5), pytest.raises(BnnzooError, match="secret: cannot be written"):
        Party(tables()[0], tmp_path / "a", batch_size=20)
    assert not [path for path in Path(tmp_path / "a").iterdir() if "secret" in path.name]
