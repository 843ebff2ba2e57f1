"""Reasons to end a run before its largest number of draws: convergence at a test point, or an exhausted budget."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bnnzoo.recipe import Recipe, duration
from bnnzoo.sampling import verdict
from bnnzoo.sampling.initial import budget_check
from bnnzoo.sampling.job import Job, ends_at_test_points, ladder
from bnnzoo.sampling.seconds import Seconds

_MIN_FOR_PREDICTIONS = 200
"""Smallest number of draws per chain at which stable predictions (`until` "predictions") may end a run."""


def reason_to_end(job: Job, out: Path, num_draws: int, seconds: Seconds) -> str:
    """Return the reason why the run ends now; an empty string if it continues.

    The reasons are "converged", "predictions" (more draws would hardly change the predictions) and "budget".

    Args:
        job: the running job.
        out: the file of the run.
        num_draws: the number of kept draws per chain so far.
        seconds: the time spent so far.
    """
    recipe = job.recipe
    if num_draws in test_points(job, num_draws):
        by_predictions = recipe.until == "predictions" and num_draws >= _MIN_FOR_PREDICTIONS
        stride = _stride(job, num_draws)
        if reason := verdict.reason_to_end(out, stride, job.own_model, by_predictions=by_predictions):
            return reason
    if recipe.budget and num_draws >= budget_check.MIN_DRAWS and budget_left(recipe, seconds) <= 0:
        return "budget"
    return ""


def test_points(job: Job, num_draws: int) -> list[int]:
    """Return the numbers of draws, up to `num_draws`, at which convergence is tested."""
    stops = ladder(job.recipe.draws) if ends_at_test_points(job.recipe) else []
    return [stop for stop in stops if stop <= num_draws and _stride(job, stop)]


def length_attributes(job: Job, num_draws: int) -> dict[str, str | int | float]:
    """Return the attributes of the file that describe the length of a run with a budget or a test of convergence."""
    attributes: dict[str, str | int | float] = {
        "stops": json.dumps(test_points(job, num_draws)),
        "draws_requested": num_draws,
    }
    return attributes | ({"budget": job.recipe.budget} if job.recipe.budget else {})


def expected_draws(recipe: Recipe, num_draws: int, seconds: Seconds) -> int:
    """Estimate the number of draws per chain at the end of the run."""
    if not recipe.budget or not seconds.sampling:
        return recipe.draws
    seconds_left = budget_left(recipe, seconds)
    return min(recipe.draws, max(num_draws, int(num_draws * (1 + seconds_left / seconds.sampling))))


def num_bytes(job: Job, num_draws: int) -> int:
    """Return the size, in bytes, of the kept values of `num_draws` draws of each chain."""
    problem = job.problem
    return job.recipe.chains * num_draws * problem.num_kept * np.dtype(problem.posterior.dtype).itemsize


def _stride(job: Job, num_draws: int) -> int:
    return verdict.stride(num_bytes(job, num_draws), num_draws)


def budget_left(recipe: Recipe, seconds: Seconds) -> float:
    """Return the seconds of the recipe's budget that warm-up and sampling have not used; negative if they used more."""
    assert recipe.budget is not None
    return duration.seconds(recipe.budget) - seconds.warmup - seconds.sampling
