"""Priors and networks for small tables: short runs of `mams` with the same number of steps.

    python benchmarks/priors.py UCI10 friedman servo concreteslump machine housing energy airfoil yacht

UCI10 holds folders NAME/data.csv.gz (target last) and NAME/test_mask.csv.gz (column k marks the test rows of split k).
Split 0 is used. `friedman` is Friedman's function of 10 inputs, of which 5 matter, with 200 rows. RMSE and negative log
density (NLL) of the test rows are in standard deviations of the training targets. All runs have six chains, 400 steps
of warm-up and 400 steps of sampling with 16 steps of the integrator each, and the seed 0. Most runs have not converged,
as R-hat shows: the table compares the results of short runs. `gp` is scikit-learn's Gaussian process with one length
scale per input.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import bnnzoo

PRIORS: dict[str, Any] = {
    "normal": "normal",
    "fan-in": "fan-in",
    "ard, scale 1": {"name": "ard", "scale": 1.0},
    "ard": "ard",
    "ard, df 2, input scale 0.2": {"name": "ard", "df": 2, "input_scale": 0.2},
}
LENGTHS: dict[str, Any] = {"chains": 6, "warmup": 400, "draws": 100, "thin": 4, "start_steps": 2000}
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def friedman(count: int = 200, test_count: int = 1000) -> Rows:
    """Rows of Friedman's function: training inputs and targets, test inputs and targets."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(count + test_count, 10))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y += rng.normal(size=len(y))
    return x[:count], y[:count], x[count:], y[count:]


def uci(folder: Path) -> Rows:
    """Rows of split 0 of a data set: training inputs and targets, test inputs and targets."""
    values = np.loadtxt(folder / "data.csv.gz", delimiter=",")
    test = np.loadtxt(folder / "test_mask.csv.gz", delimiter=",")[:, 0].astype(bool)
    return values[~test, :-1], values[~test, -1], values[test, :-1], values[test, -1]


def scores(rows: Rows, hidden: tuple[int, ...], prior: Any) -> tuple[float, float, float]:
    """NLL, RMSE and R-hat of a short run."""
    x, y, x_test, y_test = rows
    run = bnnzoo.sample(
        {"name": "mlp", "hidden": list(hidden), "activation": "tanh"},
        {"name": "mams", "num_steps": 16},
        data=(x, y),
        task="regression",
        prior=prior,
        test_fraction=0,
        progress=False,
        seed=0,
        **LENGTHS,
    )
    predictive = run.predictive(x_test)
    nll = -np.mean(predictive.log_prob(y_test)) - np.log(y.std())
    rmse = np.sqrt(np.mean((np.ravel(predictive.mean) - y_test) ** 2)) / y.std()
    return float(nll), float(rmse), float(run.attributes.get("rhat", np.nan))


def gaussian_process(rows: Rows) -> tuple[float, float]:
    """NLL and RMSE of a Gaussian process with one length scale per input."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    x, y, x_test, y_test = rows
    centre, scale = x.mean(0), np.where(x.std(0) > 0, x.std(0), 1)
    kernel = ConstantKernel() * RBF([1.0] * x.shape[1]) + WhiteKernel()
    model = GaussianProcessRegressor(kernel, random_state=0).fit((x - centre) / scale, (y - y.mean()) / y.std())
    prediction: Any = model.predict((x_test - centre) / scale, return_std=True)
    error = (y_test - y.mean()) / y.std() - prediction[0]
    nll = 0.5 * np.log(2 * np.pi * prediction[1] ** 2) + 0.5 * (error / prediction[1]) ** 2
    return float(nll.mean()), float(np.sqrt(np.mean(error**2)))


def main() -> None:
    """Print one row per table, network and prior."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--networks", nargs="+", default=["16", "50", "16,16"], help="widths of the hidden layers")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| table | rows | network | prior | NLL | RMSE | R-hat |\n|---|---|---|---|---|---|---|")
    for table in arguments.tables:
        rows = friedman() if table == "friedman" else uci(arguments.folder / table)
        for network in arguments.networks:
            for name, prior in PRIORS.items():
                nll, rmse, rhat = scores(rows, tuple(map(int, network.split(","))), prior)
                print(
                    f"| {table} | {len(rows[1])} | {network} | {name} | {nll:.3f} | {rmse:.3f} | {rhat:.2f} |",
                    flush=True,
                )
        nll, rmse = gaussian_process(rows)
        print(f"| {table} | {len(rows[1])} | gp | | {nll:.3f} | {rmse:.3f} | |", flush=True)


if __name__ == "__main__":
    main()
