"""Files that are whole or absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bnnzoo.errors import BnnzooError
from bnnzoo.store import atomic
from bnnzoo.store.atomic import write_whole

CALLS = ("write", "fsync", "replace", "open folder", "fsync folder")


class Fault:
    """os, as `atomic` sees it, with an error at one of the calls; the order of calls is written down."""

    def __init__(self, at: str | None):
        self.at, self.calls = at, []
        self.O_RDONLY = os.O_RDONLY

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

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

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
        write_whole(path, fault.write)
    found = path.read_bytes() if path.exists() else None
    assert found == (old if CALLS.index(at) <= CALLS.index("replace") else b"new")
    assert [p.name for p in tmp_path.iterdir()] == (["file"] if found is not None else [])


def test_the_order_of_calls(tmp_path, monkeypatch):
    fault = Fault(None)
    monkeypatch.setattr(atomic, "os", fault)
    write_whole(tmp_path / "file", fault.write)
    assert fault.calls == list(CALLS)
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_folder_that_is_missing(tmp_path):
    with pytest.raises(BnnzooError, match=r"gone/file: cannot be written: No such file or directory"):
        write_whole(tmp_path / "gone" / "file", lambda file: None)


def test_an_interrupt_publishes_nothing(tmp_path):
    def write(file):
        file.write(b"half")
        raise KeyboardInterrupt

    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "file", write)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_link_in_the_way_is_not_followed(tmp_path):
    """Nor is what a killed process left taken for ours."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"mine")
    (tmp_path / ".file.tmp").symlink_to(secret)
    write_whole(tmp_path / "file", lambda file: file.write(b"new"))
    assert secret.read_bytes() == b"mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "secret"]
