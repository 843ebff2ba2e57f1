"""One run of `bnnzoo zoo run`, called a job, in its own process: `python -m bnnzoo.cli.job`.

The process reads the job from standard input. It writes progress to standard output as lines of JSON, and messages as
lines of text.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import time
from _thread import start_new_thread
from contextlib import suppress

from bnnzoo.cli.signals import Stop, stop_signals
from bnnzoo.errors import BusyError, UsageError
from bnnzoo.fleet import Job
from bnnzoo.process import garbage_collection, signals, standard_streams
from bnnzoo.progress import Progress

_SECONDS_BETWEEN_LINES = 0.5
_PATIENCE = 90.0
"""Seconds that a job waits for a run that another process has locked.

The lock of a dead process expires after a minute.
"""


def main() -> None:
    """Run the job on standard input and end the process with the exit code of the job."""
    standard_streams.protect_standard_streams()
    signals.handle_signals()
    garbage_collection.relax_garbage_collection()
    job: Job = pickle.load(sys.stdin.buffer)
    start_new_thread(_end_with_parent, ())
    from bnnzoo import cli

    sys.exit(cli.run_guarded(lambda: _run(job), debug=job.debug))


def _run(job: Job) -> int:
    end = time.monotonic() + _PATIENCE
    with stop_signals() as stop:
        while True:
            try:
                _start_or_resume(job, _ProgressLines(), stop)
            except BusyError:
                if stop() or time.monotonic() > end:
                    raise
                time.sleep(1)
            except UsageError:
                # Another process may have finished the run since the last check.
                if _state(job) != "complete":
                    raise
                return 0
            else:
                return 0


def _state(job: Job) -> str:
    """Return the state of the job's run. An old run that the job replaces is ignored."""
    from bnnzoo import store

    old = bool(job.replaces) and job.replaces == store.identity_of(job.out)
    return store.parts_state(job.out) if old else store.run_state(job.out)


def _start_or_resume(job: Job, watch: _ProgressLines, stop: Stop) -> None:
    from bnnzoo.api import entrances, resuming

    _check_packages(job)
    state = _state(job)
    if state == "resumable":
        watch(Progress("note", 0, 0, note="continuing from its last checkpoint"))
        resuming.resume(job.out, progress=False, observer=watch, stop=stop)
    elif state != "complete":
        # A run without a checkpoint (state begun) has no draws to keep, so it can be overwritten.
        force = state == "begun" or bool(job.replaces)
        entrances.run_recipe(job.recipe, out=job.out, observer=watch, stop=stop, force=force)


def _check_packages(job: Job) -> None:
    """Check that this machine has the package versions that the job lists, and therefore the same code.

    Raises:
        UsageError: if a version differs; the message names the package and both versions.
    """
    from bnnzoo.plugins import registry

    installed = {plugin.distribution: plugin.version for plugin in registry.plugins()}
    different = [
        f"{name} is {installed.get(name, 'absent')}, expected {version}"
        for name, version in job.packages
        if installed.get(name) != version
    ]
    if different:
        raise UsageError(
            f"{job.name}: this machine has other package versions: {', '.join(different)}; install the same versions "
            "on all machines"
        )


class _ProgressLines:
    """A writer of progress as lines of JSON: the first and last report of a phase, and some reports in between."""

    def __init__(self) -> None:
        self._phase, self._last = "", 0.0

    def __call__(self, progress: Progress) -> None:
        current_time = time.monotonic()
        is_phase_end = progress.total > 0 and progress.done >= progress.total
        if (
            progress.phase == self._phase != "note"
            and not is_phase_end
            and current_time - self._last < _SECONDS_BETWEEN_LINES
        ):
            return
        self._phase, self._last = progress.phase, current_time
        # The line is written in one call, because a signal's message goes to the same pipe and must not split it.
        with suppress(OSError):
            os.write(1, f"{json.dumps(progress._asdict())}\n".encode())


def _end_with_parent() -> None:
    """End the process when standard input ends, which happens when the parent process ends for any reason."""
    while os.read(0, 4096):
        pass
    signals.end_process(signal.SIGTERM, "the process that started this job has ended")


if __name__ == "__main__":
    main()
