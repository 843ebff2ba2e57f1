"""Plot of the distance from a reference posterior against the run time of each method, with the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from bnnzoo_bench import svg

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 390, 300, 52, 16, 24, 44


class Point(NamedTuple):
    """The name of a method, its positive run time, and the positive distance of its predictions from the reference."""

    name: str
    seconds: float
    distance: float


class ParetoPlot(NamedTuple):
    """Points of the methods on one problem, and the distance between two halves of the reference's draws (`floor`)."""

    problem: str
    points: tuple[Point, ...]
    floor: float


def front(points: Sequence[Point]) -> list[Point]:
    """Return the Pareto front: the points that no other point equals or beats in both time and distance.

    The fastest point is first. If several points have equal seconds and equal distances, only one of them is returned.
    """
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.seconds, point.distance)):
        if not kept or point.distance < kept[-1].distance:
            kept.append(point)
    return kept


def picture(plot: ParetoPlot) -> str:
    """Return the plot as SVG with logarithmic axes. A line joins the methods of the Pareto front."""
    horizontal = _Axis.containing([p.seconds for p in plot.points], _LEFT, _WIDTH - _RIGHT)
    vertical = _Axis.containing([*(p.distance for p in plot.points), plot.floor], _HEIGHT - _BOTTOM, _TOP)
    parts = []
    for value in horizontal.ticks():
        x = horizontal.place(value)
        parts.append(svg.line(x, _TOP, x, _HEIGHT - _BOTTOM, 'stroke-opacity=".18"'))
        parts.append(svg.label(x, _HEIGHT - _BOTTOM + 16, f"{value:g}", "middle"))
    for value in vertical.ticks():
        y = vertical.place(value)
        parts.append(svg.line(_LEFT, y, _WIDTH - _RIGHT, y, 'stroke-opacity=".18"'))
        parts.append(svg.label(_LEFT - 6, y + 4, f"{value:g}", "end"))
    y = vertical.place(plot.floor)
    parts.append(svg.line(_LEFT, y, _WIDTH - _RIGHT, y, 'stroke-dasharray="5 4"'))
    parts.append(svg.label(_LEFT + 4, y - 5, "two halves of the reference", "start"))
    parts.append(svg.label((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, "seconds", "middle"))
    parts.append(svg.label(4, 14, "total variation", "start"))
    best = front(plot.points)
    corners = " ".join(f"{horizontal.place(p.seconds):.1f},{vertical.place(p.distance):.1f}" for p in best)
    parts.append(f'<polyline points="{corners}" fill="none" stroke="var(--accent)" stroke-width="2"/>')
    for point in plot.points:
        x, y = horizontal.place(point.seconds), vertical.place(point.distance)
        fill = "var(--accent)" if point in best else "var(--soft)"
        tip = f"<title>{escape(_words(point))}</title>"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}">{tip}</circle>')
        is_right = x > _WIDTH * 0.75
        parts.append(svg.label(x - 8 if is_right else x + 8, y + 4, point.name, "end" if is_right else "start"))
    alternative = escape(f"{plot.problem}: {'; '.join(map(_words, plot.points))}. {sentence(plot)}")
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{alternative}">{"".join(parts)}</svg>'


def sentence(plot: ParetoPlot) -> str:
    """Return the methods of the Pareto front as a sentence."""
    return f"Pareto front: {', '.join(point.name for point in front(plot.points))}."


def _words(point: Point) -> str:
    return f"{point.name}: total variation {point.distance:.3g} in {point.seconds:.3g} s"


class _Axis(NamedTuple):
    """A logarithmic axis from the value `low` at the coordinate `start` to the value `high` at the coordinate `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def containing(cls, values: Sequence[float], start: float, end: float) -> _Axis:
        """Construct an axis from the smallest value divided by 1.4 to the largest value times 1.4."""
        return cls(min(values) / 1.4, max(values) * 1.4, start, end)

    def place(self, value: float) -> float:
        """Return the coordinate of a value."""
        fraction = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + fraction * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return the ticks: 1, 2 and 5 times powers of ten, or only the powers if there would be more than 7 ticks."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1, 2, 5), (1,)):
            values = [digit * 10.0**power for power in powers for digit in digits]
            inside = [value for value in values if self.low <= value <= self.high]
            if len(inside) <= 7:
                break
        return inside
