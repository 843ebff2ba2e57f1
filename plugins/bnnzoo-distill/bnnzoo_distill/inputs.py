"""Generated inputs: rows between and near the given rows, and rows beyond the range of the given rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial import KDTree

from bnnzoo.data import Signature

_MAX_CODES = 10
"""Largest number of different values in a column of whole numbers that is treated as codes of categories.

Generated inputs copy the values of such a column from given rows, and never interpolate between the values. The same
applies to any column with at most two different values.
"""
OUTSIDE = 0.25
"""Fraction of the generated inputs that are pushed beyond the range of the given rows."""
_REACH = 0.5
"""Largest distance of a generated value from the range of its column, as a fraction of the width of the range."""

_NEIGHBOURS = 5
_MAX_CANDIDATES = 2000
"""Largest number of rows among which neighbours are searched."""


class Columns(NamedTuple):
    """Properties of the input columns that generated inputs must respect.

    Attributes:
        groups: index of each column's group. In a generated input, all copied columns of a group take their values
            from the same given row. For example, the indicator columns of one text column are a group.
        copied: whether generated inputs copy the values of the column from given rows without change.
        whole: whether all values of the column are whole numbers.
        low: smallest value of each column.
        high: largest value of each column.
        sd: standard deviation of each column.
    """

    groups: np.ndarray
    copied: Bool[np.ndarray, " feature"]
    whole: Bool[np.ndarray, " feature"]
    low: Float[np.ndarray, " feature"]
    high: Float[np.ndarray, " feature"]
    sd: Float[np.ndarray, " feature"]

    @classmethod
    def of_rows(cls, rows: Float[np.ndarray, "row feature"], signature: Signature) -> Columns:
        """Return the properties of the columns of encoded rows in original units."""
        groups, copied = np.arange(rows.shape[1]), np.zeros(rows.shape[1], bool)
        if signature.encoding is not None:
            sizes = [len(column.inputs) for column in signature.encoding.columns]
            groups = np.repeat(np.arange(len(sizes)), sizes)
            # A missing number is stored as the median with an indicator, so the pair is copied together.
            is_coded = [
                column.kind not in ("number", "date") or len(column.inputs) > 1 for column in signature.encoding.columns
            ]
            copied = np.repeat(is_coded, sizes)
        whole = (rows == np.round(rows)).all(0)
        levels = np.array([len(np.unique(values)) for values in rows.T])
        copied = copied | (levels <= np.where(whole, _MAX_CODES, 2))
        return cls(groups, copied, whole, rows.min(0), rows.max(0), rows.std(0))

    @property
    def can_leave_range(self) -> bool:
        """Whether at least one column can be pushed beyond its range, because it is not copied."""
        return not self.copied.all()


def generate(
    rows: Float[np.ndarray, "row feature"],
    columns: Columns,
    count: int,
    rng: np.random.Generator,
    outside: float = OUTSIDE,
) -> Float[np.ndarray, "count feature"]:
    """Return `count` generated inputs in original units.

    Each input combines two rows. About half of the inputs are random points between two random rows. For the other
    inputs, the second row is a neighbour of the first row, and each column has its own random fraction of the
    difference between the two rows. Normal noise of 0.01 to 0.3 standard deviations of each column is added. Copied
    columns have no noise: they contain the values of one of the two rows. Finally, the fraction `outside` of the
    inputs is pushed beyond the range of the rows.
    """
    first = rng.integers(len(rows), size=count)
    second = rng.integers(len(rows), size=count)
    is_local = rng.uniform(size=count) < 0.5
    second[is_local] = _neighbours(rows, columns, first[is_local], rng)
    weight = np.where(
        is_local[:, None], rng.uniform(-0.5, 1.5, size=(count, rows.shape[1])), rng.beta(0.5, 0.5, size=(count, 1))
    )
    mixed = rows[first] + weight * (rows[second] - rows[first])
    noise = np.exp(rng.uniform(np.log(0.01), np.log(0.3), size=(count, 1)))
    mixed += noise * columns.sd * rng.normal(size=mixed.shape)
    takes_second = (rng.uniform(size=mixed.shape) < 0.5)[:, columns.groups]
    x = np.where(columns.copied, np.where(takes_second, rows[second], rows[first]), mixed)
    is_outside = (rng.uniform(size=count) < outside) & columns.can_leave_range
    x[is_outside] = push_outside(x[is_outside], columns, rng)
    return _round_whole(x, columns)


def _neighbours(
    rows: Float[np.ndarray, "row feature"], columns: Columns, index: Int[np.ndarray, " some"], rng: np.random.Generator
) -> Int[np.ndarray, " some"]:
    """Return a random near neighbour of each row in `index`, as an index of one of at most 2000 random rows."""
    scaled = rows / np.where(columns.sd > 0, columns.sd, 1)
    candidates = rng.permutation(len(rows))[:_MAX_CANDIDATES]
    count = min(_NEIGHBOURS + 1, len(candidates))  # a row may be its own nearest neighbour
    near = np.reshape(KDTree(scaled[candidates]).query(scaled[index], k=count)[1], (len(index), count))
    return candidates[near[np.arange(len(index)), rng.integers(count, size=len(index))]]


def push_outside(
    x: Float[np.ndarray, "row feature"], columns: Columns, rng: np.random.Generator
) -> Float[np.ndarray, "row feature"]:
    """Move at least one column of each row beyond its range. Copied columns are not moved."""
    free = np.flatnonzero(~columns.copied)
    if not free.size:
        return x
    is_pushed = np.zeros(x.shape, bool)
    is_pushed[:, free] = rng.uniform(size=(len(x), free.size)) < rng.uniform(size=(len(x), 1)) ** 2
    is_pushed[np.arange(len(x)), rng.choice(free, size=len(x))] = True
    distance = _REACH * rng.uniform(size=x.shape) * (columns.high - columns.low)
    distance = np.where(columns.whole, np.ceil(distance), distance)  # rounding down would stay in the range
    beyond = np.where(rng.uniform(size=x.shape) < 0.5, columns.low - distance, columns.high + distance)
    return _round_whole(np.where(is_pushed, beyond, x), columns)


def _round_whole(x: Float[np.ndarray, "row feature"], columns: Columns) -> Float[np.ndarray, "row feature"]:
    return np.where(columns.whole, np.round(x), x).astype(np.float32)
