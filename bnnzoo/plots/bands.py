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
from bnnzoo.plots.band import Band, Curve, Of, draw_truth, outside, scatter, shade

_COLUMNS = 4
_COLOURS = (BLUE, AMBER, ORANGE, GREEN, PURPLE)
"""Colours of overlaid runs, in an order in which neighbours differ strongly, even in grey."""
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (8, 3)))


def bands(
    found: Sequence[Band],
    *,
    feature: str,
    target: str,
    of: Of = "predictive",
    truth: Sequence[Curve] = (),
    overlay: bool = False,
) -> Picture:
    """Draw one panel per run with common axes, or with `overlay` all wide intervals in one panel and the sds below.

    Args:
        found: the predictions of each run.
        feature: label of the input.
        target: label of the target.
        of: quantity of the bands.
        truth: known curves to draw over them.
        overlay: draw all runs in one panel.
    """
    with _style.style():
        if overlay:
            figure = _overlaid(found, feature, target, of, truth)
        else:
            figure = _side_by_side(found, feature, target, of, truth)
    widths = ", ".join(f"{one.name} {np.median(one.spread(of)[one.inside()]):.3g}" for one in found)
    what = found[0].intervals(of)[0][0] if of == "predictive" else "two standard deviations of f(x)"
    alt = (
        f"{target} against {feature} for {len(found)} runs {'over each other' if overlay else 'side by side'}: "
        f"mean and {what}, the training data{' and the true curve' if truth else ''}. Median of the standard "
        f"deviation over the range of the data: {widths}."
    )
    table = pd.concat(
        [pd.DataFrame({"run": one.name, feature: one.grid} | one.columns) for one in found], ignore_index=True
    )
    return Picture("band", "Predictive bands", alt, figure, table)


def _side_by_side(found: Sequence[Band], feature: str, target: str, of: Of, truth: Sequence[Curve]) -> Figure:
    columns = min(len(found), _COLUMNS)
    rows = -(-len(found) // columns)
    width = _style.WIDTH * (0.4 + 0.45 * columns)
    figure, axes = _style.panels(rows, columns, height=1.9, width=width, sharex=True, sharey=True)
    for panel, one in zip(axes.flat, found, strict=False):
        shade(panel, one, of)
        draw_truth(panel, truth)
        outside(panel, one)
        _style.title(panel, one.name, letters=22)
        panel.set_xlim(one.grid[0], one.grid[-1])
    for panel in axes.flat[len(found) :]:
        panel.remove()
    figure.supxlabel(feature, fontsize=9)
    axes[0, 0].set_ylabel(target)
    _style.key(figure, *axes[0, 0].get_legend_handles_labels(), markerscale=2)
    return figure


def _overlaid(found: Sequence[Band], feature: str, target: str, of: Of, truth: Sequence[Curve]) -> Figure:
    looks = list(zip(found, cycle(_COLOURS), cycle(_DASHES)))
    # The widest interval is drawn first. Borders are drawn last, so a covered part remains visible.
    order = sorted(range(len(found)), key=lambda index: -float(np.mean(found[index].spread(of))))
    figure, axes = _style.panels(2, height=2.1, sharex=True, height_ratios=(3, 2))
    above, below = axes[:, 0]
    for depth, index in enumerate(order):
        one, colour, _ = looks[index]
        _, low, high = one.intervals(of)[0]
        above.fill_between(one.grid, low, high, color=_style.tint(colour, 0.35), lw=0, zorder=1 + depth / 100)
    handles = [_borders(above, below, one, of, colour, dash) for one, colour, dash in looks]
    scatter(above, found[0])
    draw_truth(above, truth)
    above.set(ylabel=target, xlim=(found[0].grid[0], found[0].grid[-1]))
    known, labels = above.get_legend_handles_labels()
    interval = found[0].intervals(of)[0][0]
    title = f"{interval} of {target}" if of == "predictive" else interval
    _style.key(figure, [*handles, *known], [one.name for one in found] + labels, markerscale=2, title=title)
    below.set(xlabel=feature, ylabel=f"sd of {target if of == 'predictive' else 'f(x)'}")
    below.set_ylim(0, 1.1 * max(float(one.spread(of).max()) for one in found))
    figure.align_ylabels(axes)
    return figure


def _borders(above: Axes, below: Axes, one: Band, of: Of, colour: str, dash: Any) -> Patch:
    """Draw the borders of a run's interval and its sd; return the handle for the legend."""
    _, low, high = one.intervals(of)[0]
    for border in (low, high):
        above.plot(one.grid, border, color=colour, ls=dash, lw=1.2, zorder=2.5)
    below.plot(one.grid, one.spread(of), color=colour, ls=dash, lw=1.8)
    return Patch(facecolor=_style.tint(colour, 0.35), edgecolor=colour, ls=dash, lw=1.2)
