"""Refusal of a budget that is far too short for the sampler and the data."""

from __future__ import annotations

from bnnzoo.assembly import Problem
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.convergence.diagnostics import is_chain
from bnnzoo.finding import setting
from bnnzoo.recipe import duration
from bnnzoo.samplers import AbstractSampler
from bnnzoo.sampling.loop.warmup import windows

MIN_DRAWS = 20
"""Smallest number of draws per chain. A run makes this number of draws even if its budget is exhausted."""
MIN_WINDOWS = 3
"""Smallest number of windows before the final window in a warm-up that ends early."""
_TOLERANCE = 4.0
"""Largest duration of the shortest possible run, in multiples of the budget. It exceeds 1, because later steps can be
much faster than the measured steps: the first trees of NUTS are the longest."""


def refuse_short_budget(
    problem: Problem, sampler: AbstractSampler, *, budget_seconds: float, step_seconds: float
) -> None:
    """Refuse a budget if even the shortest warm-up and the smallest number of draws would far exceed the budget.

    Args:
        problem: the problem with the planned lengths.
        sampler: the sampler with the chosen values of its `auto` fields.
        budget_seconds: seconds of the budget that are left for warm-up and draws.
        step_seconds: measured seconds of a step of all chains.

    Raises:
        UsageError: if the budget is far too short.
    """
    recipe = problem.recipe
    if not is_chain(sampler.stated_exactness):
        return
    warmup, draws = recipe.warmup, min(MIN_DRAWS, recipe.draws)
    thin = recipe.thin if "thin" in recipe.where else 1  # a planned thinning can still become 1
    if "warmup" not in recipe.where and sampler.can_end_warmup:
        ends = windows(warmup)
        warmup = min(warmup, 2 * ends[min(MIN_WINDOWS, len(ends)) - 1])
    seconds = (warmup + draws * thin) * step_seconds
    if seconds <= _TOLERANCE * budget_seconds:
        return
    assert recipe.budget is not None
    used_seconds = duration.seconds(recipe.budget) - budget_seconds
    sufficient_budget = duration.text(1.5 * (seconds + max(used_seconds, 0.0)))
    cheaper = (
        f", or a sampler that uses mini-batches, such as sgld, because {recipe.sampler.name} uses all "
        f"{problem.posterior.num_data} rows in every step"
    )
    raise UsageError(
        f"{setting('budget', recipe.budget)}: too short: on this machine even {warmup} steps of warm-up and "
        f"{draws} draws take about {duration.text(seconds)}; use {setting('budget', sufficient_budget)} or longer"
        f"{cheaper if sampler.density_only else ''}"
    )
