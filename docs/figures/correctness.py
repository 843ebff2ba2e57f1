"""The pictures of docs/correctness.md: four methods and the closed form on a line of 100 noisy points.

    python docs/figures/correctness.py docs/images

Runs the `bnnzoo` commands that it prints, with batches of 2 data, and draws `linear-penalty.png` (the slope's
posterior: naive, penalty, closed form) and `linear-comparison.png` (both parameters: tempered, batched, SGLD, penalty).
"""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Ellipse
from scipy.stats import norm

import bnnzoo
from bnnzoo import cli

BLUE, ORANGE, GREEN, BLACK = "#0072B2", "#D55E00", "#009E73", "#222222"
NOISE = 0.5
COMMON = (
    "--data linear-line --likelihood gaussian --likelihood.scale 0.5 --no-standardise --test-fraction 0 --init prior "
    "--warmup 2000 --draws 5000 --thin 10 --quiet --force"
)
BATCHES = "--sampler.batch-size 2 --sampler.num-batches 25 --sampler.sampling disjoint"
METHODS = {
    "tempered: exact, power n/N": "random-walk --likelihood-power 0.5",
    "batched: no penalty": f"penalty {BATCHES} --sampler.correction 0",
    "SGLD": "sgld --sampler.batch-size 2 --sampler.step-size 2e-4",
    "penalty": f"penalty {BATCHES}",
}


def sampled(folder: Path) -> dict[str, np.ndarray]:
    """Weight and bias of every draw of every method, [draw, 2]."""
    found = {}
    for index, (name, words) in enumerate(METHODS.items()):
        sampler, _, fields = words.partition(" ")
        command = f"sample linear {sampler} {COMMON} {fields} -o {folder}/run{index}.nc"
        print(f"bnnzoo {command.replace(str(folder), '.')}")
        with contextlib.redirect_stdout(io.StringIO()):
            failed = cli.run(shlex.split(command))
        if failed:
            raise SystemExit(failed)
        group = bnnzoo.open(folder / f"run{index}.nc").posterior["posterior"]
        found[name] = np.column_stack([group["weight"].values.ravel(), group["bias"].values.ravel()])
    return found


def closed_form(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (weight, bias) under N(0, I)."""
    tree = bnnzoo.open(folder / "run0.nc").posterior
    x, y = tree["constant_data"]["x"].values.astype(float), tree["observed_data"]["y"].values.astype(float)
    design = np.column_stack([x, np.ones(len(x))])
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(2))
    return covariance @ design.T @ y[:, 0] / NOISE**2, covariance


def ellipse(mean: np.ndarray, covariance: np.ndarray, **style: object) -> Ellipse:
    """The border of the central 90 % of a Gaussian."""
    values, vectors = np.linalg.eigh(covariance)
    width, height = 2 * np.sqrt(4.605 * values)
    angle = np.degrees(np.arctan2(vectors[1, 0], vectors[0, 0]))
    return Ellipse(tuple(mean), width, height, angle=angle, fill=False, **style)


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draws = sampled(folder)
        mean, covariance = closed_form(folder)
    print("| method | sd of the slope / closed form | sd of the bias / closed form |\n|---|---|---|")
    for method, values in draws.items():
        ratio = values.std(0) / np.sqrt(np.diag(covariance))
        print(f"| {method} | {ratio[0]:.3f} | {ratio[1]:.3f} |")

    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(figsize=(6, 3.6), dpi=150, layout="constrained")
    sd = covariance[0, 0] ** 0.5
    grid = np.linspace(mean[0] - 6 * sd, mean[0] + 6 * sd, 400)
    style = {"bins": 60, "density": True, "histtype": "step", "range": (grid[0], grid[-1]), "lw": 1.8}
    axes.hist(draws["batched: no penalty"][:, 0], color=ORANGE, label="naive: mini-batches, no penalty", **style)
    axes.hist(draws["penalty"][:, 0], color=BLUE, label="with the noise penalty", **style)
    axes.plot(grid, norm.pdf(grid, mean[0], sd), color=BLACK, ls="--", lw=1.2, label="closed form")
    axes.set(xlabel="slope", ylabel="posterior density", xlim=(grid[0], grid[-1]))
    axes.set_ylim(0, 1.45 * norm.pdf(0, 0, sd))
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(out / "linear-penalty.png", facecolor="white")

    figure, panels = plt.subplots(1, 4, figsize=(11, 3.3), dpi=150, layout="constrained", sharex=True, sharey=True)
    for panel, (method, values) in zip(panels, draws.items(), strict=True):
        panel.plot(*values[:: max(1, len(values) // 2000)].T, ".", ms=2, color=BLUE, alpha=0.25, mew=0)
        panel.add_patch(ellipse(values.mean(0), np.cov(values.T), color=BLUE, lw=1.8, label="90 % of the draws"))
        panel.add_patch(ellipse(mean, covariance, color=BLACK, lw=1.4, ls="--", label="90 %, closed form"))
        panel.set(title=method, xlabel="slope")
    panels[0].set_ylabel("bias")
    panels[0].legend(frameon=False, loc="upper left", fontsize=8)
    reach = 7 * np.sqrt(np.diag(covariance))
    panels[0].set(xlim=(mean[0] - reach[0], mean[0] + reach[0]), ylim=(mean[1] - reach[1], mean[1] + 1.25 * reach[1]))
    figure.savefig(out / "linear-comparison.png", facecolor="white")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
