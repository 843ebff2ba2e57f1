"""Where targets fall in their predictive distribution: evenly, if it is right."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import binom

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture
from bnnzoo.plots._style import BLUE, INK, MUTED


def pit(values: Float[np.ndarray, " row"]) -> Picture:
    """The histogram of the probability integral transform, and the band of 95 % of a bin's counts if it is uniform.

    Dawid 1984. A hump: intervals too wide; a bowl: too narrow; a slope: biased.
    """
    bins = int(np.clip(len(values) // 10, 4, 20))
    counts, edges = np.histogram(values, bins, (0, 1))
    over = counts * bins / len(values)
    low, high = binom.ppf([0.025, 0.975], len(values), 1 / bins) * bins / len(values)
    with _style.style():
        figure, axes = _style.panels(height=2.4)
        panel = axes[0, 0]
        panel.stairs(over, edges, fill=True, color=BLUE, alpha=0.45, lw=0)
        panel.stairs(over, edges, color=BLUE, lw=1)
        panel.axhspan(low, high, color=MUTED, alpha=0.2, lw=0, zorder=3)
        panel.axhline(1, color=MUTED, lw=1, ls="--", zorder=3)
        panel.set(xlabel="predictive distribution function at the target", ylabel="density", xlim=(0, 1))
        panel.set_ylim(0, 1.3 * max(float(over.max()), float(high)))
        panel.text(
            0.02,
            0.96,
            "hump: too wide   bowl: too narrow   slope: biased",
            transform=panel.transAxes,
            va="top",
            color=INK,
            fontsize=8,
        )
    out = int(np.sum((over < low) | (over > high)))
    alt = (
        f"Histogram of the probability integral transform of {len(values)} test targets in {bins} bins; {out} are "
        f"outside the grey band that holds 95 % of a bin's counts if the prediction is calibrated. Its mean is "
        f"{values.mean():.3f} "
        f"(calibrated 0.5), its standard deviation {values.std():.3f} (calibrated 0.289)."
    )
    table = pd.DataFrame({"from": edges[:-1], "to": edges[1:], "rows": counts, "density": over})
    return Picture("pit", "Probability integral transform", alt, figure, table)
