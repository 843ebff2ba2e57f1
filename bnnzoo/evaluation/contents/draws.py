"""Draws of all chains, one chain after the other, as rows of theta; few are cached, many are read on request."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from bnnzoo.evaluation.contents.record import Record

IN_MEMORY_BYTES = 2**28
"""Largest size of draws that are read once and cached; larger ones are read again for each request."""
_PIECE_BYTES = 2**26
"""Largest size of one piece of draws; JAX holds a second copy of it, and the results."""

Index = slice | Int[np.ndarray, " some"]


class Draws:
    """Draws indexed by a slice or by integers: `draws[2:5]` is [3, dim], each block flattened, on its natural scale.

    Args:
        record: the run file.
        names: names of the blocks of theta, in order.
        check: is called with the values read, and raises an error if they are invalid.
        modes: one point per chain, which is appended to each of its draws.
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
        draws = self._all_draws[_as_slice(numbers)] if self._is_small else self._read(numbers)
        return draws if self._modes is None else np.concatenate([draws, self._modes[numbers // self._count]], 1)

    @property
    def piece(self) -> int:
        """Number of draws per request that fits into memory."""
        return max(1, min(len(self), _PIECE_BYTES // self.row_bytes))

    @property
    def _is_small(self) -> bool:
        return len(self) * self.row_bytes <= IN_MEMORY_BYTES

    @functools.cached_property
    def _all_draws(self) -> Float[np.ndarray, "draw dim"]:
        return self._read(np.arange(len(self)))

    def _read(self, numbers: Int[np.ndarray, " some"]) -> Float[np.ndarray, "some dim"]:
        """Read draws chain by chain, each draw once and in order, because HDF5 is slow at any other access."""
        chain, draw = np.divmod(numbers, self._count)
        draws = np.empty((len(numbers), sum(self.widths)), self._dtype)
        for chain_number in np.unique(chain):
            positions = np.flatnonzero(chain == chain_number)
            chain_draws, inverse = np.unique(draw[positions], return_inverse=True)
            rows, order = _as_slice(positions), _as_slice(inverse)
            for stop, width, name in zip(np.cumsum(self.widths), self.widths, self._names, strict=True):
                values = self._record.draws_of(name, int(chain_number), _as_slice(chain_draws))
                draws[rows, stop - width : stop] = values.reshape(len(chain_draws), -1)[order]
        self._check(draws)
        return draws


def draw_slices(draws: Draws | Float[np.ndarray, "draw dim"], count: int) -> list[slice]:
    """Return pieces of `count` draws that fit into memory; all pieces but the last have the same length."""
    max_draws = draws.piece if isinstance(draws, Draws) else len(draws)
    length = max(1, -(-count // max(1, -(-count // max_draws))))
    return [slice(start, min(count, start + length)) for start in range(0, count, length)]


def _as_slice(index: Index) -> Index:
    """Return equally spaced integers as a slice, which gives a view instead of a copy and one read instead of many."""
    if isinstance(index, slice) or len(index) == 0:
        return index
    step = int(index[1] - index[0]) if len(index) > 1 else 1
    if step > 0 and (np.diff(index) == step).all():
        return slice(int(index[0]), int(index[-1]) + 1, step)
    return index
