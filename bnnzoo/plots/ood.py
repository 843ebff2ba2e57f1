"""Histograms of the uncertainty for familiar and for unfamiliar inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture
from bnnzoo.plots._style import BLUE, MUTED, ORANGE

Score = tuple[Float[np.ndarray, " row"], Float[np.ndarray, " other"]]
"""Values of an uncertainty score for the test rows, and for the unfamiliar rows."""

_BINS = 25
_AXES = {
    "max_probability": "largest predicted probability",
    "entropy": "predictive entropy (nats)",
    "mutual_information": "mutual information (nats)",
    "sd": "predictive sd / training sd of the target",
    "epistemic_sd": "epistemic sd / training sd of the target",
    "nll": "minus the log density of a row (nats)",
}


def ood(columns: Mapping[str, Mapping[str, Score]], *, name: str) -> Picture:
    """Draw histograms of uncertainty scores for the test rows and for the unfamiliar rows.

    A row of panels shows one score, and a column of panels shows one predictive distribution. The predictive
    distribution of a single draw has no scores for the variation between draws (mutual information, epistemic sd). The
    panels of these scores show a note instead.

    Args:
        columns: the scores of each predictive distribution, by name of the distribution and of the score. The first
            distribution must have all scores.
        name: name of the unfamiliar rows.
    """
    scores = [score for score in _AXES if score in next(iter(columns.values()))]
    rows = []
    with _style.style():
        width = _style.WIDTH * max(1.0, len(columns) / 2)
        figure, axes = _style.panels(len(scores), len(columns), height=1.7, width=width, sharex="row", sharey="row")
        for line, score in zip(axes, scores, strict=True):
            edges = _edges(score, [values for score_pairs in columns.values() for values in score_pairs.get(score, ())])
            for panel, (source, score_pairs) in zip(line, columns.items(), strict=True):
                if score not in score_pairs:
                    panel.text(
                        0.5, 0.5, "not defined for one draw", transform=panel.transAxes, ha="center", color=MUTED
                    )
                    panel.set_axis_off()
                    continue
                for rows_name, values, colour in zip(("test", name), score_pairs[score], (BLUE, ORANGE), strict=True):
                    fractions = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)
                    panel.stairs(fractions, edges, fill=True, color=colour, alpha=0.3, lw=0)
                    panel.stairs(fractions, edges, color=colour, lw=1.2, label=rows_name)
                    rows += [
                        {"score": score, "of": source, "rows": rows_name, "from": low, "to": high, "share": fraction}
                        for low, high, fraction in zip(edges[:-1], edges[1:], fractions, strict=True)
                    ]
                panel.set_xlim(edges[0], edges[-1])
            is_shared = all(score in score_pairs for score_pairs in columns.values())
            label = line[(len(columns) - 1) // 2 if is_shared else 0].set_xlabel(_AXES[score])
            if is_shared and len(columns) % 2 == 0:
                label.set_position((1, 0))  # centred below the row, between the two middle panels
        for panel, source in zip(axes[0], columns, strict=True):
            _style.title(panel, source, letters=18)
        figure.supylabel("fraction of rows", fontsize=9)
        _style.add_legend(figure, *axes[0, 0].get_legend_handles_labels())
    means_text = "; ".join(
        f"mean {_AXES[score]} "
        + ", ".join(
            f"{np.mean(score_pairs[score][0]):.3g} on test rows and {np.mean(score_pairs[score][1]):.3g} on "
            f"{name} ({source})"
            for source, score_pairs in columns.items()
            if score in score_pairs
        )
        for score in scores
    )
    counts = [len(values) for values in next(iter(columns.values()))[scores[0]]]
    alt = f"Histograms for {counts[0]} test rows and {counts[1]} rows of {name}: {means_text}."
    return Picture("ood", "Uncertainty about unfamiliar inputs", alt, figure, pd.DataFrame(rows))


def _edges(score: str, values: list[np.ndarray]) -> np.ndarray:
    """Return the edges of the bins. The last edge is the largest of the 99 % quantiles of the arrays."""
    values = [finite for score_values in values if len(finite := score_values[np.isfinite(score_values)])]
    if score == "max_probability" or not values:
        return np.linspace(0, 1, _BINS + 1)
    top = max(float(np.quantile(score_values, 0.99)) for score_values in values) or 1.0
    low = 0.0 if score not in ("sd", "nll") else min(float(score_values.min()) for score_values in values)
    return np.linspace(low, max(top, low + 1e-6), _BINS + 1)
