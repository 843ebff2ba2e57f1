"""Interrupts of a run in Python (Ctrl-C, or the stop button of a notebook): the run ends with a checkpoint."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bnnzoo.errors import InterruptedRunError


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], int] | None]:
    """Within the context, the first SIGINT only sets a flag, and a second SIGINT raises KeyboardInterrupt.

    Yields:
        a function that returns the number of the received signal, or 0 if there was none. The value is None if the
        program has its own handler of SIGINT, or outside the main thread, where Python cannot handle signals.

    Raises:
        KeyboardInterrupt: at a second SIGINT. Also at the end of the context, if a SIGINT was received and the block
            ended without an error.
    """
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield None
        return
    received = 0

    def receive(number: int, frame: Any) -> None:
        nonlocal received
        if received:
            signal.default_int_handler(number, frame)
        received = number
        print("bnnzoo: stopping after the current chunk of steps; a second interrupt stops at once", file=sys.stderr)

    signal.signal(signal.SIGINT, receive)
    try:
        yield lambda: received
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if received:
        raise KeyboardInterrupt


def refuse_late_interrupt(stop: Callable[[], int] | None, run: Path | None) -> None:
    """Raise an error if an interrupt came too late to stop the run.

    Args:
        stop: the function that `stop_on_interrupt` yielded.
        run: the file of the complete run.

    Raises:
        InterruptedRunError: if `stop` returns a signal; the message says how to open the run.
    """
    if stop is not None and (number := stop()):
        name = signal.Signals(number).name
        raise InterruptedRunError(f"{name} came too late to stop the run; open it: bnnzoo.open({str(run)!r})", number)
