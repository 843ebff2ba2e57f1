"""Choice of the number of rows of each chunk from a target time. A row is a draw or a warm-up step."""

from __future__ import annotations

import time

_MAX_CHUNK_GROWTH, _GROWTH = 20.0, 500.0
"""Limit and speed of the growth of the target time, relative to its first value.

The target time grows by its first value every 500 s, and to at most 20 times its first value (10 s after three hours).
"""


class Pace:
    """Number of rows of the next chunk, from the target time of a chunk and the time per row of the previous chunk.

    The target time grows, because the manifest lists the part file of every chunk and is rewritten after each chunk. A
    run of one night then has thousands of part files instead of a hundred thousand.
    """

    def __init__(self, seconds: float, max_rows: int):
        self.seconds, self.max_rows = seconds, max_rows
        self.last_rows, self.per_row = 0, 0.0
        self.start_time = self.last_time = time.perf_counter()

    def next_rows(self, rows_left: int) -> int:
        """Return the number of rows of the next chunk.

        It is at most eight times the previous chunk's number of rows, because the first rows of a program are slow.
        """
        seconds = self.seconds * min(_MAX_CHUNK_GROWTH, 1 + (self.last_time - self.start_time) / _GROWTH)
        wanted_rows = int(seconds / self.per_row) if self.per_row else 1
        self.last_rows = min(rows_left, self.max_rows, max(1, wanted_rows), 8 * max(1, self.last_rows))
        return self.last_rows

    def record(self, count: int) -> None:
        """Record that `count` rows were computed since the previous call."""
        current_time = time.perf_counter()
        self.per_row, self.last_time = (current_time - self.last_time) / count, current_time
