"""The interface of executors, which run the jobs of a fleet."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bnnzoo.fleet.job import Job
from bnnzoo.progress import Progress

JOB_MESSAGE = "message"
"""Value of `Progress.phase` for a message of a job: a warning or an error, which --quiet does not hide."""

Tell = Callable[[str, Progress], None]
"""A function that is called with the name of a job and its progress. The call may come from another thread."""


class Outcome(NamedTuple):
    """The result of a job. After success (`code` 0), the job's file exists, or `content` has its bytes."""

    name: str
    code: int
    """The exit code of the job's process; 1 if every attempt was killed, 128 + signal if the fleet was stopped."""
    seconds: float
    """Wall-clock time of the job: start, compilation, warm-up and sampling, over all attempts.

    It is 0 if the job's Dask task failed or did not start.
    """
    last_message: str = ""
    """The last message of the job's process; for a job that failed, the reason."""
    content: bytes | None = None
    """The bytes of the run's file if the job's machine does not see the folder of the file; else None."""


class AbstractExecutor(abc.ABC):
    """Executor that runs each job in its own process. If a process is killed, the job is resumed."""

    @abc.abstractmethod
    def outcomes(self, jobs: Sequence[Job], tell: Tell) -> Iterator[Outcome]:
        """Run jobs. Yield the outcome of each job when it ends.

        Args:
            jobs: the jobs to run.
            tell: a function that is called with the name of a job and its progress.
        """

    @abc.abstractmethod
    def stop(self, number: int) -> None:
        """Pass the signal `number` to the running jobs, which stop with a checkpoint. No other job starts.

        The method may be called from another thread.
        """
