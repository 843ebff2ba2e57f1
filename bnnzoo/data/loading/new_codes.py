"""Warnings about values of new rows, such as -999, that look like codes for missing cells."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from bnnzoo.data.columns.bounds import uncensored_targets
from bnnzoo.data.columns.codes import find_codes, may_hold_codes
from bnnzoo.data.columns.column_warnings import sentinel_days
from bnnzoo.data.columns.faults import list_names
from bnnzoo.data.rows.signature import Signature
from bnnzoo.errors import BnnzooWarning

_MAX_ROWS = 20_000
"""Maximal number of training rows with which new rows are compared."""


class _Pair(NamedTuple):
    """One column: its values in the new rows and in the training rows, in original units."""

    name: str
    kind: str
    new: Float[np.ndarray, " row"]
    trained: Float[np.ndarray, " trained"]


def warn_of_new_codes(
    x: NDArray[Any], y: NDArray[Any] | None, signature: Signature, trained: Callable[[str], NDArray[Any]], where: str
) -> None:
    """Warn about values of new rows that look like codes for missing cells and that no training row contains.

    Args:
        x: the inputs of the new rows [N, D]; images are not tested.
        y: the targets of the new rows, or None. Class labels are not tested.
        signature: the properties of the training data.
        trained: a function that returns the inputs of the training rows for "x", and their targets for "y". It is only
            called if a new number looks like a code, or if a column contains dates.
        where: the name of the new rows in messages.
    """
    descriptions = []
    if x.ndim == 2 and signature.feature_names:
        descriptions += [text for pair in _inputs(x, signature, trained) if (text := _describe(pair))]
    if y is not None and signature.task == "regression":
        columns = [(f"target {name}", "number", 0.0) for name in signature.target_names]
        descriptions += [
            text for pair in _pairs(uncensored_targets(y), columns, "y", trained) if (text := _describe(pair))
        ]
    if descriptions:
        text = (
            f"{where}: {list_names(descriptions)}: a value outside the range of the training rows may be a code for a "
        )
        text += "missing cell; if it is one, leave such rows out, or train with [[missing_code]] and [[missing=median]]"
        warnings.warn(text, BnnzooWarning, stacklevel=3)


def _inputs(x: NDArray[Any], signature: Signature, trained: Callable[[str], NDArray[Any]]) -> Iterator[_Pair]:
    """Yield the columns of inputs whose new values may be codes.

    Numbers and dates are tested. Inputs for text levels, inputs that mark missing cells, and the exposure are not.
    """
    columns = [(f"column {name}", "number", 0.0) for name in signature.feature_names]
    if signature.encoding is not None:
        columns = []
        for column in signature.encoding.columns:
            kind = "" if column.exposure else column.kind
            columns += [(f"column {column.name}", kind, column.origin)] + [("", "", 0.0)] * (len(column.inputs) - 1)
    yield from _pairs(x, columns, "x", trained)


def _pairs(
    values: NDArray[Any],
    columns: Sequence[tuple[str, str, float]],
    array: str,
    trained: Callable[[str], NDArray[Any]],
) -> Iterator[_Pair]:
    """Yield the new values and the training values of each column whose new values may be codes.

    Args:
        values: the values of the new rows [N, columns].
        columns: the name, the kind and the origin of each column; the origin is added to the values.
        array: the name of the array of training rows, "x" or "y".
        trained: a function that returns the training rows of this array.
    """
    for place, (name, kind, origin) in enumerate(columns):
        new = values[:, place].astype(np.float64) + origin
        if not new.size or kind not in ("number", "date"):
            continue
        if kind == "number" and not may_hold_codes(float(new.min()), float(new.max())):
            continue
        rows = uncensored_targets(trained(array))
        yield _Pair(name, kind, new, rows[:: len(rows) // _MAX_ROWS + 1, place].astype(np.float64) + origin)


def _describe(pair: _Pair) -> str:
    """Return a description of the codes among the new values of a column, or "" if there are none."""
    if pair.kind == "date":
        days = sentinel_days(np.unique(np.append(pair.trained, pair.new)))
        days = [day for day in days if not np.isin(np.floor(pair.trained), day).any() and day in np.floor(pair.new)]
        return f"{pair.name} ({', '.join(str(np.datetime64(int(day), 'D')) for day in days)})" if days else ""
    # `find_codes` requires most codes to occur twice. Here one occurrence is enough, because the training rows show
    # which values are usual. Therefore the new values are passed twice.
    codes = find_codes(pair.name, np.concatenate([pair.trained, pair.new, pair.new]))
    codes = [code for code in codes if code.value not in pair.trained]
    codes = [code._replace(count=int((pair.new == code.value).sum()), rows=len(pair.new)) for code in codes]
    return list_names(code.describe("training rows") for code in codes)
