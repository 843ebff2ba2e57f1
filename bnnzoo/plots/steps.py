"""What the sampler said of its steps, over the run: acceptance, sigma2, penalty, and the limits they are held to."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture
from bnnzoo.plots._style import INK, MUTED, ORANGE

STATISTICS = {
    "acceptance_rate": "acceptance",
    "sigma2": "σ² of the log ratio",
    "penalty": "penalty",
    "skew_bias": "bias by skewness",
    "tree_depth": "tree depth",
    "lp": "log posterior",
    "lp_estimate": "log posterior (est.)",
}
"""The statistics that are drawn, and what their axes say."""

_POINTS = 120
_LOG_FROM = 100.0


def steps(
    stats: Mapping[str, Shaped[np.ndarray, "chain draw"]],
    warmup: Mapping[str, Shaped[np.ndarray, "chain step"]],
    *,
    limits: Mapping[str, tuple[float, str]],
) -> Picture:
    """A panel a statistic, a line a chain: means over short stretches of draws; the limits dashed.

    Args:
        warmup: the same statistics of warm-up, drawn left of 0; empty if they were not kept.
        limits: of a statistic, the value and what the line says.
    """
    names = [name for name in STATISTICS if name in stats]
    draws = stats[names[0]].shape[1]
    with _style.style():
        figure, axes = _style.panels(len(names), height=1.4, sharex=True)
        for panel, name in zip(axes[:, 0], names, strict=True):
            parts = [(stats[name], 0)]
            if name in warmup:
                parts.append((warmup[name], -warmup[name].shape[1]))
            for value, first in parts:
                at, means = stretches(np.asarray(value, float))
                for index, chain in enumerate(means):
                    panel.plot(at + first, chain, lw=0.9, alpha=0.9, color=_style.CYCLE[index % len(_style.CYCLE)])
            panel.set_ylabel(STATISTICS[name])
            whole = np.concatenate([line.get_ydata() for line in panel.get_lines()])
            whole = whole[np.isfinite(whole)]
            if name in limits:
                limit, said = limits[name]
                panel.axhline(limit, color=ORANGE, ls="--", lw=1.1)
                panel.annotate(
                    said,
                    (1, limit),
                    xycoords=("axes fraction", "data"),
                    ha="right",
                    va="bottom",
                    color=ORANGE,
                    fontsize=8,
                )
                whole = np.append(whole, limit)
            _limits_of(panel, name, whole)
            if first := (warmup[name].shape[1] if name in warmup else 0):
                panel.axvspan(-first, 0, color=MUTED, alpha=0.12, lw=0)
                panel.text(
                    -first, 0.97, " warm-up", transform=panel.get_xaxis_transform(), va="top", color=INK, fontsize=8
                )
        axes[-1, 0].set_xlabel("draw")
        _style.key_of_chains(figure, axes[0, 0].get_lines()[: len(stats[names[0]])])
        figure.align_ylabels(axes)
    means = {name: float(np.mean(np.asarray(stats[name], float))) for name in names}
    told = ", ".join(f"{STATISTICS[name]} {value:.3g}" for name, value in means.items())
    held = "; ".join(
        f"{STATISTICS[name]} is {'above' if not means[name] <= limit else 'below'} its limit of {limit:g}"
        for name, (limit, _) in limits.items()
        if name in means
    )
    alt = f"Statistics of the steps over {draws} draws, a line a chain, averaged over short stretches. Means: {told}."
    table = pd.DataFrame(
        [
            {
                "statistic": STATISTICS[name],
                "chain": index,
                "mean": np.mean(chain),
                "least": np.min(chain),
                "most": np.max(chain),
            }
            for name in names
            for index, chain in enumerate(np.asarray(stats[name], float))
        ]
    )
    return Picture("steps", "The sampler's steps", f"{alt} {held}.".replace(" .", "") if held else alt, figure, table)


def stretches(values: Float[np.ndarray, "chain draw"]) -> tuple[np.ndarray, Float[np.ndarray, "chain stretch"]]:
    """Means over at most 120 stretches of equal length, and the draws at their middles."""
    length = max(1, values.shape[1] // _POINTS)
    count = values.shape[1] // length
    means = values[:, : count * length].reshape(len(values), count, length).mean(2)
    return (np.arange(count) + 0.5) * length - 0.5, means


def _limits_of(panel: object, name: str, values: np.ndarray) -> None:
    if not len(values):
        return
    low, high = float(values.min()), float(values.max())
    if name == "acceptance_rate":
        panel.set_ylim(-0.03, 1.03)  # type: ignore[attr-defined]
    elif name == "tree_depth":
        panel.set_ylim(0, high + 1)  # type: ignore[attr-defined]
    elif not name.startswith("lp"):
        if low > 0 and high > _LOG_FROM * max(low, 1e-3):
            panel.set_yscale("log")  # type: ignore[attr-defined]
        else:
            panel.set_ylim(0, 1.15 * high or 1)  # type: ignore[attr-defined]
