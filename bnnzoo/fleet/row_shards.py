"""Passes over the rows on the workers of a Dask cluster. Each worker holds a shard of the rows."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Shaped

from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.finding import setting
from bnnzoo.fleet.connection import connect
from bnnzoo.plugins.failures import one_line
from bnnzoo.posterior.row_map import LostWorkersError

T = TypeVar("T")


class RowShards:
    """The workers of a Dask cluster as a `RowMap`: each worker evaluates a function of its shard of the rows."""

    def __init__(self, address: str):
        """Connect to the scheduler at `address`, such as tcp://host:8786.

        Raises:
            UsageError: if Dask is not installed, if there is no scheduler at the address, if it has no workers, or if a
                worker has another version of bnnzoo.
        """
        self.address = address
        self._client = connect(address)
        self._shared: tuple[Any, Any] = (None, None)
        """The last `shared` argument of a call, and its copies on the workers."""
        if not self._workers():
            self._client.close()
            raise UsageError(
                f"{setting('scheduler', address)}: the scheduler has no workers; start a worker on each machine with "
                f"`dask worker {address} --nthreads 1`"
            )
        own_version = installed_version()
        for worker, version in self._client.run(installed_version).items():
            if version != own_version:
                self._client.close()
                raise UsageError(
                    f"{setting('scheduler', address)}: the worker {worker} has bnnzoo {version}, but this machine has "
                    f"{own_version}; install the same version on all machines"
                )

    def __call__(self, function: Callable[..., T], shared: Any, *rows: Shaped[np.ndarray, "row ..."] | None) -> list[T]:
        """Return `function(shared, *shard)` for each shard of the rows, in the order of the rows.

        Raises:
            LostWorkersError: if a worker or the scheduler was lost.
            BnnzooError: if the function raised another error on a worker.
        """
        from distributed import CancelledError
        from distributed.scheduler import KilledWorker

        num_rows = next(len(array) for array in rows if array is not None)
        try:
            if not (workers := self._workers()):
                raise TimeoutError
            ends = np.linspace(0, num_rows, min(len(workers), max(1, num_rows)) + 1).round().astype(int)
            if self._shared[0] is not shared:
                self._shared = (shared, self._client.scatter(shared, broadcast=True, hash=False))
            futures = []
            for worker, (start, stop) in zip(workers, itertools.pairwise(ends.tolist()), strict=False):
                shard = [None if array is None else np.asarray(array[start:stop]) for array in rows]
                (held,) = self._client.scatter([_Shard(shard)], workers=[worker], hash=False)
                futures.append(
                    self._client.submit(_apply, function, self._shared[1], held, workers=[worker], pure=False)
                )
            return self._client.gather(futures)
        except (CancelledError, KilledWorker, OSError, TimeoutError, KeyError) as error:
            raise LostWorkersError(
                f"{setting('scheduler', self.address)}: a worker was lost during a pass over the rows; try again"
            ) from error
        except BnnzooError:
            raise
        except Exception as error:
            text = str(error) if isinstance(error, _FunctionError) else one_line(error)
            raise BnnzooError(
                f"{setting('scheduler', self.address)}: a worker failed ({text}); install the same packages on the "
                "workers as on this machine"
            ) from error

    def _workers(self) -> list[str]:
        return sorted(self._client.scheduler_info(n_workers=-1)["workers"])

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def installed_version() -> str:
    """Return the version of bnnzoo on this machine."""
    return metadata.version("bnnzoo")


class _Shard:
    """The arrays of a shard in one object, because Dask would send the elements of a list separately."""

    def __init__(self, arrays: list[np.ndarray | None]):
        self.arrays = arrays


class _FunctionError(Exception):
    """An error of the function on a worker. An error of Dask, such as a KeyError, means that a worker was lost."""


def _apply(function: Callable[..., T], shared: Any, shard: _Shard) -> T:
    try:
        return function(shared, *shard.arrays)
    except BnnzooError:
        raise
    except Exception as error:
        raise _FunctionError(one_line(error)) from error


@contextlib.contextmanager
def row_shards(address: str | None) -> Iterator[RowShards | None]:
    """Yield the workers of the scheduler at `address`, or None without an address. Disconnect at the end of the block.

    Raises:
        UsageError: as for `RowShards`.
    """
    if address is None:
        yield None
        return
    shards = RowShards(address)
    try:
        yield shards
    finally:
        shards.close()
