"""Selection of the widths of the hidden layers if the model has `hidden: auto`.

A linear model, one hidden layer and two hidden layers are compared. One hidden layer is selected unless another model
predicts held-out rows clearly better. Trained networks overfit small tables more than a posterior does, so equal losses
are no reason for a linear model. The chains of two hidden layers mix slowly, so equal losses are no reason for them
either.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bnnzoo.assembly import Problem
from bnnzoo.finding import setting, spell_settings, spelling
from bnnzoo.sampling.initial import held_out, positions

Widths = tuple[int, ...]
_DEFAULT: Widths = (16,)
_CANDIDATES: tuple[Widths, ...] = ((), _DEFAULT, (16, 16))
"""Widths of the hidden layers of the models, from the simplest to the most flexible."""


class ModelComparison(NamedTuple):
    """Held-out losses of trained networks, by widths: one loss for each network, in nats per row."""

    losses: Mapping[Widths, Float[np.ndarray, " network"]]

    @property
    def selected(self) -> Widths:
        """One hidden layer, or the model with the smallest mean loss if it is more than two standard errors smaller.

        The standard error is that of the mean difference between the networks of the two models with the same held-out
        rows.
        """
        best = min(self.losses, key=lambda widths: float(np.nan_to_num(np.mean(self.losses[widths]), nan=np.inf)))
        gain = self.losses[_DEFAULT] - self.losses[best]
        error = held_out.OVERLAP * np.std(gain, ddof=1) / len(gain) ** 0.5
        return _DEFAULT if np.mean(gain) <= 2 * error else best

    @property
    def sentence(self) -> str:
        """A sentence that names the selected model and the mean losses."""
        means = ", ".join(f"{_describe(widths)} {np.mean(losses):.3g}" for widths, losses in self.losses.items())
        text = (
            f"selected model: {_describe(self.selected)}; mean loss of trained networks on held-out rows, in nats per "
            f"row: {means}; a model other than one hidden layer must be better by more than two standard errors; to "
            f"choose yourself, use {setting('model.hidden', '16,16')}"
        )
        return spell_settings(text, spelling())

    def to_json(self) -> str:
        """Return the losses as a JSON object, whose keys are the widths."""
        return json.dumps(
            {
                ",".join(map(str, widths)): [loss if np.isfinite(loss) else None for loss in losses.tolist()]
                for widths, losses in self.losses.items()
            }
        )


def is_model_open(problem: Problem) -> bool:
    """Whether the run must select the widths of its hidden layers."""
    description = problem.description
    if description is None or getattr(description.parts.model, "hidden", None) != "auto":
        return False
    return problem.recipe.stochastic == "all" and held_out.can_compare(problem)


def select_model(
    problem: Problem, *, work: positions.StartWork, key: PRNGKeyArray
) -> tuple[Problem, ModelComparison | None]:
    """Select the widths of the hidden layers by held-out rows.

    Returns:
        the problem with the selected widths, and the comparison; the problem itself and None if there is nothing to
        select, or if the budget is too small for a comparison.

    Raises:
        InterruptedRunError: if `work.stop` returned a signal.
    """
    if not is_model_open(problem):
        return problem, None
    candidates = {widths: _with_widths(problem, widths) for widths in _CANDIDATES}
    if not held_out.is_affordable(candidates[_CANDIDATES[-1]], key=key):
        text = (
            "selected model: one hidden layer, because the budget leaves no time to compare it with other models; to "
            f"choose yourself, use {setting('model.hidden', '16,16')}"
        )
        work.note(spell_settings(text, spelling()))
        return problem, None
    comparison = ModelComparison(
        {
            widths: held_out.losses_of(
                candidate, trained_part="networks to choose the hidden layers", work=work, key=key
            )
            for widths, candidate in candidates.items()
        }
    )
    work.note(comparison.sentence)
    return candidates[comparison.selected], comparison


def _with_widths(problem: Problem, widths: Widths) -> Problem:
    model = problem.recipe.model
    return problem.with_part("model", dataclasses.replace(model, fields={**model.fields, "hidden": widths}))


def _describe(widths: Widths) -> str:
    return (
        f"hidden layers {','.join(map(str, widths))}" if len(widths) > 1 else "one hidden layer" if widths else "linear"
    )
