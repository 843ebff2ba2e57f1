"""The picture `density`: the predictive density of data without inputs."""

from __future__ import annotations

import numpy as np

from bnnzoo import plots
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.formulas import metrics
from bnnzoo.evaluation.predictions import per_draw, prediction_table
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.plots import Picture
from bnnzoo.report.bands import around

_WIDER = 1.4
"""Width of each axis, relative to the range of the data."""
_POINTS, _POINTS_OF_TWO = 301, 71
_DRAWS = 400
"""Largest number of draws per chain from which the band is computed."""


def density(predictor: Predictor) -> Picture:
    """Draw the posterior predictive density of one or two columns, with the data.

    Raises:
        UsageError: if the run has inputs, or if its data have more than two columns.
    """
    names = predictor.signature.target_names
    if not predictor.is_density:
        raise UsageError("density: this picture requires data without inputs ([[task=density]])")
    if len(names) > 2:
        raise UsageError(
            f"density: this picture requires one or two columns (got {len(names)}); use predict with [[draws]] instead"
        )
    rows = predictor.record.training_rows()[1].astype(float)
    if len(names) == 2:
        x_grid, y_grid = (around(column, _WIDER, _POINTS_OF_TWO) for column in rows.T)
        x, y = np.meshgrid(x_grid, y_grid)
        densities = np.exp(
            prediction_table.log_density(predictor, np.stack([x.ravel(), y.ravel()], 1).astype(np.float32))
        )
        return plots.density_of_two((x_grid, y_grid), densities.reshape(x.shape), rows, columns=names)
    grid = around(rows[:, 0], _WIDER, _POINTS)
    points = grid[:, None].astype(np.float32)
    draw_numbers = plots.evenly_spaced(predictor.record.shape[1], _DRAWS)
    draw_densities = np.exp(predictor.log_likelihoods(points, points, draw_numbers)).reshape(-1, len(grid))
    weights = predictor.record.weights
    if weights is not None:
        draw_densities = draw_densities[
            per_draw.sample_indices(
                len(draw_densities), weights.reshape(-1, predictor.record.shape[1])[:, draw_numbers].ravel()
            )
        ]
    low, high = metrics.quantiles(np.sort(draw_densities, 0)[..., None], (0.05, 0.95)).squeeze(-1)
    return plots.density_of_one(
        grid, np.exp(prediction_table.log_density(predictor, points)), low, high, rows[:, 0], column="".join(names)
    )
