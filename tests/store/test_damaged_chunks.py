"""A finished run with one changed byte in an array: every command reports an error and leaves no file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest
import tiny

from bnnzoo import cli
from bnnzoo.api import entrances
from bnnzoo.api.run import Run
from bnnzoo.errors import DamagedError


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> list[Path]:
    """Runs of two seeds."""
    folder = tmp_path_factory.mktemp("finished")
    for seed in (0, 1):
        run = entrances.run_recipe(tiny.recipe("mala", seed=seed, keep_warmup=True), out=folder / f"{seed}.nc")
        run.evaluate()
    return [folder / "0.nc", folder / "1.nc"]


def damage(path: Path, name: str) -> None:
    """Change a byte in the middle of an array's first chunk."""
    with h5py.File(path) as file:
        array = file[name]
        assert isinstance(array, h5py.Dataset)
        chunk = array.id.get_chunk_info(0)
    with open(path, "r+b") as content:
        content.seek(chunk.byte_offset + chunk.size // 2)
        byte = content.read(1)[0]
        content.seek(-1, 1)
        content.write(bytes([byte ^ 1]))


def refused(folder: Path, capsys, name: str, *arguments: str) -> None:
    """Check exit code 2, one line that names the file and the array, and no additional file."""
    before = {path: path.read_bytes() for path in folder.rglob("*")}
    capsys.readouterr()
    assert cli.run([str(word) for word in arguments]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    lines = [line for line in errors.splitlines() if not line.startswith("bnnzoo: warning: ")]
    assert len(lines) == 1
    assert "run.nc: " in lines[0]
    assert f"damaged: {name.partition('/')[2]} was changed after it was written" in lines[0]
    assert {path: path.read_bytes() for path in folder.rglob("*")} == before


ARRAYS = ("posterior/weight", "sample_stats/lp", "constant_data/x_test", "observed_data/y")


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "name"),
    # Pictures show no training targets.
    [(c, n) for c in ("report", "plot", "merge", "resume") for n in ARRAYS if (c, n) != ("plot", "observed_data/y")]
    + [("sample", "posterior/weight")],
)
def test_a_changed_array_is_refused(name, command, finished, tmp_path, capsys):
    run = Path(shutil.copy(finished[0], tmp_path / "run.nc"))
    damage(run, name)
    options = {
        "report": ["report", run, "-o", tmp_path / "page.html"],
        "plot": ["plot", run, "-o", tmp_path / "pictures"],
        "merge": ["merge", finished[1], run, "-o", tmp_path / "all.nc"],
        "resume": ["resume", run, "--draws", "30"],
        "sample": [*tiny.arguments("mala", init=run), "-o", tmp_path / "next.nc"],
    }[command]
    refused(tmp_path, capsys, name, *options)


def test_the_damaged_file_of_several_is_named(finished, tmp_path, capsys):
    run = Path(shutil.copy(finished[0], tmp_path / "run.nc"))
    with h5py.File(run, "r+") as file:
        file["posterior/weight"][0, 0, 0] = float("nan")
    assert cli.run(["merge", str(finished[1]), str(run), "-o", str(tmp_path / "all.nc")]) == 2
    assert f"bnnzoo: {run}: damaged: posterior contains numbers that are not finite\n" in capsys.readouterr().err
    assert not (tmp_path / "all.nc").exists()


def _without(name: str) -> Callable[[h5py.File], None]:
    return lambda file: file.__delitem__(name)


def _changed(file: h5py.File) -> None:
    file["constant_data/x"][0, 0] += 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "expected_message"),
    [
        (_without("sample_stats/lp"), "sample_stats/lp is missing, but float32[] in"),
        (_without("warmup_sample_stats/lp"), "warmup_sample_stats/lp is missing, but float32[] in"),
        (_without("sample_stats"), "is missing"),
        (_without("observed_data"), "observed_data/y is missing"),
        (_changed, "constant_data/x differs from that of"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_unreadable_arrays_are_refused_by_merge(change, expected_message, turned, finished, tmp_path, capsys):
    run = Path(shutil.copy(finished[0], tmp_path / "run.nc"))
    with h5py.File(run, "r+") as file:
        change(file)
    files = [str(finished[1]), str(run)]
    assert cli.run(["merge", *(reversed(files) if turned else files), "-o", str(tmp_path / "all.nc")]) == 2
    message = capsys.readouterr().err
    assert all(file in message for file in files)
    assert "differs from that of" in message or "missing" in message
    assert turned or expected_message in message
    assert not (tmp_path / "all.nc").exists()


def test_numbers_of_another_precision_are_called_so(finished, tmp_path):
    tree = entrances.open(finished[0]).posterior.load().copy()
    tree["posterior"]["weight"] = tree["posterior"]["weight"].astype("float64")
    with pytest.raises(DamagedError, match=r"weight is float64\[4, 20, 1, 10\], expected float32\[4, 20, 1, 10\]"):
        Run(tree, tmp_path / "run.nc").diagnose()
