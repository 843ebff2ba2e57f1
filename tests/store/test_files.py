"""Files are complete or absent."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from bnnzoo.errors import BnnzooError
from bnnzoo.files import atomic
from bnnzoo.files.atomic import replacing, write_atomically

CALLS = ("write", "fsync", "open folder", "replace", "fsync folder")


class Fault:
    """A replacement of `os` for `atomic` with an error at one of the calls; it records the order of calls."""

    def __init__(self, at: str | None):
        self.at, self.calls = at, []

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.at:
            raise OSError(28, "No space left on device")

    def fsync(self, descriptor: int) -> None:
        self._call("fsync folder" if "replace" in self.calls else "fsync")
        os.fsync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        self._call("replace")
        os.replace(source, target)

    def open(self, *arguments: object) -> int:
        self._call("open folder")
        return os.open(*arguments)  # type: ignore[arg-type]

    def write(self, file) -> None:
        self._call("write")
        file.write(b"new")


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("at", CALLS)
def test_a_fault_leaves_the_old_file_or_the_new_one(at, old, tmp_path, monkeypatch):
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    fault = Fault(at)
    monkeypatch.setattr(atomic, "os", fault)
    with pytest.raises(BnnzooError, match="file: cannot be written: No space left on device"):
        write_atomically(path, fault.write)
    result = path.read_bytes() if path.exists() else None
    assert result == (old if CALLS.index(at) <= CALLS.index("replace") else b"new")
    assert [p.name for p in tmp_path.iterdir()] == (["file"] if result is not None else [])


def test_a_file_is_written_by_calls_in_a_fixed_order(tmp_path, monkeypatch):
    fault = Fault(None)
    monkeypatch.setattr(atomic, "os", fault)
    write_atomically(tmp_path / "file", fault.write)
    assert fault.calls == list(CALLS)
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_folder_that_is_missing(tmp_path):
    with pytest.raises(BnnzooError, match=r"gone/file: cannot be written: No such file or directory"):
        write_atomically(tmp_path / "gone" / "file", lambda file: None)


def test_an_interrupt_publishes_nothing(tmp_path):
    def write(file):
        file.write(b"half")
        raise KeyboardInterrupt

    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", write)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_files_left_by_a_killed_writer_are_removed(tmp_path):
    """Nothing else is removed: no link, no file with another name, no temporary file of another file."""
    (tmp_path / "secret").write_bytes(b"mine")
    (tmp_path / ".file.0123456789abcdef.tmp").write_bytes(b"half")
    others = (".file.mine.tmp", ".file.nc.0123456789abcdef.tmp", ".file.0123456789abcdee.tmp")
    for name in others[:2]:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / others[2]).symlink_to(tmp_path / "secret")
    write_atomically(tmp_path / "file", lambda file: file.write(b"new"))
    assert (tmp_path / "secret").read_bytes() == b"mine"
    assert {p.name for p in tmp_path.iterdir()} == {"file", "secret", *others}


def test_of_two_writers_at_once_none_takes_the_other_s_file(tmp_path):
    """If the second writer dies after the first has finished, the first one's file remains."""
    path = tmp_path / "file"
    with contextlib.suppress(RuntimeError), contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        first.enter_context(replacing(path)).write(b"first")
        with replacing(path) as second:
            second.write(b"second")
            second.flush()
            first.close()
            assert path.read_bytes() == b"first"
            raise RuntimeError
    assert path.read_bytes() == b"first"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_file_that_was_swept_before_it_was_held_is_made_again(tmp_path, monkeypatch):
    swept = []

    def flock(file, how, lock=fcntl.flock):
        if how == fcntl.LOCK_SH and not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    write_atomically(tmp_path / "file", lambda file: file.write(b"new"))
    assert len(swept) == 1
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_disk_without_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(37, "No locks available")))
    write_atomically(tmp_path / "file", lambda file: file.write(b"new"))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
