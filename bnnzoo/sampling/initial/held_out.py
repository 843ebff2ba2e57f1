"""Comparison of problems by the losses of trained networks on held-out rows."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bnnzoo.assembly import Problem
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.devices.processes import Processes
from bnnzoo.sampling.initial import budget, positions
from bnnzoo.sampling.initial.trained_start import num_held_out

_NETWORKS, _STEPS, _SHARE = 10, 2000, 0.08
"""Networks per problem, training steps of each network, and largest fraction of the budget for one problem.

Each network has different held-out rows: a tenth of all rows by default, and at most 2048. With half of these training
steps, networks with one noise level were not fully trained, and the wrong likelihood was selected. Therefore no
comparison is made if the budget allows fewer than `_STEPS` training steps."""
OVERLAP = (1 + _NETWORKS / (_NETWORKS - 1)) ** 0.5
"""Factor by which overlapping training rows increase the standard error of a mean over the networks.

See Nadeau and Bengio 2003."""


def can_compare(problem: Problem) -> bool:
    """Whether networks can be compared: the run has a budget, and the training of its networks holds out rows."""
    recipe = problem.recipe
    return (
        problem.description is not None
        and recipe.budget is not None
        and recipe.trains_start
        and num_held_out(problem.posterior.num_data, recipe.start_held_out) > 0
    )


def losses_of(
    problem: Problem, *, trained_part: str, work: positions.StartWork, key: PRNGKeyArray
) -> Float[np.ndarray, " network"]:
    """Train networks, and return the mean negative log density of each network's held-out rows, in nats per row.

    With the same key, the networks of all problems have the same held-out rows.

    Args:
        problem: the problem; all its parameters are trained.
        trained_part: description of the networks for progress messages.
        work: observer, stop signal and cost of the initial positions. The cost of this training is added.
        key: random key of the networks and of the held-out rows.

    Raises:
        InterruptedRunError: if `work.stop` returned a signal.
    """
    candidate = problem.with_all_sampled(_NETWORKS)
    candidate = candidate.with_lengths(dataclasses.replace(candidate.recipe, start_steps=_STEPS), candidate.sampler)
    thetas, placement = candidate.initial_positions(trained=True, key=key), place_chains("auto", _NETWORKS)
    with work.time_block():
        losses = positions.train_networks(candidate, thetas, placement, trained_part, work, key).losses
    # Rounding differs between machines, and all processes must make the same choice.
    return Processes.current().broadcast_first(np.asarray(losses, np.float64))


def is_affordable(problem: Problem, *, key: PRNGKeyArray) -> bool:
    """Whether the budget is large enough to train the networks of a comparison for all their steps."""
    placement, candidate = place_chains("auto", _NETWORKS), problem.with_all_sampled(_NETWORKS)
    steps = budget.training_steps(candidate, placement, most=_STEPS, share=_SHARE, key=key)
    # Clocks differ between machines, and all processes must decide alike.
    return Processes.current().broadcast_first(steps) >= _STEPS
