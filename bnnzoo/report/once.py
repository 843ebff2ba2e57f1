"""What several pictures of a page show, computed once."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TypeVar

from bnnzoo.evaluation.predictor import Predictor

T = TypeVar("T")


def once(compute: Callable[[Predictor], T]) -> Callable[[Predictor], T]:
    """The same function, which answers of a predictor that it knows without looking again."""
    found: weakref.WeakKeyDictionary[Predictor, T] = weakref.WeakKeyDictionary()

    @functools.wraps(compute)
    def remembered(predictor: Predictor) -> T:
        if predictor not in found:
            found[predictor] = compute(predictor)
        return found[predictor]

    return remembered
