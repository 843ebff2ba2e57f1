"""Errors of observers: one warning each, and no effect on the others."""

from __future__ import annotations

import warnings

import pytest

from bnnzoo.errors import BnnzooWarning
from bnnzoo.observers import AbstractObserver, RunFailure
from bnnzoo.observers.broadcast import Broadcast

REPORT = RunFailure("failed", "a disk is full", 3)


class Counting(AbstractObserver):
    def __init__(self, error: BaseException | None = None):
        self.error, self.count = error, 0

    def observe(self, report):
        self.count += 1
        if self.error is not None:
            raise self.error


def test_an_observer_that_raises_warns_once_and_is_called_again():
    broken, working = Counting(OSError("no space left")), Counting()
    both = Broadcast([("broken", broken), ("working", working)])
    with pytest.warns(BnnzooWarning, match="log_to: broken: OSError: no space left; the run continues"):
        both.observe(REPORT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both.observe(REPORT)
    assert broken.count == working.count == 2


def test_each_observer_warns_on_its_own():
    both = Broadcast([("same", Counting(OSError("first"))), ("same", Counting(OSError("second")))])
    with pytest.warns(BnnzooWarning) as caught:
        both.observe(REPORT)
    assert [str(warning.message).split(": ")[3].partition(";")[0] for warning in caught] == ["first", "second"]


def test_an_interrupt_is_not_caught():
    with pytest.raises(KeyboardInterrupt):
        Broadcast([("a", Counting(KeyboardInterrupt()))]).observe(REPORT)
