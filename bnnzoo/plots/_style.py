"""How every picture looks: sizes of one journal column, colours told apart by the colour-blind, no display."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

INK = "#1c2024"
MUTED = "#6f7782"
# Okabe and Ito's colours, in the order in which they are used.
BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER)

VARIABLES = {
    "--ink": INK,
    "--muted": MUTED,
    "--blue": BLUE,
    "--orange": ORANGE,
    "--green": GREEN,
    "--purple": PURPLE,
    "--sky": SKY,
    "--amber": AMBER,
}
"""What a page that shows a picture may recolour: names of its style sheet's variables."""

WIDTH = 4.0
"""Inches: one column of a journal, and with 9 points still readable on a phone."""

_RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,  # names of columns are no formulas
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=CYCLE),
    "axes.formatter.useoffset": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.4,
    "hatch.linewidth": 0.5,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
}


@contextlib.contextmanager
def style(**more: Any) -> Iterator[None]:
    """Our settings for as long as something is drawn; the caller's are untouched."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(cast(Any, {**_RC, **more}))
        yield


def panels(rows: int = 1, columns: int = 1, *, height: float, width: float = WIDTH, **how: Any) -> tuple[Figure, Any]:
    """A figure of panels, `height` inches each, and its axes [row, column]. Without pyplot: no backend, no display."""
    figure = Figure(figsize=(width, 0.35 + rows * height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **how)


def tint(colour: str, strength: float) -> tuple[float, float, float]:
    """A colour on white, opaque: where two areas lie over each other the upper one shows, and no third colour."""
    red, green, blue = (1 - strength * (1 - channel) for channel in to_rgb(colour))
    return red, green, blue


def title(panel: Axes, text: str, *, letters: int = 48, **how: Any) -> None:
    """A panel's title in lines of so many letters: the layout makes room above a title, and none beside it."""
    panel.set_title(textwrap.fill(text, letters), **how)


def headroom(axes: Axes, share: float) -> None:
    """Room above the data for a legend: a share of the height."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + share * (high - low))


def key(figure: Figure, handles: Sequence[Any], labels: Sequence[str], **how: Any) -> None:
    """A legend above the panels, in as many columns as fit beside each other."""
    lines = [textwrap.fill(label, 48) for label in labels]
    letters = max((len(line) for label in lines for line in label.splitlines()), default=1)
    # In points: a letter, and what a column has beside its letters.
    fitting = int(72 * figure.get_figwidth() / (5 * letters + 36))
    figure.legend(handles, lines, loc="outside upper center", ncols=max(1, min(fitting, len(lines))), **how)


def key_of_chains(figure: Figure, handles: Sequence[Any]) -> None:
    """A legend that names the chains, while there are few."""
    if 1 < len(handles) <= 6:
        names = [f"chain {index}" for index in range(len(handles))]
        figure.legend(handles, names, loc="outside upper center", ncols=min(len(handles), 4))


def rhat_text(value: float) -> str:
    """An R-hat to two digits; of chains that have nothing in common, no number."""
    return f"{value:.2f}" if value < 10 else "above 10"


def some(count: int, most: int) -> np.ndarray:
    """At most `most` indices of `count`, evenly spread: a picture of more is slower and shows no more."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
