"""Predictions of partly stochastic networks against other methods, at equal seconds.

    python benchmarks/partly_stochastic.py UCI10 [--tables elevators] [--rows 1e5] [--budget 60s] [--only nuts] [-o DIR]

The partly stochastic networks sample the identified directions, the linearised network, or the last layer. The other
methods sample or approximate the whole network. UCI10 is a folder of tables as `bnnzoo bench` reads them. `--rows` adds
a generated table with this number of rows: 20 inputs, a network 20-5-1 (tanh) and noise with a standard deviation of
0.5. All methods have one noise level and one hidden layer of 16 units (tanh). The plugin `bnnzoo-bench` must be
installed. The table shows the metrics of held-out rows.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

METHODS = {
    "identified": "sampler: penalty\nstochastic: identified",
    "identified-and-others": "sampler: penalty\nstochastic: identified\nother_directions: linearised",
    "linearised": "sampler: penalty\nstochastic: linearised",
    "last-layer": "sampler: penalty\nstochastic: last",
    **{name: f"sampler: {name}" for name in ("nuts", "laplace", "swag", "ensemble")},
}
"""The part of the recipe in which the methods differ."""


def write_recipes(folder: Path, names: list[str]) -> list[Path]:
    """Write a recipe file for each method."""
    paths = []
    for name in names:
        lines = METHODS[name]
        path = folder / f"{name}.yaml"
        path.write_text(
            f"model: {{name: mlp, hidden: [16], activation: tanh}}\n{lines}\nlikelihood: gaussian\nprior: normal\n"
        )
        paths.append(path)
    return paths


def write_table(path: Path, rows: int) -> None:
    """Write rows of a network 20-5-1 with noise."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 20)).astype(np.float32)
    y = np.tanh(x @ (rng.normal(size=(20, 5)) / 20**0.5)) @ rng.normal(size=(5, 1)) + 0.5 * rng.normal(size=(rows, 1))
    columns = [*(f"x{i}" for i in range(20)), "y"]
    pd.DataFrame(np.hstack([x, y]).astype(np.float32), columns=columns).to_csv(path, index=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("uci10", type=Path)
    parser.add_argument("--tables", nargs="*", default=["elevators"])
    parser.add_argument("--rows", type=float, default=1e5)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        methods = ",".join(map(str, write_recipes(folder, arguments.only)))
        problems = [arguments.uci10 / table for table in arguments.tables]
        if arguments.rows:
            write_table(folder / "network-20-5-1.csv", int(arguments.rows))
            problems.append(folder / "network-20-5-1.csv")
        out = arguments.out or folder / "bench"
        command = [sys.executable, "-m", "bnnzoo", "bench"]
        options = [word for problem in problems for word in ("--problems", str(problem))]
        limits = ["--folds", "0", "--budget", arguments.budget]
        subprocess.run([*command, "run", *options, "--methods", methods, *limits, "-o", str(out)], check=True)
        subprocess.run([*command, "table", str(out), "--metric", "nll"], check=True)


if __name__ == "__main__":
    main()
