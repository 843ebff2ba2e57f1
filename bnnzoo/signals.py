"""SIGINT and SIGTERM, from the first line of the command on: one line and 130 or 143, never a traceback.

A signal is received by a thread of its own. Imports, compilers and compiled code keep the main thread for seconds, an
exception raised in the middle of them may be caught or turned into another one, and unwinding under running device
threads has ended in a segmentation fault. So the process ends without unwinding, unless a command has asked to be told.
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
"""Called with a signal's number, in another thread."""


@cache
def take_over() -> None:
    """Receive both signals, from here to the end of the process; once."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    for number in SIGNALS:
        # Python writes the number of a signal that has a handler to `tell`, at once, whatever the main thread does.
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    start_new_thread(_listen, (told,))


def taken_over() -> bool:
    """Whether they are: then no KeyboardInterrupt comes from a keyboard."""
    return take_over.cache_info().currsize > 0


@contextmanager
def received_by(receiver: Receiver) -> Iterator[None]:
    """Inside the block signals that the process has taken over go to `receiver`."""
    _receivers.append(receiver)
    try:
        yield
    finally:
        _receivers.remove(receiver)


def leave(number: int, message: str = "stopped") -> None:
    """End the process now: files half written go, the others are as they were."""
    store: Any = sys.modules.get("bnnzoo.store.atomic")
    for path in [] if store is None else list(store.half_written):
        with suppress(OSError):
            path.unlink()
    say(f"{signal.Signals(number).name}: {message}")
    os._exit(128 + number)


def say(message: str) -> None:
    """A line on stderr, past the buffer that the main thread may hold."""
    shown = b"\x1b[?25h\n" if os.isatty(2) else b""  # a progress bar hides the cursor
    with suppress(OSError):
        os.write(2, shown + f"bnnzoo: {message}\n".encode())


_receivers: list[Receiver] = [leave]


def _listen(told: int) -> None:
    while True:
        for number in os.read(told, 1):
            _receivers[-1](number)
