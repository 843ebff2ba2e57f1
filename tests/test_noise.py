"""A regression whose recipe names no likelihood: one noise level or a level by row, as held-out rows say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import tiny
from scipy import stats

from bnnzoo import zoo
from bnnzoo.assembly import Problem
from bnnzoo.data import from_arrays
from bnnzoo.errors import InterruptedRunError
from bnnzoo.recipe import resolve
from bnnzoo.sampling import budget, noise, origin
from bnnzoo.sampling.keys import Keys

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-2, 2, size=(300, 1)).astype(np.float32)
ERRORS = RANDOM.normal(size=(300, 1)).astype(np.float32)
SHORT = {"budget": "20s", "start_held_out": 0.2}
A_FIELD: dict[str, Any] = {"likelihood.scale": 0.5}


def problem(sd: Any, sampler: str = "mala", rows: int = 300, **options: Any) -> Problem:
    data = from_arrays(X[:rows], (X + sd * ERRORS)[:rows], task="regression", name="houses")
    return Problem.of(resolve("linear", sampler, options={**SHORT, **options}, in_memory=True), data)


def chosen(of: Problem, **how: Any) -> tuple[str, list[str], origin.Spent]:
    """The likelihood, what was said of it, and what it took."""
    notes: list[str] = []
    spent = origin.Spent()
    found = noise.chosen(
        of,
        tell=lambda progress: notes.append(progress.note) if progress.phase == "note" else None,
        stop=how.get("stop"),
        spent=spent,
        key=jax.random.key(0),
    )
    assert found.recipe.budget == of.recipe.budget
    return found.resolved()["likelihood"]["name"], notes, spent


@pytest.mark.parametrize(
    ("sd", "wanted"), [(0.3, "gaussian"), (0.3 * np.exp(X), "heteroscedastic")], ids=["one level", "a level by row"]
)
def test_the_likelihood_that_predicts_held_out_rows_better_is_taken(sd, wanted):
    found, notes, spent = chosen(problem(sd))
    assert found == wanted
    assert len(notes) == 1
    assert "--likelihood gaussian or heteroscedastic decides" in notes[0]
    assert spent.evaluations > 0


@pytest.mark.parametrize(
    "of",
    [
        problem(0.3 * np.exp(X), likelihood="gaussian"),
        problem(0.3 * np.exp(X), **A_FIELD),
        problem(0.3 * np.exp(X), budget=None, draws=10),
        problem(0.3 * np.exp(X), init="prior"),
        problem(0.3 * np.exp(X), rows=45),
        problem(0.3 * np.exp(X), start_held_out=0),
    ],
    ids=["named", "a field of it named", "lengths given", "nothing trained", "few rows", "nothing held out"],
)
def test_nothing_is_chosen_where_a_word_was_said_or_nothing_can_judge(of):
    assert not noise.is_open(of)
    found, notes, spent = chosen(of)
    assert found == "gaussian"
    assert not notes
    assert not spent.evaluations


def test_compiling_is_not_of_the_budget_and_large_networks_are_not_compared(monkeypatch):
    """Pilots compile, and only what is trained after them is counted."""
    clock = [0.0]

    def pilot(steps):
        def training_steps(*_, **__):
            clock[0] += 1000.0
            return steps

        return training_steps

    monkeypatch.setattr(origin, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(budget, "training_steps", pilot(1500))
    found, notes, spent = chosen(problem(0.3 * np.exp(X)))
    assert (found, len(notes), clock[0], spent.seconds) == ("heteroscedastic", 1, 2000.0, 0.0)
    monkeypatch.setattr(budget, "training_steps", pilot(budget.FEWEST_START_STEPS))
    found, notes, spent = chosen(problem(0.3 * np.exp(X)))
    assert (found, spent.evaluations) == ("gaussian", 0)
    assert "no time to compare" in notes[0]


def test_a_level_by_row_is_taken_where_it_is_surely_better(monkeypatch):
    """By two standard errors of ten networks, whose tenths of the rows overlap in what they are trained on."""
    of, asked = problem(0.3), list[Any]()
    training, held = of.posterior.num_data, 54
    assert held == int(0.2 * training)
    spread = np.array([1.0, -1.0] * 5)
    limit = stats.t.ppf(stats.norm.cdf(2), 9) * spread.std(ddof=1) * (1 / 10 + held / (training - held)) ** 0.5

    def found(gain: float) -> str:
        def trained(candidate: Problem, thetas: Any, *more: Any) -> Any:
            asked.append((more[-1], candidate.recipe.start_steps, len(thetas)))
            by_row = candidate.resolved()["likelihood"]["name"] == "heteroscedastic"
            return SimpleNamespace(losses=3.0 - (gain + spread) * by_row)

        monkeypatch.setattr(origin, "trained", trained)
        return chosen(of)[0]

    steps = iter([900, 700] * 2)
    monkeypatch.setattr(budget, "training_steps", lambda *_, most, **__: min(most, next(steps)))
    assert [found(1.001 * limit), found(0.999 * limit)] == ["heteroscedastic", "gaussian"]
    # The same rows are held out of both, and both are trained as long as the slower one can be.
    assert {(tuple(jax.random.key_data(key).tolist()), *more) for key, *more in asked} == {((0, 0), 700, 10)}


def test_runs_that_differ_in_their_seed_alone_choose_by_the_same_networks(monkeypatch, tmp_path):
    keys = []

    def stopped(*_: Any, key: Any, **__: Any) -> None:
        keys.append(jax.random.key_data(key).tolist())
        raise InterruptedRunError("heard", 2)

    monkeypatch.setattr(noise, "chosen", stopped)
    for seed in (1, 2):
        with pytest.raises(InterruptedRunError, match="heard"):
            zoo.run_recipe(tiny.recipe("mala", seed=seed, split_seed=7), out=tmp_path / "run.nc")
    assert keys == [jax.random.key_data(Keys.of(7).noise).tolist()] * 2


def test_a_signal_ends_the_choice():
    with pytest.raises(InterruptedRunError, match="networks that the likelihood is chosen by"):
        chosen(problem(0.3), stop=lambda: 2)


def test_what_is_open_is_not_shown_as_asked_for():
    for options, wanted in ({}, False), ({"likelihood": "gaussian"}, True):
        of = problem(0.3, **options)
        assert ("likelihood:" in zoo.resolved_recipe(of.recipe, of.train)) == wanted
