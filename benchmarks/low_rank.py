"""The low-rank part of the metric of `mams`: effective draws within chains, with it and with its diagonal alone.

    python benchmarks/low_rank.py UCI10 energy airfoil housing

UCI10 holds folders NAME/data.csv.gz (target last) and NAME/test_mask.csv.gz (column k marks the test rows of split k).
Split 0 is used. All runs have four chains, one hidden layer of 16 tanh units, the prior and the sampler of the recipe
`small-table`, a Gaussian noise of learned scale, 600 warm-up steps, and 500 draws of 2 trajectories of 32 steps. The
last layer is not whitened. The runs of the two metrics alternate, one pair per seed. ESS is the smallest effective
number of draws per chain of the tested quantities (predictive means and log sds, log densities), each chain by itself.
The table shows medians over the seeds.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import jax
import numpy as np
from priors import Rows, uci

import bnnzoo
from bnnzoo.samplers.mcmc import low_rank

KINDS = {"diagonal": 0, "diagonal plus low rank": low_rank._MAX_DIRECTIONS}
"""Largest number of directions of each kind of metric."""


def measure(rows: Rows, most_directions: int, seed: int) -> tuple[float, float]:
    """Return the ESS per chain, and the seconds of sampling, with at most this number of directions in the metric."""
    x, y, _, _ = rows
    low_rank._MAX_DIRECTIONS = most_directions
    jax.clear_caches()  # compiled programs do not depend on the module's constants
    run = bnnzoo.sample(
        {"name": "mlp", "hidden": [16], "activation": "tanh"},
        {"name": "mams", "num_steps": 32, "whiten_last_layer": False},
        data=(x, y),
        task="regression",
        likelihood="gaussian",
        prior={"name": "ard", "df": 2, "input_scale": 0.2},
        chains=4,
        start_steps=3000,
        warmup=600,
        draws=500,
        thin=2,
        test_fraction=0,
        progress=False,
        seed=seed,
    )
    return run.diagnose()["within_ess"], float(run.attributes["seconds_sampling"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    bnnzoo.devices(2)
    print("table | metric | ESS per chain | seconds | ESS per second, all chains\n---|---|---|---|---")
    for name in arguments.names:
        rows = uci(arguments.folder / name)
        measured: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        for seed in range(arguments.seeds):
            for kind, most_directions in KINDS.items():
                measured[kind].append(measure(rows, most_directions, seed))
        for kind, values in measured.items():
            ess, seconds = np.median(values, 0)
            rate = np.median([4 * ess / seconds for ess, seconds in values])
            print(f"{name} | {kind} | {ess:.0f} | {seconds:.1f} | {rate:.1f}", flush=True)


if __name__ == "__main__":
    main()
