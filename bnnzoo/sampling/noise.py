"""The noise of a regression whose recipe names no likelihood: one level, or a level by row."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import PRNGKeyArray
from scipy import stats

from bnnzoo.assembly import Problem
from bnnzoo.errors import UsageError
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.progress import Observer, Progress
from bnnzoo.sampling import budget, origin
from bnnzoo.sampling.job import Stop
from bnnzoo.sampling.placement import place
from bnnzoo.sampling.processes import Processes
from bnnzoo.sampling.start import num_held_out

BY_ROW = "heteroscedastic"
_NETWORKS, _MOST_STEPS, _SHARE = 10, 2000, 0.08
"""Networks a likelihood, each judged by its own tenth of the rows, and the share of the budget for one likelihood. As
many as the chains of `small-table`: what trains them is then the program that trains the chains' starts.
"""


def is_open(problem: Problem) -> bool:
    """Whether a run chooses: it has a time in place of lengths, one level by default, and rows to judge by."""
    recipe, description = problem.recipe, problem.description
    return (
        description is not None
        and recipe.budget is not None
        and recipe.likelihood is None
        and recipe.init != "prior"
        and isinstance(description.parts.likelihood, Gaussian)
        and not description.parts.model.brings_likelihood
        and num_held_out(problem.posterior.num_data, recipe.start_held_out) > 0
    )


def chosen(problem: Problem, *, tell: Observer, stop: Stop | None, spent: origin.Spent, key: PRNGKeyArray) -> Problem:
    """The problem with a noise level by row where trained networks predict held-out rows better by that; else itself.

    The same rows are held out of both, so that the difference is not one between rows; it counts where it is as sure as
    two standard errors of many networks: where either would do, the simpler one is taken.

    Raises:
        InterruptedRunError: when `stop` said so.
    """
    if not is_open(problem):
        return problem
    try:
        rival = problem.with_likelihood(BY_ROW)
    except UsageError:  # a sampler for one level of noise alone
        return problem
    placement = place("auto", _NETWORKS)
    level, by_row = problem.whole(_NETWORKS), rival.whole(_NETWORKS)
    steps = _MOST_STEPS
    for candidate in (by_row, level):
        # Each machine has a clock of its own, and all must decide alike.
        steps = Processes.here().firsts(budget.training_steps(candidate, placement, most=steps, share=_SHARE, key=key))
        if steps <= budget.FEWEST_START_STEPS:
            note = f"one noise level: the budget leaves no time to compare; --likelihood gaussian or {BY_ROW} decides"
            tell(Progress("note", 0, 0, note=note))
            return problem
    losses = []
    for candidate in (level, by_row):
        candidate = candidate.with_lengths(dataclasses.replace(candidate.recipe, start_steps=steps), candidate.sampler)
        thetas = candidate.initial_positions(trained=True, key=key)
        what = "networks that the likelihood is chosen by"
        with spent.timed():
            losses.append(origin.trained(candidate, thetas, placement, what, tell, stop, spent, key).losses)
    # Machines round differently, and all processes draw from one posterior.
    one, many = Processes.here().firsts(np.asarray(losses, np.float64))
    gain = one - many
    # Tenths of the same rows, drawn anew, overlap in what they train on: Nadeau and Bengio 2003, Mach. Learn. 52.
    total = problem.posterior.num_data
    held = num_held_out(total, problem.recipe.start_held_out)
    se = gain.std(ddof=1) * (1 / _NETWORKS + held / (total - held)) ** 0.5
    shown = gain.mean() > stats.t.ppf(stats.norm.cdf(2), _NETWORKS - 1) * se
    found, why = (rival, "a noise level by row") if shown else (problem, "one noise level")
    numbers = f"{one.mean():.3g} nats a held-out row with one level, {many.mean():.3g} by row"
    tell(Progress("note", 0, 0, note=f"{why}: {numbers}; --likelihood gaussian or {BY_ROW} decides"))
    return found
