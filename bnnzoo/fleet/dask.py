"""Jobs on the workers of a Dask cluster, https://distributed.dask.org.

If a worker sees the folder of the job's file, it writes the run there, and another worker can resume the run. Otherwise
the worker returns the file as bytes, and if the worker dies, the job starts again from the beginning.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from bnnzoo.errors import BnnzooError
from bnnzoo.fleet.children import Children
from bnnzoo.fleet.connection import connect
from bnnzoo.fleet.executor import AbstractExecutor, Outcome, Tell
from bnnzoo.fleet.job import Job
from bnnzoo.progress import Progress


class DaskExecutor(AbstractExecutor):
    """Executor with one Dask task per job. Dask moves the task of a dead worker to another worker."""

    def __init__(self, address: str):
        """Connect to the scheduler at `address`, such as tcp://host:8786.

        Raises:
            UsageError: if Dask is not installed, or there is no scheduler at the address.
        """
        self._client = connect(address)
        self._fleet = f"bnnzoo-{secrets.token_hex(4)}"
        self._received_signal = 0
        self._begun: set[str] = set()
        self._futures: dict[Any, Job] = {}

    def outcomes(self, jobs: Sequence[Job], tell: Tell) -> Iterator[Outcome]:
        """Submit all jobs. Yield the outcome of each job when it ends."""
        from distributed import as_completed

        def handle_event(event: tuple[Any, tuple[str, tuple[Any, ...]]]) -> None:
            name, progress = event[1]
            self._begun.add(name)
            tell(name, Progress(*progress))

        markers = {job.out.parent / f".{self._fleet}" for job in jobs}
        self._client.subscribe_topic(self._fleet, handle_event)
        try:
            for marker in markers:
                marker.touch()
            self._futures = {
                self._client.submit(_run, job, self._fleet, key=f"{job.name} {self._fleet}", pure=False): job
                for job in jobs
            }
            for future in as_completed(list(self._futures), loop=self._client.loop):
                # The worker keeps the result as long as the future exists. A result may contain a file, so the future
                # is removed.
                yield self._outcome(future, self._futures.pop(future))
        finally:
            for marker in markers:
                marker.unlink(missing_ok=True)
            self._client.close()

    def stop(self, number: int) -> None:
        """Cancel the jobs that have not started, and stop the running jobs on their workers."""
        self._received_signal = number
        with suppress(Exception):  # a worker that is lost need not be stopped
            self._client.cancel([future for future, job in list(self._futures.items()) if job.name not in self._begun])
            self._client.run(_stop, self._fleet, number)

    def _outcome(self, future: Any, job: Job) -> Outcome:
        if future.status == "finished":
            outcome: Outcome = future.result()
            if outcome.content is not None:
                from bnnzoo.files.atomic import write_atomically  # imported here because it imports NumPy

                content = outcome.content
                try:
                    write_atomically(job.out, lambda file: file.write(content))
                except BnnzooError as error:  # only this job fails
                    return Outcome(job.name, error.exit_code, outcome.seconds, str(error))
            return outcome._replace(content=None)
        if self._received_signal:
            return Outcome(job.name, 128 + self._received_signal, 0.0, "not started")
        if future.status != "error":
            return Outcome(job.name, 1, 0.0, "cancelled by the scheduler")
        error = future.exception()
        return Outcome(job.name, 1, 0.0, f"on the worker: {' '.join(f'{type(error).__name__}: {error}'.split())}")


_fleets: dict[str, Children] = {}
"""The running jobs of this worker process, by fleet."""


def _run(job: Job, fleet: str) -> Outcome:
    """Run a job as a Dask task, in a thread of a worker."""
    from distributed import get_worker

    worker: Any = get_worker()
    children = _fleets.setdefault(fleet, Children())

    def tell(progress: Progress) -> None:
        worker.log_event(fleet, (job.name, tuple(progress)))

    tell(Progress("start", 0, 0, note=f"on {worker.address}"))
    if _is_shared(job.out.parent, fleet):
        return children.run(job, tell)
    with tempfile.TemporaryDirectory(prefix="bnnzoo-") as folder:
        out = Path(folder) / job.out.name
        outcome = children.run(replace(job, out=out), tell)
        return outcome if outcome.code else outcome._replace(content=out.read_bytes())


def _is_shared(folder: Path, fleet: str) -> bool:
    """Whether this worker sees `folder`, in which the main command has created a marker file of the fleet."""
    return (folder / f".{fleet}").exists()


def _stop(fleet: str, number: int) -> None:
    """Stop the jobs of a fleet; called in every worker process."""
    _fleets.setdefault(fleet, Children()).stop(number)
