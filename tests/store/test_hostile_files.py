"""Malicious or damaged run files are refused with one line before anything is read or imported.

Each case is the file of a real run with one change.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tiny
from hostile import HOSTILE, SECRET, edited

from bnnzoo.api import entrances
from bnnzoo.errors import UsageError
from bnnzoo.store import hdf5_validation


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """Return the path of a finished run; tests change copies of it."""
    path = tmp_path_factory.mktemp("finished") / "run.nc"
    return entrances.run_recipe(tiny.recipe("random-walk"), out=path).path or path


COMMANDS = {
    "diagnose": [],
    "evaluate": ["--json"],
    "predict": ["--data", "diabetes", "-o", "new.csv"],
    "report": ["-o", "new.html"],
    "plot": ["-o", "pictures"],
    "compare": ["run.nc"],
    "merge": ["run.nc", "-o", "all.nc"],
}
"""Every command that opens a run, with its other arguments."""


def run_command(*arguments: Any, folder: Path) -> tuple[int, str]:
    """Return exit code and output of a command limited to 1 GB of memory and 5 seconds of CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    limited = ["bash", "-c", 'ulimit -d 1048576 && exec "$@"', "bash"]
    command = [*limited, sys.executable, "-m", "bnnzoo", *map(str, arguments)]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 5
    return process.returncode, process.stdout + process.stderr


def refused(*arguments: Any, folder: Path, naming: str) -> str:
    """Return the one-line error of a command that exits with 2 and creates no file."""
    before = sorted(folder.rglob("*"))
    code, stderr = run_command(*arguments, folder=folder)
    assert code == 2, stderr
    assert stderr.startswith("bnnzoo: "), stderr
    assert len(stderr.splitlines()) == 1, stderr
    assert naming in stderr
    assert "Traceback" not in stderr
    assert "internal" not in stderr
    assert SECRET not in stderr
    assert sorted(folder.rglob("*")) == before
    return stderr


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused(case, finished, tmp_path):
    """This uses the function by which every command opens files, in this process to save time."""
    path = tmp_path / "run.nc"
    shutil.copy(finished, path)
    (tmp_path / "secret").write_text(SECRET)
    HOSTILE[case](path)
    started = time.process_time()
    with pytest.raises(Exception, match=r"run\.nc") as caught:
        entrances.store.open_tree(path)
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
def test_every_command_opens_run_files_with_the_same_checks(command, finished, tmp_path):
    path = tmp_path / "run.nc"
    shutil.copy(finished, path)
    (tmp_path / "secret").write_text(SECRET)
    HOSTILE["external link"](path)
    refused(command, "run.nc", *COMMANDS[command], folder=tmp_path, naming="run.nc")


def test_a_long_file_of_bnnzoo_is_accepted(finished, monkeypatch):
    """Long arrays do not count as text, although the names of their dimensions are stored beside them."""
    monkeypatch.setattr(hdf5_validation, "_MAX_TEXT", finished.stat().st_size // 10)
    hdf5_validation.check(finished)


def _arrays(path: Path) -> dict[str, bytes]:
    """Return all arrays and attributes of a run's file by name."""
    results: dict[str, bytes] = {}
    tree = entrances.store.open_tree(path)
    for group in tree.subtree:
        about = {f"{group.path} {name}": value for name, value in group.attrs.items()}
        for name, values in group.variables.items():
            about[f"{group.path}/{name}"] = values.values.tobytes()
            about[f"{group.path}/{name} dims"] = values.dims
        results |= {name: repr(value).encode() for name, value in about.items()}
    tree.close()
    return results


@pytest.mark.long
def test_a_lost_bit_is_seen_wherever_it_lies(finished, tmp_path):
    """A flipped bit in data, structure or attributes is detected, or changes nothing that is read."""
    content, arrays = finished.read_bytes(), _arrays(finished)
    path, refused = tmp_path / "run.nc", 0
    places = range(7, len(content), len(content) // 40)
    for number, place in enumerate(places):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << number % 8]) + content[place + 1 :])
        try:
            result = _arrays(path)
        except (UsageError, OSError):  # refused on opening, or by a checksum on reading
            refused += 1
        else:
            assert result == arrays, place
    assert refused > 0.5 * len(places)


def _pieces_missing(file: h5py.File, _: Path) -> None:
    """Add an array of two chunks of which one is not written; HDF5 would read it as zeros."""
    dataset = file["posterior"].create_dataset("out", (8,), "f4", chunks=(4,))
    dataset[:4] = 1.0


def test_an_array_without_one_of_its_pieces_is_refused(finished, tmp_path):
    path = tmp_path / "run.nc"
    shutil.copy(finished, path)
    edited(_pieces_missing)(path)
    with pytest.raises(UsageError, match="posterior/out has 1 chunks, expected 2"):
        entrances.store.open_tree(path)


def test_many_packed_pieces_are_looked_at_once(finished, tmp_path):
    path = tmp_path / "run.nc"
    shutil.copy(finished, path)
    with h5py.File(path, "r+") as file:
        file["posterior"].create_dataset("out", data=np.zeros((20_000, 4), "f4"), chunks=(1, 4), compression="gzip")
    started = time.process_time()
    hdf5_validation.check(path)
    assert time.process_time() - started < 3


def test_changed_attributes_are_named(finished, tmp_path):
    path = tmp_path / "run.nc"
    shutil.copy(finished, path)
    with h5py.File(path, "r+") as file:
        file.attrs["title"] = "a stranger's own does no harm"
    entrances.store.open_tree(path).close()
    with h5py.File(path, "r+") as file:
        file.attrs["device"] = "another"
    with pytest.raises(UsageError, match="damaged: its attribute device was changed after it was written"):
        entrances.store.open_tree(path)


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


def test_an_unmodified_file_is_not_refused(finished, tmp_path):
    """Positive control, also with compressed arrays and additional groups."""
    path = tmp_path / "run.nc"
    shutil.copy(finished, path)
    first, second = entrances.store.open_tree(path), entrances.store.open_tree(path)
    hdf5_validation.check(path)
    assert first["posterior"].sizes == second["posterior"].sizes
    first.close()
    second.close()
    with h5py.File(path, "r+") as file:
        rng = np.random.default_rng(0)
        group = file.create_group("mine")
        group.attrs["words"] = ["one", "two"]
        group.create_dataset("a", data=rng.normal(size=(30, 4)), compression="gzip", shuffle=True, fletcher32=True)
        group.create_dataset("b", data=np.arange(3))
    hdf5_validation.check(path)
    assert entrances.store.open_tree(path)["mine"]["a"].shape == (30, 4)
