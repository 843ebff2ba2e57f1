"""The processes that jobs run in, on this machine: started, listened to, tried again, stopped.

A job has a process of its own: JAX chooses its devices once in each, and a killed one harms no other. It lives no
longer than the process that started it: it ends with its standard input, so that nobody else finds the run held.
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

from bnnzoo.fleet.executor import SAID, Outcome
from bnnzoo.fleet.job import Job
from bnnzoo.progress import Progress

ATTEMPTS = 4
"""How often a job is begun or gone on with while its process is killed: by the kernel for want of memory, say."""
_TOLD = (128 + signal.SIGTERM, 128 + signal.SIGINT)
_EVENT = '{"phase":'


class Children:
    """The jobs under way in this process."""

    def __init__(self) -> None:
        self._running: dict[subprocess.Popen[bytes], bool] = {}
        """Whether each has said something: before that it is still importing, and an interrupt would be a traceback."""
        self._asked = 0
        self._lock = threading.Lock()

    def stop(self, number: int) -> None:
        """Pass a signal on to every job under way, and begin no other."""
        with self._lock:
            self._asked = number
            for process, has_begun in self._running.items():
                process.send_signal(number if has_begun else signal.SIGTERM)

    def run(self, job: Job, tell: Callable[[Progress], None]) -> Outcome:
        """Run a job to its end."""
        began = time.perf_counter()
        code, said = 0, ""
        for attempt in range(1, ATTEMPTS + 1):
            if self._asked:
                return Outcome(job.name, 128 + self._asked, time.perf_counter() - began, "not begun")
            code, said = self._once(job, tell)
            # Also one that was told to end, as batch systems do: it has left what another can go on from.
            ended = -code if code < 0 else code - 128 if code in _TOLD else 0
            if not ended or self._asked:
                break
            killed = f"{'killed' if code < 0 else 'stopped'} by {signal.Signals(ended).name}"
            if attempt < ATTEMPTS:
                tell(Progress(SAID, 0, 0, note=f"{killed}; going on from its last checkpoint"))
            else:
                said = f"{killed}, {ATTEMPTS} times"
        if code < 0 or code in _TOLD:
            code = 128 + self._asked if self._asked else 1
        return Outcome(job.name, code, time.perf_counter() - began, said)

    def _once(self, job: Job, tell: Callable[[Progress], None]) -> tuple[int, str]:
        """The exit code of the job's process, and the last line that it said."""
        said = ""
        with subprocess.Popen(
            # -P: it runs where the data are, and a random.py that lies there is no module of Python's.
            [sys.executable, "-P", "-m", "bnnzoo.cli.job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            # Where that folder is not seen, a file of the same name that happens to lie here is not the data.
            cwd=job.folder if job.folder.is_dir() else job.out.parent,
            # A group of its own: a terminal's Ctrl-C is then sent to us alone, and reaches it once.
            process_group=0,
        ) as process:
            assert process.stdin is not None
            assert isinstance(process.stdout, io.RawIOBase)
            with self._lock:
                self._running[process] = False
                if self._asked:
                    process.send_signal(signal.SIGTERM)
            with suppress(BrokenPipeError):  # it has ended already
                process.stdin.write(pickle.dumps(job))
            with io.TextIOWrapper(io.BufferedReader(process.stdout), encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if progress := _event(line):
                        self._running[process] = True
                        tell(progress)
                    elif line.strip():
                        said = line.strip().removeprefix("bnnzoo: ")
                        tell(Progress(SAID, 0, 0, note=said))
            code = process.wait()
            with self._lock:
                del self._running[process]
        return code, said


def _event(line: str) -> Progress | None:
    """The progress that a line is of; None where it is something said, or was cut off by a kill."""
    if not line.startswith(_EVENT):
        return None
    try:
        return Progress(**json.loads(line))
    except (ValueError, TypeError):
        return None
