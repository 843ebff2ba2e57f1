"""The sd of predictions with and without the directions that a subspace does not sample, against NUTS on all of them.

    python benchmarks/other_directions.py [--sizes 1e3 1e4] [--warmup 300] [--draws 300]

The network is an mlp 20-5-1 (tanh), and the rows are those of `penalty_scaling.py`. NUTS samples the whole network, and
the directions that the data determine (`--stochastic identified`). The table shows the median, over 100 inputs, of the
ratio of the standard deviation of the predicted mean to that of the whole network: at inputs like the rows, and at
inputs that are three times as large. NUTS on the whole network can reach several modes; the other runs cannot.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from penalty_scaling import NOISE, teacher

import bnnzoo

RUNS = {
    "whole network": {},
    "identified, the others at the mode": {"stochastic": "identified"},
    "identified, the others added": {"stochastic": "identified", "other_directions": "linearised"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1e3, 1e4])
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--draws", type=int, default=300)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    bnnzoo.devices(4)
    inputs = np.random.default_rng(2).normal(size=(100, 20)).astype(np.float32)
    print("| rows | sampled | directions | sd, like the rows | sd, three times as far | R-hat | seconds |")
    print("|---|---|---|---|---|---|---|")
    for size in map(int, arguments.sizes):
        whole_sds: list[np.ndarray] = []
        for name, words in RUNS.items():
            started = time.perf_counter()
            run = bnnzoo.sample(
                {"name": "mlp", "hidden": (5,), "activation": "tanh"},
                bnnzoo.Nuts(),
                data=teacher(size),
                likelihood={"name": "gaussian", "scale": NOISE},
                prior="normal",
                warmup=arguments.warmup,
                draws=arguments.draws,
                progress=False,
                **words,
            )
            sds = [run.predictor.functions(scale * inputs).std((0, 1))[:, 0] for scale in (1.0, 3.0)]
            whole_sds = whole_sds or sds
            ratios = [float(np.median(sd / whole)) for sd, whole in zip(sds, whole_sds, strict=True)]
            summary = run.summary()
            print(
                f"| {size:.0e} | {name} | {summary.get('directions', summary['parameters'])} | {ratios[0]:.2f} "
                f"| {ratios[1]:.2f} | {summary['rhat']:.3f} | {time.perf_counter() - started:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
