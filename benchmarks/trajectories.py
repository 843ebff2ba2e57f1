"""Length of the trajectories of `mams` on posteriors of networks: R-hat and effective draws in one minute.

    python benchmarks/trajectories.py UCI10 concreteslump yacht housing energy airfoil --budget 60s

UCI10 holds folders NAME/data.csv.gz (target last) and NAME/test_mask.csv.gz (column k marks the test rows of split k).
Split 0 is used. All runs have ten chains, the prior `ard`, a Gaussian noise of learned scale, and the seed 0. ESS is
the smallest bulk ESS of the tested quantities (predictive means and log sds, log densities). RMSE and negative log
density (NLL) of the test rows are in standard deviations of the training targets.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from priors import Rows, uci

import bnnzoo


def line(rows: Rows, hidden: tuple[int, ...], num_steps: int, budget: str) -> str:
    """One line of the table: seconds, draws, R-hat, ESS, NLL and RMSE."""
    x, y, x_test, y_test = rows
    start_time = time.perf_counter()
    run = bnnzoo.sample(
        {"name": "mlp", "hidden": list(hidden), "activation": "tanh"},
        {"name": "mams", "num_steps": num_steps},
        data=(x, y),
        task="regression",
        likelihood="gaussian",
        prior="ard",
        chains=10,
        budget=budget,
        test_fraction=0,
        progress=False,
        seed=0,
    )
    seconds, attributes, predictive = time.perf_counter() - start_time, run.attributes, run.predictive(x_test)
    nll = -np.mean(predictive.log_prob(y_test)) - np.log(y.std())
    rmse = np.sqrt(np.mean((np.ravel(predictive.mean) - y_test) ** 2)) / y.std()
    return (
        f"{seconds:.0f} | {attributes['draws_done']} | {attributes['rhat']:.2f} | {attributes['ess_bulk']:.0f} | "
        f"{nll:.3f} | {rmse:.3f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--hidden", type=int, nargs="+", default=[16, 16])
    parser.add_argument("--steps", type=int, nargs="+", default=[16, 64, 256])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    bnnzoo.devices(2)
    print("table | steps of a trajectory | seconds | draws | R-hat | ESS | NLL | RMSE\n---|---|---|---|---|---|---|---")
    for name in arguments.names:
        for num_steps in arguments.steps:
            result = line(uci(arguments.folder / name), tuple(arguments.hidden), num_steps, arguments.budget)
            print(f"{name} | {num_steps} | {result}", flush=True)


if __name__ == "__main__":
    main()
