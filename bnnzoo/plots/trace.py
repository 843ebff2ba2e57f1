"""Trace plot: values of a few predictions, draw by draw."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture

_POINTS = 400


def trace(values: Mapping[str, Float[np.ndarray, "chain draw"]], rhat: Mapping[str, float]) -> Picture:
    """Draw one panel per value and one line per chain; chains that agree overlap in one band."""
    chains, draws = next(iter(values.values())).shape
    draw_numbers = _style.evenly_spaced(draws, _POINTS)
    with _style.style():
        figure, axes = _style.panels(len(values), height=1.35, sharex=True)
        for panel, (name, value) in zip(axes[:, 0], values.items(), strict=True):
            for chain in value:
                panel.plot(draw_numbers, chain[draw_numbers], lw=0.6, alpha=0.8)
            _style.title(panel, f"{name}, R-hat {_style.rhat_text(rhat[name])}", fontsize=8)
        axes[-1, 0].set(xlabel="draw", xlim=(0, max(1, draws - 1)))
        figure.supylabel("value", fontsize=9)
        _style.add_chain_legend(figure, axes[0, 0].get_lines())
    worst = max(rhat, key=lambda name: rhat[name])
    alt = (
        f"{len(values)} predictions over {draws} draws of {chains} chains, one line per chain. The largest "
        f"R-hat shown is {_style.rhat_text(rhat[worst])}, of {worst}."
    )
    table = pd.DataFrame(
        [
            {
                "value": name,
                "chain": index,
                "mean": chain.mean(),
                "sd": chain.std(),
                "first": chain[0],
                "last": chain[-1],
            }
            for name, value in values.items()
            for index, chain in enumerate(value)
        ]
    )
    return Picture("trace", "Predictions of each draw", alt, figure, table)
