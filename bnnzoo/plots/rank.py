"""Rank plot: the ranks of each chain's draws among the draws of all chains."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import binom, rankdata

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture
from bnnzoo.plots._style import MUTED


def rank(values: Mapping[str, Float[np.ndarray, "chain draw"]], ess: Mapping[str, float]) -> Picture:
    """Draw one panel per value and one line per chain: frequencies of its ranks relative to uniform ones.

    Vehtari, Gelman, Simpson, Carpenter and Buerkner 2021, section 4.3. The grey band holds 98 % of a bin's counts for
    independent draws, as many as the value's effective sample size.
    """
    chains, draws = next(iter(values.values())).shape
    bins = int(np.clip(draws // 25, 2, 20))
    edges = np.linspace(0, 1, bins + 1)
    counts: dict[str, np.ndarray] = {}
    with _style.style():
        figure, axes = _style.panels(len(values), height=1.35, sharex=True)
        for panel, (name, value) in zip(axes[:, 0], values.items(), strict=True):
            # Ties, such as a probability that rounds to one, are broken at random, so that they favour no chain.
            shuffled = np.random.default_rng(0).permutation(value.size)
            ranks = np.empty(value.size)
            ranks[shuffled] = (rankdata(value.ravel()[shuffled], method="ordinal") - 0.5) / value.size
            ranks = ranks.reshape(value.shape)
            counts[name] = np.stack([np.histogram(chain, edges)[0] for chain in ranks]) * bins / draws
            effective_draws = max(1, round(ess[name] / chains)) if np.isfinite(ess[name]) else draws
            low, high = binom.ppf([0.01, 0.99], effective_draws, 1 / bins) * bins / effective_draws
            panel.axhspan(low, high, color=MUTED, alpha=0.18, lw=0)
            for chain in counts[name]:
                panel.stairs(chain, edges, baseline=None, lw=1.2)
            _style.title(panel, name, fontsize=8)
            panel.set_ylim(0, max(2.0, 1.08 * float(counts[name].max()), 1.05 * float(high)))
        axes[-1, 0].set(xlabel="rank among the draws of all chains, divided by their number", xlim=(0, 1))
        figure.supylabel("frequency / uniform", fontsize=9)
        _style.add_chain_legend(figure, axes[0, 0].patches[1:])
    worst = {name: float(np.abs(frequencies - 1).max()) for name, frequencies in counts.items()}
    name = max(worst, key=lambda key: worst[key])
    alt = (
        f"Frequency of the ranks of each chain's draws, for {len(values)} predictions; it is 1 (uniform) if the "
        f"chains agree. The bin farthest from 1 differs by {worst[name]:.2g}, in {name}; independent draws stay "
        "in the grey band."
    )
    table = pd.DataFrame(
        [
            {"value": name, "chain": index, "from": edges[k], "to": edges[k + 1], "over uniform": chain[k]}
            for name, frequencies in counts.items()
            for index, chain in enumerate(frequencies)
            for k in range(bins)
        ]
    )
    return Picture("rank", "Ranks of each chain's draws", alt, figure, table)
