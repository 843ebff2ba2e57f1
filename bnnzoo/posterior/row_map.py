"""Evaluation of functions on shards (parts) of the rows, in this process or on other machines that hold the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Shaped

from bnnzoo.errors import BnnzooError

T = TypeVar("T")


class LostWorkersError(BnnzooError):
    """A machine that holds rows was lost during a pass over the rows."""


@runtime_checkable
class RowMap(Protocol):
    """Evaluation of a function for each shard of the rows."""

    def __call__(self, function: Callable[..., T], shared: Any, *rows: Shaped[np.ndarray, "row ..."] | None) -> list[T]:
        """Return `function(shared, *shard)` for each shard of the rows, in the order of the rows.

        Args:
            function: function that can be pickled.
            shared: the same argument for all shards; it can be pickled.
            rows: arrays whose first axis is the row. In place of an array, None is passed to the function unchanged.
        """
        ...


def map_locally(function: Callable[..., T], shared: Any, *rows: Shaped[np.ndarray, "row ..."] | None) -> list[T]:
    """Evaluate a function in this process, with all rows as a single shard. The arguments are those of `RowMap`."""
    return [function(shared, *rows)]
