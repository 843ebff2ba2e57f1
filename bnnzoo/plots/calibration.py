"""Calibration pictures: reliability diagram and coverage of intervals."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from matplotlib.ticker import NullFormatter

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture
from bnnzoo.plots._style import BLUE, INK, MUTED

_BINS = 10


def reliability(labels: Int[np.ndarray, " row"], probabilities: Float[np.ndarray, "row class"]) -> Picture:
    """Draw accuracy against confidence in bins of equal width, with 95 % intervals, and the number of rows per bin.

    See Guo et al. 2017. The intervals of the accuracy are Wilson intervals.
    """
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == labels
    index = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    table = pd.DataFrame(
        [
            {
                "confidence from": k / _BINS,
                "to": (k + 1) / _BINS,
                "rows": int(np.sum(index == k)),
                "mean confidence": float(confidence[index == k].mean()),
                "accuracy": float(correct[index == k].mean()),
            }
            for k in range(_BINS)
            if np.any(index == k)
        ]
    )
    accuracy, rows = table["accuracy"].to_numpy(), table["rows"].to_numpy()
    low, high = _wilson(accuracy, rows)
    with _style.style():
        figure, axes = _style.panels(2, height=1.9, sharex=True, height_ratios=(3, 1))
        top, bottom = axes[:, 0]
        top.plot([0, 1], [0, 1], color=MUTED, lw=1, ls="--", label="calibrated")
        error = np.maximum([accuracy - low, high - accuracy], 0)
        top.errorbar(
            table["mean confidence"],
            accuracy,
            error,
            fmt="o-",
            color=BLUE,
            ms=4,
            lw=1.2,
            elinewidth=1,
            label="95 % interval",
        )
        top.set(ylabel="accuracy", ylim=(0, 1.03), xlim=(0, 1.01))
        top.legend(loc="best")
        bottom.bar(table["confidence from"], rows, 1 / _BINS, align="edge", color=BLUE, alpha=0.45, lw=0)
        _style.set_log_scale(bottom, "y")
        bottom.set(xlabel="confidence: the largest predicted probability", ylabel="rows", ylim=(0.7, 2 * rows.max()))
        bottom.yaxis.set_minor_formatter(NullFormatter())
        figure.align_ylabels(axes)
    alt = (
        f"Accuracy against confidence over {len(labels)} test rows. On average the confidence is "
        f"{confidence.mean():.1%} and the accuracy {correct.mean():.1%}; points below the "
        "dashed diagonal are overconfident."
    )
    return Picture("calibration", "Reliability diagram", alt, figure, table)


COVERAGE_LEVELS = np.linspace(0, 1, 101)
"""Probabilities of the central intervals in the picture of their coverage."""


def coverage(observed: Mapping[str, Float[np.ndarray, " 101"]], rows: int, tolerance: float) -> Picture:
    """Draw the fraction of test targets inside central intervals against the nominal probability.

    Each target has its own line. In a common line for all targets, intervals that are too wide for one target and too
    narrow for another target could look calibrated.

    Args:
        observed: fraction of test targets inside the central interval with each probability in `COVERAGE_LEVELS`, by
            name of the target.
        rows: number of test targets.
        tolerance: half of the height of the grey band. A line outside the band means that the intervals are
            miscalibrated.
    """
    low, high = np.clip(COVERAGE_LEVELS - tolerance, 0, 1), np.clip(COVERAGE_LEVELS + tolerance, 0, 1)
    with _style.style():
        figure, axes = _style.panels(height=2.9)
        panel = axes[0, 0]
        panel.fill_between(
            COVERAGE_LEVELS, low, high, color=MUTED, alpha=0.2, lw=0, label=f"tolerance: ± {tolerance:.1%}"
        )
        panel.plot([0, 1], [0, 1], color=MUTED, lw=1, ls="--")
        marked_levels = [0.5, 0.8, 0.9, 0.95]
        for (name, curve), colour in zip(observed.items(), cycle(_style.CYCLE)):
            panel.plot(COVERAGE_LEVELS, curve, color=colour, label=name if len(observed) > 1 else "observed")
            panel.plot(marked_levels, np.interp(marked_levels, COVERAGE_LEVELS, curve), "o", color=colour, ms=3.5)
        panel.set(
            xlabel="probability of the interval", ylabel="fraction of targets inside", xlim=(0, 1), ylim=(0, 1.01)
        )
        panel.text(0.98, 0.06, "below the diagonal: intervals too narrow", ha="right", color=INK, fontsize=8)
        if len(observed) > 1:
            _style.add_legend(figure, *panel.get_legend_handles_labels())
        else:
            panel.legend(loc="upper left")
    coverage_text = "; ".join(
        f"{f'{name}: ' if len(observed) > 1 else ''}"
        + ", ".join(
            f"{level:.0%} intervals contain {np.interp(level, COVERAGE_LEVELS, curve):.1%}" for level in (0.5, 0.9)
        )
        for name, curve in observed.items()
    )
    alt = (
        f"Fraction of {rows} test targets inside central predictive intervals against the probability of the "
        f"interval: {coverage_text}. The grey band shows the tolerance: within {tolerance:.1%} of the diagonal."
    )
    table_columns = {
        f"observed of {name}" if len(observed) > 1 else "observed": curve[5::5] for name, curve in observed.items()
    }
    table = pd.DataFrame({"interval": COVERAGE_LEVELS[5::5], **table_columns, "low": low[5::5], "high": high[5::5]})
    return Picture("calibration", "Coverage of intervals", alt, figure, table)


def _wilson(fraction: np.ndarray, count: np.ndarray, z: float = 1.96) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the Wilson interval of a fraction of `count` rows; `z` is the normal quantile."""
    middle = (fraction + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(fraction * (1 - fraction) / count + z**2 / (4 * count**2))
    return middle - half, middle + half
