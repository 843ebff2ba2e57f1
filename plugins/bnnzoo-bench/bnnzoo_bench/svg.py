"""Lines and labels of the pictures, as SVG that follows the colours of the page."""

from __future__ import annotations

from html import escape


def line(x1: float, y1: float, x2: float, y2: float, more: str) -> str:
    """Return an SVG line in the colour of the text; `more` contains further SVG attributes."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" {more}/>'


def label(x: float, y: float, text: str, anchor: str) -> str:
    """Return an SVG text whose `anchor` (start, middle or end) is at the position (x, y)."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="13" fill="currentColor">{escape(text)}</text>'
    )
