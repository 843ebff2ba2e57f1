"""The interface of executors, which run a fleet's jobs."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bnnzoo.fleet.job import Job
from bnnzoo.progress import Progress

SAID = "said"
"""Phase of a warning or error message of a job's process; shown also with --quiet."""

Tell = Callable[[str, Progress], None]
"""Callback with a job's name and its progress; it may be called in another thread."""


class Outcome(NamedTuple):
    """The result of a job. If `code` is 0, the file is where the job requested it."""

    name: str
    code: int
    """The exit code of the job's process."""
    seconds: float
    """Wall-clock time of the whole process: start, compilation, warm-up and sampling."""
    last_message: str = ""
    """The reason of a failure."""
    content: bytes | None = None
    """The file's bytes, sent by a machine that does not share the folder."""


class AbstractExecutor(abc.ABC):
    """Executor that runs each job in its own process, and retries a killed one from its last checkpoint."""

    @abc.abstractmethod
    def outcomes(self, jobs: Sequence[Job], tell: Tell) -> Iterator[Outcome]:
        """Run jobs, and yield the outcome of each in the order in which they end.

        Args:
            jobs: the jobs to run.
            tell: called with a job's name and its progress.
        """

    @abc.abstractmethod
    def stop(self, number: int) -> None:
        """Pass a signal on: running jobs stop at a checkpoint, the others do not start.

        Another thread may call it.
        """
