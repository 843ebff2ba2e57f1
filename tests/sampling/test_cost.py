"""Cost of a run in its file: every likelihood evaluation counts, and the start's time counts as warm-up."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tiny

from bnnzoo import assembly
from bnnzoo.api import entrances, resuming
from bnnzoo.errors import InterruptedRunError
from bnnzoo.sampling.initial import budget, positions, trained_start


@pytest.mark.slow
def test_counted_gradients_agree_with_gradient_calls(tmp_path):
    """Trees of `nuts` are not as deep in warm-up as later, and a kept draw is of several steps.

    Before it are ten gradients on 128 rows for each step of warm-up, and two looks at all rows.
    """
    run = entrances.run_recipe(tiny.recipe("nuts", keep_warmup=True, thin=2), out=tmp_path / "run.nc")
    steps = run.posterior["warmup_sample_stats"]["n_steps"].values.sum()
    steps += 2 * run.posterior["sample_stats"]["n_steps"].values.sum()
    rows = tiny.problem("nuts").posterior.num_data
    start = tiny.CHAINS * (10 * tiny.WARMUP * 128 + 2 * rows)
    assert run.attributes["target_evaluations"] == pytest.approx(start + rows * float(steps), rel=1e-6)


@pytest.mark.long
def test_the_start_counts_whatever_the_posterior(tmp_path, monkeypatch):
    """This includes the training of chains and of fixed parameters, for recipes and for posteriors made by hand."""
    clock = [0.0]

    def train(posterior, thetas, **_):
        clock[0] += 1000.0
        yield trained_start.Trained(np.full(len(thetas), 100, np.int32), np.asarray(thetas), np.zeros(len(thetas)))

    monkeypatch.setattr(positions, "train", train)
    monkeypatch.setattr(positions, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    more = {"init": "map", "start_steps": 250, "warmup": 0, "draws": 5, "chains": 2}
    last = tiny.recipe("random-walk", "mlp", stochastic="last", **more)
    rows = assembly.Problem.from_recipe(last).posterior.num_data
    trained = trained_start.evaluations(rows, np.array([100]), last.start_held_out)
    result = entrances.run_recipe(last, out=tmp_path / "last.nc").attributes
    assert result["seconds_warmup"] >= 2000
    assert result["target_evaluations"] == 3 * trained + 2 * 5 * rows

    problem = tiny.problem("random-walk")
    by_hand = entrances.sample(problem.posterior, problem.sampler, out=tmp_path / "hand.nc", **more).attributes
    assert by_hand["seconds_warmup"] >= 1000
    assert by_hand["target_evaluations"] == 2 * trained + 2 * 5 * problem.posterior.num_data


@pytest.mark.slow
def test_transport_from_the_prior_counts_as_start(tmp_path, monkeypatch):
    """Its time counts for warm-up and for the budget, also after a resume."""
    start_seconds_planned = []

    def transport(posterior, thetas, **_):
        time.sleep(2)
        yield 450, thetas

    def plan_lengths(problem, *_, start_seconds, **__):
        start_seconds_planned.append(start_seconds)
        return problem

    monkeypatch.setattr(positions.transport, "transport", transport)
    monkeypatch.setattr(budget, "plan_lengths", plan_lengths)
    recipe = tiny.recipe("random-walk", draws=300)
    result = entrances.run_recipe(recipe, out=tmp_path / "run.nc").attributes
    assert result["seconds_warmup"] >= 2
    assert [seconds >= 2 for seconds in start_seconds_planned] == [True]
    with pytest.raises(InterruptedRunError):
        entrances.run_recipe(recipe, out=tmp_path / "cut.nc", **tiny.stopped(2))
    resumed = resuming.resume(tmp_path / "cut.nc").attributes
    assert resumed["target_evaluations"] == result["target_evaluations"]
    assert resumed["seconds_warmup"] >= 2


def test_the_cost_of_training_counts_its_rows():
    """Two chains of 100 and 50 steps on 1000 rows: batches of 128, and 100 rows held out looked at every 50 steps."""
    assert trained_start.evaluations(1000, np.array([100, 50]), 0.1) == 150 * 128 + 3 * 100
    assert trained_start.evaluations(1000, np.array([50]), 0.0) == 50 * 128 + 1000
    # Six rows are too few to be held out, and are used for training.
    assert trained_start.evaluations(60, np.array([50]), 0.1) == 50 * 60 + 60
