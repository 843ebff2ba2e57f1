"""The gallery's first picture: a line of 100 points by mini-batches of 2 data, without and with the noise penalty.

    python docs/figures/linear_band.py docs/images

Runs the `bnnzoo` commands that it prints and draws `gallery-linear.png`: the posterior of the line, plus and minus one
standard deviation, beside the closed form.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
import tempfile
from pathlib import Path

import numpy as np
from jaxtyping import Float

import bnnzoo
from bnnzoo import cli
from bnnzoo.plots import _style
from bnnzoo.plots._style import AMBER, BLUE, INK, ORANGE

NOISE = 0.5
COMMON = (
    "linear penalty --data linear-line --likelihood gaussian --likelihood.scale 0.5 --no-standardise --test-fraction 0 "
    "--init prior --warmup 2000 --draws 5000 --thin 10 --sampler.batch-size 2 --sampler.num-batches 25 "
    "--sampler.sampling disjoint --quiet"
)
METHODS = {
    "naive": "--sampler.correction 0 --sampler.target-sigma2 8 --sampler.target-acceptance 0.2",
    "penalty": "--sampler.correction 3",
}


def drawn(name: str, folder: Path) -> Float[np.ndarray, "draw 2"]:
    """Slope and intercept of every draw."""
    command = f"sample {COMMON} {METHODS[name]} -o {folder / name}.nc"
    print("bnnzoo", command.replace(f"{folder}/", ""))
    with contextlib.redirect_stdout(io.StringIO()):
        if failed := cli.run(shlex.split(command)):
            raise SystemExit(failed)
    group = bnnzoo.open(folder / f"{name}.nc").posterior["posterior"]
    return np.column_stack([group["weight"].values.ravel(), group["bias"].values.ravel()]).astype(float)


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draws = {method: drawn(method, folder) for method in METHODS}
        tree = bnnzoo.open(folder / "naive.nc").posterior
        x, y = tree["constant_data"]["x"].values[:, 0].astype(float), tree["observed_data"]["y"].values[:, 0]
    grid = np.linspace(-4, 4, 81)
    rows = np.column_stack([grid, np.ones_like(grid)])
    design = np.column_stack([x, np.ones_like(x)])
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(2))
    centre = rows @ (covariance @ design.T @ y / NOISE**2)
    exact = np.sqrt(np.einsum("ij,jk,ik->i", rows, covariance, rows))

    with _style.style():
        figure, axes = _style.panels(2, height=2.2, sharex=True, height_ratios=(3, 2))
        above, below = axes[:, 0]
        looks = {"naive": (BLUE, "-", "mini-batches, no penalty"), "penalty": (AMBER, "-", "with the noise penalty")}
        for method, (colour, dash, label) in looks.items():
            lines = draws[method] @ rows.T
            mean, sd = lines.mean(0), lines.std(0)
            above.fill_between(grid, mean - sd, mean + sd, color=colour, alpha=0.45, lw=0, label=label)
            below.plot(grid, sd, color=colour, ls=dash, lw=2, label=label)
            print(f"{method}: sd over the closed form's, from {np.min(sd / exact):.3f} to {np.max(sd / exact):.3f}")
        for sign in (-1, 1):
            above.plot(
                grid, centre + sign * exact, color=ORANGE, ls="--", lw=1, label="closed form" if sign > 0 else None
            )
        below.plot(grid, exact, color=ORANGE, ls="--", lw=1.2, label="closed form")
        above.plot(x, y, ".", color=INK, ms=3, mew=0, alpha=0.6, label="training data")
        above.set_ylabel("y")
        below.set(xlabel="x", ylabel="sd of the mean of y", xlim=(-4, 4))
        below.set_ylim(0, 1.1 * below.get_ylim()[1])
        above.legend(loc="upper left")
        figure.align_ylabels(axes)
        figure.savefig(out / "gallery-linear.png", facecolor="white")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
