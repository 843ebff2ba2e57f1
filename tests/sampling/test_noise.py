"""A regression without a named likelihood: held-out rows decide about the noise levels and about heavy tails."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import tiny
from scipy import stats

from bnnzoo.api import entrances
from bnnzoo.assembly import Problem
from bnnzoo.data import from_arrays
from bnnzoo.errors import InterruptedRunError
from bnnzoo.recipe import resolve
from bnnzoo.sampling.initial import budget, likelihood_choice, positions
from bnnzoo.sampling.keys import Keys

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-2, 2, size=(300, 1)).astype(np.float32)
ERRORS = RANDOM.normal(size=(300, 1)).astype(np.float32)
OUTLIERS = RANDOM.standard_t(2.5, size=(300, 1)).astype(np.float32)
SHORT = {"budget": "20s", "start_held_out": 0.2}
A_FIELD: dict[str, Any] = {"likelihood.scale": 0.5}


def problem(sd: Any, sampler: str = "mala", rows: int = 300, errors: Any = ERRORS, **options: Any) -> Problem:
    data = from_arrays(X[:rows], (X + sd * errors)[:rows], task="regression", name="houses")
    return Problem.from_recipe(resolve("linear", sampler, options={**SHORT, **options}, in_memory=True), data)


def choose_likelihood(of: Problem, **how: Any) -> tuple[str, list[str], positions.StartWork]:
    """Return the likelihood, the notes about it, and the time."""
    notes: list[str] = []
    spent = positions.StartWork(
        lambda progress: notes.append(progress.note) if progress.phase == "note" else None, how.get("stop")
    )
    result, comparisons = likelihood_choice.select_likelihood(of, work=spent, key=jax.random.key(0))
    assert result.recipe.budget == of.recipe.budget
    if how.get("counted", True):
        assert bool(comparisons) == bool(spent.evaluations)
    fields = result.resolved_recipe()["likelihood"]
    return fields["name"] + (" t" if fields.get("df") == 4.0 and "scale" not in fields else ""), notes, spent


@pytest.mark.long
@pytest.mark.parametrize(
    ("sd", "errors", "expected"),
    [
        # Held-out losses of 300 rows do not always prefer normal noise to Student's t.
        (0.3, ERRORS, {"gaussian", "student-t"}),
        (0.3 * np.exp(X), ERRORS, {"heteroscedastic"}),
        (0.3, OUTLIERS, {"student-t"}),
        (0.3 * np.exp(X), OUTLIERS, {"heteroscedastic t"}),
    ],
    ids=["one level", "a level per row", "outliers", "a level per row and outliers"],
)
def test_the_likelihood_that_predicts_held_out_rows_better_is_taken(sd, errors, expected, monkeypatch):
    monkeypatch.setattr(budget, "training_steps", lambda *_, most, **__: most)  # on a slow machine too
    result, notes, spent = choose_likelihood(problem(sd, errors=errors))
    assert result in expected, notes
    assert len(notes) == 2
    assert 'use likelihood="gaussian", student-t or heteroscedastic' in notes[0]
    assert spent.evaluations > 0


@pytest.mark.parametrize(
    "options",
    [
        {"likelihood": "gaussian"},
        A_FIELD,
        {"budget": None, "draws": 10},
        {"init": "prior"},
        {"rows": 45},
        {"start_held_out": 0},
    ],
    ids=["named", "a field of it named", "lengths given", "nothing trained", "few rows", "nothing held out"],
)
def test_no_likelihood_is_selected_if_one_is_named_or_no_row_is_held_out(options):
    of = problem(0.3 * np.exp(X), **options)
    assert not likelihood_choice.is_likelihood_open(of)
    result, notes, spent = choose_likelihood(of)
    assert result == "gaussian"
    assert not notes
    assert not spent.evaluations


def test_a_note_reports_that_one_level_per_row_is_not_supported():
    result, notes, spent = choose_likelihood(problem(0.3, "gibbs", **{"sampler.conditionals": "conjugate"}))
    assert (result, spent.evaluations) == ("gaussian", 0)
    (note,) = notes
    assert note.endswith("because the model or the sampler does not support one noise level per row")


@pytest.mark.long
def test_compilation_is_outside_the_budget_and_large_networks_are_not_compared(monkeypatch):
    """Pilots compile; only the training after them counts."""
    clock = [0.0]

    def pilot(steps):
        def training_steps(*_, **__):
            clock[0] += 1000.0
            return steps

        return training_steps

    monkeypatch.setattr(positions, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(budget, "training_steps", pilot(2000))
    result, notes, spent = choose_likelihood(problem(0.3 * np.exp(X)))
    assert (result, len(notes), clock[0], spent.seconds) == ("heteroscedastic", 2, 3000.0, 0.0)
    monkeypatch.setattr(budget, "training_steps", pilot(1999))
    result, notes, spent = choose_likelihood(problem(0.3 * np.exp(X)))
    assert (result, spent.evaluations) == ("gaussian", 0)
    assert "no time to compare" in notes[0]


GAINS = 0.2 + 0.01 * np.arange(10)
OUTLIER = np.where(np.arange(10) == 3, 3.9, GAINS)


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        (GAINS, "heteroscedastic"),
        (OUTLIER, "heteroscedastic"),
        (np.where(np.arange(10) == 3, -3.9, GAINS), "gaussian"),
        (np.where(np.arange(10) < 2, -0.01, GAINS), "heteroscedastic"),
        (np.where(np.arange(10) < 3, -0.21, GAINS), "gaussian"),
        (np.zeros(10), "gaussian"),
        (np.where(np.arange(10) == 3, np.nan, GAINS), "gaussian"),
        (GAINS / 50, "gaussian"),
    ],
    ids=[
        "all better",
        "all better, one by far",
        "one far worse",
        "two little worse",
        "three worse",
        "equal",
        "nan",
        "all better by little",
    ],
)
def test_the_selection_goes_by_ranks_of_paired_differences(gain, expected, monkeypatch):
    """A single extreme network does not decide: if ten of ten are better, the likelihood is selected for any spread."""
    calls = list[Any]()

    def trained(candidate: Problem, thetas: Any, *more: Any) -> Any:
        calls.append((more[-1], candidate.recipe.start_steps, len(thetas)))
        fields = candidate.resolved_recipe()["likelihood"]
        by_row, heavy = fields["name"] == "heteroscedastic", fields.get("df") == 4.0
        return SimpleNamespace(losses=-1.2 - np.where(heavy, -1.0, gain * by_row))

    monkeypatch.setattr(positions, "train_networks", trained)
    monkeypatch.setattr(budget, "training_steps", lambda *_, most, **__: most)
    result, notes, _ = choose_likelihood(problem(0.3), counted=False)
    assert result == expected
    p = 1.0 if np.isnan(gain).any() or not gain.any() else stats.wilcoxon(gain, alternative="greater").pvalue
    assert f"in {np.sum(gain > 0)} of 10 pairs" in notes[0]
    assert f"p = {p:.2g}" in notes[0]
    # The same rows are held out of both, and both are trained for the same number of steps.
    assert {(tuple(jax.random.key_data(key).tolist()), *more) for key, *more in calls} == {((0, 0), 2000, 10)}


def test_the_comparison_is_stored_in_the_file():
    losses = np.full(10, -1.2), np.full(10, -1.2) - OUTLIER
    questions = likelihood_choice.LEVELS, likelihood_choice.TAILS
    stored = json.loads(
        likelihood_choice.to_json([likelihood_choice.Comparison(*losses, question) for question in questions])
    )
    assert stored["tails"]["normal"] == [-1.2] * 10
    contents = stored["levels"]
    assert contents["one_level"] == [-1.2] * 10
    np.testing.assert_allclose(contents["by_row"], -1.2 - OUTLIER)
    assert contents["p"] <= contents["limit"] == 0.005


def test_overlapping_rows_make_false_choices_no_more_often_than_stated():
    """The differences share training rows: they have the correlation of Nadeau and Bengio, and no true gain."""
    random = np.random.default_rng(0)
    shared = (1 / 9) / (1 + 1 / 9)
    gains = shared**0.5 * random.normal(size=(800, 1)) + (1 - shared) ** 0.5 * random.normal(size=(800, 10))
    false = np.mean([likelihood_choice.Comparison(gain, np.zeros(10)).prefers_second for gain in gains])
    assert false < 0.05
    result = [likelihood_choice.Comparison(gain + 2.0, np.zeros(10)).prefers_second for gain in gains[:100]]
    assert np.mean(result) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("df", "least", "most"), [(None, 0, 6), (3.0, 15, 20)], ids=["normal", "outliers"])
def test_outliers_are_recognised(df, least, most, monkeypatch):
    """20 independent tables of 200 rows.

    Of normal tables, 10 % chose Student's t when this test was written; more than 6 have probability 0.002 at 10 %.
    """
    monkeypatch.setattr(budget, "training_steps", lambda *_, most, **__: most)
    options = {**SHORT, "model.hidden": [16]}
    num_chosen = 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        x = random.uniform(-2, 2, size=(200, 3)).astype(np.float32)
        errors = random.normal(size=200) if df is None else random.standard_t(df, size=200)
        y = (np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * errors)[:, None].astype(np.float32)
        data = from_arrays(x, y, task="regression", name="table")
        result, _, _ = choose_likelihood(
            Problem.from_recipe(resolve("mlp", "mala", options=options, in_memory=True), data)
        )
        num_chosen += result == "student-t"
    assert least <= num_chosen <= most


def test_runs_that_differ_in_their_seed_alone_choose_by_the_same_networks(monkeypatch, tmp_path):
    keys = []

    def stopped(*_: Any, key: Any, **__: Any) -> None:
        keys.append(jax.random.key_data(key).tolist())
        raise InterruptedRunError("heard", 2)

    monkeypatch.setattr(likelihood_choice, "select_likelihood", stopped)
    for seed in (1, 2):
        with pytest.raises(InterruptedRunError, match="heard"):
            entrances.run_recipe(tiny.recipe("mala", seed=seed, split_seed=7), out=tmp_path / "run.nc")
    assert keys == [jax.random.key_data(Keys.from_seed(7).noise).tolist()] * 2


def test_a_signal_ends_the_likelihood_selection():
    with pytest.raises(InterruptedRunError, match="networks to choose the likelihood"):
        choose_likelihood(problem(0.3, budget="10m"), stop=lambda: 2)


def test_an_open_likelihood_is_not_shown_as_requested():
    for options, expected in ({}, False), ({"likelihood": "gaussian"}, True):
        of = problem(0.3, **options)
        assert ("likelihood:" in entrances.resolved_recipe(of.recipe, of.train)) == expected


@pytest.mark.parametrize(("equal", "is_compared"), [(0.2, True), (0.3, False)])
def test_likelihoods_are_not_compared_if_many_targets_are_equal(equal, is_compared):
    """A noise level per row would shrink towards 0 at the rows with the common target."""
    targets = np.where(np.arange(300)[:, None] < 300 * equal, np.float32(0.5), X + 0.3 * ERRORS)
    data = from_arrays(X, targets, task="regression", name="houses")
    of = Problem.from_recipe(resolve("linear", "mala", options=SHORT | {"test_fraction": 0}, in_memory=True), data)
    if is_compared:
        assert likelihood_choice._describe_equal_targets(of) == ""
        return
    result, notes, spent = choose_likelihood(of)
    assert (result, spent.evaluations) == ("gaussian", 0)
    assert notes[0].startswith(f"selected noise model: one noise level for all rows, because {equal:.0%} of the rows")
    assert "have the target 0.5, which a continuous" in notes[0]
    assert 'use likelihood="poisson" or negative-binomial' in notes[0]
