"""Processes of jobs (runs of `bnnzoo zoo run`) on this machine: start, progress, retries and stop.

Each job has its own process: JAX selects its devices once per process, and a killed process does not affect other
jobs. A job ends when the standard input of its process closes. Therefore no job, and no lock of a job, outlives the
process that started the job.
"""

from __future__ import annotations

import io
import json
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from bnnzoo.fleet.executor import JOB_MESSAGE, Outcome
from bnnzoo.fleet.job import Job
from bnnzoo.progress import Progress

ATTEMPTS = 4
"""Largest number of starts of a job. A job is resumed if its process is killed, for example for lack of memory."""
_SIGNAL_EXIT_CODES = (128 + signal.SIGTERM, 128 + signal.SIGINT)
_EVENT = '{"phase":'


class Children:
    """The running jobs that this process has started."""

    def __init__(self) -> None:
        self._running: dict[subprocess.Popen[bytes], bool] = {}
        """Whether each job's process has reported progress. SIGINT before the first report would print a traceback."""
        self._received_signal = 0
        self._lock = threading.Lock()

    def stop(self, number: int) -> None:
        """Send the signal `number` to every running job, and start no other job."""
        with self._lock:
            self._received_signal = number
            for process, has_begun in self._running.items():
                process.send_signal(number if has_begun else signal.SIGTERM)

    def run(self, job: Job, tell: Callable[[Progress], None]) -> Outcome:
        """Run a job until it ends. If its process is killed, start it again, up to `ATTEMPTS` times in total."""
        start_time = time.perf_counter()
        code, last_message = 0, ""
        for attempt in range(1, ATTEMPTS + 1):
            if self._received_signal:
                return Outcome(job.name, 128 + self._received_signal, time.perf_counter() - start_time, "not started")
            code, last_message = self._run_once(job, tell)
            # A batch system may also stop a process with a signal. The job has then written a checkpoint.
            signal_number = -code if code < 0 else code - 128 if code in _SIGNAL_EXIT_CODES else 0
            if not signal_number or self._received_signal:
                break
            cause = f"{'killed' if code < 0 else 'stopped'} by {signal.Signals(signal_number).name}"
            if attempt < ATTEMPTS:
                tell(Progress(JOB_MESSAGE, 0, 0, note=f"{cause}; continuing from its last checkpoint"))
            else:
                last_message = f"{cause}, {ATTEMPTS} times"
        if code < 0 or code in _SIGNAL_EXIT_CODES:
            code = 128 + self._received_signal if self._received_signal else 1
        return Outcome(job.name, code, time.perf_counter() - start_time, last_message)

    def _run_once(self, job: Job, tell: Callable[[Progress], None]) -> tuple[int, str]:
        """Run the job's process once, and return its exit code and the last line of its messages."""
        last_message = ""
        with subprocess.Popen(
            # -P removes the current folder from sys.path. A file random.py there would replace Python's module.
            [sys.executable, "-P", "-m", "bnnzoo.cli.job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            # If the job's folder does not exist on this machine, the folder of its output is used. The current folder
            # may contain other data under the same file names.
            cwd=job.folder if job.folder.is_dir() else job.out.parent,
            # In a separate process group, the job does not get Ctrl-C from the terminal; this process passes it on.
            process_group=0,
        ) as process:
            assert process.stdin is not None
            assert isinstance(process.stdout, io.RawIOBase)
            with self._lock:
                self._running[process] = False
                if self._received_signal:
                    process.send_signal(signal.SIGTERM)
            with suppress(BrokenPipeError):  # the process has already ended
                process.stdin.write(pickle.dumps(job))
            with io.TextIOWrapper(io.BufferedReader(process.stdout), encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if progress := _event(line):
                        self._running[process] = True
                        tell(progress)
                    elif line.strip():
                        last_message = line.strip().removeprefix("bnnzoo: ")
                        tell(Progress(JOB_MESSAGE, 0, 0, note=last_message))
            code = process.wait()
            with self._lock:
                del self._running[process]
        return code, last_message


def _event(line: str) -> Progress | None:
    """Return the progress in an output line; None for a message, or for an incomplete line of a killed process."""
    if not line.startswith(_EVENT):
        return None
    try:
        return Progress(**json.loads(line))
    except (ValueError, TypeError):
        return None
