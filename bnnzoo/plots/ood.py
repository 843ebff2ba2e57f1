"""Does a model know what it does not know? Its uncertainty on familiar and on unfamiliar inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture
from bnnzoo.plots._style import BLUE, MUTED, ORANGE

Score = tuple[Float[np.ndarray, " row"], Float[np.ndarray, " other"]]
"""A score of the test rows, and of the unfamiliar ones."""

_BINS = 25
_AXES = {
    "max_probability": "largest predicted probability",
    "entropy": "predictive entropy (nats)",
    "mutual_information": "mutual information (nats)",
    "sd": "predictive sd / training sd of the target",
    "epistemic_sd": "epistemic sd / training sd of the target",
}


def ood(posterior: Mapping[str, Score], single: Mapping[str, Score], *, name: str) -> Picture:
    """A row a score, the posterior left and its single best draw right: histograms of both kinds of rows.

    Scores about the spread of draws (mutual information, epistemic sd) are the posterior's alone.

    Args:
        name: what the unfamiliar rows are.
    """
    scores = [score for score in _AXES if score in posterior]
    rows = []
    with _style.style():
        figure, axes = _style.panels(len(scores), 2, height=1.7, sharex="row", sharey="row")
        for line, score in zip(axes, scores, strict=True):
            edges = _edges(score, [*posterior[score], *single.get(score, ())])
            for panel, (who, found) in zip(line, (("posterior", posterior), ("single best draw", single)), strict=True):
                if score not in found:
                    panel.text(0.5, 0.5, "one draw has none", transform=panel.transAxes, ha="center", color=MUTED)
                    panel.set_axis_off()
                    continue
                for what, values, colour in zip(("test", name), found[score], (BLUE, ORANGE), strict=True):
                    share = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)
                    panel.stairs(share, edges, fill=True, color=colour, alpha=0.3, lw=0)
                    panel.stairs(share, edges, color=colour, lw=1.2, label=what)
                    rows += [
                        {"score": score, "of": who, "rows": what, "from": low, "to": high, "share": one}
                        for low, high, one in zip(edges[:-1], edges[1:], share, strict=True)
                    ]
                panel.set_xlim(edges[0], edges[-1])
            label = line[0].set_xlabel(_AXES[score])
            if score in single:
                label.set_position((1.0, 0))  # between the two
        for panel, title in zip(axes[0], ("posterior", "single best draw"), strict=True):
            panel.set_title(title)
        figure.supylabel("share of rows", fontsize=9)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    told = "; ".join(
        f"mean {_AXES[score]} {np.mean(posterior[score][0]):.3g} on test rows and "
        f"{np.mean(posterior[score][1]):.3g} on {name}"
        + (
            f" (single best draw {np.mean(single[score][0]):.3g} and {np.mean(single[score][1]):.3g})"
            if score in single
            else ""
        )
        for score in scores
    )
    alt = (
        f"Histograms for {len(posterior[scores[0]][0])} test rows and {len(posterior[scores[0]][1])} of {name}: {told}."
    )
    return Picture("ood", "What it says of the unfamiliar", alt, figure, pd.DataFrame(rows))


def _edges(score: str, values: list[np.ndarray]) -> np.ndarray:
    """Bins over all values; a tail of one in a hundred joins the last bin."""
    if score == "max_probability":
        return np.linspace(0, 1, _BINS + 1)
    top = max(float(np.quantile(one, 0.99)) for one in values) or 1.0
    low = 0.0 if score != "sd" else min(float(one.min()) for one in values)
    return np.linspace(low, max(top, low + 1e-6), _BINS + 1)
