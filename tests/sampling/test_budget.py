"""A time budget instead of lengths: the resulting recipe has fixed lengths."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest
import tiny

import bnnzoo
from bnnzoo import store
from bnnzoo.api import entrances, keywords, resuming
from bnnzoo.data import load_recipe_data
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.convergence import remaining_gain
from bnnzoo.finding import Finding
from bnnzoo.progress import Progress
from bnnzoo.recipe import duration, read_layer, recipe_from, resolve
from bnnzoo.sampling import verdict
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.initial import budget, budget_check, measured_lengths
from bnnzoo.sampling.job import ladder


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("5m", 300), ("1.5h", 5400), (" 2 m ", 120)])
def test_durations_are_parsed_from_text(text, expected):
    assert duration.seconds(text) == expected


@pytest.mark.usefixtures("as_options")
@pytest.mark.parametrize("text", ["", "5", "m", "0s", "-1m", "5 minutes", "1e3s", "٣s", "9" * 400 + "s"])
def test_an_invalid_time_is_refused(text):
    with pytest.raises(UsageError, match=r"--budget: must be a time such as 90s, 5m or 2h"):
        resolve("linear", "mala", options={"budget": text})


def test_own_data_get_a_budget_unless_a_length_is_given():
    def resolved(**options):
        result = resolve("mlp", "mala", options=options, in_memory="data" not in options and bool(options))
        return result.budget, result.until

    assert resolved(data="houses.csv") == ("2m", "converged")
    assert resolved(data="houses.csv", thin=3) == ("2m", "converged")
    assert resolved(data="houses.csv", budget="5m") == ("5m", "converged")
    assert resolved(data="houses.csv", budget="5m", until="budget") == ("5m", "budget")
    assert resolved(data="houses.csv", draws=100) == (None, None)
    assert resolved(data="houses.csv", until="converged") == ("2m", "converged")
    assert resolved(data="houses.csv", until="budget") == ("2m", "budget")
    assert resolved(data="houses.csv", draws=100, until="converged") == (None, "converged")
    assert resolved(seed=1) == ("2m", "converged")  # in memory
    assert resolved() == (None, None)  # the shipped example has lengths of its own
    assert resolve("mlp", "ensemble", options={"data": "houses.csv"}).budget is None  # as has the shipped recipe
    assert resolve("mlp", "mala", options={"budget": "5m"}).until == "converged"
    assert resolve("mlp", "mala", options={"budget": "10s"}).until == "converged"


@pytest.mark.usefixtures("as_options")
@pytest.mark.parametrize("more", [{}, {"data": "houses.csv", "draws": 100}])
def test_until_without_budget_is_refused(more):
    with pytest.raises(UsageError, match="--until: requires a budget; add --budget 5m, or remove --until"):
        resolve("linear", "mala", options={"until": "budget", **more})


def test_show_leaves_open_lengths_to_the_budget(tmp_path, monkeypatch):
    """If the lengths were written out, the shown recipe would request them and make a different run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "houses.csv").write_text("size,price\n" + "".join(f"{i // 2},{i * i % 7}.5\n" for i in range(30)))

    def show(**options):
        recipe = resolve("mlp", "nuts", options={"data": "houses.csv", **options})
        (tmp_path / "shown.yaml").write_text(entrances.resolved_recipe(recipe))
        return recipe, resolve(None, None, [read_layer("shown.yaml")])

    recipe, restored = show()
    assert (restored.budget, restored.until) == (recipe.budget, recipe.until) == ("2m", "converged")
    assert not {"warmup", "draws", "thin"} & restored.where.keys()
    assert "max_tree_depth" not in restored.sampler.fields
    assert "target_acceptance" in restored.sampler.fields
    _, restored = show(thin=3, **{"sampler.max_tree_depth": 5})
    assert "thin" in restored.where
    assert restored.sampler.fields["max_tree_depth"] == 5
    assert "step_size" in restored.sampler.fields
    (tmp_path / "shown.yaml").write_text(
        entrances.resolved_recipe(resolve("mlp", "sgld", options={"data": "houses.csv"}))
    )
    assert resolve(None, None, [read_layer("shown.yaml")]).sampler.fields.keys() >= {"batch_size", "schedule"}
    assert resolve(None, None, [read_layer("shown.yaml")]).sampler.fields["step_size"] == "auto"
    _, restored = show(draws=7)
    assert {"warmup", "draws", "thin"} <= restored.where.keys()


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    return x, x @ [1.0, -1.0] + 0.3 * rng.normal(size=80)


SHORT = {"likelihood": "gaussian", "chains": 2, "start_steps": 250, "seed": 3}


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("budget") / "run.nc"
    return bnnzoo.sample("linear", "mala", data=data, out=out, budget="60s", warmup=2000, thin=20, **SHORT)


def test_a_converged_run_ends_at_a_planned_stop(run):
    about = run.attributes
    assert (about["ended"], about["converged"], about["budget"]) == ("converged", 1, "60s")
    assert about["draws_done"] == about["draws_requested"] in json.loads(about["stops"])
    assert about["ess_bulk"] >= 400
    assert about["rhat"] <= 1.01
    assert not [finding for finding in run.findings() if finding.kind == "draws"]


def test_the_stored_recipe_repeats_a_budgeted_run(run, data, tmp_path):
    recipe = recipe_from(run.attributes["recipe"])
    assert (recipe.budget, recipe.until, recipe.draws) == (None, None, run.attributes["draws_done"])
    path = tmp_path / "data.npz"
    np.savez(path, x=data[0], y=data[1])
    recipe = recipe_from(run.attributes["recipe"].replace("data: null", f"data: {path}"))
    repeated_run = entrances.run_recipe(recipe, out=tmp_path / "again.nc")
    tiny.assert_same_bits(
        *({name: v.values for name, v in r.posterior["posterior"].items()} for r in (repeated_run, run))
    )


def test_budgets_below_ten_seconds_are_spent_without_checks():
    """Each check takes about a second; it is made if requested."""
    assert resolve("mlp", "mala", options={"budget": "9.9s"}).until == "budget"
    assert resolve("mlp", "mala", options={"budget": "3s", "until": "converged"}).until == "converged"


@pytest.mark.long
def test_without_convergence_the_time_ends_it(data, tmp_path):
    run = bnnzoo.sample("linear", "mala", data=data, out=tmp_path / "run.nc", budget="2s", until="budget", **SHORT)
    assert run.attributes["ended"] in ("budget", "draws")
    assert budget_check.MIN_DRAWS <= run.attributes["draws_done"] == run.attributes["draws_requested"]
    assert run.attributes["seconds_warmup"] + run.attributes["seconds_sampling"] < 12  # on a loaded machine


@pytest.mark.long
def test_a_run_until_converged_needs_no_budget(data, tmp_path):
    how = {"warmup": 2000, "thin": 20, "draws": 3000}
    run = bnnzoo.sample("linear", "mala", data=data, out=tmp_path / "run.nc", until="converged", **how, **SHORT)
    assert run.attributes["ended"] == "converged"
    assert run.attributes["draws_done"] < 3000


@pytest.mark.long
def test_a_run_may_end_when_its_predictions_hardly_change(monkeypatch, tmp_path):
    """It needs at least 200 draws, and the option."""
    gains = [remaining_gain.Gain(0.0, 0.001)]
    monkeypatch.setattr(verdict.remaining_gain, "of_run", lambda _: gains[0])

    def ended(until, gain=gains[0]):
        gains[0] = gain
        recipe = tiny.recipe("random-walk", until=until, draws=401)
        about = entrances.run_recipe(recipe, out=tmp_path / "run.nc", force=True).attributes
        return about["ended"], about["draws_done"], json.loads(about["stops"])

    assert ended("predictions") == ("predictions", 200, [100, 200])
    assert ended("predictions", remaining_gain.Gain(0.01, 0.0)) == ("draws", 401, [100, 200, 400])
    assert ended("converged", remaining_gain.Gain(0.0, 0.001)) == ("draws", 401, [100, 200, 400])


@pytest.mark.slow
def test_a_run_interrupted_at_a_check_repeats_the_check_on_resume(tmp_path, monkeypatch):
    """The run ends at the same draw as without the signal."""
    out, stops, at = tmp_path / "run.nc", [], [0]
    monkeypatch.setattr(verdict, "reason_to_end", lambda *_, **__: stops.append(at[0]) or "converged")
    recipe = tiny.recipe("random-walk", until="converged", draws=800)

    def watch(progress):
        at[0] = progress.done if progress.phase == "sampling" else 0

    with pytest.raises(bnnzoo.errors.InterruptedRunError, match="after 100 of 800 draws"):
        entrances.run_recipe(recipe, out=out, observer=watch, stop=lambda: 2 if at[0] == 100 else 0)
    assert stops == []
    assert resuming.resume(out).attributes["draws_done"] == 100
    assert len(stops) == 1


@pytest.mark.slow
def test_large_draws_are_thinned_for_the_convergence_check(tmp_path, monkeypatch):
    """The file lists exactly the draws at which convergence was tested."""
    a_draw = tiny.CHAINS * tiny.problem("random-walk").posterior.layout.dim * 4
    recipe = tiny.recipe("random-walk", until="converged", draws=1000)

    def ended(most_draws, at):
        monkeypatch.setattr(verdict, "_BYTES", most_draws * a_draw)
        monkeypatch.setattr(verdict, "reason_to_end", lambda _, every, __, **___: "converged" if every == at else "")
        about = entrances.run_recipe(recipe, out=tmp_path / "run.nc", force=True).attributes
        return about["ended"], about["draws_done"], json.loads(about["stops"])

    assert ended(200, at=2) == ("converged", 400, [100, 200, 400])
    assert ended(99, at=0) == ("draws", 1000, [])


def test_the_verdict_of_a_large_run_uses_every_kth_draw(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(verdict, "_diagnose_parts", lambda _, every, __: looked.append(every))
    monkeypatch.setattr(verdict, "_BYTES", 1000)
    for num_bytes, draws in ((1000, 5), (2500, 300), (2500, 299), (10**6, 10**5)):
        verdict.verdict(tmp_path / "run.nc", num_bytes, draws, None)
    assert looked == [1, 3, 1000]  # the third run has too few draws left


def test_open_parts_reads_every_kth_draw(tmp_path):
    out = tmp_path / "run.nc"
    reports: list[Progress] = []

    def stop() -> int:
        return 2 if reports[-1].phase == "sampling" and reports[-1].done > 50 else 0

    with pytest.raises(bnnzoo.errors.InterruptedRunError):
        entrances.run_recipe(tiny.recipe("random-walk", draws=100_000), out=out, observer=reports.append, stop=stop)
    every_draw, third = store.open_parts(out), store.open_parts(out, every=3)
    for group in ("posterior", "sample_stats"):
        for name, values in every_draw[group].data_vars.items():
            np.testing.assert_array_equal(third[group][name].values, values.values[:, ::3])
    assert verdict.reason_to_end(out, 3, None, by_predictions=False) == ""


def test_lengths_follow_from_the_budget_and_the_speed_of_the_machine(monkeypatch, data):
    """A slower machine: shorter trees, less warm-up; fields and lengths that were asked for stay."""

    def planned(sampler, seconds, **options):
        monkeypatch.setattr(budget, "seconds_per_row", lambda *_: seconds)
        frame = pd.DataFrame({"a": data[0][:, 0], "b": data[0][:, 1], "y": data[1]})
        recipe = keywords.recipe_of("linear", sampler, data=None, in_memory=True, **options)
        problem = entrances.Problem.from_recipe(recipe, load_recipe_data(recipe, frame))
        return budget.plan_lengths(
            problem, place_chains("vectorized", 4), np.zeros((4, 3), np.float32), start_seconds=0.0
        )

    fast, slow = planned("nuts", 1e-7, budget="1m"), planned("nuts", 1e-4, budget="1m")
    assert fast.sampler.max_tree_depth > slow.sampler.max_tree_depth == 4
    assert fast.recipe.warmup > slow.recipe.warmup
    assert planned("nuts", 1e-5, budget="1m", **{"sampler.max_tree_depth": 9}).sampler.max_tree_depth == 9
    # 60 s / (1.5 * 72 rows * 1e-6 s) are 555 000 gradients: 750 trajectories of 370 steps, of two gradients each.
    assert planned("mams", 1e-6, budget="1m").sampler.num_steps == 256
    assert planned("mams", 1e-5, budget="1m").sampler.num_steps == 32
    assert planned("mala", 1e-5, budget="1m", warmup=7, thin=2).recipe.warmup == 7
    assert planned("mala", 1e-7, budget="1m").recipe.thin > planned("mala", 1e-5, budget="1m").recipe.thin
    # The requested number of draws fills the time.
    few, many = (planned("mala", 1e-5, budget="1m", draws=draws).recipe.thin for draws in (200, 2000))
    assert few == pytest.approx(10 * many, rel=0.2)
    assert few > planned("mala", 1e-5, budget="1m").recipe.thin > many
    assert planned("laplace", 1e-7, budget="1m").recipe.thin == 1
    assert "at most 15 gradients" in budget.sentence(slow)
    steep = {"likelihood": "gaussian", "likelihood.scale": 1e-4}
    swag = planned("swag", 1e-7, budget="1m", **steep)
    assert 0 < swag.sampler.learning_rate < 1e-6
    assert f", learning rate {swag.sampler.learning_rate:g}, then at most" in budget.sentence(swag)
    plan = planned("sgld", 1e-7, budget="1m", **steep, **{"sampler.step_size": 1e-3})
    assert plan.sampler.step_size == np.float32(1e-3)
    assert planned("sgld", 1e-7, budget="1m", **steep).sampler.step_size == "auto"


def _problem(data, sampler="mala", **options):
    frame = pd.DataFrame({"a": data[0][:, 0], "b": data[0][:, 1], "y": data[1]})
    recipe = keywords.recipe_of("linear", sampler, data=None, in_memory=True, **options)
    return entrances.Problem.from_recipe(recipe, load_recipe_data(recipe, frame))


def test_the_lengths_of_a_budget_by_hand(monkeypatch, data):
    """A step takes 1.5 times the gradients of its 72 rows: 1.08 ms.

    The start is subtracted first, and lengths are rounded down to powers of two.
    """

    def lengths(started, row=1e-5, **options):
        monkeypatch.setattr(budget, "seconds_per_row", lambda *_: row)
        problem, thetas = _problem(data, budget="1m", **options), np.zeros((4, 3), np.float32)
        result = budget.plan_lengths(problem, place_chains("vectorized", 4), thetas, start_seconds=started).recipe
        return result.warmup, result.thin, result.draws

    assert lengths(0.0) == (20_000, 32, 4000)  # the limit, out of 22 222 steps; 38.4 s for a thousand draws
    assert lengths(30.0) == (8192, 16, 4000)  # out of 11 111 steps, then 19.6 steps per draw
    assert lengths(42.0) == lengths(59.0) == (4096, 8, 4000)  # never less than 18 s
    assert lengths(42.0, warmup=1000) == (1000, 8, 4000)
    assert lengths(42.0, warmup=16_000) == (16_000, 8, 4000)  # draws have 10.8 s in any case
    assert lengths(42.0, draws=200) == (4096, 32, 200)
    assert lengths(0.0, row=1e-12) == (20_000, 1000, 4000)  # at least 20 us per step
    assert lengths(0.0, row=1.0) == (300, 1, 4000)


def test_the_thinning_follows_from_the_measured_time_of_a_step(data):
    """A thousand draws fill the seconds that are left; the thinning is a power of two."""

    def thinning(step_seconds, seconds_left, sampler="mala", means=None, **options):
        problem = _problem(data, sampler, budget="1m", **options)
        how = {"warmup_step_seconds": step_seconds, "seconds_left": seconds_left, "means": means or {}}
        return measured_lengths.with_thinning(problem, problem.sampler, **how).recipe.thin

    assert thinning(1e-3, 40.0) == 32  # 40 steps per draw
    assert thinning(1e-3, 40.0, draws=200) == 128
    assert thinning(1e-3, 40.0, thin=3) == 3
    assert thinning(1.0, 40.0) == 1
    assert thinning(0.0, 40.0) == 1000
    assert thinning(1e-3, 40.0, "laplace") == 1
    unlimited = _problem(data, draws=5)
    how = {"warmup_step_seconds": 1e-3, "seconds_left": 40.0, "means": {}}
    assert measured_lengths.with_thinning(unlimited, unlimited.sampler, **how) is unlimited


def test_a_measured_slow_step_shortens_warm_up_before_it_begins(data):
    """Warm-up may use 40 % of the 60 s. It changes only if at most half of the planned steps are affordable."""

    def warmup(step_seconds, planned=1024, start_seconds=0.0, **options):
        problem = _problem(data, budget="1m", **options)
        if "warmup" not in options:
            problem = problem.with_lengths(dataclasses.replace(problem.recipe, warmup=planned), problem.sampler)
        how = {"start_seconds": start_seconds, "step_seconds": step_seconds}
        return measured_lengths.with_measured_step(problem, problem.sampler, **how).recipe.warmup

    assert warmup(0.05) == 300  # 480 steps, rounded down to 256; at least 300
    assert warmup(0.03) == 1024  # 800 of 1024 steps are affordable
    assert warmup(0.05, planned=4096, start_seconds=42.0) == 300
    assert warmup(0.01, planned=20_000) == 2048  # 2400 steps
    assert warmup(0.05, warmup=2000) == 2000


@pytest.mark.usefixtures("as_options")
def test_a_budget_that_is_far_too_short_is_refused(data):
    """The shortest warm-up of 300 planned steps has 3 of its 10 windows of 15 steps, and as many steps again.

    The planned thinning does not count, because it can still become 1.
    """

    def check(step_seconds, sampler="mala", **options):
        problem = _problem(data, sampler, budget="1m", **options)
        changes = {name: length for name, length in {"warmup": 300, "thin": 64}.items() if name not in options}
        problem = problem.with_lengths(dataclasses.replace(problem.recipe, **changes), problem.sampler)
        budget_check.refuse_short_budget(problem, problem.sampler, budget_seconds=50.0, step_seconds=step_seconds)

    check(1.8)  # 110 steps take 198 s, less than four times 50 s
    with pytest.raises(UsageError) as caught:
        check(2.0)
    assert str(caught.value) == (
        "--budget 1m: too short: on this machine even 90 steps of warm-up and 20 draws take about 4m; use --budget "
        "6m or longer, or a sampler that uses mini-batches, such as sgld, because mala uses all 72 rows in every "
        "step"
    )
    check(2.0, warmup=5)
    with pytest.raises(UsageError, match="even 5 steps of warm-up and 20 draws take about 4m"):
        check(2.0, warmup=5, thin=5)
    check(2.0, sampler="laplace")  # not a chain
    with pytest.raises(UsageError, match=r"use --budget \d+m or longer$"):
        check(2.0, sampler="sgld", **{"sampler.batch_size": 8})


def test_a_refused_run_leaves_no_files(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise UsageError("too short")

    monkeypatch.setattr(measured_lengths, "with_measured_step", refuse)
    with pytest.raises(UsageError, match=r"^too short$"):
        entrances.run_recipe(tiny.recipe("mala", budget="1m"), out=tmp_path / "run.nc")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_the_measured_steps_do_not_change_the_draws(tmp_path, monkeypatch):
    """The recipe of a run whose warm-up was changed by the measurement repeats it."""

    def halve(problem, *_, **__):
        return problem.with_lengths(dataclasses.replace(problem.recipe, warmup=200), problem.sampler)

    monkeypatch.setattr(measured_lengths, "with_measured_step", halve)
    monkeypatch.setattr(budget, "plan_lengths", lambda problem, *_, **__: problem)
    recipe = tiny.recipe("mala", draws=40, warmup=400, thin=1, budget="5m")
    run = entrances.run_recipe(recipe, out=tmp_path / "run.nc")
    assert "warmup: 200" in run.attributes["recipe"]
    again = entrances.run_recipe(recipe_from(run.attributes["recipe"]), out=tmp_path / "again.nc")
    tiny.assert_same_bits(*({name: v.values for name, v in r.posterior["posterior"].items()} for r in (run, again)))


@pytest.mark.long
def test_a_run_resumed_after_warm_up_keeps_its_measured_thinning(tmp_path, monkeypatch, data):
    """The recipe with the thinning is written before the checkpoint at the end of warm-up."""
    plans = iter([4, 2])  # another answer after the resume
    monkeypatch.setattr(
        measured_lengths,
        "with_thinning",
        lambda problem, *_, **__: problem.with_lengths(
            dataclasses.replace(problem.recipe, thin=next(plans)), problem.sampler
        ),
    )
    out, phases = tmp_path / "run.nc", []
    recipe = tiny.recipe("mala", draws=40, warmup=200, budget="1m")
    with pytest.raises(bnnzoo.errors.InterruptedRunError):
        entrances.run_recipe(
            recipe, out=out, observer=lambda p: phases.append(p.phase), stop=lambda: "sampling" in phases
        )
    resuming.resume(out)
    attributes = bnnzoo.open(out).attributes
    assert "thin: 4" in attributes["recipe"]
    again = entrances.run_recipe(recipe_from(attributes["recipe"]), out=tmp_path / "again.nc")
    tiny.assert_same_bits(
        *({name: v.values for name, v in r.posterior["posterior"].items()} for r in (again, bnnzoo.open(out)))
    )


def test_a_run_resumed_in_warm_up_can_still_change_its_lengths(tmp_path, monkeypatch):
    """The recipe in the file has all lengths, but the user has set only the number of draws."""
    calls, steps = [], []

    def record(problem, *_, start_seconds=None, **__):
        calls.append(({"warmup", "thin", "draws"} - problem.recipe.where.keys(), start_seconds))
        return problem

    def plan(problem, *_, **__):
        return problem.with_lengths(dataclasses.replace(problem.recipe, warmup=400, thin=1), problem.sampler)

    monkeypatch.setattr(budget, "plan_lengths", plan)
    monkeypatch.setattr(measured_lengths, "with_shorter_warmup", record)
    monkeypatch.setattr(measured_lengths, "with_thinning", record)
    recipe = tiny.recipe("mala", draws=40, budget="5m")
    recipe = dataclasses.replace(recipe, where={name: recipe.where[name] for name in ("draws", "init", "budget")})
    with pytest.raises(bnnzoo.errors.InterruptedRunError):
        entrances.run_recipe(
            recipe,
            out=tmp_path / "run.nc",
            observer=lambda p: steps.append(p.done) if p.phase == "warm-up" else None,
            stop=lambda: bool(steps and steps[-1] >= 80),
        )
    first, number = calls[0], len(calls)
    assert first[0] == {"warmup", "thin"}
    assert first[1] > 0
    resuming.resume(tmp_path / "run.nc")
    assert len(calls) > number + 1
    assert set(map(str, calls)) == {str(first), str((first[0], None))}


def _shorter(problem, step, *, step_seconds, used, start=0.0):
    how = {"warmup_seconds": used, "start_seconds": start, "step_seconds": step_seconds}
    return measured_lengths.with_shorter_warmup(problem, problem.sampler, step=step, **how).recipe


def test_a_slow_warm_up_ends_after_as_many_windows_as_the_budget_allows(data):
    """Warm-up may use 40 % of the budget. It is shortened only if it would use 50 % with one more window."""
    problem = _problem(data, budget="100s")
    problem = problem.with_lengths(dataclasses.replace(problem.recipe, warmup=1000), problem.sampler)
    recipe = _shorter(problem, 150, step_seconds=0.1, used=15.0)
    assert (recipe.warmup, recipe.planned_warmup) == (1000, None)  # with the next window, 15 + 25 s
    assert _shorter(problem, 200, step_seconds=0.1, used=20.0).warmup == 1000  # exactly 50 s
    recipe = _shorter(problem, 250, step_seconds=0.1, used=25.0)
    assert (recipe.warmup, recipe.planned_warmup, recipe.windowed_warmup) == (500, 1000, 1000)
    assert _shorter(problem, 100, step_seconds=1.0, used=100.0).warmup == 1000  # at least three windows
    assert _shorter(problem, 150, step_seconds=1.0, used=150.0).warmup == 300
    assert _shorter(problem, 450, step_seconds=0.2, used=90.0).warmup == 900
    assert _shorter(problem, 500, step_seconds=1.0, used=500.0).warmup == 1000  # this is the planned end
    assert _shorter(problem, 160, step_seconds=1.0, used=500.0).warmup == 1000  # not the end of a window
    assert _shorter(problem, 200, step_seconds=0.1, used=30.0, start=20.0).warmup == 1000
    assert _shorter(problem, 200, step_seconds=0.11, used=42.0, start=20.0).warmup == 400


def test_a_warm_up_is_shortened_once_and_only_if_nobody_has_set_its_length(data):
    problem = _problem(data, budget="100s")
    slow = {"step_seconds": 1.0, "used": 400.0}
    shortened = dataclasses.replace(problem.recipe, warmup=400, planned_warmup=1000)
    assert _shorter(problem.with_lengths(shortened, problem.sampler), 150, **slow) == shortened
    for options in ({"budget": "100s", "warmup": 1000}, {"draws": 5, "warmup": 1000}):
        assert _shorter(_problem(data, **options), 200, **slow).warmup == 1000
    trained = _problem(data, "laplace", budget="100s")
    trained = trained.with_lengths(dataclasses.replace(trained.recipe, warmup=1000), trained.sampler)
    assert _shorter(trained, 200, **slow).warmup == 1000  # its learning rate follows the planned steps


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["mala", "nuts", "mclmc"])
def test_a_shortened_warm_up_is_repeated_by_its_recipe_and_by_a_resumed_run(tmp_path, monkeypatch, sampler):
    """The recipe states the planned and the real number of steps, from which all windows follow."""

    def shorten(problem, *_, step, **__):
        recipe = problem.recipe
        if step < 80 or recipe.planned_warmup:
            return problem
        return problem.with_lengths(dataclasses.replace(recipe, warmup=160, planned_warmup=400), problem.sampler)

    monkeypatch.setattr(measured_lengths, "with_shorter_warmup", shorten)
    notes = []
    recipe = tiny.recipe(sampler, draws=40, warmup=400, thin=1, budget="5m")
    run = entrances.run_recipe(
        recipe, out=tmp_path / "run.nc", observer=lambda p: notes.append(p.note) if p.phase == "note" else None
    )
    assert any("warm-up ends after 160 of 400 steps" in note for note in notes)
    stored = recipe_from(run.attributes["recipe"])
    assert (stored.warmup, stored.planned_warmup) == (160, 400)
    tuned_step = run.posterior["sample_stats"]["step_size"].values
    assert np.ptp(tuned_step, axis=1).max() == 0  # nothing is adapted after warm-up
    again = entrances.run_recipe(stored, out=tmp_path / "again.nc")

    steps = []
    with pytest.raises(bnnzoo.errors.InterruptedRunError):
        entrances.run_recipe(
            recipe,
            out=tmp_path / "resumed.nc",
            observer=lambda p: steps.append(p.done) if p.phase == "warm-up" else None,
            stop=lambda: bool(steps and steps[-1] >= 80),
        )
    resuming.resume(tmp_path / "resumed.nc")
    for repeated in (again, bnnzoo.open(tmp_path / "resumed.nc")):
        tiny.assert_same_bits(
            *({name: v.values for name, v in r.posterior["posterior"].items()} for r in (repeated, run))
        )


def test_training_steps_fit_into_the_budget(monkeypatch, data):
    """The estimate uses the second block of fifty steps, because the first one compiles."""
    clock, requests = [0.0], []

    def training(*looks):
        def train(*_, most_steps, held_out, steps_per_report, **__):
            requests.append((most_steps, held_out, steps_per_report))
            for seconds in looks:
                clock[0] += seconds
                yield None if seconds is None else seconds

        monkeypatch.setattr(budget, "train", train)
        how = {"most": 5000, "share": 0.25, "key": jax.random.key(0)}
        return budget.training_steps(problem, place_chains("vectorized", 4), **how)

    monkeypatch.setattr(budget, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    problem = _problem(data, budget="40s", start_held_out=0.2)
    assert training(100.0, 0.5) == 1000  # 10 s at 10 ms per step
    assert training(100.0, 0.05) == 5000
    assert training(100.0, 50.0) == 250
    assert training(100.0) == 5000  # the training ended earlier
    assert set(requests) == {(5000, 0.2, 50)}
    training(100.0, 0.5)
    planned = budget.with_start(problem, place_chains("vectorized", 4), choice_seconds=0.0, key=jax.random.key(0))
    assert planned.recipe.start_steps == 1600  # four tenths of the budget
    training(100.0, 0.5)
    planned = budget.with_start(problem, place_chains("vectorized", 4), choice_seconds=20.0, key=jax.random.key(0))
    assert planned.recipe.start_steps == pytest.approx(800, abs=1)  # three tenths of the budget are left for the chains
    for other in (_problem(data, budget="40s", init="prior"), _problem(data, draws=5)):
        assert (
            budget.with_start(other, place_chains("vectorized", 4), choice_seconds=0.0, key=jax.random.key(0)) is other
        )


def test_the_ladder_ends_before_the_last_draw():
    assert [ladder(draws) for draws in (100, 101, 800)] == [[], [100], [100, 200, 400]]
    assert ladder(2000) == [100, 200, 400, 800, 1600]


@pytest.mark.parametrize(
    ("exactness", "ess", "topics", "enough", "converged"),
    [
        ("exact", 400.0, (), True, 1),
        ("exact", 399.9, (), False, 1),
        ("exact", float("nan"), (), False, 1),
        ("exact", 9000.0, ("convergence",), False, 0),
        ("biased", 9000.0, ("validity", "calibration"), True, 1),
        ("approximate", 9000.0, (), False, "not-applicable"),
    ],
)
def test_the_verdict_requires_every_convergence_limit(exactness, ess, topics, enough, converged, monkeypatch, tmp_path):
    result = tuple(Finding(topic, "rhat", "label", 2.0, 1.01, "advice") for topic in topics)
    diagnosis = {"exactness": exactness, "ess_bulk": ess, "rhat": 1.0, "draws": 100, "inspected": {}}
    monkeypatch.setattr(verdict, "_diagnose_parts", lambda *_: (None, diagnosis, result))
    monkeypatch.setattr(verdict.chain_mixture, "of_run", lambda *_: verdict.chain_mixture.EQUAL)
    monkeypatch.setattr(verdict.outcome, "bias", lambda *_: "")
    assert (verdict.reason_to_end(tmp_path / "run.nc", 1, None, by_predictions=False) == "converged") == enough
    answer = verdict.verdict(tmp_path / "run.nc", 1, 1000, None)
    assert answer["converged"] == converged
    assert ("rhat" in answer) == (exactness != "approximate")
    monkeypatch.setattr(verdict, "_diagnose_parts", lambda *_: None)
    assert verdict.reason_to_end(tmp_path / "run.nc", 1, None, by_predictions=True) == ""
    assert verdict.verdict(tmp_path / "run.nc", 1, 1000, None) == {}


@pytest.mark.slow
def test_a_budget_that_was_interrupted_goes_on(data, tmp_path):
    out, path = tmp_path / "run.nc", tmp_path / "data.npz"
    np.savez(path, x=data[0], y=data[1])
    recipe = resolve("linear", "mala", [], {"data": str(path), "budget": "4s", "until": "budget", **SHORT})
    calls = iter(range(10**6))
    with pytest.raises(bnnzoo.errors.InterruptedRunError):
        entrances.run_recipe(recipe, out=out, stop=lambda: 2 if next(calls) > 6 else 0)
    run = resuming.resume(out)
    assert run.attributes["complete"] == 1
    assert run.attributes["ended"] in ("budget", "draws")
