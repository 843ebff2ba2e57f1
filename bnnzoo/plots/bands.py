"""Pictures of predictive distributions against a single input: mean, intervals, data and sds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture, column_name
from bnnzoo.plots._style import AMBER, BLUE, GREEN, INK, MUTED, ORANGE, PURPLE

Of = Literal["predictive", "function"]
"""Quantity of a band: "predictive" is the target y; "function" is f(x), the mean of y for one draw of the weights."""

_POINTS = 800
_COLUMNS = 4
_COLOURS = (BLUE, AMBER, ORANGE, GREEN, PURPLE)
"""Colours of overlaid runs. Successive colours differ strongly, even in a grey copy."""
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (8, 3)))


class Curve(NamedTuple):
    """A known curve, such as the targets without noise."""

    x: Float[np.ndarray, " point"]
    y: Float[np.ndarray, " point"]


class Band(NamedTuple):
    """Predictions of a run on a grid of its single input, with the training data."""

    name: str
    grid: Float[np.ndarray, " point"]
    predictions: pd.DataFrame
    """Table with one row per point of `grid`: mean, sd, aleatoric_sd, epistemic_sd, q05, q25, q75, q95."""
    x: Float[np.ndarray, " row"]
    y: Float[np.ndarray, " row"]

    def intervals(self, of: Of) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Return name, lower ends and upper ends of two intervals of the quantity `of`, the wider interval first."""
        columns = self.columns
        if of == "predictive":
            return [
                ("90 % interval", columns["q05"], columns["q95"]),
                ("50 % interval", columns["q25"], columns["q75"]),
            ]
        mean, sd = columns["mean"], columns["epistemic_sd"]
        return [("mean ± 2 sd of f(x)", mean - 2 * sd, mean + 2 * sd), ("± 1 sd", mean - sd, mean + sd)]

    def standard_deviation(self, of: Of) -> Float[np.ndarray, " point"]:
        """Return the standard deviation of the quantity `of` at each grid point."""
        return self.predictions["sd" if of == "predictive" else "epistemic_sd"].to_numpy()

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Columns of `predictions`."""
        return {str(name): values.to_numpy() for name, values in self.predictions.items()}

    def is_in_data_range(self) -> np.ndarray:
        """Return, for each grid point, whether it is inside the range of the data."""
        return (self.grid >= self.x.min()) & (self.grid <= self.x.max())


def band(one: Band, *, feature: str, target: str, of: Of = "predictive", truth: Sequence[Curve] = ()) -> Picture:
    """Draw the mean, the intervals and the data of one run against its single input.

    For the predictive distribution, a second panel shows the standard deviations.

    Args:
        one: the predictions of the run.
        feature: label of the input.
        target: label of the target.
        of: quantity of the band.
        truth: known curves to draw over the band.
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
            _limit_sds(bottom, 1.3, [predictions["sd"].to_numpy()])
            bottom.legend(loc="upper center", ncols=3, columnspacing=1.2)
        for panel in axes[:, 0]:
            shade_outside(panel, one)
        axes[-1, 0].set_xlabel(feature)
        figure.align_ylabels(axes)
    sentences = [
        f"{range_name}: aleatoric {np.median(predictions['aleatoric_sd'][mask]):.3g}, "
        f"epistemic {np.median(predictions['epistemic_sd'][mask]):.3g}"
        for range_name, mask in (
            ("in the range of the training data", one.is_in_data_range()),
            ("outside the range of the training data (grey)", ~one.is_in_data_range()),
        )
        if mask.any()
    ]
    description = (
        "predictive mean with 50 and 90 % intervals"
        if rows
        else f"mean ± 2 standard deviations of f(x), the mean of {target} for one draw of the weights,"
    )
    alt = (
        f"{target} against {feature}: {description} and the training data{' and the true curve' if truth else ''}"
        f"{'; below, the standard deviation' if rows else ''}. Median of the standard deviation "
        f"{'; '.join(sentences)}."
    )
    return Picture("band", "Predictive band", alt, figure, _table(one, feature))


def _table(run_band: Band, feature: str, **names: str) -> pd.DataFrame:
    """Return the plotted numbers of a run: the columns `names` if given, the grid, and the predictions."""
    columns = run_band.columns
    return pd.DataFrame({**names, column_name(feature, {*names, *columns}): run_band.grid, **columns})


def draw_intervals(panel: Axes, run_band: Band, of: Of) -> None:
    """Draw both intervals, the mean and the data of one run."""
    for (name, low, high), alpha in zip(run_band.intervals(of), (0.18, 0.28), strict=True):
        panel.fill_between(run_band.grid, low, high, color=BLUE, alpha=alpha, lw=0, label=name)
    scatter(panel, run_band)
    panel.plot(run_band.grid, run_band.predictions["mean"], color=BLUE, label="mean", zorder=4)


def scatter(panel: Axes, run_band: Band) -> None:
    """Draw the training data, or 800 evenly spaced rows if there are more. The legend states the number of rows."""
    row_numbers = _style.evenly_spaced(len(run_band.x), _POINTS)
    data = (
        "training data"
        if len(row_numbers) == len(run_band.x)
        else f"{len(row_numbers)} of {len(run_band.x)} training rows"
    )
    panel.plot(
        run_band.x[row_numbers], run_band.y[row_numbers], ".", color=INK, ms=3, alpha=0.55, mew=0, label=data, zorder=3
    )


def draw_truth(panel: Axes, truth: Sequence[Curve]) -> None:
    """Draw the known curves as dashed lines."""
    for index, curve in enumerate(truth):
        panel.plot(curve.x, curve.y, color=INK, ls=(0, (4, 2)), lw=1, label="" if index else "truth", zorder=5)


def shade_outside(panel: Axes, run_band: Band) -> None:
    """Shade the parts of the grid outside the range of the data in grey."""
    low, high = run_band.grid[0], run_band.grid[-1]
    for start, stop in ((low, min(run_band.x.min(), high)), (max(run_band.x.max(), low), high)):
        if start < stop:
            panel.axvspan(start, stop, color=MUTED, alpha=0.12, lw=0)


def bands(
    run_bands: Sequence[Band],
    *,
    feature: str,
    target: str,
    of: Of = "predictive",
    truth: Sequence[Curve] = (),
    overlay: bool = False,
) -> Picture:
    """Draw the predictions of several runs, one panel per run with common axes.

    With `overlay`, draw all runs in one panel, and their standard deviations in a second panel below.

    Args:
        run_bands: the predictions of each run.
        feature: label of the input.
        target: label of the target.
        of: quantity of the bands.
        truth: known curves to draw over the bands.
        overlay: draw all runs in one panel instead of one panel per run.
    """
    with _style.style():
        if overlay:
            figure = _draw_overlaid(run_bands, feature, target, of, truth)
        else:
            figure = _draw_side_by_side(run_bands, feature, target, of, truth)
    widths = ", ".join(
        f"{run_band.name} {np.median(run_band.standard_deviation(of)[run_band.is_in_data_range()]):.3g}"
        for run_band in run_bands
    )
    interval = run_bands[0].intervals(of)[0][0]
    description = f"{'' if overlay else 'mean and '}{interval}" if of == "predictive" else interval
    alt = (
        f"{target} against {feature} for {len(run_bands)} runs {'in one panel' if overlay else 'side by side'}: "
        f"{description}, the training data{' and the true curve' if truth else ''}. Median of the standard "
        f"deviation over the range of the data: {widths}."
    )
    table = pd.concat(
        [_table(run_band, feature, run=run_band.name) for run_band in run_bands],
        ignore_index=True,
    )
    return Picture("band", "Predictive bands", alt, figure, table)


def _draw_side_by_side(run_bands: Sequence[Band], feature: str, target: str, of: Of, truth: Sequence[Curve]) -> Figure:
    columns = min(len(run_bands), _COLUMNS)
    rows = -(-len(run_bands) // columns)
    width = _style.WIDTH * (0.4 + 0.45 * columns)
    figure, axes = _style.panels(rows, columns, height=1.9, width=width, sharex=True, sharey=True)
    for panel, run_band in zip(axes.flat, run_bands, strict=False):
        draw_intervals(panel, run_band, of)
        draw_truth(panel, truth)
        shade_outside(panel, run_band)
        _style.title(panel, run_band.name, letters=22)
        panel.set_xlim(run_band.grid[0], run_band.grid[-1])
    for panel in axes.flat[len(run_bands) :]:
        panel.remove()
    figure.supxlabel(feature, fontsize=9)
    axes[0, 0].set_ylabel(target)
    _style.add_legend(figure, *axes[0, 0].get_legend_handles_labels(), markerscale=2)
    return figure


def _draw_overlaid(run_bands: Sequence[Band], feature: str, target: str, of: Of, truth: Sequence[Curve]) -> Figure:
    styles = list(zip(run_bands, cycle(_COLOURS), cycle(_DASHES)))
    # The widest interval is drawn first, and all borders are drawn last, so that covered intervals remain visible.
    order = sorted(range(len(run_bands)), key=lambda index: -float(np.mean(run_bands[index].standard_deviation(of))))
    figure, axes = _style.panels(2, height=2.1, sharex=True, height_ratios=(3, 2))
    top, bottom = axes[:, 0]
    for depth, index in enumerate(order):
        run_band, colour, _ = styles[index]
        _, low, high = run_band.intervals(of)[0]
        top.fill_between(run_band.grid, low, high, color=_style.tint(colour, 0.35), lw=0, zorder=1 + depth / 100)
    handles = [_draw_borders(top, bottom, run_band, of, colour, dash) for run_band, colour, dash in styles]
    scatter(top, run_bands[0])
    draw_truth(top, truth)
    top.set(ylabel=target, xlim=(run_bands[0].grid[0], run_bands[0].grid[-1]))
    drawn_handles, labels = top.get_legend_handles_labels()
    interval = run_bands[0].intervals(of)[0][0]
    title = f"{interval} of {target}" if of == "predictive" else interval
    _style.add_legend(
        figure,
        [*handles, *drawn_handles],
        [run_band.name for run_band in run_bands] + labels,
        markerscale=2,
        title=title,
    )
    bottom.set(xlabel=feature, ylabel=f"sd of {target if of == 'predictive' else 'f(x)'}")
    _limit_sds(bottom, 1.1, [run_band.standard_deviation(of) for run_band in run_bands])
    figure.align_ylabels(axes)
    return figure


def _limit_sds(axes: Axes, factor: float, sds: Sequence[Float[np.ndarray, " point"]]) -> None:
    """Set the range of a vertical axis of standard deviations to 0 to `factor` times the largest finite value."""
    finite = [values[np.isfinite(values)] for values in sds]
    largest = max((float(values.max()) for values in finite if len(values)), default=0.0)
    if largest > 0:
        axes.set_ylim(0, factor * largest)


def _draw_borders(top: Axes, bottom: Axes, run_band: Band, of: Of, colour: str, dash: Any) -> Patch:
    """Draw the borders of the wider interval of a run, and the run's sd. Return the entry for the legend."""
    _, low, high = run_band.intervals(of)[0]
    for border in (low, high):
        top.plot(run_band.grid, border, color=colour, ls=dash, lw=1.2, zorder=2.5)
    bottom.plot(run_band.grid, run_band.standard_deviation(of), color=colour, ls=dash, lw=1.8)
    return Patch(facecolor=_style.tint(colour, 0.35), edgecolor=colour, ls=dash, lw=1.2)
