"""The length of each chunk, so that a chunk takes about the same time."""

from __future__ import annotations

import time

_MAX_CHUNK_GROWTH, _GROWTH = 20.0, 500.0
"""Largest relative length of a chunk, and seconds in which it grows by its first length: 10 s after three hours."""


class Pace:
    """Number of rows in the next chunk, from the target duration and the time per row of the last chunk.

    The target grows to twenty times the first, because the manifest names every chunk's part and is rewritten with each
    chunk. A run of one night then has thousands of parts instead of a hundred thousand.
    """

    def __init__(self, seconds: float, max_rows: int):
        self.seconds, self.max_rows = seconds, max_rows
        self.last_rows, self.per_row = 0, 0.0
        self.start_time = self.last_time = time.perf_counter()

    def next_rows(self, rows_left: int) -> int:
        """Return the rows of the next chunk: at most eight times the last, because a program's first rows are slow."""
        seconds = self.seconds * min(_MAX_CHUNK_GROWTH, 1 + (self.last_time - self.start_time) / _GROWTH)
        wanted_rows = int(seconds / self.per_row) if self.per_row else 1
        self.last_rows = min(rows_left, self.max_rows, max(1, wanted_rows), 8 * max(1, self.last_rows))
        return self.last_rows

    def record(self, count: int) -> None:
        """Record that `count` rows were computed since the last call."""
        current_time = time.perf_counter()
        self.per_row, self.last_time = (current_time - self.last_time) / count, current_time
