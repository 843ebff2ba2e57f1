"""Picture of the loss against the steps, for runs that minimise the loss and for runs that sample the posterior."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture

_POINTS = 600


class Descent(NamedTuple):
    """Loss L(theta) = -log p(theta, D) of the chains of a run, up to a constant."""

    name: str
    warmup: Float[np.ndarray, "chain step"] | None
    """Warm-up trace, one value per step; None if it was not recorded."""
    first: int
    """Step of the first draw. The first warm-up step is step 1."""
    thin: int
    draws: Float[np.ndarray, "chain draw"] | None
    """Loss of the draws; None if it was not recorded, for example for a trained network."""


def loss(paths: Sequence[Descent]) -> Picture:
    """Draw the loss against the step, on a logarithmic step axis, with one colour per run and one line per chain.

    A dashed line shows the mean loss over the draws of a run, if it was recorded.
    """
    rows = []
    with _style.style():
        figure, axes = _style.panels(height=2.9)
        panel = axes[0, 0]
        ends: list[float] = []
        for path, colour in zip(paths, cycle(_style.CYCLE)):
            curve_label = path.name
            for steps, values in _curves_of_path(path):
                for chain in values:
                    panel.plot(steps, chain, color=colour, lw=0.7, alpha=0.8, label=curve_label)
                    curve_label = ""
            for values in (path.warmup, path.draws):
                if values is not None:
                    second_half = values[:, values.shape[1] // 2 :]
                    ends += [float(value) for value in (second_half.min(), second_half.max()) if np.isfinite(value)]
            if path.draws is not None:
                mean = float(path.draws.mean())
                panel.axhline(mean, color=colour, ls=(0, (4, 2)), lw=1.2, label=f"{path.name}: mean {mean:.4g}")
                rows.append({"run": path.name, "what": "mean over draws", "loss": mean})
            else:
                rows.append(
                    {"run": path.name, "what": "at the end", "loss": float(_curves_of_path(path)[-1][1][:, -1].mean())}
                )
        # The lower half of the vertical axis shows the range of the second halves of all curves. The upper half shows a
        # part of the initial fall.
        low, high = min(ends, default=0.0), max(ends, default=1.0)
        room = (high - low) or 1.0
        panel.set_ylim(low - 0.1 * room, high + room)
        _style.set_log_scale(panel, "x")
        panel.set(xlabel="step", ylabel="loss L(θ) = −log p(θ, D), up to a constant")
        _style.add_legend(figure, *panel.get_legend_handles_labels())
    losses_text = "; ".join(f"{row['run']}: {row['what']} {row['loss']:.4g}" for row in rows)
    alt = f"Loss against step for {len(paths)} runs, one line per chain. {losses_text}."
    return Picture("loss", "Loss over the steps", alt, figure, pd.DataFrame(rows))


def _curves_of_path(path: Descent) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return a curve for warm-up and a curve for the draws: step numbers, and the loss of each chain at these steps."""
    curves = []
    if path.warmup is not None:
        count = path.warmup.shape[1]
        positions = np.unique(np.geomspace(1, count, min(count, _POINTS)).round().astype(int)) - 1
        curves.append((positions + 1, path.warmup[:, positions]))
    if path.draws is not None:
        positions = _style.evenly_spaced(path.draws.shape[1], _POINTS)
        curves.append((path.first + positions * path.thin, path.draws[:, positions]))
    return curves
