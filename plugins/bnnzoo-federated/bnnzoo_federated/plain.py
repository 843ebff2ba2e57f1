"""Dask's communications with messages of plain words: nothing that comes over a line is run, imported or unpickled."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

_IS_PLAIN: ContextVar[bool] = ContextVar("_IS_PLAIN", default=False)


@functools.cache
def communications() -> Any:
    """Dask's communications, which read words and nothing else in a task that has said so (`take_words_only`).

    Dask opens pickles in any message, also where it is told to deserialise nothing. Its clients and schedulers in the
    same process need that, so what a message may hold is up to the task that reads it.
    """
    from distributed import comm, protocol

    loads = protocol.loads  # pyright: ignore[reportPrivateImportUsage]

    @functools.wraps(loads)
    def by_task(frames: Sequence[Any], *more: Any, **words: Any) -> Any:
        return _words(frames) if _IS_PLAIN.get() else loads(frames, *more, **words)

    protocol.loads = by_task  # pyright: ignore[reportPrivateImportUsage]
    return comm


def take_words_only() -> None:
    """From here on this task, and those that it starts, read plain words."""
    _IS_PLAIN.set(True)


def _words(frames: Sequence[Any]) -> Any:
    """A message of numbers, texts, bytes, and tuples and mappings of them.

    Raises:
        ValueError: for any other; what Dask packs otherwise has frames of its own.
    """
    import msgpack

    if len(frames) != 1:
        raise ValueError("a message with objects in it is refused")
    return msgpack.unpackb(frames[0], use_list=False)
