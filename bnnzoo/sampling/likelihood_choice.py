"""Selection of the noise model of a regression whose recipe names no likelihood: one level, or one level per row."""

from __future__ import annotations

import dataclasses
import json
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, PRNGKeyArray
from scipy import stats

from bnnzoo.assembly import Problem
from bnnzoo.errors import UsageError
from bnnzoo.finding import spell_settings, spelling
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.progress import Observer, Progress
from bnnzoo.sampling import budget, initial
from bnnzoo.sampling.job import Stop
from bnnzoo.sampling.placement import place_chains
from bnnzoo.sampling.processes import Processes
from bnnzoo.sampling.start import num_held_out

NOISE_BY_ROW = "heteroscedastic"
_NETWORKS, _STEPS, _SHARE = 10, 2000, 0.08
"""Networks per likelihood, training steps of each, and largest fraction of the budget for one likelihood.

Each network is tested on its own tenth of the rows. There are as many as chains in `small-table`, so that the compiled
training program is reused for the chains' starts. With half the steps, networks with one noise level are not trained to
the end, and lose although the noise has one level. So a budget for fewer steps makes no comparison."""
_LEAST_GAIN = 0.01
"""Smallest median gain, in nats per row, at which one noise level per row is selected."""
_LEVEL = 0.005
"""Largest p value at which one noise level per row is selected.

The training rows of the networks overlap, which widens the differences by (1 + 10 / 9)^(1/2) (Nadeau and Bengio 2003).
The true level is therefore about 0.04."""


def is_likelihood_open(problem: Problem) -> bool:
    """Whether a run selects its noise model: it has a budget, held-out rows and no stated likelihood."""
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


class Comparison(NamedTuple):
    """Paired held-out losses of networks under both likelihoods, and the selection that follows from them."""

    one_level: Float[np.ndarray, " network"]
    """Mean negative log density of each network's held-out rows with one noise level, in nats."""
    by_row: Float[np.ndarray, " network"]
    """Same loss with one noise level per row."""

    @property
    def gain(self) -> Float[np.ndarray, " network"]:
        """Nats per held-out row by which one noise level per row is better."""
        return self.one_level - self.by_row

    @property
    def p(self) -> float:
        """The exact one-sided p value of Wilcoxon's signed-rank test that the gain is positive.

        The test uses ranks, so that a single network with very poor predictions cannot decide.
        """
        if not np.isfinite(self.gain).any() or np.isnan(self.gain).any():
            return 1.0
        _, p = stats.wilcoxon(self.gain, alternative="greater", method="exact")
        return float(np.asarray(p).item())

    @property
    def prefers_by_row(self) -> bool:
        """Whether one noise level per row predicts held-out rows better, significantly and by a relevant amount."""
        return self.p <= _LEVEL and float(np.median(self.gain)) >= _LEAST_GAIN

    @property
    def sentence(self) -> str:
        """Summary of the compared losses and the selected likelihood, in one sentence."""
        num_better, count = int(np.sum(self.gain > 0)), len(self.gain)
        choice = "one noise level per row" if self.prefers_by_row else "one noise level"
        relation = "at most" if self.p <= _LEVEL else "above"
        text = (
            f"{choice}: in {num_better} of {count} pairs of trained networks, a level per row predicts held-out "
            f"rows better, with median gain {np.median(self.gain):.2g} nats per row (signed-rank test: p = "
            f"{self.p:.2g}, {relation} the limit of {_LEVEL:g}; gains below {_LEAST_GAIN:g} do not count); to choose "
            f"yourself, use [[likelihood=gaussian]] or {NOISE_BY_ROW}"
        )
        return spell_settings(text, spelling())

    def to_json(self) -> str:
        """Return the comparison as JSON, for an attribute of the file."""
        losses = {"one_level": self.one_level.tolist(), "by_row": self.by_row.tolist()}
        finite_losses = {
            name: [loss if np.isfinite(loss) else None for loss in values] for name, values in losses.items()
        }
        return json.dumps({**finite_losses, "p": self.p, "limit": _LEVEL})


def select_likelihood(
    problem: Problem, *, tell: Observer, stop: Stop | None, spent: initial.StartCost, key: PRNGKeyArray
) -> tuple[Problem, Comparison | None]:
    """Select one noise level per row if networks trained with it predict held-out rows better, else one common level.

    Both likelihoods are tested on the same held-out rows, so that the difference is not due to the rows. Without a
    significant difference, the simpler likelihood is selected.

    Returns:
        the problem with the selected likelihood, and the comparison, or None if nothing was compared.

    Raises:
        InterruptedRunError: if `stop` asked for it.
    """
    if not is_likelihood_open(problem):
        return problem, None
    try:
        rival_problem = problem.with_likelihood(NOISE_BY_ROW)
    except UsageError:  # the sampler supports only one noise level
        return problem, None
    placement = place_chains("auto", _NETWORKS)
    one_level, by_row = problem.with_all_sampled(_NETWORKS), rival_problem.with_all_sampled(_NETWORKS)
    for candidate in (by_row, one_level):
        # Clocks differ between machines, and all processes must decide alike.
        affordable_steps = Processes.current().broadcast_first(
            budget.training_steps(candidate, placement, most=_STEPS, share=_SHARE, key=key)
        )
        if affordable_steps < _STEPS:
            note = (
                "one noise level, because the budget leaves no time to compare; to choose yourself, use "
                f"[[likelihood=gaussian]] or {NOISE_BY_ROW}"
            )
            tell(Progress("note", 0, 0, note=spell_settings(note, spelling())))
            return problem, None
    losses = []
    for candidate in (one_level, by_row):
        candidate = candidate.with_lengths(dataclasses.replace(candidate.recipe, start_steps=_STEPS), candidate.sampler)
        thetas = candidate.initial_positions(trained=True, key=key)
        trained_part = "networks to choose the likelihood"
        with spent.time_block():
            losses.append(
                initial.train_networks(candidate, thetas, placement, trained_part, tell, stop, spent, key).losses
            )
    # Rounding differs between machines, and all processes must select the same likelihood.
    comparison = Comparison(*Processes.current().broadcast_first(np.asarray(losses, np.float64)))
    tell(Progress("note", 0, 0, note=comparison.sentence))
    return rival_problem if comparison.prefers_by_row else problem, comparison
