"""Histograms of values that are uniform if predictions or draws are calibrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import binom

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture
from bnnzoo.plots._style import BLUE, INK, MUTED


def pit(pits: Mapping[str, Float[np.ndarray, " row"]]) -> Picture:
    """Draw the histogram of the probability integral transform (Dawid 1984), with error bars of two standard errors.

    Each target has its own panel. In a common histogram, a distribution that is too wide for one target and too narrow
    for another target could look calibrated. A hump means that the predictive distributions are too wide. A bowl means
    that they are too narrow. A slope means that they are biased.

    Args:
        pits: values of the predictive distribution function at the observed targets, by name of the target.
    """
    rows = len(next(iter(pits.values())))
    bins = int(np.clip(rows // 10, 4, 20))
    counts = {name: np.histogram(values, bins, (0, 1))[0] for name, values in pits.items()}
    edges = np.linspace(0, 1, bins + 1)
    with _style.style():
        height = 2.4 if len(pits) == 1 else 1.6
        figure, axes = _style.panels(len(pits), height=height, sharex=True, sharey=True)
        for panel, (name, count) in zip(axes[:, 0], counts.items(), strict=True):
            densities = count * bins / rows
            panel.stairs(densities, edges, fill=True, color=BLUE, alpha=0.45, lw=0)
            panel.stairs(densities, edges, color=BLUE, lw=1)
            fractions = np.clip(count / rows, 1 / rows, 1)
            error = 2 * np.sqrt(fractions * (1 - fractions) / rows) * bins
            panel.errorbar((edges[1:] + edges[:-1]) / 2, densities, error, fmt="none", ecolor=BLUE, elinewidth=1)
            panel.axhline(1, color=MUTED, lw=1, ls="--", zorder=3)
            if len(pits) > 1:
                _style.title(panel, name, fontsize=8)
        axes[0, 0].set_ylim(0, 1.5 * max(count.max() * bins / rows for count in counts.values()))
        axes[-1, 0].set(xlabel="predictive distribution function at the target", xlim=(0, 1))
        figure.supylabel("density", fontsize=9)
        axes[0, 0].text(
            0.02,
            0.96,
            "hump: too wide   bowl: too narrow   slope: biased",
            transform=axes[0, 0].transAxes,
            va="top",
            color=INK,
            fontsize=8,
        )
    moments_text = "; ".join(
        f"{f'{name}: ' if len(pits) > 1 else ''}mean {pits[name].mean():.3f} and standard deviation "
        f"{pits[name].std():.3f}"
        for name in counts
    )
    alt = (
        f"Histogram of the probability integral transform of {rows} test targets in {bins} bins: {moments_text}. A "
        "calibrated prediction has mean 0.5 and standard deviation 0.289. The bars show two standard errors of each "
        "bin; the test of calibration does not use them."
    )
    table = pd.concat(
        [
            pd.DataFrame(
                {"target": name, "from": edges[:-1], "to": edges[1:], "rows": count, "density": count * bins / rows}
            )
            for name, count in counts.items()
        ],
        ignore_index=True,
    )
    return Picture("pit", "Probability integral transform", alt, figure, table)


def sbc(names: Sequence[str], uniform: Float[np.ndarray, "replicate quantity"]) -> Picture:
    """Draw histograms for simulation-based calibration (Talts et al. 2018), one panel per quantity.

    A histogram shows the ranks of the true values among the draws. Each frequency is divided by the frequency of a
    uniform distribution. If the draws are calibrated, the value of each bin is in the grey band with probability 99 %.
    A bowl means that the draws are too narrow. A hump means that the draws are too wide. A slope means that the draws
    are too low or too high.

    Args:
        names: names of the quantities.
        uniform: for each replicate and quantity, the rank plus uniform noise, divided by the number of draws plus 1.
    """
    replicates = len(uniform)
    bins = int(np.clip(replicates // 12, 4, 20))
    edges = np.linspace(0, 1, bins + 1)
    counts = np.stack([np.histogram(column, edges)[0] for column in uniform.T])
    low, high = binom.ppf([0.005, 0.995], replicates, 1 / bins) * bins / replicates
    relative_counts = counts * bins / replicates
    with _style.style():
        figure, axes = _style.panels(len(names), height=1.35, sharex=True)
        for panel, name, value in zip(axes[:, 0], names, relative_counts, strict=True):
            panel.axhspan(low, high, color=MUTED, alpha=0.18, lw=0)
            panel.stairs(value, edges, fill=True, color=BLUE, alpha=0.45, lw=0)
            panel.set_title(name, fontsize=8)
            panel.set_ylim(0, 1.1 * max(float(relative_counts.max()), float(high)))
        axes[-1, 0].set(xlabel="rank of the true value among the draws, relative to the number of draws", xlim=(0, 1))
        figure.supylabel("frequency / uniform", fontsize=9)
    num_outside = int(np.sum((relative_counts < low) | (relative_counts > high)))
    alt = (
        f"Histograms of the rank of the true value among the draws of {replicates} simulated data sets, for "
        f"{', '.join(names)}, in {bins} bins each. If the draws are calibrated, the count of each bin is in "
        f"the grey band with probability 99 %; {num_outside} of {counts.size} bins are outside it."
    )
    table = pd.DataFrame(
        [
            {"quantity": name, "from": edges[k], "to": edges[k + 1], "replicates": count}
            for name, row in zip(names, counts, strict=True)
            for k, count in enumerate(row)
        ]
    )
    return Picture("sbc", "Simulation-based calibration", alt, figure, table)
