"""A disk that takes no more, at forty limits: every command that writes, in a process of its own.

RLIMIT_FSIZE is what any container allows: no file may grow beyond so many bytes, and a write that would fails (EFBIG)
where a full disk's fails (ENOSPC).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
import xarray as xr

from bnnzoo import cli, store
from bnnzoo.api import entrances
from bnnzoo.store.schema import FINAL_STATE

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
DRAWS = 400
WORDS = tiny.arguments("random-walk", draws=DRAWS, checkpoint_every=0)
K = 1024
LIMITS = {
    "evaluate run.nc --quiet": (0, 1, 4 * K, 16 * K, 32 * K, 48 * K, 56 * K, 64 * K, 128 * K),
    "predict run.nc --data x.csv -o out.nc": (0, 1, 2 * K, 8 * K, 16 * K),
    "predict run.nc --data x.csv -o out.csv": (0, 1, 100, 2 * K),
    "report run.nc -o out.html": (0, 100, 64 * K),
    "plot run.nc -o pictures --only trace": (0, 4 * K),
    "new sampler thing": (0, 200),
    "sample": (0, 1, 500, 2 * K, 4 * K, 8 * K, 16 * K, 32 * K, 40 * K, 48 * K),
    "resume": (0, 500, 2 * K, 4 * K, 16 * K, 32 * K, 48 * K),
}
BOUNDED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
from bnnzoo.__main__ import main
main()
"""
CASES = [(arguments, limit) for arguments, limits in LIMITS.items() for limit in limits]
BY_DEFAULT = {("evaluate run.nc --quiet", 32 * K), ("sample", 2 * K)}


def params(cases):
    return [case if case in BY_DEFAULT else pytest.param(*case, marks=pytest.mark.slow) for case in cases]


def limited(limit: int, arguments: list[str], folder: Path) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a command whose files may have so many bytes."""
    # Caches are not tested here. Truncated caches, or truncated bytecode, would break other tests.
    keeping = {
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "XDG_CACHE_HOME": str(folder.parent / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    process = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(limit), *arguments],
        cwd=folder,
        env=os.environ | keeping,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return process.returncode, process.stdout, process.stderr


def draws(path: Path) -> dict[str, np.ndarray]:
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        # The last state contains times.
        groups = [group for group in tree.children if group != FINAL_STATE]
        return {f"{group}/{n}": v.values for group in groups for n, v in tree[group].data_vars.items()}


@pytest.fixture(scope="module")
def finished_folder(tmp_path_factory) -> Path:
    """A finished run, rows to predict for, and the parts of the same run stopped on its way."""
    folder = tmp_path_factory.mktemp("whole")
    entrances.run_recipe(tiny.recipe("random-walk", draws=DRAWS, checkpoint_every=0), out=folder / "run.nc")
    (folder / "x.csv").write_text("\n".join(["age,sex,bmi,bp,s1,s2,s3,s4,s5,s6", *[",".join("0" * 10)] * 100]))
    return folder


@pytest.fixture
def run_folder(finished_folder, tmp_path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("run.nc", "x.csv"):
        shutil.copy(finished_folder / name, folder)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def one_line(message: str) -> None:
    lines = message.splitlines()
    assert len([line for line in lines if "not settled" not in line]) == 1, message
    assert "cannot be written: File too large" in lines[-1]
    assert lines[-1].startswith("bnnzoo: ")


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "limit"), params([case for case in CASES if case[0] not in ("sample", "resume")])
)
def test_a_full_disk_leaves_existing_files_untouched(arguments, limit, run_folder):
    before = content(run_folder)
    code, out, errors = limited(limit, arguments.split(), run_folder)
    assert code in (0, 1), errors
    if code == 0:
        assert limit >= 2 * K, "the smallest limits must be too small"
        return
    one_line(errors)
    assert out == ""
    assert content(run_folder) == before
    assert not list(run_folder.rglob(".*.tmp"))


@pytest.mark.long
@pytest.mark.parametrize(("arguments", "limit"), params([case for case in CASES if case[0] in ("sample", "resume")]))
def test_no_draw_is_lost(arguments, limit, finished_folder, tmp_path):
    """Stopped by the disk, gone on with when there is room: the bits of a run that met no limit."""
    folder = tmp_path / "here"
    folder.mkdir()
    out = folder / "run.nc"
    if arguments == "resume":  # of a run that a smaller limit has stopped, in sampling if it came so far
        assert limited(3 * K, [*WORDS, "-o", "run.nc"], folder)[0] == 1
    resumable = (store.parts_folder(out) / "checkpoint.npz").exists()
    command = ["resume", "run.nc", "--quiet"] if resumable else [*WORDS, "-o", "run.nc"]
    code, _, errors = limited(limit, command, folder)
    assert code in (0, 1), errors
    if code == 1:
        one_line(errors)
        assert not list(folder.rglob(".*.tmp"))
        resumable = (store.parts_folder(out) / "checkpoint.npz").exists()
        assert cli.run(["resume", str(out), "--quiet"] if resumable else [*WORDS, "-o", str(out), "--force"]) == 0
    tiny.assert_same_bits(draws(out), draws(finished_folder / "run.nc"))
    assert [path.name for path in folder.iterdir()] == ["run.nc"]


def test_the_page_counts_the_cases():
    assert len(CASES) >= 40
    row = re.search(r"^\| the disk is full, at different points[^|]*\| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert row is not None
    assert row[1] == str(len(CASES))
