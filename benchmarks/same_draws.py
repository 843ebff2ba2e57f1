"""Draw ten recipes briefly into a folder; with --against, compare every draw with an earlier folder, bit for bit.

python benchmarks/same_draws.py before          # on the old tree
python benchmarks/same_draws.py after --against before
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import xarray as xr

SHORT = ("--warmup", "60", "--draws", "40", "--start-steps", "250", "--seed", "3", "--quiet")
RECIPES = {
    "mdn-penalty": ("mdn", "penalty"),
    "mlp-penalty-last": ("mlp", "penalty", "--stochastic", "last"),
    "linear-mala": ("linear", "mala", "--init", "prior", "--thin", "2"),
    "linear-hmc": ("linear", "hmc", "--keep-warmup"),
    "mlp-nuts": ("mlp", "nuts"),
    "mlp-sgld": ("mlp", "sgld", "--thin", "3"),
    "cnn-sgld": ("cnn", "sgld", "--chains", "2"),
    "mlp-bbb": ("mlp", "bbb"),
    "mlp-laplace": ("mlp", "laplace"),
    "mlp-gibbs": ("mlp", "gibbs", "--chain-method", "sequential", "--chains", "2"),
}


def draw(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in RECIPES.items():
        out = folder / f"{name}.nc"
        subprocess.run([sys.executable, "-m", "bnnzoo", "sample", *words, *SHORT, "-o", out, "--force"], check=True)
        print(f"{name}: drawn", flush=True)


def differences(old: Path, new: Path) -> list[str]:
    """Return the variables of draws and statistics that differ between two files, bit for bit."""
    different = []
    for group in ("posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats"):
        with xr.open_datatree(old, engine="h5netcdf") as a, xr.open_datatree(new, engine="h5netcdf") as b:
            if (group in a.children) != (group in b.children):
                different.append(group)
            elif group in a.children:
                first, second = a[group].to_dataset(), b[group].to_dataset()
                names = {str(name) for name in (*first.data_vars, *second.data_vars)}
                same = {n for n in names if n in first and n in second and _same(first[n], second[n])}
                different += [f"{group}/{name}" for name in sorted(names - same)]
    return different


def _same(a: xr.DataArray, b: xr.DataArray) -> bool:
    return a.dims == b.dims and a.dtype == b.dtype and np.array_equal(a.values, b.values, equal_nan=a.dtype.kind == "f")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    draw(arguments.folder)
    if arguments.against is None:
        return 0
    wrong = {name: differences(arguments.against / f"{name}.nc", arguments.folder / f"{name}.nc") for name in RECIPES}
    for name, variables in wrong.items():
        print(f"{name}: {'differs: ' + ', '.join(variables) if variables else 'the same, bit for bit'}")
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
