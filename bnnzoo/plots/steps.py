"""Picture of the statistics of a sampler's steps, such as the acceptance rate, with their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture
from bnnzoo.plots._style import INK, MUTED, ORANGE


class Statistic(NamedTuple):
    """A statistic of the sampler's steps. The sampler declares its label and its limit."""

    name: str
    values: Shaped[np.ndarray, "chain draw"]
    warmup: Shaped[np.ndarray, "chain step"] | None = None
    """Values during warm-up, which are drawn to the left of 0; None if they were not recorded."""
    label: str = ""
    """Label of the axis. If it is empty, the name is used."""
    limit: float | None = None
    """Largest acceptable mean; None if the statistic has no limit."""
    limit_label: str = ""
    """Text at the line of the limit."""

    @property
    def axis(self) -> str:
        """Label of the vertical axis: `label`, or `name` if `label` is empty."""
        return self.label or self.name


_POINTS = 120
_LOG_FROM = 100.0
_FRACTION_FROM = 0.5
"""Limit above which the maximum of non-negative values gives an axis from 0 to 1, if it is at most 1."""


def steps(statistics: Sequence[Statistic]) -> Picture:
    """Draw the statistics of a sampler's steps, one panel per statistic and one line per chain.

    Each point of a line is a mean over a short stretch of draws. Dashed lines show the limits of the means.
    """
    draws = statistics[0].values.shape[1]
    with _style.style():
        figure, axes = _style.panels(len(statistics), height=1.4, sharex=True)
        for panel, statistic in zip(axes[:, 0], statistics, strict=True):
            first = 0 if statistic.warmup is None else statistic.warmup.shape[1]
            parts = [(statistic.values, 0)] + ([] if statistic.warmup is None else [(statistic.warmup, -first)])
            for value, start in parts:
                centres, means = stretches(np.asarray(value, float))
                for index, chain in enumerate(means):
                    panel.plot(centres + start, chain, lw=0.9, alpha=0.9, color=_style.CYCLE[index % len(_style.CYCLE)])
            panel.set_ylabel(statistic.axis)
            drawn_values = np.concatenate([line.get_ydata() for line in panel.get_lines()])
            drawn_values = drawn_values[np.isfinite(drawn_values)]
            if statistic.limit is not None:
                panel.axhline(statistic.limit, color=ORANGE, ls="--", lw=1.1)
                panel.annotate(
                    statistic.limit_label,
                    (1, statistic.limit),
                    xycoords=("axes fraction", "data"),
                    ha="right",
                    va="bottom",
                    color=ORANGE,
                    fontsize=8,
                )
                drawn_values = np.append(drawn_values, statistic.limit)
            _set_range(panel, drawn_values, may_be_fraction=statistic.limit is None)
            if first:
                panel.axvspan(-first, 0, color=MUTED, alpha=0.12, lw=0)
                panel.text(
                    -first, 0.97, " warm-up", transform=panel.get_xaxis_transform(), va="top", color=INK, fontsize=8
                )
        axes[-1, 0].set_xlabel("draw")
        _style.add_chain_legend(figure, axes[0, 0].get_lines()[: len(statistics[0].values)])
        figure.align_ylabels(axes)
    all_values = [(s.axis, np.asarray(s.values, float)) for s in statistics]
    means = ", ".join(f"{axis} {np.mean(values):.3g}" for axis, values in all_values)
    limits = "; ".join(f"{s.axis} at {s.limit:g}" for s in statistics if s.limit is not None)
    alt = (
        f"Statistics of the steps over {draws} draws, one line per chain, averaged over short stretches. Means: "
        f"{means}."
    )
    table = pd.DataFrame(
        [
            {"statistic": axis, "chain": i, "mean": np.mean(chain), "least": np.min(chain), "most": np.max(chain)}
            for axis, values in all_values
            for i, chain in enumerate(values)
        ]
    )
    alt += f" Dashed lines: limits that the mean must not exceed, {limits}." if limits else ""
    return Picture("steps", "The sampler's steps", alt, figure, table)


def stretches(values: Float[np.ndarray, "chain draw"]) -> tuple[np.ndarray, Float[np.ndarray, "chain stretch"]]:
    """Return the centres of at most 120 successive stretches of equal length, and the mean of each stretch.

    Draws at the end that do not fill a stretch are omitted.
    """
    length = max(1, -(-values.shape[1] // _POINTS))
    count = values.shape[1] // length
    means = values[:, : count * length].reshape(len(values), count, length).mean(2)
    return (np.arange(count) + 0.5) * length - 0.5, means


def _set_range(panel: Axes, values: Float[np.ndarray, " value"], *, may_be_fraction: bool) -> None:
    """Set the vertical axis: 0 to 1 for fractions, logarithmic for values over two decades, otherwise linear."""
    if not len(values):
        return
    low, high = float(values.min()), float(values.max())
    if may_be_fraction and low >= 0 and _FRACTION_FROM < high <= 1:
        panel.set_ylim(-0.03, 1.03)
    elif low > 0 and high > _LOG_FROM * max(low, 1e-3):
        _style.set_log_scale(panel, "y")
    elif low >= 0 and low <= high / 2:
        panel.set_ylim(0, 1.15 * high or 1)
