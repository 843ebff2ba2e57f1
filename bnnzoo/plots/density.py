"""Pictures of the predictive density of data without inputs, for one or two columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float

from bnnzoo.plots import _style
from bnnzoo.plots._picture import Picture, column_name
from bnnzoo.plots._style import BLUE, INK, MUTED

_TITLE = "Predictive density"
_POINTS = 800
_BINS = 30
MASS = (0.99, 0.9, 0.5)
"""Probabilities of the highest-density regions."""


def density_of_one(
    grid: Float[np.ndarray, " point"],
    density: Float[np.ndarray, " point"],
    low: Float[np.ndarray, " point"],
    high: Float[np.ndarray, " point"],
    rows: Float[np.ndarray, " row"],
    *,
    column: str,
) -> Picture:
    """Draw the density of one column, a band for the variation between draws, and a histogram of the data.

    Args:
        grid: points at which the densities are given.
        density: the predictive density.
        low: the 5 % quantile over draws of the density given a draw.
        high: the 95 % quantile over draws of the density given a draw.
        rows: the training data.
        column: name of the column.
    """
    with _style.style():
        figure, axes = _style.panels(height=2.4)
        panel = axes[0, 0]
        panel.hist(rows, bins=_BINS, density=True, color=MUTED, alpha=0.35, label="training data")
        panel.fill_between(grid, low, high, color=BLUE, alpha=0.3, lw=0, label="90 % of draws")
        panel.plot(grid, density, color=BLUE, label="predictive density")
        panel.set(xlabel=column, ylabel="density", xlim=(grid[0], grid[-1]))
        panel.set_ylim(bottom=0)
        _style.headroom(panel, 0.35)
        panel.legend(loc="upper center", ncols=2)
    alt = (
        f"Predictive density of {column} over a histogram of {len(rows)} training rows. The density is largest "
        f"({density.max():.3g}) at {grid[density.argmax()]:.3g}. At each point, the band contains 90 % of "
        "the draws' densities."
    )
    numbers = {"density": density, "q05": low, "q95": high}
    table = pd.DataFrame({column_name(column, numbers): grid, **numbers})
    return Picture("density", _TITLE, alt, figure, table)


def density_of_two(
    grids: tuple[Float[np.ndarray, " across"], Float[np.ndarray, " up"]],
    density: Float[np.ndarray, "up across"],
    rows: Float[np.ndarray, "row 2"],
    *,
    columns: Sequence[str],
) -> Picture:
    """Draw the data, and the highest-density regions of two columns with probabilities 50, 90 and 99 %."""
    x_grid, y_grid = grids
    levels = levels_of(density)
    with _style.style():
        figure, axes = _style.panels(height=3.4)
        panel = axes[0, 0]
        for level, alpha in zip(levels, (0.18, 0.28, 0.4), strict=True):
            panel.contourf(x_grid, y_grid, density, levels=[level, np.inf], colors=[BLUE], alpha=alpha)
        edges = panel.contour(x_grid, y_grid, density, levels=levels, colors=[BLUE], linewidths=0.7)
        panel.clabel(
            edges, fmt={level: f"{100 * mass:.0f} %" for level, mass in zip(levels, MASS, strict=True)}, fontsize=7
        )
        row_numbers = _style.evenly_spaced(len(rows), _POINTS)
        panel.plot(*rows[row_numbers].T, ".", color=INK, ms=3, alpha=0.6, mew=0)
        panel.set(xlabel=columns[0], ylabel=columns[1])
    peak = np.unravel_index(density.argmax(), density.shape)
    alt = (
        f"Regions of highest predictive density of {columns[0]} and {columns[1]} that contain 50, 90 and 99 % "
        f"of the probability, with {len(row_numbers)} of {len(rows)} training rows. The density is largest "
        f"({density.max():.3g}) at ({x_grid[peak[1]]:.3g}, {y_grid[peak[0]]:.3g})."
    )
    x, y = np.meshgrid(x_grid, y_grid)
    x_name, y_name = (column_name(column, ("density",)) for column in columns)
    table = pd.DataFrame({x_name: x.ravel(), y_name: y.ravel(), "density": density.ravel()})
    return Picture("density", _TITLE, alt, figure, table)


def levels_of(density: Float[np.ndarray, "up across"]) -> list[float]:
    """Return the density at the border of each highest-density region in `MASS`, in strictly ascending order."""
    ordered = np.sort(density.ravel())[::-1].astype(float)
    cumulative_mass = np.cumsum(ordered) / ordered.sum()
    levels = [float(ordered[min(np.searchsorted(cumulative_mass, mass), len(cumulative_mass) - 1)]) for mass in MASS]
    return [level * (1 + 1e-9 * i) for i, level in enumerate(levels)]
