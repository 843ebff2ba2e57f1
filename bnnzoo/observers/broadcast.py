"""An observer that passes the reports on to several observers, and protects the run from their errors."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from bnnzoo.errors import BnnzooWarning
from bnnzoo.observers.base import AbstractObserver, Report
from bnnzoo.plugins.failures import one_line


class Broadcast(AbstractObserver):
    """Several observers, each with a name for warnings."""

    def __init__(self, observers: Iterable[tuple[str, AbstractObserver]] = ()):
        self._observers = tuple(observers)
        self._failed: set[int] = set()

    def observe(self, report: Report) -> None:
        """Pass a report on. The first error of each observer becomes a warning, and later errors are ignored."""
        for number, (name, observer) in enumerate(self._observers):
            try:
                observer.observe(report)
            except Exception as error:  # a full disk, a lost connection, a faulty plugin
                if number not in self._failed:
                    self._failed.add(number)
                    text = f"[[log_to]]: {name}: {one_line(error)}; the run continues, but its log is incomplete"
                    warnings.warn(text, BnnzooWarning, stacklevel=2)
