"""Draws of all chains, one chain after the other, as rows of theta.

Small runs are read once and cached. Large runs are read again for each request.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from bnnzoo.evaluation.contents.record import Record

IN_MEMORY_BYTES = 2**28
"""Largest size of the draws of a run that are read once and cached; larger runs are read again for each request."""
_PIECE_BYTES = 2**26
"""Largest size of one piece of draws. In addition, the memory must hold JAX's copy of the piece and the results."""

Index = slice | Int[np.ndarray, " some"]


class Draws:
    """Draws that are read from the file when they are indexed by a slice or by integers.

    `draws[2:5]` is an array [3, dim] with one draw of all parameters per row. A row consists of the values of all
    blocks of parameters, one block after the other, on their natural scale.

    Args:
        record: the run file.
        names: names of the blocks of theta, in order.
        check: function that is called with the draws that were read, and raises an error if they are invalid.
        modes: one point per chain, the mode of a linearised network; it is appended to each draw of the chain.
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
        """Largest number of draws that fits into one piece in memory, at least 1."""
        return max(1, min(len(self), _PIECE_BYTES // self.row_bytes))

    @property
    def _is_small(self) -> bool:
        return len(self) * self.row_bytes <= IN_MEMORY_BYTES

    @functools.cached_property
    def _all_draws(self) -> Float[np.ndarray, "draw dim"]:
        return self._read(np.arange(len(self)))

    def _read(self, numbers: Int[np.ndarray, " some"]) -> Float[np.ndarray, "some dim"]:
        """Read draws chain by chain, each draw once and in ascending order, because HDF5 is slow in any other order."""
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
    """Split the range of `count` draws into slices that fit into memory; only the last slice may be shorter."""
    max_draws = draws.piece if isinstance(draws, Draws) else len(draws)
    length = max(1, -(-count // max(1, -(-count // max_draws))))
    return [slice(start, min(count, start + length)) for start in range(0, count, length)]


def _as_slice(index: Index) -> Index:
    """Convert equally spaced ascending integers to a slice; return other integers unchanged.

    A slice of an array is a view without a copy. A slice of a variable in a file is read in one step.
    """
    if isinstance(index, slice) or len(index) == 0:
        return index
    step = int(index[1] - index[0]) if len(index) > 1 else 1
    if step > 0 and (np.diff(index) == step).all():
        return slice(int(index[0]), int(index[-1]) + 1, step)
    return index
