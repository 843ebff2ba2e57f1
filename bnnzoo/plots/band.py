"""Predictive distribution over a single input: mean, intervals, data, and the parts of its standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture
from bnnzoo.plots._style import BLUE, GREEN, INK, MUTED, ORANGE

Of = Literal["predictive", "function"]
"""Quantity of a band: the target y, or f(x), the mean of y for one draw of the weights."""

_POINTS = 800


class Curve(NamedTuple):
    """A known curve, such as the data without noise."""

    x: Float[np.ndarray, " point"]
    y: Float[np.ndarray, " point"]


class Band(NamedTuple):
    """Predictions of a run over its single input, with the training data."""

    name: str
    grid: Float[np.ndarray, " point"]
    predictions: pd.DataFrame
    """Table with one row per point of `grid`: mean, sd, aleatoric_sd, epistemic_sd, q05, q25, q75, q95."""
    x: Float[np.ndarray, " row"]
    y: Float[np.ndarray, " row"]

    def intervals(self, of: Of) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Return name, lower ends and upper ends of the wide and of the narrow interval."""
        columns = {name: values.to_numpy() for name, values in self.predictions.items()}
        if of == "predictive":
            return [
                ("90 % interval", columns["q05"], columns["q95"]),
                ("50 % interval", columns["q25"], columns["q75"]),
            ]
        mean, sd = columns["mean"], columns["epistemic_sd"]
        return [("mean ± 2 sd of f(x)", mean - 2 * sd, mean + 2 * sd), ("± 1 sd", mean - sd, mean + sd)]

    def standard_deviation(self, of: Of) -> Float[np.ndarray, " point"]:
        """Return the standard deviation of the band's quantity."""
        return self.predictions["sd" if of == "predictive" else "epistemic_sd"].to_numpy()

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Columns of the picture's table."""
        names = ["mean", "sd", "aleatoric_sd", "epistemic_sd", "q05", "q25", "q75", "q95"]
        return {name: self.predictions[name].to_numpy() for name in names}

    def is_in_data_range(self) -> np.ndarray:
        """Return a mask of the points inside the range of the data."""
        return (self.grid >= self.x.min()) & (self.grid <= self.x.max())


def band(one: Band, *, feature: str, target: str, of: Of = "predictive", truth: Sequence[Curve] = ()) -> Picture:
    """Draw mean, intervals and data; for the predictive distribution, a second panel has the standard deviations.

    Args:
        one: the predictions.
        feature: label of the input.
        target: label of the target.
        of: quantity of the band.
        truth: known curves to draw over it.
    """
    grid, predictions = one.grid, one.predictions
    with _style.style():
        rows: dict[str, Any] = {"height_ratios": (3, 2)} if of == "predictive" else {}
        figure, axes = _style.panels(len(rows) + 1, height=2.1 if rows else 2.6, sharex=True, **rows)
        top = axes[0, 0]
        draw_intervals(top, one, of)
        draw_truth(top, truth)
        top.set(ylabel=target, xlim=(grid[0], grid[-1]))
        _style.headroom(top, 0.3)
        top.legend(loc="upper center", ncols=2, markerscale=2)
        if rows:
            bottom = axes[1, 0]
            bottom.plot(grid, predictions["sd"], color=MUTED, lw=1, label="total")
            bottom.plot(grid, predictions["aleatoric_sd"], color=ORANGE, ls="--", label="aleatoric (data)")
            bottom.plot(grid, predictions["epistemic_sd"], color=GREEN, label="epistemic (weights)")
            bottom.set(ylabel=f"sd of {target}")
            bottom.set_ylim(0, 1.3 * float(np.max(predictions["sd"])))
            bottom.legend(loc="upper center", ncols=3, columnspacing=1.2)
        for panel in axes[:, 0]:
            shade_outside(panel, one)
        axes[-1, 0].set_xlabel(feature)
        figure.align_ylabels(axes)
    sentences = [
        f"{range_name} aleatoric {np.median(predictions['aleatoric_sd'][mask]):.3g}, "
        f"epistemic {np.median(predictions['epistemic_sd'][mask]):.3g}"
        for range_name, mask in (
            ("over the data's range", one.is_in_data_range()),
            ("outside it, on grey,", ~one.is_in_data_range()),
        )
        if mask.any()
    ]
    description = "predictive mean with 50 and 90 % intervals" if rows else "mean and two standard deviations of f(x)"
    alt = (
        f"{target} against {feature}: {description} and the training data{' and the true curve' if truth else ''}"
        f"{'; below, the standard deviation. Its median' if rows else '. The median of the standard deviation'} "
        f"{'; '.join(sentences)}."
    )
    return Picture("band", "Predictive band", alt, figure, pd.DataFrame({feature: grid} | one.columns))


def draw_intervals(panel: Axes, run_band: Band, of: Of) -> None:
    """Draw both intervals, the mean and the data of one run."""
    for (name, low, high), alpha in zip(run_band.intervals(of), (0.18, 0.28), strict=True):
        panel.fill_between(run_band.grid, low, high, color=BLUE, alpha=alpha, lw=0, label=name)
    scatter(panel, run_band)
    panel.plot(run_band.grid, run_band.predictions["mean"], color=BLUE, label="mean", zorder=4)


def scatter(panel: Axes, run_band: Band) -> None:
    """Draw the training data, or an evenly spaced part of many, as stated in the legend."""
    row_numbers = _style.evenly_spaced(len(run_band.x), _POINTS)
    data = (
        "training data"
        if len(row_numbers) == len(run_band.x)
        else f"{len(row_numbers)} of {len(run_band.x)} training data"
    )
    panel.plot(
        run_band.x[row_numbers], run_band.y[row_numbers], ".", color=INK, ms=3, alpha=0.55, mew=0, label=data, zorder=3
    )


def draw_truth(panel: Axes, truth: Sequence[Curve]) -> None:
    """Draw known curves in the colour of text."""
    for index, curve in enumerate(truth):
        panel.plot(curve.x, curve.y, color=INK, ls=(0, (4, 2)), lw=1, label="" if index else "truth", zorder=5)


def shade_outside(panel: Axes, run_band: Band) -> None:
    """Shade the range without data in grey."""
    low, high = run_band.grid[0], run_band.grid[-1]
    for start, stop in ((low, min(run_band.x.min(), high)), (max(run_band.x.max(), low), high)):
        if start < stop:
            panel.axvspan(start, stop, color=MUTED, alpha=0.12, lw=0)
