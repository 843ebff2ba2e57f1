"""Weights of the chains of a run in its predictions, by stacking of leave-one-out predictions."""

from __future__ import annotations

import numpy as np

from bnnzoo.evaluation.formulas import stacking
from bnnzoo.evaluation.formulas.stacking import Stacking
from bnnzoo.evaluation.predictions import loo, thinning
from bnnzoo.evaluation.predictions.predictor import Predictor

_MIN_DRAWS = 10
"""Smallest number of draws per chain for leave-one-out predictions."""


def by_stacking(predictor: Predictor) -> Stacking | None:
    """Compute the weights from leave-one-out predictions of training rows under each chain alone.

    At most 500 evenly spaced rows are used. Rows with a large Pareto k are not left out: Pareto k is large where a
    chain predicts badly, and rows with bad predictions distinguish the chains.

    Returns:
        The weights; None for a single chain, for weighted or approximate draws, for an unknown model, with fewer than
        ten draws per chain, or with fewer than 20 usable training rows in the file.
    """
    record = predictor.record
    chains, _ = record.shape
    if chains < 2 or record.draw_weights is not None or record.attributes["exactness"] == "approximate":
        return None
    if not predictor.predicts or not record.has_training_rows:
        return None
    thinned = thinning.for_diagnosis(predictor)
    if thinned.record.shape[1] < _MIN_DRAWS:
        return None
    x, y = record.training_rows(thinning.density_rows(thinned, thinning.PROBES))
    values = thinned.log_likelihoods(x, y, np.arange(thinned.record.shape[1]))
    by_chain = loo.by_chain(values, power=float(record.attributes["likelihood_power"]))
    log_density = np.stack([chain.log_density for chain in by_chain])
    # A row that no chain can predict, or whose density overflows, says nothing about the weights.
    is_usable = np.isfinite(log_density).any(0) & ~np.isnan(log_density).any(0) & (log_density < np.inf).all(0)
    return stacking.stack(log_density[:, is_usable]) if is_usable.sum() >= stacking.MIN_ROWS else None
