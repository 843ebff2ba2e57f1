"""Common style of all pictures: the width of one journal column, and colours for colour-blind readers."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

INK = "#1c2024"
MUTED = "#6f7782"
# The colours of Okabe and Ito, in the order of their use.
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
"""Names of CSS variables with their colours. An HTML page can set the variables to change the colours."""

WIDTH = 4.0
"""Width of a picture in inches: one journal column. At this width, 9-point text is readable on a phone."""

_RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,  # column names are not formulas
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
def style(**settings: Any) -> Iterator[None]:
    """Apply the settings of this module inside a `with` block, and restore the settings of the caller afterwards."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(cast(Any, {**_RC, **settings}))
        yield


def panels(
    rows: int = 1, columns: int = 1, *, height: float, width: float = WIDTH, **options: Any
) -> tuple[Figure, Any]:
    """Return a figure with panels that are `height` inches high, and the array [row, column] of its matplotlib axes.

    The function does not use pyplot, so no backend and no display are needed.
    """
    figure = Figure(figsize=(width, 0.35 + rows * height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def tint(colour: str, strength: float) -> tuple[float, float, float]:
    """Return an opaque mixture of a colour with white, so that overlapping areas do not blend into a third colour."""
    red, green, blue = (1 - strength * (1 - channel) for channel in to_rgb(colour))
    return red, green, blue


def title(panel: Axes, text: str, *, letters: int = 48, **options: Any) -> None:
    """Set the title of a panel, with line breaks after at most `letters` characters."""
    panel.set_title(textwrap.fill(text, letters), **options)


class _PlainLogFormatter(LogFormatter):
    """Labels of a logarithmic axis as plain numbers. The default labels are formulas, and `_RC` disables formulas."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def set_log_scale(panel: Axes, direction: Literal["x", "y"]) -> None:
    """Make the horizontal or the vertical axis of a panel logarithmic."""
    panel.set(**{f"{direction}scale": "log"})
    axis = panel.xaxis if direction == "x" else panel.yaxis
    axis.set_major_formatter(_PlainLogFormatter())
    axis.set_minor_formatter(_PlainLogFormatter(labelOnlyBase=False))


def headroom(axes: Axes, fraction: float) -> None:
    """Extend the vertical axis at the top by a fraction of its range, to make room for a legend."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + fraction * (high - low))


def add_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], **options: Any) -> None:
    """Add a legend above the panels, in as many columns as fit."""
    lines = [textwrap.fill(label, 48) for label in labels]
    letters = max((len(line) for label in lines for line in label.splitlines()), default=1)
    # Widths in points: 5 per character, and 36 per column for the line sample and the gap.
    fitting = int(72 * figure.get_figwidth() / (5 * letters + 36))
    figure.legend(handles, lines, loc="outside upper center", ncols=max(1, min(fitting, len(lines))), **options)


def add_chain_legend(figure: Figure, handles: Sequence[Any]) -> None:
    """Add a legend of the chains if there are two to six chains."""
    if 1 < len(handles) <= 6:
        names = [f"chain {index}" for index in range(len(handles))]
        figure.legend(handles, names, loc="outside upper center", ncols=min(len(handles), 4))


def rhat_text(value: float) -> str:
    """Format an R-hat with two decimals, or as "above 10"."""
    return f"{value:.2f}" if value < 10 else "above 10"


def evenly_spaced(count: int, max_count: int) -> np.ndarray:
    """Return at most `max_count` evenly spaced indices from 0 to `count - 1`."""
    return np.unique(np.linspace(0, count - 1, min(count, max_count)).round().astype(int))
