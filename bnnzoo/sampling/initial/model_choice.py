"""Selection of the widths of the hidden layers if the model has `hidden: auto`.

A linear model, one hidden layer and two hidden layers are compared. One hidden layer is selected unless another model
predicts held-out rows clearly better. Trained networks overfit small tables more than a posterior does, so equal losses
are no reason for a linear model. The chains of two hidden layers mix slowly, so two hidden layers must also be clearly
better.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bnnzoo.assembly import Problem
from bnnzoo.errors import UsageError
from bnnzoo.finding import setting, spell_settings, spelling
from bnnzoo.models import Mlp
from bnnzoo.sampling.initial import held_out, positions

Widths = tuple[int, ...]
_ONE_LAYER: Widths = Mlp(hidden="auto").widths
_CANDIDATES: Mapping[Widths, str] = {(): "linear", _ONE_LAYER: "one hidden layer", (16, 16): "two hidden layers"}
"""Widths of the hidden layers of each model, and its description."""
_MIN_PAIRS, _STANDARD_ERRORS = 8, 2.0
"""Smallest number of pairs of networks with finite losses, and smallest gain of a model, in standard errors."""


class ModelComparison(NamedTuple):
    """Held-out losses of trained networks, by widths: one loss for each network, in nats per row."""

    losses: Mapping[Widths, Float[np.ndarray, " network"]]

    @property
    def selected(self) -> Widths:
        """Widths of the selected model: the clearly better model with the smallest loss, or else one hidden layer.

        A model is clearly better if its mean loss is more than two standard errors below that of one hidden layer. Both
        models have one network for each set of held-out rows, and the standard error is that of the mean difference of
        these pairs. Pairs with a loss that is not finite are ignored.
        """
        best, largest_gain = _ONE_LAYER, 0.0
        for widths, losses in self.losses.items():
            is_finite = np.isfinite(losses) & np.isfinite(self.losses[_ONE_LAYER])
            if is_finite.sum() < _MIN_PAIRS:
                continue
            gain = self.losses[_ONE_LAYER][is_finite] - losses[is_finite]
            error = held_out.OVERLAP * np.std(gain, ddof=1) / len(gain) ** 0.5
            if np.mean(gain) > max(_STANDARD_ERRORS * error, largest_gain):
                best, largest_gain = widths, float(np.mean(gain))
        return best

    @property
    def sentence(self) -> str:
        """A sentence that names the selected model and the mean losses."""
        means = ", ".join(
            f"{_CANDIDATES[widths]} {np.mean(losses[np.isfinite(losses)]):.3g}"
            for widths, losses in self.losses.items()
        )
        text = (
            f"selected model: {_CANDIDATES[self.selected]}; mean loss of trained networks on held-out rows, in nats "
            f"per row: {means}; one hidden layer is selected unless another model is better by more than two standard "
            f"errors; to choose yourself, use {setting('model.hidden', '16,16')}"
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


def select_model(
    problem: Problem,
    *,
    one_layer_losses: Float[np.ndarray, " network"] | None = None,
    work: positions.StartWork,
    key: PRNGKeyArray,
) -> tuple[Problem, ModelComparison | None]:
    """Select the widths of the hidden layers by the losses of trained networks on held-out rows.

    Args:
        problem: the problem, with the selected likelihood.
        one_layer_losses: the losses of networks with one hidden layer for `problem` and `key`, if already computed.
        work: observer, stop signal and cost of the initial positions. The cost of this training is added.
        key: random key of the networks and of the held-out rows.

    Returns:
        the problem with explicit widths, and the comparison. The comparison is None if `hidden` is not `auto`; the
        problem is then unchanged. It is also None if networks cannot be compared (`held_out.can_compare`), if some
        parameters are not sampled, or if the budget is too small; `auto` then becomes one hidden layer.

    Raises:
        InterruptedRunError: if `work.stop` returned a signal.
    """
    description = problem.description
    if description is None or getattr(description.parts.model, "hidden", None) != "auto":
        return problem, None
    one_layer = _with_widths(problem, _ONE_LAYER)
    assert one_layer is not None
    if problem.recipe.stochastic != "all" or not held_out.can_compare(problem):
        return one_layer, None
    candidates = {widths: _with_widths(problem, widths) for widths in _CANDIDATES}
    supported = {widths: candidate for widths, candidate in candidates.items() if candidate is not None}
    if not held_out.is_affordable(supported[max(supported, key=len)], key=key):
        text = (
            "selected model: one hidden layer, because the budget leaves no time to compare it with other models; to "
            f"choose yourself, use {setting('model.hidden', '16,16')}"
        )
        work.note(spell_settings(text, spelling()))
        return one_layer, None
    losses: dict[Widths, np.ndarray] = {}
    for widths, candidate in supported.items():
        if widths == _ONE_LAYER and one_layer_losses is not None:
            losses[widths] = one_layer_losses
        else:
            trained_part = "networks to choose the hidden layers"
            losses[widths] = held_out.losses_of(candidate, trained_part=trained_part, work=work, key=key)
    comparison = ModelComparison(losses)
    work.note(comparison.sentence)
    return supported[comparison.selected], comparison


def _with_widths(problem: Problem, widths: Widths) -> Problem | None:
    """Return the problem with hidden layers of these widths, or None if a part of the problem does not support them."""
    model = problem.recipe.model
    part = dataclasses.replace(model, fields={**model.fields, "hidden": widths})
    try:
        return problem.with_part("model", part)
    except UsageError:
        if widths == _ONE_LAYER:
            raise
        return None
