"""The one interface by which a fleet's jobs are run, wherever that is."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bnnzoo.fleet.job import Job
from bnnzoo.progress import Progress

SAID = "said"
"""The phase of a line that a job's process said of itself, a warning or an error: shown also with --quiet."""

Tell = Callable[[str, Progress], None]
"""Told a job's name and its progress, perhaps in another thread."""


class Outcome(NamedTuple):
    """What became of a job. Its file is where the job wanted it if `code` is 0."""

    name: str
    code: int
    """The exit code of its process, as of any command."""
    seconds: float
    """Of the whole process: start, compilation, warm-up and sampling."""
    said: str = ""
    """Why it failed."""
    content: bytes | None = None
    """The file, on its way from a machine that does not share the folder."""


class AbstractExecutor(abc.ABC):
    """Runs jobs in processes of their own. A process that is killed is tried again, from its last checkpoint."""

    @abc.abstractmethod
    def outcomes(self, jobs: Sequence[Job], tell: Tell) -> Iterator[Outcome]:
        """Run jobs and give what became of each, in the order in which they end."""

    @abc.abstractmethod
    def stop(self, number: int) -> None:
        """Pass a signal on: jobs under way stop where they can be resumed, the others do not begin.

        May be called by another thread.
        """
