"""Pictures of predictions by chain and draw: traces, ranks and autocorrelation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]
from jaxtyping import Float
from scipy.stats import binom, rankdata

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture, column_name
from bnnzoo.plots._style import MUTED

_POINTS, _LAGS = 400, 100


def trace(values: Mapping[str, Float[np.ndarray, "chain draw"]], rhat: Mapping[str, float]) -> Picture:
    """Draw the values of predictions against the draw, one panel per prediction and one line per chain.

    If the chains agree, the lines overlap.

    Args:
        values: the draws of each prediction, by name of the prediction.
        rhat: R-hat of each prediction, for the titles.
    """
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


def rank(values: Mapping[str, Float[np.ndarray, "chain draw"]], ess: Mapping[str, float]) -> Picture:
    """Draw the frequencies of the ranks of each chain, divided by the frequency of a uniform distribution.

    There is one panel per prediction and one line per chain. See Vehtari, Gelman, Simpson, Carpenter and Buerkner 2021,
    section 4.3. The grey band contains the value of a bin with probability 98 % if the chains agree. For the band, the
    number of independent draws is assumed to be the effective sample size.

    Args:
        values: the draws of each prediction, by name of the prediction.
        ess: effective sample size of each prediction, summed over the chains.
    """
    chains, draws = next(iter(values.values())).shape
    bins = int(np.clip(draws // 25, 2, 20))
    edges = np.linspace(0, 1, bins + 1)
    counts: dict[str, np.ndarray] = {}
    with _style.style():
        figure, axes = _style.panels(len(values), height=1.35, sharex=True)
        for panel, (name, value) in zip(axes[:, 0], values.items(), strict=True):
            # Equal values, such as probabilities that round to 1, get ranks in random order, so no chain is favoured.
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
        axes[-1, 0].set(xlabel="rank among the draws of all chains, divided by the number of draws", xlim=(0, 1))
        figure.supylabel("frequency / uniform", fontsize=9)
        _style.add_chain_legend(figure, axes[0, 0].patches[1:])
    differences = {name: float(np.abs(frequencies - 1).max()) for name, frequencies in counts.items()}
    name = max(differences, key=lambda key: differences[key])
    alt = (
        f"Frequency of the ranks of each chain's draws, for {len(values)} predictions. The frequency is 1 (uniform) "
        f"if the chains agree. The largest difference from 1 is {differences[name]:.2g}, for {name}. The grey band "
        "contains 98 % of the frequencies if the chains agree."
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


def autocorrelation(values: Mapping[str, Float[np.ndarray, "chain draw"]], ess: Mapping[str, float]) -> Picture:
    """Draw the autocorrelation of predictions, one panel per prediction and one line per chain.

    The largest lag is 100 or half of the number of draws, whichever is smaller.

    Args:
        values: the draws of each prediction, by name of the prediction.
        ess: effective sample size of each prediction, for the titles.
    """
    chains, draws = next(iter(values.values())).shape
    lags = np.arange(min(_LAGS, draws // 2) + 1)
    by_name: dict[str, np.ndarray] = {}
    with _style.style(), np.errstate(invalid="ignore", divide="ignore"):
        figure, axes = _style.panels(len(values), height=1.35, sharex=True, sharey=True)
        for panel, (name, value) in zip(axes[:, 0], values.items(), strict=True):
            estimates = np.asarray(array_stats.autocorr(np.asarray(value, float), axis=-1))[:, : len(lags)]
            # The autocorrelation of a chain that never moves is drawn as 1.
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
        f"The smallest effective sample size shown is {ess[worst]:.0f} of {chains * draws} draws, for {worst}. "
        "Values inside the grey band do not differ clearly from 0."
    )
    means = {column_name(name, ("lag",)): value.mean(0) for name, value in by_name.items()}
    table = pd.DataFrame({"lag": lags} | means)
    return Picture("autocorrelation", "Autocorrelation of the chains", alt, figure, table)
