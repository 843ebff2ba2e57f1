"""Lengths of a run with a time budget, revised from the measured times of its steps: warm-up and thinning."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from bnnzoo.assembly import Problem
from bnnzoo.evaluation.convergence.diagnostics import is_chain
from bnnzoo.finding import setting, spell_settings, spelling
from bnnzoo.samplers import AbstractSampler
from bnnzoo.sampling.initial.budget import (
    MAX_THIN,
    MAX_WARMUP,
    MIN_WARMUP,
    STEP_SECONDS,
    WANTED_DRAWS,
    WARMUP_SHARE,
    round_down,
    seconds_after_start,
)
from bnnzoo.sampling.initial.budget_check import MIN_WINDOWS, refuse_short_budget
from bnnzoo.sampling.loop.warmup import windows
from bnnzoo.store import Attributes
from bnnzoo.store.schema import LENGTH_PLAN

_WARMUP_TOLERANCE = 1.25
"""Warm-up ends early only if it would take longer than `_WARMUP_TOLERANCE` times `WARMUP_SHARE` times the budget.

Small differences between the planned and the measured time do not change the number of steps, so the draws of two runs
are usually equal."""


def length_plan(problem: Problem, start_seconds: float) -> Attributes:
    """Return the root attribute that a resumed run needs to revise its lengths; empty without a budget.

    Args:
        problem: the problem of the run, with the lengths of `plan_lengths`.
        start_seconds: seconds that were spent on the initial positions.
    """
    if problem.recipe.budget is None:
        return {}
    open_lengths = [name for name in ("warmup", "thin", "draws") if name not in problem.recipe.where]
    return {LENGTH_PLAN: json.dumps({"open": open_lengths, "start_seconds": start_seconds})}


def with_open_lengths(problem: Problem, attributes: Mapping[str, Any]) -> Problem:
    """Mark the lengths that the budget may still change as not set by the user, and return the problem.

    In the recipe of a resumed run, all lengths have values, as if the user had set them.
    """
    open_lengths = json.loads(attributes.get(LENGTH_PLAN, "{}")).get("open", ())
    where = {name: place for name, place in problem.recipe.where.items() if name not in open_lengths}
    return problem.with_lengths(dataclasses.replace(problem.recipe, where=where), problem.sampler)


def seconds_of_start(attributes: Mapping[str, Any]) -> float:
    """Return the seconds that a run spent on its initial positions, from its root attributes; 0 without a budget."""
    return json.loads(attributes.get(LENGTH_PLAN, "{}")).get("start_seconds", 0.0)


def with_measured_step(
    problem: Problem, sampler: AbstractSampler, *, start_seconds: float, step_seconds: float
) -> Problem:
    """Return the problem with a shorter warm-up if the budget pays for at most half of the planned steps.

    Args:
        problem: the problem of the run, with the lengths of `plan_lengths`.
        sampler: the sampler with the chosen values of its `auto` fields.
        start_seconds: seconds that were spent on the initial positions.
        step_seconds: measured seconds of a warm-up step of all chains.

    Raises:
        UsageError: if the budget is far too short (`refuse_short_budget`).
    """
    recipe = problem.recipe
    if recipe.budget is None:
        return problem
    budget = seconds_after_start(recipe.budget, start_seconds)
    affordable = WARMUP_SHARE * budget / max(step_seconds, STEP_SECONDS)
    if "warmup" not in recipe.where and 2 * affordable <= recipe.warmup:
        warmup = max(MIN_WARMUP, round_down(affordable, MAX_WARMUP))
        problem = problem.with_lengths(dataclasses.replace(recipe, warmup=warmup), problem.sampler)
    refuse_short_budget(problem, sampler, budget_seconds=budget, step_seconds=step_seconds)
    return problem


def with_shorter_warmup(
    problem: Problem,
    sampler: AbstractSampler,
    *,
    step: int,
    warmup_seconds: float,
    start_seconds: float,
    step_seconds: float,
) -> Problem:
    """Return the problem with a shorter warm-up if the planned one takes too much of the budget.

    The shorter warm-up has the windows so far and a final window that is as long as all of them together. The function
    is called at the end of a window. Warm-up is shortened if one more window, and the longer final window that belongs
    to it, would take too long. The sampler must support a shorter warm-up (`can_end_warmup`).

    Args:
        problem: the problem of the run.
        sampler: the sampler that is being tuned.
        step: number of warm-up steps so far.
        warmup_seconds: seconds of the budget that have been used.
        start_seconds: seconds that were spent on the initial positions; a part of `warmup_seconds`.
        step_seconds: mean seconds of a step of all chains in the last window.
    """
    recipe = problem.recipe
    if recipe.budget is None or "warmup" in recipe.where:
        return problem
    planned = recipe.windowed_warmup
    ends = windows(planned)
    if recipe.warmup < planned or step not in ends[MIN_WINDOWS - 1 : -2]:
        return problem
    budget = seconds_after_start(recipe.budget, start_seconds)
    next_end = ends[ends.index(step) + 1]
    expected_seconds = warmup_seconds - start_seconds + (2 * next_end - step) * step_seconds
    if expected_seconds <= _WARMUP_TOLERANCE * WARMUP_SHARE * budget:
        return problem
    if not sampler.can_end_warmup:
        return problem
    return problem.with_lengths(dataclasses.replace(recipe, warmup=2 * step, planned_warmup=planned), problem.sampler)


def with_thinning(
    problem: Problem,
    sampler: AbstractSampler,
    *,
    warmup_step_seconds: float,
    seconds_left: float,
    means: Mapping[str, float],
) -> Problem:
    """Return the problem with a new thinning, computed from the measured time of a warm-up step.

    The problem is unchanged without a budget, if the user has set the thinning, or if the draws are not a Markov chain.

    The thinning of `plan_lengths` is only an estimate: it assumes that every trajectory has the largest allowed length,
    but most trajectories are shorter.

    Args:
        problem: the problem of the run.
        sampler: the tuned sampler.
        warmup_step_seconds: seconds of a warm-up step of all chains.
        seconds_left: seconds of the budget that are not yet used.
        means: mean of each statistic in the last chunk of warm-up.
    """
    recipe = problem.recipe
    if recipe.budget is None or "thin" in recipe.where or not is_chain(sampler.stated_exactness):
        return problem
    evaluations, warmup_evaluations = (
        sampler.evaluations(problem.posterior, means, warmup=warmup) for warmup in (False, True)
    )
    step_seconds = warmup_step_seconds * (evaluations / warmup_evaluations if warmup_evaluations > 0 else 1.0)
    steps = seconds_left / max(step_seconds, STEP_SECONDS)
    wanted_draws = recipe.draws if "draws" in recipe.where else WANTED_DRAWS
    thin = max(1, round_down(steps / wanted_draws, MAX_THIN))
    return problem.with_lengths(dataclasses.replace(recipe, thin=thin), problem.sampler)


def describe_shorter_warmup(problem: Problem) -> str:
    """Return the sentence about a warm-up that `with_shorter_warmup` has shortened."""
    recipe = problem.recipe
    return spell_settings(
        f"budget {recipe.budget}: warm-up ends after {recipe.warmup} of {recipe.planned_warmup} steps, because it is "
        f"slower than expected and must leave time for draws; use a longer {setting('budget')} for a longer warm-up",
        spelling(),
    )
