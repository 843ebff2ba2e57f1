"""Simulation-based calibration: ranks of the truth among draws, which are uniform if sampler and model agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import binom

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture
from bnnzoo.plots._style import BLUE, MUTED


def sbc(names: Sequence[str], uniform: Float[np.ndarray, "replicate quantity"]) -> Picture:
    """Draw one panel per quantity: the histogram of the truth's rank, relative to a uniform distribution.

    Talts et al. 2018. The grey band holds 99 % of a bin's counts. A bowl means that the draws are too close together, a
    hump too far apart, a slope too low or too high.
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
        axes[-1, 0].set(xlabel="rank of the truth among the draws, divided by their number", xlim=(0, 1))
        figure.supylabel("frequency / uniform", fontsize=9)
    num_outside = int(np.sum((relative_counts < low) | (relative_counts > high)))
    alt = (
        f"Histograms of the rank of the truth among the draws of {replicates} simulated data sets, for "
        f"{', '.join(names)}, in {bins} bins each; {num_outside} of {counts.size} bins are outside the grey band, "
        "which contains 99 % of a bin's counts if the draws are calibrated."
    )
    table = pd.DataFrame(
        [
            {"quantity": name, "from": edges[k], "to": edges[k + 1], "replicates": count}
            for name, row in zip(names, counts, strict=True)
            for k, count in enumerate(row)
        ]
    )
    return Picture("sbc", "Simulation-based calibration", alt, figure, table)
