"""The draws of all chains, one after the other, as rows of theta: kept where they are few, else read when asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from bnnzoo.evaluation.record import Record

WHOLE_BYTES = 2**28
"""Draws up to this are read once and kept; of more, what is asked for is read anew each time."""
_PIECE_BYTES = 2**26
"""What a piece that is worked on may take: JAX holds it once more, and what comes of it."""

Index = slice | Int[np.ndarray, " some"]


class Draws:
    """Indexed by a slice or by numbers: `draws[2:5]` is [3, dim], each block flattened, on its natural scale.

    Args:
        names: the blocks of theta, in its order.
        check: is given what is read, and raises where it cannot be used.
        modes: a point of each chain, which then follows each of its draws.
    """

    def __init__(
        self,
        record: Record,
        names: Sequence[str],
        check: Callable[[Float[np.ndarray, "some dim"]], None],
        modes: Float[np.ndarray, "chain dim"] | None = None,
    ):
        self._record, self._names, self._check, self._modes = record, list(names), check, modes
        self._chains, self._count = record.shape
        variables = [record.tree["posterior"][name] for name in self._names]
        self._dtype = variables[0].dtype
        self.widths = [variable.size // len(self) for variable in variables]
        self.row_bytes = sum(self.widths) * self._dtype.itemsize

    def __len__(self) -> int:
        return self._chains * self._count

    def __getitem__(self, index: Index) -> Float[np.ndarray, "some both"]:
        numbers = np.arange(len(self))[index]
        found = self._whole[_as_slice(numbers)] if self._is_small else self._read(numbers)
        return found if self._modes is None else np.concatenate([found, self._modes[numbers // self._count]], 1)

    @property
    def piece(self) -> int:
        """As many as are asked for at once."""
        return max(1, min(len(self), _PIECE_BYTES // self.row_bytes))

    @property
    def _is_small(self) -> bool:
        return len(self) * self.row_bytes <= WHOLE_BYTES

    @functools.cached_property
    def _whole(self) -> Float[np.ndarray, "draw dim"]:
        return self._read(np.arange(len(self)))

    def _read(self, numbers: Int[np.ndarray, " some"]) -> Float[np.ndarray, "some dim"]:
        """Chain by chain, each draw once and in order: HDF5 reads nothing else fast."""
        chain, draw = np.divmod(numbers, self._count)
        found = np.empty((len(numbers), sum(self.widths)), self._dtype)
        for c in np.unique(chain):
            here = np.flatnonzero(chain == c)
            wanted, back = np.unique(draw[here], return_inverse=True)
            rows, order = _as_slice(here), _as_slice(back)
            for stop, width, name in zip(np.cumsum(self.widths), self.widths, self._names, strict=True):
                values = self._record.draws_of(name, int(c), _as_slice(wanted))
                found[rows, stop - width : stop] = values.reshape(len(wanted), -1)[order]
        self._check(found)
        return found


def cuts(draws: Draws | Float[np.ndarray, "draw dim"], count: int) -> list[slice]:
    """Pieces in which to ask for `count` of these draws, so that they fit into memory: all but the last of a length."""
    most = draws.piece if isinstance(draws, Draws) else len(draws)
    length = max(1, -(-count // max(1, -(-count // most))))
    return [slice(start, min(count, start + length)) for start in range(0, count, length)]


def _as_slice(index: Index) -> Index:
    """Numbers as a slice where they are one: a view instead of a copy, and one read instead of many."""
    if isinstance(index, slice) or len(index) == 0:
        return index
    step = int(index[1] - index[0]) if len(index) > 1 else 1
    if step > 0 and (np.diff(index) == step).all():
        return slice(int(index[0]), int(index[-1]) + 1, step)
    return index
