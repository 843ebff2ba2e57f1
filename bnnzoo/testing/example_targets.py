"""Search for example targets, and for a number of targets, that a likelihood accepts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped

from bnnzoo.errors import UsageError
from bnnzoo.posterior.likelihoods import AbstractLikelihood

_VALUES = (0.0, 1.0, 0.5)
"""Regression targets to try, in this order.

A likelihood of positive numbers refuses 0, and a likelihood on the interval (0, 1) refuses 0 and 1.
"""


def example_targets(likelihood: AbstractLikelihood, count: int) -> Shaped[np.ndarray, "row ..."]:
    """Return targets that the likelihood's method `check` accepts: one row (regression), or one row for each class.

    Args:
        likelihood: the likelihood.
        count: number of targets (regression) or classes (classification).

    Raises:
        UsageError: if the likelihood refuses all examples. The error is that of the first example.
    """
    is_classification = likelihood.task == "classification"
    examples = (
        [np.arange(count, dtype=np.int32)]
        if is_classification
        else [np.full((1, count), value, np.float32) for value in _VALUES]
    )
    errors: list[UsageError] = []
    for example in examples:
        try:
            likelihood.check(example, count)
        except UsageError as error:
            errors.append(error)
        else:
            return example
    raise errors[0]


def supported_count(likelihood: AbstractLikelihood, counts: Sequence[int]) -> int:
    """Return the first number of targets or classes that the likelihood accepts; `counts[0]` if it accepts none."""
    for count in counts:
        try:
            example_targets(likelihood, count)
        except UsageError:
            continue
        return count
    return counts[0]
