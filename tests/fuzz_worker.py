"""A process that runs commands on changed files: one case per line of JSON on stdin, results on stdout.

`python fuzz_worker.py FOLDER` makes valid files in FOLDER unless they exist. A case is {"door", "changes", "command"}.
The process has a memory limit; if it dies, the case has failed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mutations
import numpy as np
import tiny
from hostile import SECRET
from mutations import Change, change_bytes, pick

from bnnzoo import cli, store
from bnnzoo.api import entrances
from bnnzoo.errors import InterruptedRunError
from bnnzoo.posterior import backend

MEMORY = 2**29
"""Memory that a case may use in addition; with the 400 MB of the libraries, less than 1 GB."""
LONGEST = 20.0
"""Largest CPU seconds of one case, which do not depend on the load of the machine."""
COMMANDS: dict[str, list[list[str]]] = {
    "run": [
        ["diagnose", "run.nc", "--json"],
        ["predict", "run.nc", "--data", "new.csv", "-o", "out.csv"],
        ["diagnose", "run.nc", "--gate"],
        ["evaluate", "run.nc", "--json"],
        ["compare", "run.nc", "../honest/run.nc"],
        ["report", "run.nc", "-o", "out.html"],
    ],
    "parts": [["resume", "run.nc", "--quiet"], ["diagnose", "run.nc"]],
    "recipe": [["show", "--config", "recipe.yaml"], ["show", "mlp", "nuts", "--config", "recipe.yaml"]],
    "csv": [
        ["show", "linear", "random-walk", "--data", "table.csv"],
        ["predict", "../honest/run.nc", "--data", "table.csv", "-o", "out.csv"],
        ["evaluate", "run.nc", "--data", "table.csv"],
        ["show", "linear", "random-walk", "--data", "table.csv", "--missing", "median"],
    ],
    "parquet": [["show", "linear", "random-walk", "--data", "table.parquet"]],
    "idx": [["show", "linear", "random-walk", "--data", "idx"]],
    "npz": [
        ["show", "linear", "random-walk", "--data", "set.npz"],
        ["predict", "../honest/run.nc", "--data", "set.npz", "-o", "out.csv"],
    ],
}
"""Commands that open each kind of file."""


def honest(folder: Path) -> None:
    """Make one valid file of each kind."""
    from sklearn.datasets import load_diabetes

    data: Any = load_diabetes(as_frame=True)
    frame = data.frame.iloc[:60].assign(colour=["red", "green", "blue"] * 20)[[*data.feature_names, "target"]]
    folder.mkdir()
    frame.to_csv(folder / "table.csv", index=False)
    frame.drop(columns="target").to_csv(folder / "new.csv", index=False)
    frame.to_parquet(folder / "table.parquet")
    np.savez(folder / "set.npz", x=frame.to_numpy(np.float32)[:, :10], y=frame["target"].to_numpy(np.float32))
    (folder / "idx").mkdir()
    rng = np.random.default_rng(0)
    for name, array in {
        "train-images-idx3-ubyte": rng.integers(0, 256, (12, 4, 4)),
        "train-labels-idx1-ubyte": np.arange(12) % 3,
    }.items():
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        (folder / "idx" / name).write_bytes(head + array.astype(np.uint8).tobytes())
    recipe = tiny.recipe("random-walk", data=str(folder / "table.csv"), draws=20, warmup=40, checkpoint_every=0)
    entrances.run_recipe(recipe, out=folder / "run.nc")
    (folder / "recipe.yaml").write_text(entrances.resolved_recipe(recipe))
    phases: list[str] = []
    with contextlib.suppress(InterruptedRunError):
        entrances.run_recipe(
            recipe,
            out=folder / "stopped.nc",
            observer=lambda progress: phases.append(progress.phase),
            stop=lambda: signal.SIGINT * (phases.count("sampling") >= 2),
        )
    os.remove(folder / "stopped.nc")


def placed(source: Path, case: Path, door: str) -> None:
    """Return a copy of the valid files that a case needs."""
    case.mkdir()
    if door == "parts":
        shutil.copytree(store.parts_folder(source / "stopped.nc"), case / "run.nc.parts")
    elif door == "idx":
        shutil.copytree(source / "idx", case / "idx")
    else:
        name = {"run": "run.nc", "recipe": "recipe.yaml", "npz": "set.npz"}.get(door, f"table.{door}")
        shutil.copy(source / name, case / name)
    shutil.copy(source / "new.csv", case / "new.csv")
    if door == "csv":  # a run that `evaluate` may write into
        shutil.copy(source / "run.nc", case / "run.nc")


def changed(case: Path, door: str, change: Change, checkpoint: Any) -> None:
    """Apply one change to the files in the case's folder."""
    byte_kinds = ("flip", "cut", "put", "insert", "drop", "again")
    if door == "run" and change[0] not in byte_kinds:
        return mutations.change_run_file(case / "run.nc", change)
    if door == "parts":
        folder = store.parts_folder(case / "run.nc")
        return mutations.seal(folder, checkpoint) if change[0] == "seal" else mutations.change_parts(folder, change)
    if door == "npz" and change[0] not in byte_kinds:
        return mutations.change_npz(case / "set.npz", change)
    beside = ("new.csv", *(["run.nc"] if door == "csv" else []))
    path = next(path for path in sorted(case.rglob("*")) if path.is_file() and path.name not in beside)
    if door == "idx":
        path = pick(sorted((case / "idx").iterdir()), change[-1] if isinstance(change[-1], int) else 0)
    if change[0] in ("line", "cell"):
        text = path.read_text("utf-8", "surrogateescape")
        edit: Callable[..., str] = mutations.change_line if change[0] == "line" else mutations.change_cell
        path.write_text(edit(text, *change[1:]), "utf-8", "surrogatepass")
        return None
    path.write_bytes(change_bytes(path.read_bytes(), change))
    return None


def run_command(case: Path, arguments: list[str]) -> dict[str, Any]:
    """Run a command; return its output, its exit code and its resources."""
    Path("/proc/self/clear_refs").write_text("5")
    resident = _status("VmRSS")
    # A decompression bomb causes an error here and does not exhaust the machine.
    resource.setrlimit(resource.RLIMIT_DATA, (_status("VmData") + 8 * MEMORY, resource.RLIM_INFINITY))
    out, err = io.StringIO(), io.StringIO()
    started = time.process_time()
    before = _files(case.parent)
    os.chdir(case)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(arguments)
    new = [name for name in _files(case.parent) if name not in before or before[name] != _files(case.parent)[name]]
    return {
        "code": code,
        "out": out.getvalue()[-4000:],
        "err": err.getvalue()[-4000:],
        "secret": SECRET in out.getvalue() + err.getvalue(),
        "seconds": time.process_time() - started,
        "grown": _status("VmHWM") - resident,
        "written": new,
    }


def _status(name: str) -> int:
    """Return the memory of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def _files(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def main() -> None:
    """Run cases until stdin ends."""
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder = Path(sys.argv[1])
    if not (folder / "secret").exists():
        honest(folder / "honest")
        (folder / "secret").write_text(SECRET)
    checkpoint = mutations.checkpoint_of(store.parts_folder(folder / "honest" / "stopped.nc"))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for number, line in enumerate(sys.stdin):
        contents = json.loads(line)
        case = folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        placed(folder / "honest", case, contents["door"])
        for change in contents["changes"]:
            # Some changes are impossible after others, and some values cannot be stored in a file.
            with contextlib.suppress(Exception):
                changed(case, contents["door"], change, checkpoint)
        result = run_command(case, pick(COMMANDS[contents["door"]], contents["command"]))
        print(json.dumps(result), file=answers, flush=True)
        if number % 100 == 99:
            backend.forget_programs()


if __name__ == "__main__":
    main()
