"""The number of likelihood evaluations of a run: a measure of its cost that does not depend on the machine."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from bnnzoo.errors import BnnzooWarning
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.recipe import Recipe

WARMUP_STEPS = "warmup_n_steps"
"""Key of the number of leapfrog steps in warm-up, in the totals of a run."""


def count_evaluations(
    posterior: AbstractPosterior, sampler: Any, recipe: Recipe, totals: Mapping[str, Any], start_evaluations: float
) -> float:
    """Return the number of evaluations of the likelihood of one datum, or of its gradient, in the whole run.

    Args:
        posterior: the posterior of the run.
        sampler: the tuned sampler.
        recipe: the recipe, with the numbers of steps and chains.
        totals: the sums of each statistic over the draws, per chain.
        start_evaluations: number of likelihood evaluations for the initial positions.

    Warns:
        BnnzooWarning: if the number is negative or not finite, because `sampler.evaluations` is wrong. The result is
            then 0.
    """
    means = {name: float(np.mean(sums)) / recipe.draws for name, sums in totals.items()}
    warmup_means = means
    if recipe.warmup and WARMUP_STEPS in totals:  # before the tuning, trajectories have more steps
        warmup_means = means | {"n_steps": float(np.mean(totals[WARMUP_STEPS])) / recipe.warmup}
    evaluations = sampler.evaluations(posterior, means) * recipe.draws * recipe.thin
    evaluations += sampler.evaluations(posterior, warmup_means, warmup=True) * recipe.warmup
    total = start_evaluations + float(evaluations * recipe.chains)
    if not (math.isfinite(total) and total >= 0):
        text = (
            f"sampler {recipe.sampler.name}: the method `evaluations` must return finite numbers of at least 0 "
            f"(their sum is {total}); the file contains 0 instead"
        )
        warnings.warn(text, BnnzooWarning, stacklevel=2)
        return 0.0
    return total
