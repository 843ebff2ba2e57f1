"""The predictive distribution over the one input there is: mean, intervals, data; and where its width comes from."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture
from bnnzoo.plots._style import BLUE, GREEN, INK, MUTED, ORANGE

_POINTS = 800


def band(
    grid: Float[np.ndarray, " point"],
    said: pd.DataFrame,
    x: Float[np.ndarray, " row"],
    y: Float[np.ndarray, " row"],
    *,
    feature: str,
    target: str,
) -> Picture:
    """Mean, 50 and 90 % intervals and data above, the standard deviation and its two parts below.

    Args:
        said: at the points of `grid`, the columns mean, sd, aleatoric_sd, epistemic_sd, q05, q25, q75, q95.
    """
    with _style.style():
        figure, axes = _style.panels(2, height=2.1, sharex=True, height_ratios=(3, 2))
        above, below = axes[:, 0]
        above.fill_between(grid, said["q05"], said["q95"], color=BLUE, alpha=0.18, lw=0, label="90 % interval")
        above.fill_between(grid, said["q25"], said["q75"], color=BLUE, alpha=0.28, lw=0, label="50 % interval")
        shown = _style.some(len(x), _POINTS)
        data = "training data" if len(shown) == len(x) else f"{len(shown)} of {len(x)} training data"
        above.plot(x[shown], y[shown], ".", color=INK, ms=3, alpha=0.55, mew=0, label=data, zorder=3)
        above.plot(grid, said["mean"], color=BLUE, label="mean", zorder=4)
        above.set_ylabel(target)
        _style.headroom(above, 0.3)
        above.legend(loc="upper center", ncols=2, markerscale=2)

        below.plot(grid, said["sd"], color=MUTED, lw=1, label="total")
        below.plot(grid, said["aleatoric_sd"], color=ORANGE, ls="--", label="aleatoric (data)")
        below.plot(grid, said["epistemic_sd"], color=GREEN, label="epistemic (weights)")
        below.set(xlabel=feature, ylabel=f"sd of {target}", xlim=(grid[0], grid[-1]))
        below.set_ylim(0, 1.3 * float(np.max(said["sd"])))
        below.legend(loc="upper center", ncols=3, columnspacing=1.2)
        for panel in (above, below):
            for low, high in ((grid[0], x.min()), (x.max(), grid[-1])):
                panel.axvspan(low, high, color=MUTED, alpha=0.12, lw=0)
        figure.align_ylabels(axes)
    inside = (grid >= x.min()) & (grid <= x.max())
    told = [
        f"{where} aleatoric {np.median(said['aleatoric_sd'][at]):.3g}, "
        f"epistemic {np.median(said['epistemic_sd'][at]):.3g}"
        for where, at in (("over the data's range", inside), ("outside it, on grey,", ~inside))
        if at.any()
    ]
    alt = (
        f"{target} against {feature}: predictive mean with 50 and 90 % intervals and the training data; below, the "
        f"standard deviation. Its median {'; '.join(told)}."
    )
    columns = ["mean", "sd", "aleatoric_sd", "epistemic_sd", "q05", "q25", "q75", "q95"]
    table = pd.DataFrame({feature: grid} | {name: said[name].to_numpy() for name in columns})
    return Picture("band", "Predictive band", alt, figure, table)
