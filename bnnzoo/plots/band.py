"""The predictive distribution over the one input there is: mean, intervals, data; and where its width comes from."""

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
"""What a band is of: the target y, or f(x), the mean of y that a draw of the weights predicts."""

_POINTS = 800


class Curve(NamedTuple):
    """A line that is known, such as the data's without their noise."""

    x: Float[np.ndarray, " point"]
    y: Float[np.ndarray, " point"]


class Band(NamedTuple):
    """What a run predicts of its one input, and the data that it has seen."""

    name: str
    grid: Float[np.ndarray, " point"]
    said: pd.DataFrame
    """At the points of `grid`, the columns mean, sd, aleatoric_sd, epistemic_sd, q05, q25, q75, q95."""
    x: Float[np.ndarray, " row"]
    y: Float[np.ndarray, " row"]

    def intervals(self, of: Of) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """The wide and the narrow interval: what each is called, and where it begins and ends."""
        told = {name: values.to_numpy() for name, values in self.said.items()}
        if of == "predictive":
            return [("90 % interval", told["q05"], told["q95"]), ("50 % interval", told["q25"], told["q75"])]
        mean, sd = told["mean"], told["epistemic_sd"]
        return [("mean ± 2 sd of f(x)", mean - 2 * sd, mean + 2 * sd), ("± 1 sd", mean - sd, mean + sd)]

    def spread(self, of: Of) -> Float[np.ndarray, " point"]:
        """The standard deviation of what the band is of."""
        return self.said["sd" if of == "predictive" else "epistemic_sd"].to_numpy()

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The numbers of a table."""
        names = ["mean", "sd", "aleatoric_sd", "epistemic_sd", "q05", "q25", "q75", "q95"]
        return {name: self.said[name].to_numpy() for name in names}

    def inside(self) -> np.ndarray:
        """Which points lie over the data."""
        return (self.grid >= self.x.min()) & (self.grid <= self.x.max())


def band(one: Band, *, feature: str, target: str, of: Of = "predictive", truth: Sequence[Curve] = ()) -> Picture:
    """Mean, intervals and data; of the predictive distribution also, below, the standard deviation and its two parts.

    Args:
        truth: lines to draw over it.
    """
    grid, said = one.grid, one.said
    with _style.style():
        rows: dict[str, Any] = {"height_ratios": (3, 2)} if of == "predictive" else {}
        figure, axes = _style.panels(len(rows) + 1, height=2.1 if rows else 2.6, sharex=True, **rows)
        above = axes[0, 0]
        shade(above, one, of)
        draw_truth(above, truth)
        above.set(ylabel=target, xlim=(grid[0], grid[-1]))
        _style.headroom(above, 0.3)
        above.legend(loc="upper center", ncols=2, markerscale=2)
        if rows:
            below = axes[1, 0]
            below.plot(grid, said["sd"], color=MUTED, lw=1, label="total")
            below.plot(grid, said["aleatoric_sd"], color=ORANGE, ls="--", label="aleatoric (data)")
            below.plot(grid, said["epistemic_sd"], color=GREEN, label="epistemic (weights)")
            below.set(ylabel=f"sd of {target}")
            below.set_ylim(0, 1.3 * float(np.max(said["sd"])))
            below.legend(loc="upper center", ncols=3, columnspacing=1.2)
        for panel in axes[:, 0]:
            outside(panel, one)
        axes[-1, 0].set_xlabel(feature)
        figure.align_ylabels(axes)
    told = [
        f"{where} aleatoric {np.median(said['aleatoric_sd'][at]):.3g}, "
        f"epistemic {np.median(said['epistemic_sd'][at]):.3g}"
        for where, at in (("over the data's range", one.inside()), ("outside it, on grey,", ~one.inside()))
        if at.any()
    ]
    what = "predictive mean with 50 and 90 % intervals" if rows else "mean and two standard deviations of f(x)"
    alt = (
        f"{target} against {feature}: {what} and the training data{' and the true curve' if truth else ''}"
        f"{'; below, the standard deviation. Its median' if rows else '. The median of the standard deviation'} "
        f"{'; '.join(told)}."
    )
    return Picture("band", "Predictive band", alt, figure, pd.DataFrame({feature: grid} | one.columns))


def shade(panel: Axes, one: Band, of: Of) -> None:
    """Both intervals, the mean and the data of one run."""
    for (name, low, high), alpha in zip(one.intervals(of), (0.18, 0.28), strict=True):
        panel.fill_between(one.grid, low, high, color=BLUE, alpha=alpha, lw=0, label=name)
    scatter(panel, one)
    panel.plot(one.grid, one.said["mean"], color=BLUE, label="mean", zorder=4)


def scatter(panel: Axes, one: Band) -> None:
    """The training data, some of them where there are many, which the legend then says."""
    shown = _style.some(len(one.x), _POINTS)
    data = "training data" if len(shown) == len(one.x) else f"{len(shown)} of {len(one.x)} training data"
    panel.plot(one.x[shown], one.y[shown], ".", color=INK, ms=3, alpha=0.55, mew=0, label=data, zorder=3)


def draw_truth(panel: Axes, truth: Sequence[Curve]) -> None:
    """Lines that are known, in ink."""
    for index, curve in enumerate(truth):
        panel.plot(curve.x, curve.y, color=INK, ls=(0, (4, 2)), lw=1, label="" if index else "truth", zorder=5)


def outside(panel: Axes, one: Band) -> None:
    """Grey where there are no data."""
    low, high = one.grid[0], one.grid[-1]
    for start, stop in ((low, min(one.x.min(), high)), (max(one.x.max(), low), high)):
        if start < stop:
            panel.axvspan(start, stop, color=MUTED, alpha=0.12, lw=0)
