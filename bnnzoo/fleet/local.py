"""Jobs in processes on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial

from bnnzoo.fleet.children import Children
from bnnzoo.fleet.executor import AbstractExecutor, Outcome, Tell
from bnnzoo.fleet.job import Job


class LocalExecutor(AbstractExecutor):
    """Executor that runs at most `workers` jobs at the same time, each in its own process."""

    def __init__(self, workers: int):
        self._workers = workers
        self._children = Children()

    def outcomes(self, jobs: Sequence[Job], tell: Tell) -> Iterator[Outcome]:
        """Run the jobs in child processes. Yield the outcome of each job when it ends."""
        with ThreadPoolExecutor(self._workers) as pool:
            futures = [pool.submit(self._children.run, job, partial(tell, job.name)) for job in jobs]
            for future in as_completed(futures):
                yield future.result()

    def stop(self, number: int) -> None:
        """Pass the signal `number` to the running jobs, and start no other job."""
        self._children.stop(number)
