"""Inputs at which convergence is tested: evenly spaced rows, and rows that span the inputs of the data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from bnnzoo.evaluation.contents.record import Record, evenly
from bnnzoo.evaluation.formulas import blocking
from bnnzoo.store import schema

_CANDIDATES = 2000
"""Number of evenly spaced rows, and number of rows far from the mean, that are candidates for spanning rows."""
_FEATURES = 500
"""Largest number of features that are compared. For each feature, the most extreme row is a candidate too."""
_FAR = 1e15
"""Largest absolute standardised value; larger values are clipped."""


class Probes(NamedTuple):
    """Inputs at which predictions are tested."""

    labels: list[str]
    """Name of the row of each input in the file, such as `test row 3`, counted from 0."""
    inputs: Shaped[np.ndarray, "row ..."]


def probe_rows(record: Record, count: int) -> Probes:
    """Select `count` inputs of the file, or all inputs if there are fewer; the selection is deterministic.

    Half of the selected inputs are evenly spaced test rows, or training rows if there are no test rows. The other half
    spans the inputs of all rows. It is selected by a QR decomposition with pivoting: the next row is always the row
    that is farthest from the span of the rows before it. In the decomposition, each row consists of its standardised
    inputs and a constant. If a feature differs from its mean in only a few rows, one of these rows is therefore
    selected.

    For a run that keeps predictions, the first `count` inputs of these predictions are returned.
    """
    if record.keeps_predictions:
        kept_rows = record.array("constant_data", schema.KEPT_ROWS)[:count]
        return Probes([f"kept row {row}" for row in range(len(kept_rows))], kept_rows)
    groups: dict[str, Shaped[np.ndarray, "row ..."]] = {}
    if record.has_test_rows:
        groups["test row"] = record.array("constant_data", "x_test")
    if record.has_training_rows:
        groups["training row"] = record.array("constant_data", "x")
    groups = {row_kind: rows for row_kind, rows in groups.items() if len(rows)}
    sizes = [len(rows) for rows in groups.values()]
    x = np.concatenate(list(groups.values())) if len(groups) > 1 else next(iter(groups.values()))
    selected = np.arange(len(x))
    if len(x) > count:
        evenly_spaced = evenly(sizes[0], max(1, count - count // 2))
        spanning = spanning_rows(x, count - len(evenly_spaced), excluded=evenly_spaced)
        selected = np.concatenate([evenly_spaced, spanning])
    starts = np.cumsum([0, *sizes[:-1]])
    group_of_row = np.searchsorted(starts, selected, side="right") - 1
    row_kinds = list(groups)
    labels = [f"{row_kinds[g]} {row - starts[g]}" for row, g in zip(selected, group_of_row, strict=True)]
    return Probes(labels, x[selected])


def spanning_rows(
    x: Shaped[np.ndarray, "row ..."], count: int, *, excluded: Int[np.ndarray, " some"]
) -> Int[np.ndarray, " chosen"]:
    """Select at most `count` rows by a QR decomposition with pivoting; NaN counts as the mean of the feature.

    If the selected rows span all candidates before `count` is reached, the selection starts again with the candidates
    that are left.

    Args:
        x: inputs of all rows.
        count: number of rows to select.
        excluded: indices of rows that must not be selected.
    """
    flat = x.reshape(len(x), -1)
    flat = flat[:, evenly(flat.shape[1], _FEATURES)]
    mean, sd = _moments(flat)
    candidates = np.setdiff1d(_candidates(flat, mean, sd), excluded)
    z = np.hstack([_standardise(flat[candidates], mean, sd), np.ones((len(candidates), 1))])
    selected: list[int] = []
    residuals = z.copy()
    for _ in range(min(count, len(candidates))):
        size = np.einsum("ij,ij->i", residuals, residuals)
        size[selected] = -1.0
        if size.max() <= 1e-8 * max(1.0, float(np.einsum("ij,ij->i", z, z).max())):
            residuals = z.copy()
            size = np.einsum("ij,ij->i", residuals, residuals)
            size[selected] = -1.0
        row = int(size.argmax())
        selected.append(row)
        if size[row] > 0:
            direction = residuals[row] / size[row] ** 0.5
            residuals -= np.outer(residuals @ direction, direction)
    return candidates[selected]


def _candidates(
    flat: Shaped[np.ndarray, "row feature"], mean: Float[np.ndarray, " feature"], sd: Float[np.ndarray, " feature"]
) -> Int[np.ndarray, " candidate"]:
    """Return the indices of the candidates: evenly spaced rows, rows far from the mean, and extreme rows of features.

    The extreme row of a feature is the row where the feature is farthest from its mean. If there are few rows, all rows
    are candidates.
    """
    rows = len(flat)
    if rows <= 2 * _CANDIDATES:
        return np.arange(rows)
    size = np.empty(rows)
    highest = np.full(flat.shape[1], -1.0)
    extreme = np.zeros(flat.shape[1], int)
    for piece in blocking.blocks(*flat.shape):
        z = np.abs(_standardise(flat[piece], mean, sd))
        size[piece] = np.einsum("ij,ij->i", z, z)
        extreme_positions = z.argmax(0)
        extreme_values = z[extreme_positions, np.arange(z.shape[1])]
        extreme = np.where(extreme_values > highest, extreme_positions + piece.start, extreme)
        highest = np.maximum(highest, extreme_values)
    farthest = np.sort(np.argpartition(size, -_CANDIDATES)[-_CANDIDATES:])
    return np.unique(np.concatenate([evenly(rows, _CANDIDATES), farthest, extreme]))


def _moments(
    flat: Shaped[np.ndarray, "row feature"],
) -> tuple[Float[np.ndarray, " feature"], Float[np.ndarray, " feature"]]:
    """Return the mean and the standard deviation of the finite values of each feature."""
    number, total, square = (np.zeros(flat.shape[1]) for _ in range(3))
    reference = np.nan_to_num(flat[:1].astype(float), nan=0.0, posinf=0.0, neginf=0.0)
    for piece in blocking.blocks(*flat.shape):
        values = flat[piece].astype(float) - reference
        finite = np.isfinite(values)
        values = np.where(finite, values, 0.0)
        number += finite.sum(0)
        total += values.sum(0)
        square += np.einsum("ij,ij->j", values, values)
    number = np.maximum(number, 1)
    variance = np.maximum(square / number - (total / number) ** 2, 0.0)
    return reference[0] + total / number, np.sqrt(variance)


def _standardise(
    rows: Shaped[np.ndarray, "row feature"], mean: Float[np.ndarray, " feature"], sd: Float[np.ndarray, " feature"]
) -> Float[np.ndarray, "row feature"]:
    with np.errstate(divide="ignore", invalid="ignore"):
        z = (rows.astype(float) - mean) / np.where(sd > 0, sd, np.inf)
    return np.clip(np.nan_to_num(z, nan=0.0, posinf=_FAR, neginf=-_FAR), -_FAR, _FAR)
