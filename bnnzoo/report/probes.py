"""Predictions that show the agreement of chains in a report: with the worst, the median and the best R-hat."""

from __future__ import annotations

import numpy as np
from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]
from jaxtyping import Float

from bnnzoo.evaluation.convergence.probing import probe_rows
from bnnzoo.evaluation.formulas.rhat import FEWEST, rhats
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.evaluation.predictions.thinning import PROBES
from bnnzoo.report.once import once


@once
def probe_predictions(predictor: Predictor) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, float]]:
    """Return three predictions at the rows that the verdict tests, [chain, draw] each, with their R-hats and bulk ESS.

    They have the largest, the median and the smallest R-hat. For a posterior defined in Python, they are parameters.
    """
    values, names = _values(predictor)
    with np.errstate(invalid="ignore", divide="ignore"):
        is_varying = np.ptp(values, axis=(0, 1)) > 0
        rhat, ess = np.where(is_varying, rhats(values), np.inf), np.zeros(len(names))
        if values.shape[1] >= FEWEST:
            flat = np.moveaxis(values, 2, 0).astype(float)
            ess = np.array([array_stats.ess(value, method="bulk") for value in flat])
        ess = np.where(is_varying & np.isfinite(ess), ess, 0.0)
    order = np.argsort(-rhat, kind="stable")
    positions = sorted({0, len(order) // 2, len(order) - 1})
    return (
        {names[order[k]]: values[..., order[k]] for k in positions},
        {names[order[k]]: float(rhat[order[k]]) for k in positions},
        {names[order[k]]: float(ess[order[k]]) for k in positions},
    )


def _values(predictor: Predictor) -> tuple[Float[np.ndarray, "chain draw value"], list[str]]:
    """Return the predictions at the tested rows in original units, or some parameters, and their names."""
    record = predictor.record
    if not predictor.predicts:
        numbers, values = predictor.some_parameters()
        return values, [f"parameter {index}" for index in numbers]
    signature = predictor.signature
    probes = probe_rows(record, PROBES)
    values = predictor.functions(probes.inputs)
    if predictor.classifies:
        labels = [f"p({signature.target_names[0]} = {name})" for name in signature.class_names]
    else:
        values = predictor.scaler.unscale_targets(values)
        labels = [f"mean of {target}" for target in signature.target_names]
    names = [f"{label} at {row}" for row in probes.labels for label in labels]
    return values.reshape(*values.shape[:2], -1), names
