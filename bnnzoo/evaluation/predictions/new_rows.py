"""Rows that are given to a run for prediction or evaluation, checked against the training rows of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from bnnzoo.assembly.recipe_parts import check_targets
from bnnzoo.data import Unseen, load_inputs, load_like
from bnnzoo.data.formats.frames import is_frame
from bnnzoo.data.loading.new_codes import warn_of_new_codes
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.store.schema import CONSTANT_DATA, OBSERVED_DATA


def evaluation_rows(
    predictor: Predictor, data: Any = None, *, unseen: Unseen | None = None
) -> tuple[Shaped[np.ndarray, "row ..."], Shaped[np.ndarray, "row ..."]]:
    """Return inputs and targets of `data`, or of the test rows of the run if `data` is None; in original units.

    Raises:
        UsageError: if `data` is None and the run has no test rows, or if `data` does not fit the run.
    """
    signature = predictor.signature
    if data is None:
        return predictor.record.test_rows()
    test = load_like(data, signature, unseen=unseen)
    predictor.scaler.refuse_far(test.x, test.y, signature, _name_of(data))
    _warn_of_codes(predictor, test.x, test.y, _name_of(data))
    if isinstance(posterior := predictor.posterior, NetworkPosterior):
        check_targets(posterior.likelihood, test)
    return test.x, test.y


def inputs_of(predictor: Predictor, spec: Any, *, unseen: Unseen | None = None) -> Shaped[np.ndarray, "row ..."]:
    """Return inputs in original units, from anything that `load_inputs` accepts.

    Raises:
        UsageError: for the reasons of `load_inputs`, or if a number is too far from the training data.
    """
    x = load_inputs(spec, predictor.signature, unseen=unseen)
    predictor.scaler.refuse_far(x, None, predictor.signature, _name_of(spec))
    _warn_of_codes(predictor, x, None, _name_of(spec))
    return x


def _warn_of_codes(predictor: Predictor, x: np.ndarray, y: np.ndarray | None, where: str) -> None:
    """Warn of values that look like codes for missing cells and do not occur in the training rows."""
    if predictor.record.has_training_rows:
        groups = {"x": CONSTANT_DATA, "y": OBSERVED_DATA}
        warn_of_new_codes(x, y, predictor.signature, lambda name: predictor.record.array(groups[name], name), where)


def _name_of(spec: Any) -> str:
    """Return a name for the rows that `spec` specifies, for use in messages."""
    return str(spec) if isinstance(spec, str | Path) else "data" if is_frame(spec) else "x"
