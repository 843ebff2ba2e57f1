"""Operating characteristics of the verdicts, by simulation: false alarms on stationary chains, and power.

    python benchmarks/settling.py --repeats 1000

Chains are first-order autoregressions of normal variables, correlated by a random matrix. In "modes" each chain has its
own mean, three sds apart. In "drift of all" every chain moves by the stated number of sds from its first to its last
draw along one direction. In "drift of one" a single chain does so. Every cell is a fraction of the runs.
"""

from __future__ import annotations

import argparse

import numpy as np
from combination import chains_of

from bnnzoo.evaluation.formulas.settling import LEVEL, measure_settling

SETTINGS = [(4, 50), (4, 100), (4, 400), (10, 50), (10, 200)]
"""Number of chains, and effective draws of each chain."""


def drifting(rng: np.random.Generator, values: np.ndarray, sds: float, count: int) -> np.ndarray:
    """Return the values with the first `count` chains moving along a random direction."""
    direction = rng.normal(size=values.shape[2])
    direction *= sds * values.reshape(-1, values.shape[2]).std(0) / np.abs(direction).max()
    moved = values.copy()
    moved[:count] += np.linspace(-0.5, 0.5, values.shape[1])[None, :, None] * direction
    return moved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 50])
    args = parser.parse_args()
    print(f"level {LEVEL}, {args.repeats} runs a cell\n")
    print(
        "| chains | effective draws of each | quantities | stationary: drift detected | modes: drift detected "
        "| drift of all chains, 1 sd: detected | drift of one chain, 2 sd: detected | effective draws measured |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for count, effective in SETTINGS:
        for size in args.sizes:
            rng = np.random.default_rng(0)
            alarms, measured = np.zeros(4), []
            for _ in range(args.repeats):
                values = chains_of(rng, count, effective, size)
                modes = values + 3 * values.std((0, 1)) * rng.normal(size=(count, 1, size))
                cases = (values, modes, drifting(rng, values, 1.0, count), drifting(rng, values, 2.0, 1))
                results = [measure_settling({"f": case}) for case in cases]
                alarms += [result is not None and result.drift_p < LEVEL for result in results]
                measured.append(results[0].within_ess if results[0] else np.nan)
            rates = " | ".join(f"{alarm / args.repeats:.3f}" for alarm in alarms)
            print(f"| {count} | {effective} | {size} | {rates} | {np.median(measured):.0f} |", flush=True)


if __name__ == "__main__":
    main()
