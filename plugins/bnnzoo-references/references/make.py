"""Make reference posteriors: `python make.py NAME... [--work FOLDER] [--budget 5m]`.

Each problem has a recipe in `bnnzoo_references/recipes`. The long run of the recipe is written to the work folder. An
interrupted run is continued, and a finished run is not repeated. The run is then condensed to a file of at most 300 kB:
evenly spaced draws of the network outputs at the test rows, with 10 bits after the leading bit of each number.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

import bnnzoo
from bnnzoo.evaluation.formulas import rhat

PACKAGE = Path(__file__).parents[1] / "bnnzoo_references"
POSTERIORS, RECIPES = PACKAGE / "posteriors", PACKAGE / "recipes"
SUMS = POSTERIORS / "SHA256SUMS"
STEPS = ("warmup", "draws", "thin")
LARGEST_RHAT, SMALLEST_ESS = 1.01, 4000
_MAX_BYTES = 300_000
_SMALL = 4096
_BITS = 10
"""Number of bits of the mantissa that are stored. The relative error is at most 2^-11 = 0.0005."""


def main() -> None:
    """Make the reference posteriors of the problems that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--work", type=Path, default=Path("reference-runs"), help="folder of the long runs")
    parser.add_argument("--budget", help="time of a run, such as 5m, instead of the numbers of steps in the recipe")
    options = parser.parse_args()
    options.work.mkdir(exist_ok=True)
    for name in options.names:
        path = options.work / f"{name}.nc"
        run_recipe(name, path, options.budget)
        condense(name, path)


def run_recipe(name: str, path: Path, budget: str | None = None) -> None:
    """Run or continue the recipe of a problem until its file is complete."""
    if path.exists():
        return
    command, recipe = [sys.executable, "-m", "bnnzoo"], RECIPES / f"{name}.yaml"
    if path.with_name(f"{path.name}.parts").exists():
        subprocess.run([*command, "resume", str(path)], check=True)
    elif budget is None:
        subprocess.run([*command, "sample", "--config", str(recipe), "-o", str(path)], check=True)
    else:
        with tempfile.TemporaryDirectory() as folder:
            # A budget has no effect on numbers of steps in the recipe, so these numbers are removed.
            text = re.sub(rf"^({'|'.join(STEPS)}): .*\n", "", recipe.read_text(encoding="utf-8"), flags=re.MULTILINE)
            without_steps = Path(folder) / recipe.name
            without_steps.write_text(text, encoding="utf-8")
            words = ["--config", str(without_steps), "-o", str(path), "--budget", budget, "--until", "budget"]
            subprocess.run([*command, "sample", *words], check=True)


def condense(name: str, path: Path) -> None:
    """Write the reference file of a finished run and all checksums, and store the numbers of steps in the recipe."""
    run = bnnzoo.open(path)
    attributes, tree, count = description(name, run), run.posterior, run.predictor.record.shape[1]
    target = POSTERIORS / f"{name}.nc"
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / target.name
        # Find the smallest stride with a file that is small enough, by bisection. The size decreases with the stride.
        low, high = 1, count
        while low < high:
            middle = (low + high) // 2
            write(draft, tree, attributes, middle)
            low, high = (low, middle) if draft.stat().st_size <= _MAX_BYTES else (middle + 1, high)
        write(draft, tree, attributes, low)
        target.write_bytes(draft.read_bytes())
    write_sums()
    store_steps(name, run)
    print(
        f"{name}: {attributes['reference_status']}, R-hat {attributes['reference_rhat']:.4f}, ESS "
        f"{attributes['reference_ess']:.0f}, every {low}th draw, {target.stat().st_size} bytes"
    )


def description(name: str, run: bnnzoo.Run) -> dict[str, Any]:
    """Return the attributes of a reference: those of the run, and convergence diagnostics of the network outputs.

    The diagnostics use all draws of the run, and the outputs at all stored inputs.
    """
    predictor, record = run.predictor, run.predictor.record
    inputs = record.probes(10**6)
    values = predictor.functions(inputs)
    if not predictor.classifies:
        values = np.concatenate([values, predictor.log_scales(inputs)], 3)
    numbers = rhat.convergence(values.reshape(*values.shape[:2], -1))
    is_converged = numbers["rhat"] <= LARGEST_RHAT and numbers["ess_bulk"] >= SMALLEST_ESS
    chains, draws = record.shape
    attributes = {
        str(key): value for key, value in run.posterior.attrs.items() if not str(key).startswith("chain_weights")
    }
    return attributes | {
        "reference_name": name,
        "reference_status": "converged" if is_converged else "not converged",
        "reference_rhat": numbers["rhat"],
        "reference_ess": numbers["ess_bulk"],
        "reference_ess_tail": numbers["ess_tail"],
        "reference_starts": chains,
        "reference_draws": chains * draws,
        "reference_parameters": parameters(run),
        "reference_seconds": float(sum(float(attributes[f"seconds_{phase}"]) for phase in ("warmup", "sampling"))),
        "reference_date": datetime.now(UTC).date().isoformat(),
        # A reference belongs to the package that offers its parts, so an edited comment must not cause a warning.
        "plugin_sources": "{}",
    }


def parameters(run: bnnzoo.Run) -> int:
    """Return the number of parameters that the run samples."""
    from bnnzoo.assembly import Problem
    from bnnzoo.recipe import recipe_from

    return Problem.from_recipe(recipe_from(str(run.attributes["recipe"]))).posterior.layout.dim


def write(path: Path, tree: xr.DataTree, attributes: dict[str, Any], stride: int) -> None:
    """Write a reference file with every `stride`-th draw, and without the training rows, which are a data set."""
    constant, observed = tree["constant_data"].to_dataset(), tree["observed_data"].to_dataset()
    stats = tree["sample_stats"].to_dataset()
    groups: dict[str, xr.Dataset] = {
        "posterior": _thinned(tree["posterior"].to_dataset(), stride).map(rounded),
        "sample_stats": _thinned(stats[[key for key in ("lp",) if key in stats]], stride),
        "observed_data": observed.isel(row=slice(0)),
        "constant_data": constant.isel(row=slice(0)),
    }
    for dataset in groups.values():
        for variable in dataset.variables.values():
            # One chunk for each array: the file is a sixth smaller than with the chunks that HDF5 chooses.
            packing = {"zlib": True, "complevel": 9, "shuffle": True, "chunksizes": variable.shape}
            # The index of the chunks of a compressed array takes 4 kB, so small arrays are not compressed.
            variable.encoding = packing if variable.nbytes > _SMALL and variable.ndim else {}
    result = xr.DataTree.from_dict({f"/{key}": dataset for key, dataset in groups.items()})
    count = groups["posterior"].sizes["draw"]
    result.attrs.update(attributes | {"draws_done": count, "draws_requested": count})
    path.unlink(missing_ok=True)
    result.to_netcdf(path, engine="h5netcdf")


def _thinned(dataset: xr.Dataset, stride: int) -> xr.Dataset:
    # From the end: the last draw of the run is always part of the reference.
    thinned = dataset.isel(draw=slice(None, None, -stride)).isel(draw=slice(None, None, -1))
    return thinned.assign_coords(draw=np.arange(thinned.sizes["draw"])).load()


def rounded(values: xr.DataArray) -> xr.DataArray:
    """Return float64 numbers rounded to 10 bits after the leading bit, so that the file compresses well.

    Numbers of other types are returned without change.
    """
    if values.dtype != np.float64:
        return values
    return values.copy(data=round_bits(values.to_numpy()))


def round_bits(values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return float64 numbers with 10 bits after the leading bit, rounded to the nearest (ties away from zero)."""
    dropped = 52 - _BITS
    bits = values.view(np.uint64) + np.uint64(1 << (dropped - 1))
    return (bits & ~np.uint64((1 << dropped) - 1)).view(np.float64)


def write_sums() -> None:
    """Write the checksums of all reference files, in the format of `sha256sum`."""
    files = sorted(POSTERIORS.glob("*.nc"))
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    SUMS.write_text("".join(lines), encoding="utf-8")


def store_steps(name: str, run: bnnzoo.Run) -> None:
    """Write the numbers of steps of a run into the recipe of the problem, so that the recipe repeats the run."""
    from bnnzoo.recipe import as_dict, recipe_from

    steps = as_dict(recipe_from(str(run.attributes["recipe"])))
    path = RECIPES / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    for key in STEPS:
        line = f"{key}: {steps[key]}\n"
        text, count = re.subn(rf"^{key}: .*\n", line, text, flags=re.MULTILINE)
        text += "" if count else line
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
