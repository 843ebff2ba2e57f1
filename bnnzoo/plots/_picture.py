"""A picture: the figure, a description of it, and a table of the plotted numbers."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from bnnzoo.errors import UsageError
from bnnzoo.files.atomic import write_atomically
from bnnzoo.plots._style import VARIABLES, style

FORMATS = ("png", "svg", "pdf", "eps", "tiff")


def picture_format(path: Path) -> str:
    """Return the format of a picture file from its suffix.

    Raises:
        UsageError: if the suffix is unknown.
    """
    format = path.suffix.removeprefix(".").lower()
    if format not in FORMATS:
        raise UsageError(f"{path}: unknown picture format; use the ending {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return format


def column_name(name: str, taken: Collection[str]) -> str:
    """Return a column name for the quantity `name`. If `name` is in `taken`, append " (values)"."""
    return f"{name} (values)" if name in taken else name


@dataclass(frozen=True, repr=False)
class Picture:
    """A picture: `figure` is a matplotlib figure, `alt` is its description, and `table` contains the drawn numbers."""

    name: str
    title: str
    alt: str
    figure: Figure
    table: pd.DataFrame

    def __repr__(self) -> str:
        return f"<Picture {self.name}: {textwrap.shorten(self.alt, 100, placeholder=' ...')}>"

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file, on a white background.

        The suffix of the file determines the format: png, svg, pdf, eps or tiff.

        Raises:
            UsageError: if the suffix is unknown.
        """
        path = Path(path)
        content = self._render(picture_format(path), facecolor="white")
        write_atomically(path, lambda file: file.write(content))  # type: ignore[arg-type,return-value]
        return path

    def inline_svg(self) -> str:
        """Return the picture as an SVG element for an HTML page.

        The element has no background, no metadata, no group ids and no references to other files.
        """
        svg = self._render("svg", **{"svg.fonttype": "none"}).decode()
        svg = svg[svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        svg = re.sub(r'(<g) id="[^"]*"', r"\1", svg)
        view_box = re.search(r'viewBox="([^"]*)"', svg)
        assert view_box
        colours = {colour: f"var({name})" for name, colour in VARIABLES.items()}
        svg = re.sub("|".join(colours), lambda match: colours[match[0]], svg)
        return f'<svg viewBox="{view_box[1]}" role="img" aria-label="{escape(self.alt)}">' + svg[
            svg.index(">") + 1 :
        ].strip().replace("xlink:href", "href")

    def _render(self, format: str, facecolor: str = "none", **settings: str) -> bytes:
        file = io.BytesIO()
        metadata = {"Date": None} if format == "svg" else None
        with style(**{"svg.hashsalt": self.name, **settings}):
            # The layout changes slightly between the first and the second drawing, so the figure is drawn twice.
            self.figure.draw_without_rendering()
            self.figure.savefig(file, format=format, facecolor=facecolor, metadata=metadata)
        return file.getvalue()

    def _repr_png_(self) -> bytes:
        """Return the picture as PNG, for a notebook."""
        return self._render("png", facecolor="white")
