"""Run files that a stranger made or a disk damaged: refused with one line before anything is read or imported.

Each row is a file that was a real run's until something was done to it.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tiny
from h5py import h5d, h5p, h5s, h5t

from bnnzoo import zoo
from bnnzoo.store import walk

TEXT = h5py.string_dtype()
SECRET = "the secret of another file"


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """A finished run; copy it before something is done to it."""
    path = tmp_path_factory.mktemp("finished") / "run.nc"
    return zoo.run_recipe(tiny.recipe("random-walk"), out=path).path or path


def edited(change: Callable[[h5py.File, Path], Any]) -> Callable[[Path], None]:
    """The file after a change by h5py; the folder has a file `secret` in it."""

    def make(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file, path.parent)

    return make


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(change(path.read_bytes())) and None


def replaced(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def _external_storage(file: h5py.File, folder: Path) -> None:
    size = (folder / "secret").stat().st_size
    file["posterior"].create_dataset("out", (size,), "u1", external=[(str(folder / "secret"), 0, size)])


def _external_behind_a_group(file: h5py.File, folder: Path) -> None:
    shutil.copy(file.filename, folder / "other.nc")
    del file["constant_data"]
    file["constant_data"] = h5py.ExternalLink(str(folder / "other.nc"), "/constant_data")


def _virtual(file: h5py.File, folder: Path) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "other.nc"), "/x", (4,))
    file["posterior"].create_virtual_dataset("out", layout)


def _named(name: str) -> Callable[[h5py.File, Path], None]:
    """A member whose name HDF5's own path syntax cannot make: bytes put in the place of a name as long."""

    def change(file: h5py.File, folder: Path) -> None:
        file["constant_data"].create_dataset("Q" * len(name), data=np.zeros(3))
        file.close()
        path = folder / "run.nc"
        content = path.read_bytes()
        assert b"Q" * len(name) in content
        path.write_bytes(content.replace(b"Q" * len(name), name.encode()))

    return change


def _many_inflate_more(file: h5py.File, _: Path) -> None:
    """A chunk of 64 bytes whose packed bytes unpack to 64 MB."""
    import zlib

    made = h5p.create(h5p.DATASET_CREATE)
    made.set_chunk((16,))
    made.set_deflate(1)
    space = h5s.create_simple((16,))
    dataset = h5d.create(file["posterior"].id, b"out", h5t.NATIVE_FLOAT, space, made)
    dataset.write_direct_chunk((0,), zlib.compress(b"\0" * 2**26))


def _shared_text(file: h5py.File, _: Path) -> None:
    """A thousand attributes of a megabyte each."""
    for index in range(100):
        file["posterior"].attrs[f"a{index}"] = "x" * 2**20


def _ragged() -> np.ndarray:
    rows = np.empty(2, h5py.vlen_dtype("f4"))
    rows[:] = [np.zeros(2, "f4"), np.zeros(3, "f4")]
    return rows


def _deep(file: h5py.File, _: Path) -> None:
    file.create_group("/".join(["deep"] * 2000))


def _loop(file: h5py.File, _: Path) -> None:
    file["posterior/again"] = file["/"]


def _declares(shape: tuple[int, ...], **more: Any) -> Callable[[h5py.File, Path], None]:
    return lambda file, _: file["posterior"].create_dataset("out", shape, "f4", **more) and None


HOSTILE: dict[str, Callable[[Path], None]] = {
    "external storage": edited(_external_storage),
    "external link": edited(lambda f, d: f["posterior"].__setitem__("out", h5py.ExternalLink(str(d / "secret"), "/"))),
    "external link to /dev/zero": edited(lambda f, _: f.__setitem__("g", h5py.ExternalLink("/dev/zero", "/"))),
    "external link on the way": edited(_external_behind_a_group),
    "soft link": edited(lambda f, _: f["posterior"].__setitem__("out", h5py.SoftLink("/posterior/weight"))),
    "soft link in a loop": edited(lambda f, _: f["posterior"].__setitem__("out", h5py.SoftLink("/posterior/out"))),
    "dangling soft link": edited(lambda f, _: f.__setitem__("out", h5py.SoftLink("/nowhere"))),
    "hard link in a loop": edited(_loop),
    "one array under two names": edited(lambda f, _: f["posterior"].__setitem__("out", f["posterior/weight"])),
    "virtual data set": edited(_virtual),
    "declared size no machine has": edited(_declares((2**20, 2**20, 2**10))),
    "declared size in chunks": edited(_declares((2**30, 2**10), chunks=(64, 64))),
    "declared size packed": edited(_declares((2**31,), chunks=(2**20,), compression="gzip")),
    "packed bomb": edited(lambda f, _: f["posterior"].create_dataset("o", data=np.zeros(2**27, "u1"), compression=9)),
    "chunk that unpacks to more": edited(_many_inflate_more),
    "unknown filter": edited(_declares((64,), chunks=(64,), compression="lzf")),
    "scale-offset filter": edited(_declares((64,), chunks=(64,), scaleoffset=4)),
    "text of varying length": edited(lambda f, _: f["posterior"].create_dataset("o", data=["a"], dtype=TEXT)),
    "opaque": edited(lambda f, _: f["posterior"].create_dataset("o", data=np.zeros(3, "V7"))),
    "compound": edited(lambda f, _: f["posterior"].create_dataset("o", data=np.zeros(3, [("a", "f4"), ("b", "i4")]))),
    "vlen of numbers": edited(lambda f, _: f["posterior"].create_dataset("o", (3,), h5py.vlen_dtype("f4"))),
    "object references": edited(lambda f, _: f["posterior"].create_dataset("o", (3,), h5py.ref_dtype)),
    "region references": edited(lambda f, _: f["posterior"].create_dataset("o", (3,), h5py.regionref_dtype)),
    "array type": edited(lambda f, _: f["posterior"].create_dataset("o", (3,), np.dtype(("f4", (1000, 1000))))),
    "named type": edited(lambda f, _: f.__setitem__("type", np.dtype("f8"))),
    "null space": edited(lambda f, _: f["posterior"].create_dataset("o", data=h5py.Empty("f4"))),
    "group in a group": edited(lambda f, _: f.create_group("posterior/inner")),
    "groups without end": edited(_deep),
    "a thousand groups": edited(lambda f, _: [f.create_group(f"g{i}") for i in range(1000)]),
    "name ..": edited(_named("..")),
    "name ../../x": edited(_named("../../xx")),
    "name with a newline": edited(lambda f, _: f["posterior"].create_dataset("a\nbnnzoo: all is well", data=[1.0])),
    "many attributes": edited(lambda f, _: [f["posterior"].attrs.create(f"a{i}", 1) for i in range(2000)]),
    "much text": edited(_shared_text),
    "many texts": edited(lambda f, _: f.attrs.create("texts", ["x"] * 4000, dtype=TEXT)),
    "attribute of an odd type": edited(lambda f, _: f.attrs.create("odd", np.zeros(2, "V3"))),
    "attribute of vlen numbers": edited(lambda f, _: f.attrs.__setitem__("odd", _ragged())),
    "no recipe": edited(lambda f, _: f.attrs.__delitem__("recipe")),
    "recipe is a number": edited(lambda f, _: f.attrs.__setitem__("recipe", 3)),
    "complete is text": edited(lambda f, _: f.attrs.__setitem__("complete", "yes")),
    "no posterior": edited(lambda f, _: f.__delitem__("posterior")),
    "empty": rewritten(lambda _: b""),
    "text": rewritten(lambda _: b"chain,draw\n1,2\n"),
    "half": rewritten(lambda content: content[: len(content) // 2]),
    "without its last byte": rewritten(lambda content: content[:-1]),
    "only a signature": rewritten(lambda content: content[:8]),
    "a damaged head": rewritten(lambda content: content[:40] + b"\xff" * 60 + content[100:]),
    "a pickle": rewritten(lambda _: b"\x80\x04cos\nsystem\n(S'touch owned'\ntR."),
    "a pipe": replaced(lambda path: os.mkfifo(path)),
    "/dev/zero": replaced(lambda path: path.symlink_to("/dev/zero")),
    "a folder": replaced(lambda path: path.mkdir()),
    "a link to itself": replaced(lambda path: path.symlink_to(path)),
}
COMMANDS = {
    "diagnose": [],
    "evaluate": ["--json"],
    "predict": ["--data", "diabetes", "-o", "new.csv"],
    "report": ["-o", "new.html"],
    "plot": ["-o", "pictures"],
    "compare": ["run.nc"],
}
"""Every command that opens a run, with what it needs beside."""


def told(*arguments: Any, folder: Path) -> tuple[int, str]:
    """Exit code and output of a command that may use 1 GB of memory; that it takes under 5 seconds of work."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    limited = ["bash", "-c", 'ulimit -d 1048576 && exec "$@"', "bash"]
    command = [*limited, sys.executable, "-m", "bnnzoo", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 5
    return done.returncode, done.stdout + done.stderr


def refused(*arguments: Any, folder: Path, naming: str) -> str:
    """What a command says that leaves with 2, one line, and no trace of itself."""
    before = sorted(folder.rglob("*"))
    code, said = told(*arguments, folder=folder)
    assert code == 2, said
    assert said.startswith("bnnzoo: "), said
    assert len(said.splitlines()) == 1, said
    assert naming in said
    assert "Traceback" not in said
    assert "internal" not in said
    assert SECRET not in said
    assert sorted(folder.rglob("*")) == before
    return said


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused(case, finished, tmp_path):
    """By the door that every command goes through; in this process, for the time that it takes."""
    path = tmp_path / "run.nc"
    shutil.copy(finished, path)
    (tmp_path / "secret").write_text(SECRET)
    HOSTILE[case](path)
    started = time.process_time()
    with pytest.raises(Exception, match=r"run\.nc") as caught:
        zoo.store.open_tree(path)
    assert time.process_time() - started < 2
    assert caught.value.exit_code == 2
    assert len(str(caught.value).splitlines()) == 1
    assert SECRET not in str(caught.value)


SOME = ("external storage", "declared size no machine has", "packed bomb", "a pipe", "half", "name with a newline")


@pytest.mark.parametrize(
    "case", [case if case in SOME else pytest.param(case, marks=pytest.mark.slow) for case in HOSTILE]
)
def test_a_hostile_file_is_refused_from_the_command_line(case, finished, tmp_path):
    path = tmp_path / "run.nc"
    shutil.copy(finished, path)
    (tmp_path / "secret").write_text(SECRET)
    HOSTILE[case](path)
    refused("diagnose", "run.nc", folder=tmp_path, naming="run.nc")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_opens_a_run_goes_through_the_same_door(command, finished, tmp_path):
    path = tmp_path / "run.nc"
    shutil.copy(finished, path)
    (tmp_path / "secret").write_text(SECRET)
    HOSTILE["external link"](path)
    refused(command, "run.nc", *COMMANDS[command], folder=tmp_path, naming="run.nc")


def test_a_refusal_imports_nothing_heavy(finished, tmp_path):
    path = tmp_path / "run.nc"
    shutil.copy(finished, path)
    HOSTILE["soft link"](path)
    code = f"""
import sys
from bnnzoo import cli
assert cli.run(["evaluate", {str(path)!r}]) == 2
assert not {{"jax", "xarray", "pandas", "equinox"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_honest_file_is_not_refused(finished, tmp_path):
    """The positive control, also packed as other tools pack it and with groups of others in it."""
    path = tmp_path / "run.nc"
    shutil.copy(finished, path)
    first, second = zoo.store.open_tree(path), zoo.store.open_tree(path)
    walk.check(path)
    assert first["posterior"].sizes == second["posterior"].sizes
    first.close()
    second.close()
    with h5py.File(path, "r+") as file:
        rng = np.random.default_rng(0)
        group = file.create_group("mine")
        group.attrs["words"] = ["one", "two"]
        group.create_dataset("a", data=rng.normal(size=(30, 4)), compression="gzip", shuffle=True, fletcher32=True)
        group.create_dataset("b", data=np.arange(3))
    walk.check(path)
    assert zoo.store.open_tree(path)["mine"]["a"].shape == (30, 4)
