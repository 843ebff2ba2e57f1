"""Selection of the widths of the hidden layers if the model has `hidden: auto`.

A linear model, one hidden layer and two hidden layers are compared. The more flexible a network is, the slower its
chains mix, so a simpler model is selected unless it predicts clearly worse.
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
_CANDIDATES: tuple[Widths, ...] = ((), (16,), (16, 16))
"""Widths of the hidden layers of the models, from the simplest to the most flexible."""


class ModelComparison(NamedTuple):
    """Held-out losses of trained networks, by widths: one loss for each network, in nats per row."""

    losses: Mapping[Widths, Float[np.ndarray, " network"]]

    @property
    def selected(self) -> Widths:
        """The simplest model whose mean loss is at most one standard error above the smallest mean loss.

        The standard error is that of the mean difference between the networks of the two models with the same held-out
        rows.
        """
        best = min(self.losses, key=lambda widths: float(np.nan_to_num(np.mean(self.losses[widths]), nan=np.inf)))
        for widths, losses in self.losses.items():
            excess = losses - self.losses[best]
            error = held_out.OVERLAP * np.std(excess, ddof=1) / len(excess) ** 0.5
            if widths == best or np.mean(excess) <= error:
                return widths
        raise AssertionError("the best model is among the candidates")

    @property
    def sentence(self) -> str:
        """A sentence that names the selected model and the mean losses."""
        means = ", ".join(f"{_describe(widths)} {np.mean(losses):.3g}" for widths, losses in self.losses.items())
        text = (
            f"selected model: {_describe(self.selected)}; mean loss of trained networks on held-out rows, in nats per "
            f"row: {means}; the simplest model within one standard error of the best is selected; to choose yourself, "
            f"use {setting('model.hidden', '16,16')}"
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
