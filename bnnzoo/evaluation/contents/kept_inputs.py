"""Inputs at which a run kept predictions in place of parameters."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int, Shaped

from bnnzoo.errors import UsageError
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.store.schema import CONSTANT_DATA, KEPT_ROWS


class KeptInputs:
    """The rows at which predictions were kept, found by their bytes."""

    def __init__(self, rows: Shaped[np.ndarray, "row ..."], record: Record):
        self._record = record
        self._numbers = {np.ascontiguousarray(row).tobytes(): number for number, row in enumerate(rows)}

    def indices(self, x: Shaped[np.ndarray, "row ..."]) -> Int[np.ndarray, " row"]:
        """Return the indices of these inputs among the kept rows.

        Raises:
            UsageError: if the run kept no predictions at one of them.
        """
        numbers = [self._numbers.get(np.ascontiguousarray(row).tobytes(), -1) for row in x]
        if -1 in numbers:
            count = len(self._record.array(CONSTANT_DATA, KEPT_ROWS))
            run, row = self._record.name, numbers.index(-1) + 1
            raise UsageError(
                f"{run} keeps predictions at {count} inputs and no parameters, and row {row} is none of these "
                "inputs; sample again with these inputs as [[keep_at]], or with [[keep=draws]]"
            )
        return np.array(numbers, np.int32)
