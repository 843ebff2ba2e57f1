"""The README's picture: the predictive band of a run on one input, and the two parts of its width.

    bnnzoo sample mdn penalty -o run.nc
    python docs/figures/band.py run.nc docs/images/mdn-band.png

Needs matplotlib (the extra `dev`).
"""

from __future__ import annotations

import argparse

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

import bnnzoo

# Okabe and Ito's colours, told apart by the colour-blind.
BLUE, ORANGE, GREEN, BLACK = "#0072B2", "#D55E00", "#009E73", "#222222"


def draw(run: bnnzoo.Run, out: str) -> None:
    """Draw the band of a run with one input and one target."""
    x = run.posterior["constant_data"]["x"].values[:, 0]
    y = run.posterior["observed_data"]["y"].values[:, 0]
    middle, half = (x.max() + x.min()) / 2, (x.max() - x.min()) / 2
    grid = np.linspace(middle - 1.6 * half, middle + 1.6 * half, 161)
    said = run.predict(grid[:, None])

    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (band, parts) = plt.subplots(1, 2, figsize=(10, 4), dpi=150, layout="constrained", width_ratios=(3, 2))
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)

    band.fill_between(grid, said["q05"], said["q95"], color=BLUE, alpha=0.18, lw=0, label="90 % interval")
    band.plot(x, y, ".", color=BLACK, ms=3.5, alpha=0.55, mew=0, label="training data")
    band.plot(grid, said["mean"], color=BLUE, lw=2, label="mean")
    band.set(xlabel="input x", ylabel="target y", title="What the network predicts")
    band.legend(frameon=False, loc="upper left", markerscale=2)
    band.text(0.99, 0.02, "grey: no training data", transform=band.transAxes, ha="right", color="0.4", size=8)

    parts.plot(grid, said["sd"], color=BLACK, lw=1, label="total")
    parts.plot(grid, said["aleatoric_sd"], color=ORANGE, lw=2, ls="--", label="aleatoric: noise in the data")
    parts.plot(grid, said["epistemic_sd"], color=GREEN, lw=2, label="epistemic: unknown weights")
    parts.set(xlabel="input x", ylabel="standard deviation of y", title="Where its uncertainty comes from")
    parts.set_ylim(0, 1.4 * said["sd"].max())
    parts.legend(frameon=False, loc="upper center")

    for axes in (band, parts):
        axes.set_xlim(grid[0], grid[-1])
        for low, high in ((grid[0], x.min()), (x.max(), grid[-1])):
            axes.axvspan(low, high, color="0.5", alpha=0.1, lw=0)
    figure.savefig(out, facecolor="white")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run on one input: run.nc")
    parser.add_argument("out", help="the picture to write: band.png")
    arguments = parser.parse_args()
    draw(bnnzoo.open(arguments.run), arguments.out)
