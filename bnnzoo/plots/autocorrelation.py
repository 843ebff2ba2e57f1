"""Autocorrelation of a few predictions within each chain."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]
from jaxtyping import Float

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture
from bnnzoo.plots._style import MUTED

_LAGS = 100


def autocorrelation(values: Mapping[str, Float[np.ndarray, "chain draw"]], ess: Mapping[str, float]) -> Picture:
    """Draw one panel per value and one line per chain, up to half of the draws and at most 100 lags."""
    chains, draws = next(iter(values.values())).shape
    lags = np.arange(min(_LAGS, draws // 2) + 1)
    by_name: dict[str, np.ndarray] = {}
    with _style.style(), np.errstate(invalid="ignore", divide="ignore"):
        figure, axes = _style.panels(len(values), height=1.35, sharex=True, sharey=True)
        for panel, (name, value) in zip(axes[:, 0], values.items(), strict=True):
            estimates = np.asarray(array_stats.autocorr(np.asarray(value, float), axis=-1))[:, : len(lags)]
            # The autocorrelation of a chain that never moves is taken as 1.
            by_name[name] = np.where(np.isfinite(estimates), estimates, 1.0)
            limit = 2 / draws**0.5
            panel.axhspan(-limit, limit, color=MUTED, alpha=0.18, lw=0)
            panel.axhline(0, color=MUTED, lw=0.7)
            for chain in by_name[name]:
                panel.plot(lags, chain, lw=1)
            _style.title(panel, f"{name}, ESS {ess[name]:.0f} of {value.size}", fontsize=8)
        axes[-1, 0].set(xlabel="lag in draws", xlim=(0, max(1, lags[-1])))
        figure.supylabel("autocorrelation", fontsize=9)
        _style.add_chain_legend(figure, axes[0, 0].get_lines()[1:])
    worst = min(ess, key=lambda name: ess[name])
    alt = (
        f"Autocorrelation of {len(values)} predictions within each of {chains} chains, up to lag {lags[-1]}. "
        f"The smallest effective sample size shown is {ess[worst]:.0f} of {chains * draws} draws, of {worst}. "
        "Values inside the grey band are noise."
    )
    table = pd.DataFrame({"lag": lags} | {name: value.mean(0) for name, value in by_name.items()})
    return Picture("autocorrelation", "Autocorrelation of the chains", alt, figure, table)
