"""Airfoil self-noise: the zoo's recipes against bde, on one split, in one table.

    python benchmarks/airfoil.py airfoil.csv [--recipes 'airfoil-*'] [--bde PYTHON] [--seeds 0 1 2]
    python benchmarks/airfoil.py airfoil.csv --choose

The data have 1503 rows and five features; the target is the last column. A fifth of the rows is the test set
(`train_test_split(test_size=0.2, random_state=0)`). All columns are standardised with the training rows, and all
metrics are in standardised units. "NLL moments" is the NLL of a Gaussian with the predictive mean and variance, which
the authors of bde report.

`--bde` is the Python of an environment with bde (`pip install sklearn-contrib-bde`). bde cannot be installed beside
bnnzoo. It runs with the settings of its authors' benchmark, with one host device per core for its chains. In both
cases the seconds are those of the whole process. Without `--bde` only the recipes run. Table rows are means over the
seeds, with their range.

`--choose` compares settings of `airfoil-fast` without the test set. Each setting is fitted to four fifths of the
training rows and scored on the other fifth, for two splits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BDE = """
import json, sys
import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from bde import BdeRegressor

table = np.loadtxt(sys.argv[1], delimiter=",", skiprows=1)
train, test = train_test_split(table, test_size=0.2, random_state=0)
scaler = StandardScaler().fit(train)
train, test = (scaler.transform(rows).astype(np.float32) for rows in (train, test))
model = BdeRegressor(
    n_members=10, hidden_layers=[16] * 4, activation="relu", epochs=1200, patience=20, validation_split=0.15, lr=1e-3,
    weight_decay=1e-4, warmup_steps=50_000, n_samples=1000, n_thinning=10, seed=int(sys.argv[2]),
)
model.fit(train[:, :-1], train[:, -1])
raw = np.asarray(model.predict(test[:, :-1], raw=True), np.float64).reshape(-1, len(test), 2)
y, mean, sd = test[:, -1], raw[..., 0], np.logaddexp(0, raw[..., 1]) + 1e-6
centre, variance = mean.mean(0), (sd**2).mean(0) + mean.var(0)
single = -0.5 * np.log(2 * np.pi * sd**2) - 0.5 * (y - mean) ** 2 / sd**2
print(json.dumps({
    "nll_standardised": float(np.log(len(raw)) - np.logaddexp.reduce(single, 0).mean()),
    "nll_moment_standardised": float(np.mean(0.5 * np.log(2 * np.pi * variance) + 0.5 * (y - centre) ** 2 / variance)),
    "rmse_standardised": float(np.sqrt(np.mean((y - centre) ** 2))),
}))
"""


CANDIDATES = [
    ("tanh", 4, 30, 0.1),
    ("tanh", 4, 20, 0.05),
    ("tanh", 5, 30, 0.1),
    ("tanh", 5, 20, 0.05),
    ("tanh", 6, 20, 0.05),
    ("relu", 4, 30, 0.1),
]
"""Activation, number of layers of 16 units, decoherence length, energy variance; the rest is `airfoil-fast`."""

METRICS = ("rmse_standardised", "nll_moment_standardised", "nll_standardised", "seconds")


def choose(data: str) -> None:
    """Print one line per candidate, scored on a fifth of the training rows."""
    from sklearn.model_selection import train_test_split

    lines = Path(data).read_text().splitlines()
    rows = train_test_split(lines[1:], test_size=0.2, random_state=0)[0]
    with tempfile.TemporaryDirectory() as folder:
        training, file = Path(folder) / "training.csv", str(Path(folder) / "run.nc")
        training.write_text("\n".join([lines[0], *rows]))
        for activation, layers, length, variance in CANDIDATES:
            settings = {
                "model.activation": activation,
                "model.hidden": ",".join(["16"] * layers),
                "sampler.length": length,
                "sampler.energy-variance": variance,
            }
            name, scores = f"{activation} 16 x {layers}, length {length}, energy variance {variance}", []
            for split in (1, 2):
                words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
                words += ["--split-seed", str(split), "--data", str(training), "--force", "--quiet"]
                started = time.perf_counter()
                bnnzoo("sample", "--config", "airfoil-fast", *words, "-o", file)
                seconds = time.perf_counter() - started
                scores.append({**json.loads(bnnzoo("evaluate", file, "--json")), "seconds": seconds})
            print(f"| {name} |", *(_cell([row[key] for row in scores]) for key in METRICS), flush=True)


def bnnzoo(*words: str) -> str:
    """Return the standard output of a command of bnnzoo."""
    command = [sys.executable, "-m", "bnnzoo", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _cell(values: list[float]) -> str:
    mean = f"{sum(values) / len(values):.4g}"
    return f"{mean} |" if len(values) == 1 else f"{mean} ({min(values):.4g} to {max(values):.4g}) |"


def bde(python: str, data: str, seed: int) -> dict[str, Any]:
    """Return the row of bde."""
    flags = f"--xla_force_host_platform_device_count={os.cpu_count()}"
    started = time.perf_counter()
    done = subprocess.run(
        [python, "-c", BDE, data, str(seed)], stdout=subprocess.PIPE, text=True, check=True, env=_environment(flags)
    )
    seconds = time.perf_counter() - started
    return {"recipe": "bde", **json.loads(done.stdout.splitlines()[-1]), "seconds": seconds}


def recipes(patterns: list[str], data: str, seed: int) -> list[dict[str, Any]]:
    """Return the rows of the zoo's recipes."""
    return json.loads(bnnzoo("zoo", "run", *patterns, "--data", data, "--seed", str(seed), "--json"))


def _environment(flags: str) -> dict[str, str]:
    """Return this process's environment without the variables that would let bde import from it."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**variables, "XLA_FLAGS": flags}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--recipes", nargs="+", default=["airfoil-*"])
    parser.add_argument("--bde", metavar="PYTHON")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--choose", action="store_true", help="compare settings without the test set")
    arguments = parser.parse_args()
    header = "| RMSE | NLL moments | NLL | seconds |\n|---|---|---|---|---|"
    if arguments.choose:
        print("| settings", header)
        choose(arguments.data)
        return
    rows_by_recipe: dict[str, list[dict[str, Any]]] = {}
    for seed in arguments.seeds:
        rows = recipes(arguments.recipes, arguments.data, seed)
        if arguments.bde:
            rows.append(bde(arguments.bde, arguments.data, seed))
        for row in rows:
            rows_by_recipe.setdefault(row["recipe"], []).append(row)
    print("| recipe", header)
    for name, rows in rows_by_recipe.items():
        print(f"| {name} |", *(_cell([row[key] for row in rows]) for key in METRICS))


if __name__ == "__main__":
    main()
