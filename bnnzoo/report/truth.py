"""True curve of the data: the curve of a synthetic data set, an expression of x, or the points of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float

from bnnzoo.data import load, load_like
from bnnzoo.data.columns.bounds import uncensored_targets
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.finding import setting
from bnnzoo.plots import Curve
from bnnzoo.recipe import recipe_from
from bnnzoo.report.expression import evaluate

OWN = "data"
"""Value of `truth` for the data set's own curve."""


def curves(predictor: Predictor, spec: str | Path, grid: Float[np.ndarray, " point"], target: int) -> list[Curve]:
    """Return the true curve, one line per branch, in original units.

    Args:
        predictor: the run.
        spec: "data", an expression of x, or a file whose columns have the names of the run's input and target.
        grid: points at which the first two are evaluated.
        target: index of the target.

    Raises:
        UsageError: if the data have no known true curve, or if `spec` is none of these.
    """
    if spec == OWN:
        attributes = predictor.record.attributes
        name = recipe_from(attributes["recipe"]).data
        truth = None if name is None or Path(name).exists() else load(name).truth
        if truth is None:
            raise UsageError(
                f"{setting('truth', OWN)}: {Path(name).name if name else 'data given in Python'} has no known "
                "curve; give an expression of x or a file"
            )
        return [Curve(grid, branch) for branch in truth(grid[:, None]).T]
    if isinstance(spec, Path) or Path(spec).suffix in (".csv", ".tsv", ".parquet", ".pq", ".npz"):
        dataset = load_like(spec, predictor.signature)
        x, y = dataset.x[:, 0], uncensored_targets(dataset.y)[:, target]
        order = np.argsort(x, kind="stable")
        return [Curve(x[order], y[order])]
    values = evaluate(spec, grid)
    if not np.isfinite(values).any():
        raise UsageError(f"{setting('truth', spec)}: has no finite value from {grid[0]:g} to {grid[-1]:g}")
    return [Curve(grid, values)]
