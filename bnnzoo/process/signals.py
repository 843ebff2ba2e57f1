"""Handling of SIGINT and SIGTERM: a command ends with one line and exit code 130 or 143, never with a traceback.

A separate thread receives the signals. Imports, compilers and compiled code occupy the main thread for seconds, and an
exception that is raised in this code can be caught or replaced. Python's normal shutdown has caused segmentation faults
if threads of a GPU or another device were running. Therefore the process ends at once, unless a command has registered
a receiver.
"""

from __future__ import annotations

import os
import signal
import sys
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Receiver = Callable[[int], None]
"""A function that is called with the number of the signal, from another thread."""


@cache
def handle_signals() -> None:
    """Handle SIGINT and SIGTERM until the process ends. Repeated calls have no effect."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    for number in SIGNALS:
        # Python writes the number of a handled signal to `write_end` at once, even while the main thread is busy.
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    start_new_thread(_listen, (read_end,))


def are_signals_handled() -> bool:
    """Whether this module handles the signals, so that Ctrl-C does not raise KeyboardInterrupt."""
    return handle_signals.cache_info().currsize > 0


@contextmanager
def receive_signals(receiver: Receiver) -> Iterator[None]:
    """Within the context, call `receiver` when SIGINT or SIGTERM arrives, instead of ending the process.

    `handle_signals` must have been called.
    """
    _receivers.append(receiver)
    try:
        yield
    finally:
        _receivers.remove(receiver)


def end_process(number: int, message: str = "stopped") -> None:
    """End the process at once, after removing incomplete temporary files."""
    store: Any = sys.modules.get("bnnzoo.files.atomic")
    for path in [] if store is None else list(store.half_written):
        with suppress(OSError):
            path.unlink()
    write_to_stderr(f"{signal.Signals(number).name}: {message}")
    os._exit(128 + number)


def write_to_stderr(message: str) -> None:
    """Write a line directly to stderr. The buffer of stderr is not used, because the main thread may have locked it."""
    prefix = b"\x1b[?25h\n" if os.isatty(2) else b""  # a progress bar hides the cursor
    with suppress(OSError):
        os.write(2, prefix + f"bnnzoo: {message}\n".encode())


_receivers: list[Receiver] = [end_process]


def _listen(read_end: int) -> None:
    while True:
        for number in os.read(read_end, 1):
            _receivers[-1](number)
