"""The curve behind the data: a synthetic data set's own, an expression of x, or the points of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float

from bnnzoo.data import load, load_like
from bnnzoo.data.bounds import recorded
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.predictor import Predictor
from bnnzoo.plots import Curve
from bnnzoo.recipe import recipe_from
from bnnzoo.report.expression import evaluate

OWN = "data"
"""The word for the data set's own curve."""


def curves(predictor: Predictor, spec: str | Path, grid: Float[np.ndarray, " point"], target: int) -> list[Curve]:
    """The true curve, a line a branch, in the units of the data.

    Args:
        spec: "data", an expression of x, or a file whose columns are named like the run's input and target.
        grid: where the first two are drawn.

    Raises:
        UsageError: where the data know no true curve, or `spec` is none of these.
    """
    if spec == OWN:
        about = predictor.record.attributes
        name = recipe_from(about["recipe"]).data
        truth = None if name is None or Path(name).exists() else load(name).truth
        if truth is None:
            raise UsageError(
                f"--truth {OWN}: {Path(name).name if name else 'data given in Python'} has no known curve; give an "
                "expression of x or a file"
            )
        return [Curve(grid, branch) for branch in truth(grid[:, None]).T]
    if isinstance(spec, Path) or Path(spec).suffix in (".csv", ".tsv", ".parquet", ".pq", ".npz"):
        known = load_like(spec, predictor.signature)
        x, y = known.x[:, 0], recorded(known.y)[:, target]
        order = np.argsort(x, kind="stable")
        return [Curve(x[order], y[order])]
    values = evaluate(spec, grid)
    if not np.isfinite(values).any():
        raise UsageError(f"--truth {spec}: has no finite value from {grid[0]:g} to {grid[-1]:g}")
    return [Curve(grid, values)]
