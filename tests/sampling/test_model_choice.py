"""`hidden: auto`: held-out rows decide about the hidden layers, and one hidden layer is preferred."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
import pytest

from bnnzoo.assembly import Problem
from bnnzoo.data import from_arrays
from bnnzoo.recipe import resolve
from bnnzoo.sampling.initial import budget, held_out, model_choice, positions
from bnnzoo.sampling.initial.model_choice import ModelComparison

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-2, 2, size=(300, 2)).astype(np.float32)
NOISE = RANDOM.normal(size=300).astype(np.float32)
WIDTHS: dict[str, Any] = {"model.hidden": "16"}
OPTIONS = {"budget": "20s", "start_held_out": 0.2, "model.hidden": "auto", "likelihood": "gaussian"}
LINE, WAVE = X[:, 0] + 0.3 * NOISE, np.sin(3 * X[:, 0]) + 0.1 * NOISE


def problem(y: np.ndarray, rows: int = 300, **options: Any) -> Problem:
    data = from_arrays(X[:rows], y[:rows, None], task="regression", name="houses")
    return Problem.from_recipe(resolve("mlp", "mala", options={**OPTIONS, **options}, in_memory=True), data)


def choose(of: Problem) -> tuple[Any, list[str], ModelComparison | None]:
    """Return the widths in the recipe, the notes, and the comparison."""
    notes: list[str] = []
    work = positions.StartWork(lambda progress: notes.append(progress.note) if progress.phase == "note" else None)
    result, comparison = model_choice.select_model(of, work=work, key=jax.random.key(0))
    return result.resolved_recipe()["model"]["hidden"], notes, comparison


@pytest.mark.long
@pytest.mark.parametrize(("y", "expected"), [(NOISE, [[], [16]]), (LINE, [[], [16]]), (WAVE, [[16], [16, 16]])])
def test_held_out_rows_decide_about_the_hidden_layers(y, expected, monkeypatch):
    monkeypatch.setattr(budget, "training_steps", lambda *_, most, **__: most)  # on a slow machine too
    widths, notes, comparison = choose(problem(y))
    assert list(widths) in expected, notes
    assert comparison is not None
    assert json.loads(comparison.to_json()).keys() == {"", "16", "16,16"}
    assert len(notes) == 1
    assert "hidden" in notes[0].split("to choose yourself, use ")[1]


@pytest.mark.parametrize(
    "options",
    [
        WIDTHS,
        {"budget": None, "draws": 10},
        {"init": "prior"},
        {"rows": 40},
        {"stochastic": "last"},
    ],
    ids=["named", "lengths given", "nothing trained", "few rows", "part of the network"],
)
def test_no_model_is_selected_if_it_is_named_or_no_row_is_held_out(options):
    widths, notes, comparison = choose(problem(WAVE, **options))
    assert tuple(widths) == (16,)
    assert not notes
    assert comparison is None


def test_auto_without_a_selection_is_one_hidden_layer():
    assert (
        problem(WAVE, budget=None, draws=10).posterior.layout.dim
        == problem(WAVE, budget=None, draws=10, **WIDTHS).posterior.layout.dim
    )


def test_a_small_budget_says_that_nothing_was_compared(monkeypatch):
    monkeypatch.setattr(budget, "training_steps", lambda *_, **__: 1999)
    widths, notes, comparison = choose(problem(WAVE))
    assert tuple(widths) == (16,)
    assert comparison is None
    assert "no time to compare" in notes[0]


def losses(**means: float) -> ModelComparison:
    """Return a comparison with these mean losses; the differences have a standard deviation of 0.1 over networks."""
    noise = 0.1 * np.random.default_rng(3).normal(size=10)
    noise = (noise - noise.mean()) / noise.std(ddof=1) * 0.1
    rows = [np.full(10, means["linear"]), np.full(10, means["one"]), means["two"] + noise]
    return ModelComparison(dict(zip(model_choice._CANDIDATES, rows, strict=True)))


def test_another_model_must_be_better_by_more_than_two_standard_errors():
    error = 2 * held_out.OVERLAP * 0.1 / 10**0.5
    assert losses(linear=1.0, one=0.99 * error, two=0.0).selected == (16,)
    assert losses(linear=1.0, one=1.01 * error, two=0.0).selected == (16, 16)
    assert losses(linear=0.0, one=0.0, two=0.5).selected == (16,)
    assert losses(linear=0.0, one=0.01, two=0.5).selected == ()
    assert losses(linear=np.nan, one=0.0, two=np.nan).selected == (16,)
    assert losses(linear=0.0, one=0.8, two=0.5).selected == ()
    assert losses(linear=0.5, one=np.nan, two=0.6).selected == (16,)


def test_pairs_of_networks_without_a_finite_loss_are_ignored():
    comparison = losses(linear=0.5, one=0.0, two=1.0)
    comparison.losses[16,][3] = np.inf  # one network of ten
    assert comparison.selected == (16,)
    comparison.losses[()][:2] = -1.0, np.inf
    assert comparison.selected == (16,)
    comparison = losses(linear=0.0, one=0.5, two=1.0)
    comparison.losses[16,][:2] = np.inf
    assert comparison.selected == ()
    comparison.losses[16,][2] = np.inf  # only seven pairs are left
    assert comparison.selected == (16,)


def test_the_known_losses_of_one_layer_are_used(monkeypatch):
    trained = []

    def known(candidate, **_):
        trained.append(candidate.recipe.model.fields["hidden"])
        return np.full(10, 1.0)

    monkeypatch.setattr(budget, "training_steps", lambda *_, most, **__: most)
    monkeypatch.setattr(held_out, "losses_of", known)
    work = positions.StartWork(lambda _: None, None)
    result, comparison = model_choice.select_model(
        problem(WAVE), one_layer_losses=np.full(10, 0.5), work=work, key=jax.random.key(0)
    )
    assert trained == [(), (16, 16)]
    assert comparison is not None
    assert comparison.selected == (16,)
    assert tuple(result.recipe.model.fields["hidden"]) == (16,)
