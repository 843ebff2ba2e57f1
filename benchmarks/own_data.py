"""Tables without tuning: `bnnzoo sample` with default settings, against models that need no tuning.

    python benchmarks/own_data.py FOLDER                                      # the default recipe, and other models
    python benchmarks/own_data.py FOLDER --bde PYTHON --seeds 0 1 2
    python benchmarks/own_data.py FOLDER --pairs --models mlp mdn --samplers nuts hmc [--budget 20s]

FOLDER holds tables, NAME.csv with a header or NAME/data.txt without a header. The target is the last column. A tenth of
the rows is the test set, the same rows for all methods. RMSE and NLL are in standard deviations of the training
targets. Seconds are those of whole processes. All methods run with their defaults.

`--pairs` runs the named models with the named samplers, each within the budget, and prints whether the run converged
or how it ended. `--bde` is the Python of an environment with bde (`pip install sklearn-contrib-bde`), which cannot be
installed beside bnnzoo.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bnnzoo.data import load, split

BDE = """
import json, sys
import numpy as np
from bde import BdeRegressor

rows = np.load(sys.argv[1])
model = BdeRegressor(seed=int(sys.argv[2]))
model.fit(rows["x"], rows["y"])
raw = np.asarray(model.predict(rows["x_test"], raw=True), np.float64).reshape(-1, len(rows["y_test"]), 2)
y, mean, sd = rows["y_test"], raw[..., 0], np.logaddexp(0, raw[..., 1]) + 1e-6
single = -0.5 * np.log(2 * np.pi * sd**2) - 0.5 * (y - mean) ** 2 / sd**2
print(json.dumps({
    "rmse": float(np.sqrt(np.mean((y - mean.mean(0)) ** 2))),
    "nll": float(np.log(len(raw)) - np.logaddexp.reduce(single, 0).mean()),
}))
"""
SAMPLERS = ("nuts", "hmc", "mala", "penalty", "mams", "mclmc", "sgld", "ensemble", "laplace", "bbb", "swag")
COLUMNS = ("table", "rows", "what", "seed", "rmse", "nll", "coverage_90", "rhat", "verdict", "seconds")


def tables(folder: Path, into: Path) -> Iterator[Path]:
    """Return the tables as CSV files with a header."""
    for path in sorted([*folder.glob("**/*.csv"), *folder.glob("**/data.txt")]):
        if path.suffix == ".csv":
            yield path
        else:
            values = [line.split() for line in path.read_text().splitlines() if line.strip()]
            header = [f"x{i}" for i in range(len(values[0]) - 1)] + ["y"]
            copy = into / f"{path.parent.name}.csv"
            copy.write_text("\n".join(",".join(row) for row in [header, *values]) + "\n")
            yield copy


def standardised(table: Path) -> dict[str, np.ndarray]:
    """Return training and test rows of bnnzoo's split, in standard deviations of the training rows."""
    train, test = split(load(str(table), task="regression"), test_fraction=0.1, seed=0)
    assert test is not None
    sd = np.where(train.x.std(0) > 0, train.x.std(0), 1)
    centre, width = train.y[:, 0].mean(), train.y[:, 0].std()
    return {
        "x": (train.x - train.x.mean(0)) / sd,
        "y": (train.y[:, 0] - centre) / width,
        "x_test": (test.x - train.x.mean(0)) / sd,
        "y_test": (test.y[:, 0] - centre) / width,
    }


def ours(table: Path, words: list[str], seed: int) -> dict[str, Any]:
    """Run the command line in a separate process and return its scores."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "run.nc")
        command = [sys.executable, "-m", "bnnzoo", "sample", *words, "--data", str(table), "--task", "regression"]
        started = time.perf_counter()
        done = subprocess.run(
            [*command, "--seed", str(seed), "--json", "--quiet", "-o", file],
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - started
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
            return {"verdict": last[0][:100], "seconds": seconds}
        summary = json.loads(done.stdout)
        scored = subprocess.run(
            [sys.executable, "-m", "bnnzoo", "evaluate", file, "--json", "--quiet"],
            capture_output=True,
            text=True,
            check=True,
        )
        scores = json.loads(scored.stdout)
    return {
        "rmse": scores["rmse_standardised"],
        "nll": scores["nll_standardised"],
        "coverage_90": scores["coverage_90"],
        "rhat": summary.get("rhat"),
        "verdict": str(summary.get("verdict", "")).partition(":")[0],
        "seconds": seconds,
    }


def gaussian_process(rows: dict[str, np.ndarray], seed: int) -> dict[str, float]:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel() * RBF([1.0] * rows["x"].shape[1]) + WhiteKernel()
    model = GaussianProcessRegressor(kernel, random_state=seed).fit(rows["x"], rows["y"])
    moments: Any = model.predict(rows["x_test"], return_std=True)
    mean, sd = moments
    z = (rows["y_test"] - mean) / sd
    nll = np.mean(0.5 * np.log(2 * np.pi * sd**2) + 0.5 * z**2)
    return {"rmse": _rmse(rows, mean), "nll": float(nll), "coverage_90": float(np.mean(np.abs(z) < 1.6449))}


def boosting(rows: dict[str, np.ndarray], seed: int) -> dict[str, float]:
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(random_state=seed).fit(rows["x"], rows["y"])
    return {"rmse": _rmse(rows, model.predict(rows["x_test"]))}


def bde(rows: dict[str, np.ndarray], python: str, seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        np.savez(path, allow_pickle=False, **{name: a.astype(np.float32) for name, a in rows.items()})
        devices = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={os.cpu_count()}"}
        command = [python, "-c", BDE, str(path), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | devices)
    if done.returncode:
        return {"verdict": done.stderr.strip().splitlines()[-1][:100]}  # type: ignore[dict-item]
    return json.loads(done.stdout.splitlines()[-1])


def _rmse(rows: dict[str, np.ndarray], mean: np.ndarray) -> float:
    return float(np.sqrt(np.mean((rows["y_test"] - mean) ** 2)))


def row(table: Path, count: int, what: str, seed: int, scores: dict[str, Any]) -> None:
    values = {"table": table.stem, "rows": count, "what": what, "seed": seed, **scores}
    cells = [f"{v:.3g}" if isinstance(v := values.get(c, ""), float) else str(v) for c in COLUMNS]
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", nargs="+", help="names, if not all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--bde", metavar="PYTHON")
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument("--models", nargs="+", default=["mlp", "mdn"])
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS)
    parser.add_argument("--budget", help="for each run; the default of `sample` unless given")
    asked = parser.parse_args()
    budget = ["--budget", asked.budget] if asked.budget else []
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for table in tables(asked.folder, Path(folder)):
            if asked.tables and table.stem not in asked.tables:
                continue
            rows = standardised(table)
            count = len(rows["y"])
            if asked.pairs:
                for words in ([m, s] for m in asked.models for s in asked.samplers):
                    row(table, count, " ".join(words), asked.seeds[0], ours(table, [*words, *budget], asked.seeds[0]))
                continue
            peers: dict[str, Any] = {"Gaussian process": gaussian_process, "gradient boosting": boosting}
            if asked.bde:
                peers["bde"] = lambda rows, seed: bde(rows, asked.bde, seed)
            for seed in asked.seeds:
                row(table, count, "bnnzoo", seed, ours(table, budget, seed))
                for name, peer in peers.items():
                    started = time.perf_counter()
                    scores = peer(rows, seed)
                    row(table, count, name, seed, {**scores, "seconds": time.perf_counter() - started})


if __name__ == "__main__":
    main()
