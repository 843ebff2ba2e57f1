"""The coordinates of `mams`, `nuts` and `hmc`: effective sample size and seconds with and without each map.

    python benchmarks/coordinates.py UCI10 autompg housing --sampler mams
    python benchmarks/coordinates.py UCI10 servo --likelihood heteroscedastic --maps "whitened" "whitened, light tails"

UCI10 holds folders NAME/data.csv.gz (target last) and NAME/test_mask.csv.gz (column k marks the test rows of split k).
Split 0 is used. All runs have four chains, one hidden layer of 16 tanh units, the prior of the recipe `small-table`,
and 500 warm-up steps. The likelihood is `gaussian`, unless `--likelihood` names another one. A draw of `mams` is a
trajectory of 64 steps. The maps alternate, one run of each per seed. ESS is the smallest bulk ESS of the tested
quantities (predictive means and log sds, log densities, noise), over all chains together. The table shows medians over
the seeds. `whitened` is the last layer in whitened coordinates; `light tails` is the map of the input weights. Samplers
use both, and this script switches the second one off by a patch.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
from priors import Rows, uci

import bnnzoo
from bnnzoo.posterior.input_weights import InputWeightCoordinates

DRAWS = {"mams": 1500, "nuts": 800, "hmc": 1500}
FIELDS: dict[str, dict[str, Any]] = {"mams": {"num_steps": 64}, "nuts": {}, "hmc": {"num_steps": 64}}

MAPS = {"none": (False, False), "whitened": (True, False), "whitened, light tails": (True, True)}
"""For each choice of maps, whether the last layer is whitened, and whether the input weights have light tails."""


def measure(
    rows: Rows, sampler: str, likelihood: str, maps: tuple[bool, bool], seed: int
) -> tuple[float, float, float]:
    """Return R-hat, the ESS and the seconds of sampling."""
    x, y, _, _ = rows
    whiten, has_light_tails = maps
    original = InputWeightCoordinates.of
    if not has_light_tails:
        InputWeightCoordinates.of = lambda _: None  # pyright: ignore[reportAttributeAccessIssue]
    jax.clear_caches()  # compiled programs have the map of the last run
    try:
        return _sample(x, y, sampler, likelihood, whiten, seed)
    finally:
        InputWeightCoordinates.of = original


def _sample(
    x: np.ndarray, y: np.ndarray, sampler: str, likelihood: str, whiten: bool, seed: int
) -> tuple[float, float, float]:
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
    parser.add_argument("--maps", nargs="+", choices=list(MAPS), default=list(MAPS))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    bnnzoo.devices(2)
    print("table | likelihood | sampler | maps | R-hat | ESS | seconds | ESS per second")
    print("---|---|---|---|---|---|---|---")
    for name in arguments.names:
        rows = uci(arguments.folder / name)
        measured: dict[str, list[tuple[float, float, float]]] = {maps: [] for maps in arguments.maps}
        for seed in range(arguments.seeds):
            for maps, values in measured.items():
                values.append(measure(rows, arguments.sampler, arguments.likelihood, MAPS[maps], seed))
        for maps, values in measured.items():
            rhat, ess, seconds = np.median(values, 0)
            rate = np.median([ess / seconds for _, ess, seconds in values])
            numbers = f"{rhat:.3f} | {ess:.0f} | {seconds:.1f} | {rate:.2g}"
            print(f"{name} | {arguments.likelihood} | {arguments.sampler} | {maps} | {numbers}", flush=True)


if __name__ == "__main__":
    main()
