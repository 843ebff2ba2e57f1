"""Dask's communications restricted to plain values. Nothing received is executed, imported or unpickled."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

_IS_PLAIN: ContextVar[bool] = ContextVar("_IS_PLAIN", default=False)


@functools.cache
def communications() -> Any:
    """Return Dask's communications, patched so that some tasks read plain values only (see `read_plain_values_only`).

    Dask unpickles objects in any message, even with `deserialize=False`. Dask's clients and schedulers in the same
    process need the unpickling, so the restriction applies to single tasks.
    """
    from distributed import comm, protocol

    loads = protocol.loads  # pyright: ignore[reportPrivateImportUsage]

    @functools.wraps(loads)
    def loads_by_task(frames: Sequence[Any], *arguments: Any, **options: Any) -> Any:
        return _words(frames) if _IS_PLAIN.get() else loads(frames, *arguments, **options)

    protocol.loads = loads_by_task  # pyright: ignore[reportPrivateImportUsage]
    return comm


def read_plain_values_only() -> None:
    """Make the current asyncio task, and the tasks that this task starts, read plain values only."""
    _IS_PLAIN.set(True)


def _words(frames: Sequence[Any]) -> Any:
    """Decode a message of numbers, texts and bytes, and of tuples and mappings of these.

    Raises:
        ValueError: if the message has several frames (Dask packs other objects in separate frames) or is invalid.
    """
    import msgpack

    if len(frames) != 1:
        raise ValueError("a message must contain only plain values")
    return msgpack.unpackb(frames[0], use_list=False)
