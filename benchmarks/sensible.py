"""Does every pair of the zoo give a sensible posterior on its own example, with its own recipe?

    python benchmarks/sensible.py [MODEL ...] [--sampler NAME] [--set key=value ...]

Prints a row a pair: acceptance, the largest rank-normalised split R-hat and the smallest bulk ESS of predictions at 50
test inputs, the regime, metrics on the test rows, seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path

import arviz_stats
import numpy as np
import xarray as xr

from bnnzoo import config, zoo

MODELS = ("linear", "mlp", "mdn", "density", "cnn", "resnet")
SAMPLERS = (
    "random-walk",
    "gibbs",
    "mala",
    "penalty",
    "batched",
    "sgld",
    "sghmc",
    "sms-ubu",
    "psgld",
    "hmc",
    "nuts",
)


def judge(model: str, sampler: str, options: dict[str, str]) -> dict[str, object]:
    """One pair's row."""
    recipe = config.resolve(model, sampler, [], options)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = zoo.run_recipe(recipe, out=Path(folder) / "run.nc")
        seconds = time.perf_counter() - started
        inputs = run.posterior["constant_data"]["x_test"].values[:50]
        values = run.functions(inputs)
        tree = xr.Dataset({"f": (("chain", "draw", "row", "value"), values)})
        rhat = float(np.nanmax(arviz_stats.rhat(tree)["f"].values))
        ess = float(np.nanmin(arviz_stats.ess(tree)["f"].values))
        stats = run.posterior["sample_stats"]
        found = {"acceptance": float(stats["acceptance_rate"].mean()) if "acceptance_rate" in stats else np.nan}
        if "sigma2" in stats:
            found["sigma2"] = float(stats["sigma2"].mean())
        found |= {
            "rhat": rhat,
            "ess": ess,
            "regime_ok": run.attributes["regime_ok"],
            **run.evaluate(save=False),
        }
        found |= {"seconds": seconds, "sampling": float(run.attributes["seconds_sampling"])}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--sampler", action="append")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    options = dict(pair.split("=", 1) for pair in arguments.set)
    warnings.simplefilter("always")
    for model in arguments.models:
        for sampler in arguments.sampler or SAMPLERS:
            found = judge(model, sampler, options)
            print(model, sampler, *(f"{k}={v:.4g}" for k, v in found.items()), sep="  ", flush=True)


if __name__ == "__main__":
    main()
