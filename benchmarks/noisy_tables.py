"""Small tables with more noise than a network should learn: the effect of early stopping on held-out rows.

    python benchmarks/noisy_tables.py [--budget 20s]

The tables are simulated, with many test rows: linear in two of five features, Friedman's first function with three
irrelevant features, a sine of one feature, and no signal at all. Each is fitted by `bnnzoo sample --data`, by the same
command with `--start-held-out 0`, which trains each network on all rows to the end, and by a Gaussian process (a length
scale per feature, noise). Scores are in the units of the targets.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

WAYS = {"`bnnzoo sample --data`": [], "the same, `--start-held-out 0`": ["--start-held-out", "0"]}


def tables() -> Iterator[tuple[str, np.ndarray, np.ndarray, int]]:
    """Yield name, inputs, targets and number of training rows."""
    random = np.random.default_rng(0)
    x = random.normal(size=(1120, 5))
    yield "linear", x, x[:, 0] - 0.5 * x[:, 1] + random.normal(size=1120), 120
    yield "friedman", *make_friedman1(1200, n_features=8, noise=2.0, random_state=1), 200
    x = random.uniform(-3, 3, size=(1060, 1))
    yield "sine", x, np.sin(2 * x[:, 0]) + 0.4 * random.normal(size=1060), 60
    yield "no signal", random.normal(size=(1400, 10)), random.normal(size=1400), 400


def gaussian_process(x: np.ndarray, y: np.ndarray, count: int) -> dict[str, float]:
    mean, sd, level, scale = x[:count].mean(0), x[:count].std(0), y[:count].mean(), y[:count].std()
    lengths: Any = np.ones(x.shape[1])
    kernel = ConstantKernel() * RBF(lengths) + WhiteKernel()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=0)
        model.fit((x[:count] - mean) / sd, (y[:count] - level) / scale)
    prediction: Any = model.predict((x[count:] - mean) / sd, return_std=True)
    centre, width = prediction
    error = y[count:] - (centre * scale + level)
    z = error / (width * scale)
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "nll": float(np.mean(z**2 / 2 + np.log(width * scale * np.sqrt(2 * np.pi)))),
        "coverage_90": float(np.mean(np.abs(z) < stats.norm.ppf(0.95))),
    }


def ours(train: Path, test: Path, options: list[str]) -> dict[str, float]:
    out = train.with_suffix(".nc")
    sample = ["bnnzoo", "sample", "--data", train, "--test-fraction", "0", "-o", out, "--force", "--quiet", "--json"]
    made = subprocess.run([*map(str, sample), *options], capture_output=True, text=True, check=True)
    evaluate = ["bnnzoo", "evaluate", str(out), "--data", str(test), "--all", "--json"]
    scored = subprocess.run(evaluate, capture_output=True, text=True, check=True)
    return json.loads(scored.stdout) | {"rhat": json.loads(made.stdout)["rhat"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="20s")
    budget = parser.parse_args().budget
    print("| table | rows | what | RMSE | NLL | 90 % intervals hold | R-hat |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        train, test = Path(folder) / "train.csv", Path(folder) / "test.csv"
        for name, x, y, count in tables():
            frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])]).assign(y=y)
            frame[:count].to_csv(train, index=False)
            frame[count:].to_csv(test, index=False)
            results = {what: ours(train, test, ["--budget", budget, *options]) for what, options in WAYS.items()}
            results["Gaussian process"] = gaussian_process(x, y, count)
            for what, scores in results.items():
                numbers = [
                    f"{scores[key]:.3g}" if key in scores else "" for key in ("rmse", "nll", "coverage_90", "rhat")
                ]
                print("|", " | ".join([name, str(count), what, *numbers]), "|", flush=True)


if __name__ == "__main__":
    main()
