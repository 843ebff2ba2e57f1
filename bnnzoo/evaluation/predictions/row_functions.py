"""Functions of the rows and draws of a run. A `RowMap` can evaluate these functions for shards of the rows."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int, Shaped

from bnnzoo import store
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.predictions import per_draw, predictive
from bnnzoo.evaluation.predictions.predictive import Sums
from bnnzoo.posterior import backend

if TYPE_CHECKING:
    from bnnzoo.evaluation.predictions.predictor import Predictor


def sums(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."] | None, *, apart: bool
) -> Sums:
    """Return the sums over draws for the rows `x` and `y`; see `Predictor.sums`."""
    inputs, parts = predictor.inputs(x), predictive.batches(*predictor.record.shape)
    target = None if y is None else predictor.scaler.scale_targets(y)
    weights = predictor.record.weights
    with backend.arithmetic(predictor.precision):
        return predictive.sums(
            predictor.posterior, predictor.thetas, inputs, target, weights=weights, parts=parts, keep_parts=apart
        )


def log_likelihoods(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    y: Shaped[np.ndarray, "row ..."],
    *,
    draw_numbers: Int[np.ndarray, " kept"],
    linearised: bool,
) -> Float[np.ndarray, "draw row"]:
    """Return the log-likelihood of each row under each kept draw, as a density in the units of the network."""
    inputs, target = predictor.inputs(x), predictor.scaler.scale_targets(y)
    dim = predictor.posterior.layout.dim

    def density(thetas: Float[np.ndarray, "piece both"], _: int) -> Float[np.ndarray, "piece row"]:
        evaluated_thetas = thetas if linearised else thetas[:, :dim]
        return per_draw.log_likelihoods(predictor.posterior, evaluated_thetas, inputs, target)

    return predictor.in_pieces(predictor.draw_indices(draw_numbers), density)


def file_content(record: Record) -> bytes:
    """Return the content of the run file; a run in memory or in part files is first written to a temporary file."""
    if record.file is not None and store.run_state(record.file) in ("partial", "complete"):
        return record.file.read_bytes()
    with tempfile.TemporaryDirectory(prefix="bnnzoo-") as folder:
        file = Path(folder) / "run.nc"
        store.write_tree(file, record.tree)
        return file.read_bytes()


def predictor_of_file(content: bytes, model: Any) -> Predictor:
    """Return the predictor of a file with this content. The file is removed together with the predictor."""
    from bnnzoo.evaluation.predictions.predictor import Predictor

    file = Path(tempfile.mkdtemp(prefix="bnnzoo-")) / "run.nc"
    file.write_bytes(content)
    predictor = Predictor(Record(store.open_tree(file), file), model)
    weakref.finalize(predictor, shutil.rmtree, file.parent, ignore_errors=True)
    return predictor
