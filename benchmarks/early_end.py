"""Seconds that `--until predictions` saves, and what it costs in held-out log density.

    python benchmarks/early_end.py UCI10 airfoil energy concreteslump skillcraft sml [--budget 60s]

UCI10 holds folders NAME/data.csv.gz (target last) and NAME/test_mask.csv.gz (column k marks the test rows of split k).
Split 0 is used. Each table is sampled twice with the default model and sampler: with `--until budget`, which uses all
of the time, and with `--until predictions`. NLL of the test rows is in units of standard deviations of the training
targets; the difference is paired by row, with its standard error.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from priors import Rows, uci

import bnnzoo


def fit(rows: Rows, until: str, budget: str) -> tuple[np.ndarray, float, float, str, int]:
    """Return the NLL of each test row, the seconds of sampling and of everything, the reason to end, and the draws."""
    x, y, x_test, y_test = rows
    start_time = time.perf_counter()
    run = bnnzoo.sample(
        data=(x, y), task="regression", budget=budget, until=until, test_fraction=0, progress=False, seed=0
    )
    seconds, attributes = time.perf_counter() - start_time, run.attributes
    nll = -np.asarray(run.predictive(x_test, draws=2000).log_prob(y_test)) - np.log(y.std())
    used = sum(float(attributes[f"seconds_{phase}"]) for phase in ("warmup", "sampling"))
    return nll, used, seconds, str(attributes["ended"]), int(attributes["draws_done"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--budget", default="60s")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    bnnzoo.devices(2)
    print("| table | until | ended | draws | budget used, s | all, s | NLL | NLL minus that of the whole budget |")
    print("|---" * 8 + "|")
    for name in arguments.names:
        rows, whole = uci(arguments.folder / name), None
        for until in ("budget", "predictions"):
            nll, used, seconds, ended, draws = fit(rows, until, arguments.budget)
            whole = nll if whole is None else whole
            change = nll - whole
            error = np.std(change, ddof=1) / np.sqrt(len(change))
            difference = "" if until == "budget" else f"{np.mean(change):+.4f} ± {error:.4f}"
            cells = f"{draws} | {used:.0f} | {seconds:.0f} | {np.mean(nll):.3f} | {difference}"
            print(f"| {name} | {until} | {ended} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
