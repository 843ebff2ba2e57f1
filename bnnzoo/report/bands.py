"""The picture `band`: predictions of runs on a grid of their single input, and true curves."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float

from bnnzoo import plots
from bnnzoo.data import load, load_like
from bnnzoo.data.columns.bounds import uncensored_targets
from bnnzoo.data.loading.sources import READERS
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.predictions import prediction_table, predictive_samples
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.finding import setting
from bnnzoo.plots import Band, Curve, Of, Picture
from bnnzoo.recipe import recipe_from

LEVELS = (0.05, 0.25, 0.75, 0.95)
_POINTS = 161
_OWN = "data"
"""Value of the argument `truth` that selects the known true curve of the data set."""
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(np, name) for name in ("sin", "cos", "tan", "tanh", "exp", "log", "sqrt", "abs", "sign")
}
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def bands(
    runs: Mapping[str, Predictor],
    *,
    target: str | None = None,
    range: tuple[float, float] | None = None,
    band: str = "predictive",
    truth: str | Path | None = None,
    overlay: bool = False,
) -> Picture:
    """Draw the predictive distribution of one run, or of several runs in one figure, against the single input.

    Args:
        runs: the runs by name.
        target: name of the target; by default the first target.
        range: range of the input; by default the range of the data, extended on each side by 30 % of its width.
        band: "predictive" for the distribution of the target, or "function" for the distribution of its mean f(x).
        truth: a true curve to draw: "data" for the known curve of the data set, an expression of x, or a file.
        overlay: draw several runs in one panel instead of side by side.

    Raises:
        UsageError: if a run is not a regression on one input, if a file has no training rows, if the runs have
            different inputs or targets, or if an option is invalid.
    """
    quantity = _check_options(range, band)
    first = next(iter(runs.values()))
    first_signature, index = first.signature, 0 if first.classifies else target_index(first, target)
    for name, predictor in runs.items():
        if not has_band(predictor):
            prefix = f"{name}: " if len(runs) > 1 else ""
            raise UsageError(
                f"{prefix}band: requires a regression on one input; for several inputs, use the picture slices"
            )
        signature = predictor.signature
        if (signature.feature_names, signature.target_names) != (
            first_signature.feature_names,
            first_signature.target_names,
        ):
            raise UsageError(
                f"{name}: predicts {', '.join(signature.target_names)} from {signature.feature_names[0]}, but "
                f"{next(iter(runs))} predicts {', '.join(first_signature.target_names)} from "
                f"{first_signature.feature_names[0]}; draw them in separate pictures"
            )
    for predictor in runs.values():
        predictor.record.require_training_rows("a band")
    rows = {name: predictor.record.training_rows() for name, predictor in runs.items()}
    inputs = {name: x[:, 0].astype(float) for name, (x, _) in rows.items()}
    grid = (
        around(np.concatenate(list(inputs.values())), 1.6, _POINTS) if range is None else np.linspace(*range, _POINTS)
    )
    lines = [] if truth is None else true_curves(first, truth, grid, index)
    run_bands = [
        Band(
            name,
            grid,
            regression(predictor, grid[:, None], index),
            inputs[name],
            uncensored_targets(rows[name][1])[:, index],
        )
        for name, predictor in runs.items()
    ]
    axes: dict[str, Any] = {"feature": first_signature.feature_names[0], "target": first_signature.target_names[index]}
    if len(run_bands) == 1:
        return plots.band(run_bands[0], **axes, of=quantity, truth=lines)
    return plots.bands(run_bands, **axes, of=quantity, truth=lines, overlay=overlay)


def _check_options(range: tuple[float, float] | None, band: str) -> Of:
    if range is not None and not (all(map(math.isfinite, range)) and range[0] < range[1]):
        raise UsageError(f"[[range]]: must be two numbers, the smaller first (got {range[0]:g},{range[1]:g})")
    if band not in get_args(Of):
        raise UsageError(f"[[band]]: must be {' or '.join(get_args(Of))} (got {band})")
    return cast(Of, band)


def has_band(predictor: Predictor) -> bool:
    """Whether the run is a regression on a single input."""
    return predictor.signature.task == "regression" and predictor.signature.shape == (1,)


def target_index(predictor: Predictor, name: str | None) -> int:
    """Return the index of the target with this name; 0 if the name is None.

    Raises:
        UsageError: if the name is unknown.
    """
    names = predictor.signature.target_names
    if name is None:
        return 0
    if name not in names:
        raise UsageError(f"{setting('target', name)}: unknown target; use one of {', '.join(names)}")
    return names.index(name)


def around(x: Float[np.ndarray, " row"], factor: float, points: int) -> Float[np.ndarray, " point"]:
    """Return evenly spaced points over the range of x. The range is first stretched by `factor` about its centre."""
    middle, half = (x.max() + x.min()) / 2, (x.max() - x.min()) / 2 or 0.5
    return np.linspace(middle - factor * half, middle + factor * half, points)


def regression(predictor: Predictor, x: Float[np.ndarray, "row feature"], index: int) -> pd.DataFrame:
    """Return the mean, the sds (total, aleatoric, epistemic) and the quantiles of one target, one row per row of x."""
    inputs, targets = x.astype(np.float32), predictor.signature.target_names
    table = prediction_table.table(predictor, inputs)
    prefix = f"{targets[index]}_" if len(targets) > 1 else ""
    columns = {name: table[f"{prefix}{name}"].to_numpy() for name in ("mean", "sd", "aleatoric_sd", "epistemic_sd")}
    quantiles = predictive_samples.quantiles(predictor, inputs, LEVELS)
    levels = {f"q{round(100 * q):02d}": quantiles[i, :, index] for i, q in enumerate(LEVELS)}
    return pd.DataFrame(columns | levels)


def true_curves(predictor: Predictor, spec: str | Path, grid: Float[np.ndarray, " point"], target: int) -> list[Curve]:
    """Return the true curves in original units. There are several curves if the true function has several branches.

    Args:
        predictor: the run.
        spec: "data", an expression of x, or a file whose columns have the names of the input and the target of the run.
        grid: points at which the curve of the data set or the expression is evaluated.
        target: index of the target.

    Raises:
        UsageError: if the data set has no known true curve, or if `spec` is invalid.
    """
    if spec == _OWN:
        recipe = predictor.record.attributes["recipe"]
        name = recipe_from(recipe).data if recipe else None
        truth = None if name is None or Path(name).exists() else load(name).truth
        if truth is None:
            raise UsageError(
                f"{setting('truth', _OWN)}: {Path(name).name if name else 'data given in Python'} has no known "
                "true curve; give an expression of x or a file"
            )
        return [Curve(grid, branch) for branch in truth(grid[:, None]).T]
    if isinstance(spec, Path) or Path(spec).suffix.lower() in (*READERS, ".npz"):
        dataset = load_like(spec, predictor.signature)
        x, y = dataset.x[:, 0], uncensored_targets(dataset.y)[:, target]
        order = np.argsort(x, kind="stable")
        return [Curve(x[order], y[order])]
    values = evaluate_expression(spec, grid)
    if not np.isfinite(values).any():
        raise UsageError(
            f"{setting('truth', spec)}: has no finite value from {grid[0]:g} to {grid[-1]:g}; use another expression"
        )
    return [Curve(grid, values)]


def evaluate_expression(text: str, x: Float[np.ndarray, " point"]) -> Float[np.ndarray, " point"]:
    """Return the values of an expression, such as `10 * sin(2 * pi * x)`.

    The value is infinite or NaN where the expression is undefined.

    Raises:
        UsageError: if the expression contains anything but numbers, x, pi, e, + - * / ** and the functions sin, cos,
            tan, tanh, exp, log, sqrt, abs and sign.
    """
    names = {"x": x.astype(np.float64), "pi": np.float64(np.pi), "e": np.float64(np.e)}

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return np.float64(number)
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(operand))
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](value(argument))
        raise ValueError

    try:
        with np.errstate(all="ignore"):
            return np.broadcast_to(value(ast.parse(text.strip(), mode="eval").body), x.shape)
    except (ValueError, SyntaxError, OverflowError, RecursionError, MemoryError):
        raise UsageError(
            f"{setting('truth', text)}: must be a file, or an expression of x with numbers, pi, e, + - * / ** and "
            f"the functions {', '.join(_FUNCTIONS)}"
        ) from None
