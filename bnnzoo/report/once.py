"""Cache of values that several pictures of a report share."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TypeVar

from bnnzoo.evaluation.predictions.predictor import Predictor

T = TypeVar("T")


def once(compute: Callable[[Predictor], T]) -> Callable[[Predictor], T]:
    """Return a version of `compute` that caches its result for each predictor."""
    cache: weakref.WeakKeyDictionary[Predictor, T] = weakref.WeakKeyDictionary()

    @functools.wraps(compute)
    def cached(predictor: Predictor) -> T:
        if predictor not in cache:
            cache[predictor] = compute(predictor)
        return cache[predictor]

    return cached
