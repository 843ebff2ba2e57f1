"""Predictions along one input at a time, with the other inputs fixed."""

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
    """One input varied: its values, mean and quantiles of the prediction there, and the input's training values."""

    feature: str
    grid: Float[np.ndarray, " point"]
    mean: Float[np.ndarray, " point"]
    quantiles: Float[np.ndarray, "quantile point"]
    """Quantiles at 5, 25, 75 and 95 %."""
    x: Float[np.ndarray, " row"]


def slices(found: Sequence[Slice], *, value: str, interval: str, held: str) -> Picture:
    """Draw mean, 50 and 90 % intervals in one panel per feature, with a rug of the training data.

    Args:
        found: the slices.
        value: label of the vertical axis.
        interval: description of the intervals.
        held: description of the values of the other inputs.
    """
    columns = 1 if len(found) == 1 else 2
    rows = -(-len(found) // columns)
    with _style.style():
        figure, axes = _style.panels(rows, columns, height=1.5, sharey=True)
        for panel, one in zip(axes.flat, found, strict=False):
            low, below, above, high = one.quantiles
            panel.fill_between(one.grid, low, high, color=BLUE, alpha=0.18, lw=0, label="90 %")
            panel.fill_between(one.grid, below, above, color=BLUE, alpha=0.28, lw=0, label="50 %")
            panel.plot(one.grid, one.mean, color=BLUE, label="mean")
            rug = one.x[_style.some(len(one.x), _RUG)]
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
            panel.set_xlabel(one.feature)
        for panel in axes.flat[len(found) :]:
            panel.remove()
        figure.supylabel(value, fontsize=9)
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, title=interval, fontsize=8
        )
    reach = {one.feature: float(np.ptp(one.mean)) for one in found}
    most = max(reach, key=lambda name: reach[name])
    alt = (
        f"{value} along one input at a time, {held}: mean with 50 and 90 % intervals. The mean changes most "
        f"along {most}, by {reach[most]:.3g}; ticks at the bottom are training data."
    )
    table = pd.concat(
        [
            pd.DataFrame(
                {"feature": one.feature, "at": one.grid, "mean": one.mean}
                | dict(zip(("q05", "q25", "q75", "q95"), one.quantiles, strict=True))
            )
            for one in found
        ],
        ignore_index=True,
    )
    return Picture("slices", "Along one input at a time", alt, figure, table)
