"""The whitened last layer of `mams` and `nuts`: effective sample size and seconds, with it and without it.

    python benchmarks/last_layer.py UCI10 autompg housing --sampler mams

UCI10 holds folders NAME/data.csv.gz (target last) and NAME/test_mask.csv.gz (column k marks the test rows of split k).
Split 0 is used. All runs have four chains, one hidden layer of 16 tanh units, the prior of the recipe `small-table`,
and 500 warm-up steps. The likelihood is `gaussian`, unless `--likelihood` names another one. A draw of `mams` is a
trajectory of 64 steps. The two kinds of run alternate, one pair per seed. ESS is the smallest bulk ESS of the tested
quantities (predictive means and log sds, log densities, noise), over all chains together. The table shows medians over
the seeds.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from priors import Rows, uci

import bnnzoo

DRAWS = {"mams": 1500, "nuts": 800, "hmc": 1500}
FIELDS: dict[str, dict[str, Any]] = {"mams": {"num_steps": 64}, "nuts": {}, "hmc": {"num_steps": 64}}


def measure(rows: Rows, sampler: str, likelihood: str, whiten: bool, seed: int) -> tuple[float, float, float]:
    """Return R-hat, the ESS and the seconds of sampling."""
    x, y, _, _ = rows
    run = bnnzoo.sample(
        {"name": "mlp", "hidden": [16], "activation": "tanh"},
        {"name": sampler, "whiten_last_layer": whiten, **FIELDS[sampler]},
        data=(x, y),
        task="regression",
        likelihood=likelihood,
        prior={"name": "ard", "df": 2, "input_scale": 0.2},
        chains=4,
        start_steps=3000,
        warmup=500,
        draws=DRAWS[sampler],
        test_fraction=0,
        progress=False,
        seed=seed,
    )
    diagnosis = run.diagnose()
    return diagnosis["rhat"], diagnosis["ess_bulk"], float(run.attributes["seconds_sampling"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--sampler", choices=list(DRAWS), default="mams")
    parser.add_argument("--likelihood", default="gaussian", help="gaussian, student-t or heteroscedastic")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    bnnzoo.devices(2)
    print("table | likelihood | sampler | last layer | R-hat | ESS | seconds | ESS per second")
    print("---|---|---|---|---|---|---|---")
    for name in arguments.names:
        rows = uci(arguments.folder / name)
        measured: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
        for seed in range(arguments.seeds):
            for whiten, values in measured.items():
                values.append(measure(rows, arguments.sampler, arguments.likelihood, whiten, seed))
        for whiten, values in measured.items():
            rhat, ess, seconds = np.median(values, 0)
            rate = np.median([ess / seconds for _, ess, seconds in values])
            kind = "whitened" if whiten else "as it is"
            numbers = f"{rhat:.3f} | {ess:.0f} | {seconds:.1f} | {rate:.2g}"
            print(f"{name} | {arguments.likelihood} | {arguments.sampler} | {kind} | {numbers}", flush=True)


if __name__ == "__main__":
    main()
