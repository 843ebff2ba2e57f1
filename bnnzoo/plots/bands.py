"""Bands of several runs in one figure: side by side, or overlaid in opaque colours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture
from bnnzoo.plots._style import AMBER, BLUE, GREEN, ORANGE, PURPLE
from bnnzoo.plots.band import Band, Curve, Of, draw_intervals, draw_truth, scatter, shade_outside

_COLUMNS = 4
_COLOURS = (BLUE, AMBER, ORANGE, GREEN, PURPLE)
"""Colours of overlaid runs, in an order in which neighbours differ strongly, even in grey."""
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (8, 3)))


def bands(
    run_bands: Sequence[Band],
    *,
    feature: str,
    target: str,
    of: Of = "predictive",
    truth: Sequence[Curve] = (),
    overlay: bool = False,
) -> Picture:
    """Draw one panel per run with common axes, or with `overlay` all wide intervals in one panel and the sds below.

    Args:
        run_bands: the predictions of each run.
        feature: label of the input.
        target: label of the target.
        of: quantity of the bands.
        truth: known curves to draw over them.
        overlay: draw all runs in one panel.
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
    description = run_bands[0].intervals(of)[0][0] if of == "predictive" else "two standard deviations of f(x)"
    alt = (
        f"{target} against {feature} for {len(run_bands)} runs {'over each other' if overlay else 'side by side'}: "
        f"mean and {description}, the training data{' and the true curve' if truth else ''}. Median of the standard "
        f"deviation over the range of the data: {widths}."
    )
    table = pd.concat(
        [pd.DataFrame({"run": run_band.name, feature: run_band.grid} | run_band.columns) for run_band in run_bands],
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
    # The widest interval is drawn first. Borders are drawn last, so a covered part remains visible.
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
    bottom.set_ylim(0, 1.1 * max(float(run_band.standard_deviation(of).max()) for run_band in run_bands))
    figure.align_ylabels(axes)
    return figure


def _draw_borders(top: Axes, bottom: Axes, run_band: Band, of: Of, colour: str, dash: Any) -> Patch:
    """Draw the borders of a run's interval and its sd; return the handle for the legend."""
    _, low, high = run_band.intervals(of)[0]
    for border in (low, high):
        top.plot(run_band.grid, border, color=colour, ls=dash, lw=1.2, zorder=2.5)
    bottom.plot(run_band.grid, run_band.standard_deviation(of), color=colour, ls=dash, lw=1.8)
    return Patch(facecolor=_style.tint(colour, 0.35), edgecolor=colour, ls=dash, lw=1.2)
