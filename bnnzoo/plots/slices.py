"""Picture of predictions against one input at a time; the other inputs are fixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture
from bnnzoo.plots._style import BLUE, INK

_RUG = 200


class Slice(NamedTuple):
    """Predictions on a grid of one input (means and quantiles), and the training values of this input."""

    feature: str
    grid: Float[np.ndarray, " point"]
    mean: Float[np.ndarray, " point"]
    quantiles: Float[np.ndarray, "quantile point"]
    """Quantiles at 5, 25, 75 and 95 %."""
    x: Float[np.ndarray, " row"]


def slices(feature_slices: Sequence[Slice], *, value: str, interval: str, held_note: str) -> Picture:
    """Draw the mean and the 50 % and 90 % intervals of predictions, one panel per feature.

    Ticks at the bottom mark the training values of the feature.

    Args:
        feature_slices: the slices.
        value: label of the vertical axis.
        interval: description of the intervals, for the legend.
        held_note: description of the values of the other inputs, for the alternative text.
    """
    columns = 1 if len(feature_slices) == 1 else 2
    rows = -(-len(feature_slices) // columns)
    with _style.style():
        figure, axes = _style.panels(rows, columns, height=1.5, sharey=True)
        for panel, feature_slice in zip(axes.flat, feature_slices, strict=False):
            low, lower, upper, high = feature_slice.quantiles
            panel.fill_between(feature_slice.grid, low, high, color=BLUE, alpha=0.18, lw=0, label="90 %")
            panel.fill_between(feature_slice.grid, lower, upper, color=BLUE, alpha=0.28, lw=0, label="50 %")
            panel.plot(feature_slice.grid, feature_slice.mean, color=BLUE, label="mean")
            rug = feature_slice.x[_style.evenly_spaced(len(feature_slice.x), _RUG)]
            panel.plot(
                rug,
                np.full(len(rug), 0.02),
                "|",
                color=INK,
                ms=5,
                mew=0.5,
                alpha=0.35,
                transform=panel.get_xaxis_transform(),
            )
            panel.set_xlabel(feature_slice.feature)
        for panel in axes.flat[len(feature_slices) :]:
            panel.remove()
        figure.supylabel(value, fontsize=9)
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, title=interval, fontsize=8
        )
    range_by_feature = {feature_slice.feature: float(np.ptp(feature_slice.mean)) for feature_slice in feature_slices}
    widest = max(range_by_feature, key=lambda name: range_by_feature[name])
    alt = (
        f"{value} along one input at a time, {held_note}: mean with 50 and 90 % intervals. The mean changes most "
        f"along {widest}, by {range_by_feature[widest]:.3g}; ticks at the bottom are training data."
    )
    table = pd.concat(
        [
            pd.DataFrame(
                {"feature": feature_slice.feature, "at": feature_slice.grid, "mean": feature_slice.mean}
                | dict(zip(("q05", "q25", "q75", "q95"), feature_slice.quantiles, strict=True))
            )
            for feature_slice in feature_slices
        ],
        ignore_index=True,
    )
    return Picture("slices", "Along one input at a time", alt, figure, table)
