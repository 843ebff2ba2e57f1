"""Joining runs of several seeds: which runs can be joined, the content of the result, and the messages."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import tiny

import bnnzoo
from bnnzoo import cli, store
from bnnzoo.api import entrances
from bnnzoo.errors import InterruptedRunError, UsageError
from bnnzoo.evaluation.contents import record
from bnnzoo.finding import Finding, sentence, to_json
from bnnzoo.recipe import Part, as_dict, recipe_from, to_yaml
from bnnzoo.sampling.loop.stuck_chains import stuck_finding


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three seeds of one recipe; the third has fewer chains and draws."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        entrances.run_recipe(tiny.recipe("random-walk", seed=seed), out=folder / f"{seed}.nc")
    entrances.run_recipe(tiny.recipe("random-walk", seed=2, chains=2, draws=15), out=folder / "2.nc")
    return folder


@pytest.mark.long
def test_chains_lie_side_by_side(folder, tmp_path):
    runs = [bnnzoo.open(folder / f"{seed}.nc") for seed in range(3)]
    both = bnnzoo.concat(runs)
    for group in ("posterior", "sample_stats"):
        for name, values in both.posterior[group].data_vars.items():
            parts = [run.posterior[group][name].values[:, -15:] for run in runs]
            np.testing.assert_array_equal(values, np.concatenate(parts))
            assert values.coords["chain"].values.tolist() == list(range(10))
            assert values.coords["draw"].values.tolist() == list(range(15))
    about = both.attributes
    assert json.loads(about["seeds"]) == [0, 1, 2]
    assert about["draws_done"] == 15
    for name in ("target_evaluations", "seconds_compile", "seconds_warmup", "seconds_sampling"):
        assert about[name] == sum(run.attributes[name] for run in runs) > runs[0].attributes[name]
    assert about["rhat"] == both.diagnose()["rhat"]
    assert about["rhat"] not in [run.attributes["rhat"] for run in runs]

    both.save(tmp_path / "both.nc")
    reopened = bnnzoo.open(tmp_path / "both.nc")
    assert reopened.attributes == about
    assert reopened.evaluate(save=False) == both.evaluate(save=False)
    with pytest.raises(UsageError, match="exists; use another path, or force=True"):
        both.save(tmp_path / "both.nc")


@pytest.mark.long
def test_an_unfinished_run_is_not_hidden_by_another_file(folder, tmp_path, capsys):
    out, files = tmp_path / "run.nc", [str(folder / "0.nc"), str(folder / "1.nc")]
    with pytest.raises(InterruptedRunError):
        entrances.run_recipe(tiny.recipe("random-walk"), out=out, **tiny.stopped(1))
    with pytest.raises(UsageError, match=r"an unfinished run is here; .*, or use another path, or force=True to"):
        bnnzoo.open(files[0]).save(out)
    assert cli.run(["merge", *files, "-o", str(out)]) == 2
    assert "an unfinished run is here; continue it with bnnzoo resume" in capsys.readouterr().err
    assert store.run_state(out) == "resumable"
    assert cli.run(["merge", *files, "-o", str(out), "--force"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run.nc"]
    bnnzoo.open(files[0]).save(tmp_path / "run.nc", force=True)


@pytest.mark.long
def test_attributes_of_the_user_are_kept_if_they_are_numbers_or_texts(folder, tmp_path):
    own = Path(shutil.copy(folder / "0.nc", tmp_path / "own.nc"))
    with h5py.File(own, "r+") as file:
        file.attrs.update({"reviewed": True, "note": "best", "share": 0.5, "tags": ["a", "b"]})
    bnnzoo.concat([own, folder / "1.nc"]).save(tmp_path / "all.nc")
    bnnzoo.resume(own, draws=25, progress=False)
    for path in (own, tmp_path / "all.nc"):
        attributes = bnnzoo.open(path).attributes
        assert (attributes["reviewed"], attributes["note"], attributes["share"]) == (1, "best", 0.5)
        assert "tags" not in attributes


@pytest.mark.long
def test_lengths_that_a_clock_has_chosen_may_differ(folder, tmp_path):
    """Runs with a budget may differ in lengths and depth of trees, but not in the requested step size."""

    def planned(*, depth: int, warmup: int, budget: bool = True, step_size: float = 0.1):
        def change(file):
            options = {"warmup": warmup, "thin": warmup, "start_steps": 10 * warmup}
            options |= {"planned_warmup": 2 * warmup} if budget and depth == 4 else {}
            sampler = Part("nuts", {"max_tree_depth": depth, "step_size": step_size})
            recipe = dataclasses.replace(recipe_from(file.attrs["recipe"]), sampler=sampler, **options)
            file.attrs.update(
                {"recipe": to_yaml(as_dict(recipe)), "sampler": "nuts"} | ({"budget": "2m"} if budget else {})
            )

        return change

    first, second, third, other, same = (
        changed(folder / f"{min(seed, 1)}.nc", tmp_path / f"{seed}.nc", change)
        for seed, change in enumerate(
            (
                planned(depth=10, warmup=50),
                planned(depth=4, warmup=40),
                planned(depth=4, warmup=40, budget=False),
                planned(depth=4, warmup=40, step_size=0.2),
                planned(depth=10, warmup=50, budget=False),
            )
        )
    )
    both = bnnzoo.concat([first, second])
    assert recipe_from(both.attributes["recipe"]).thin == 50
    assert both.attributes["budget"] == "2m"  # so that more runs can be joined to it
    # A run in counts, with the recipe that the file of the first run names.
    assert len(json.loads(bnnzoo.concat([first, same]).attributes["seeds"])) == 2
    with pytest.raises(
        UsageError,
        match=r"2\.nc: .* differs from the recipe of .*0.nc in sampler\.max_tree_depth, warmup, thin, start_steps",
    ):
        bnnzoo.concat([first, third])
    with pytest.raises(
        UsageError, match=r"3\.nc: its recipe differs from the recipe of .*0.nc in sampler\.step_size; join only"
    ):
        bnnzoo.concat([first, other])


def test_findings_of_a_run_are_findings_of_the_joined_run(folder, tmp_path):
    """The worst finding of each kind, and stuck chains, are reported with the new chain numbers."""

    def joined_findings(*findings: Finding, stuck: tuple[int, ...] = ()):
        def change(file):
            file.attrs["findings"] = to_json((*stuck_finding(dict.fromkeys(stuck, 2000)), *findings))
            file.attrs["stuck_chains"] = json.dumps(stuck)
            file.attrs["regime_ok"], file.attrs["regime"] = 0, "said"
            file.attrs["absurd"] = "said"

        return change

    noise = Finding("validity", "sigma2", "mean sigma2", 6.0, 2.0, "more batches", (0, 2))
    paths = [
        changed(folder / "0.nc", tmp_path / "0.nc", joined_findings(noise)),
        changed(
            folder / "1.nc",
            tmp_path / "1.nc",
            joined_findings(noise._replace(value=9.0, chains=()), stuck=(3,)),
        ),
    ]
    both = bnnzoo.concat(paths)
    about, of_sampler = both.attributes, both.findings()[:2]
    assert [finding.kind for finding in of_sampler] == ["stuck", "sigma2"]
    assert of_sampler[0].label.startswith("chain 7 accepted no proposal for 1000 steps")
    assert of_sampler[1][2:4] == ("mean sigma2", 9.0)
    assert of_sampler[1].chains == (0, 2, 4, 5, 6, 7)
    assert (about["regime_ok"], about["converged"]) == (0, 0)
    assert about["absurd"].startswith("number of stuck chains")  # tested again, not copied from the first run
    assert about["regime"] == sentence(of_sampler[0])
    assert "mean sigma2 (chains 0, 2, 4, 5, 6, 7) 9" in about["verdict"]
    both.save(tmp_path / "both.nc")
    assert bnnzoo.open(tmp_path / "both.nc").findings() == both.findings()


def test_attributes_of_single_runs_are_summed_or_dropped(folder, tmp_path):
    def with_restarts(restarted):
        of_one = {"ended": "budget", "stops": "[100]", "inspected": '{"unseen": [0.1]}'}
        return lambda file: file.attrs.update({**of_one, "tuned": '{"batch_size": 7}', "restarted": restarted})

    paths = [changed(folder / f"{seed}.nc", tmp_path / f"{seed}.nc", with_restarts(seed + 2)) for seed in (0, 1)]
    about = bnnzoo.concat(paths).attributes
    assert about["restarted"] == 2 + 3
    assert about["tuned"] == "{}"
    assert not {"ended", "stops", "inspected"} & set(about)


@pytest.mark.long
def test_a_run_resumed_in_another_environment_is_noted_after_joining(folder, tmp_path):
    def with_difference(difference):
        return lambda file: file.attrs.update({"inexact_resume": difference})

    plain = folder / "0.nc"
    assert "inexact_resume" not in bnnzoo.concat([plain, folder / "1.nc"]).attributes
    moved = changed(folder / "1.nc", tmp_path / "1.nc", with_difference("jax was 1"))
    assert bnnzoo.concat([plain, moved]).attributes["inexact_resume"] == "jax was 1"
    second_moved = changed(folder / "2.nc", tmp_path / "2.nc", with_difference("jax was 2"))
    assert bnnzoo.concat([moved, plain, second_moved]).attributes["inexact_resume"] == "jax was 1; jax was 2"


@pytest.mark.slow
def test_runs_that_cannot_be_joined_are_refused(folder, tmp_path):
    with pytest.raises(UsageError, match="expected two or more runs"):
        bnnzoo.concat([folder / "0.nc"])
    with pytest.raises(UsageError, match="two of the runs have the same seed"):
        bnnzoo.concat([folder / "0.nc", folder / "0.nc"])
    with pytest.raises(
        UsageError, match="two of the runs have the same seed"
    ):  # also with a run that is joined already
        bnnzoo.concat([bnnzoo.concat([folder / "0.nc", folder / "1.nc"]), folder / "1.nc"])
    other = entrances.run_recipe(tiny.recipe("random-walk", seed=3, thin=2), out=tmp_path / "other.nc")
    with pytest.raises(UsageError, match=r"other.nc: its recipe differs from the recipe of .*0.nc in thin"):
        bnnzoo.concat([folder / "0.nc", other])
    rows = entrances.run_recipe(tiny.recipe("random-walk", seed=3, data="mdn-sine"), out=tmp_path / "rows.nc")
    with pytest.raises(UsageError, match=r"rows.nc: its recipe differs from the recipe of .*0.nc in data"):
        bnnzoo.concat([folder / "0.nc", rows])
    fixed = [
        entrances.run_recipe(
            tiny.recipe("random-walk", "mlp", seed=seed, stochastic="last", start_steps=250, init="map"),
            out=tmp_path / f"fixed{seed}.nc",
        )
        for seed in (0, 1)
    ]
    with pytest.raises(UsageError, match=r"fixed1.nc: its fixed parameters \(trained, not sampled\) differ"):
        bnnzoo.concat(fixed)


def changed(source, path, change) -> Path:
    """Copy a run's file, change it and remove its digests."""
    shutil.copy(source, path)
    with h5py.File(path, "r+") as file:
        file.attrs.pop("digests", None)
        change(file)
    return path


def federated(rows):
    """Return a change to the file of a federated run, which has no rows but the parties' row counts."""

    def change(file):
        del file.attrs["data_sha256"]
        file.attrs["federated"] = json.dumps({"a": {"rows": rows}})

    return change


def scaled(file):
    file["constant_data/x_mean"][...] += 1


@pytest.mark.parametrize(
    ("name", "second"),
    [
        (federated(442), federated(443)),
        (federated(442), lambda file: [federated(442)(file), scaled(file)]),
        (lambda file: None, lambda file: file.attrs.__setitem__("data_sha256", "0" * 64)),
    ],
    ids=["parties", "scales", "rows"],
)
def test_runs_of_other_rows_are_not_joined(name, second, folder, tmp_path):
    first = changed(folder / "0.nc", tmp_path / "0.nc", name)
    with pytest.raises(UsageError, match=r"1\.nc: "):
        bnnzoo.concat([first, changed(folder / "1.nc", tmp_path / "1.nc", second)])
    bnnzoo.concat([first, changed(folder / "1.nc", tmp_path / "same.nc", name)])


def test_a_recipe_without_a_likelihood_is_refused_in_both_orders(folder, tmp_path):
    """The recipe of a model with its own likelihood has none, and one with `prior_from` has no prior."""

    def change(file):
        recipe = recipe_from(file.attrs["recipe"])
        file.attrs["recipe"] = to_yaml(as_dict(dataclasses.replace(recipe, likelihood=None, prior=None)))

    files = [folder / "0.nc", changed(folder / "1.nc", tmp_path / "1.nc", change)]
    for runs in (files, files[::-1]):
        with pytest.raises(UsageError, match=r"its recipe differs from the recipe of .* in (likelihood|prior), "):
            bnnzoo.concat(runs)


@pytest.mark.slow
def test_evaluation_groups_are_joined_if_they_have_the_same_draws(folder, tmp_path, monkeypatch):
    files = [Path(shutil.copy(folder / f"{seed}.nc", tmp_path)) for seed in range(3)]
    monkeypatch.setattr(record, "_GROUP_BYTES", 20_000)
    for path in files:
        bnnzoo.open(path).evaluate()
    runs = [bnnzoo.open(path) for path in files]
    both = bnnzoo.concat(runs[:2]).posterior["log_likelihood"]
    draw_numbers = runs[0].posterior["log_likelihood"]["draw"].values
    assert len(draw_numbers) < tiny.DRAWS
    np.testing.assert_array_equal(both["draw"], draw_numbers)
    parts = [run.posterior["log_likelihood"]["y"].values for run in runs[:2]]
    np.testing.assert_array_equal(both["y"], np.concatenate(parts))
    assert {"log_likelihood", "posterior_predictive"} & set(bnnzoo.concat(runs).posterior.children) == set()


@pytest.mark.long
def test_warm_up_is_joined_as_long_as_it_was(tmp_path):
    runs = [
        entrances.run_recipe(tiny.recipe("random-walk", seed=seed, keep_warmup=True), out=tmp_path / f"{seed}.nc")
        for seed in (0, 1)
    ]
    both = bnnzoo.concat(runs).posterior["warmup_posterior"]
    assert both.sizes["draw"] == tiny.WARMUP > tiny.DRAWS
    assert both.sizes["chain"] == 2 * tiny.CHAINS


@pytest.mark.slow
def test_merge_writes_what_concat_joins(folder, tmp_path, capsys):
    """`merge` writes the same file as `concat`; an existing file is replaced only with --force."""
    arguments = ["merge", *(str(folder / f"{seed}.nc") for seed in range(3)), "-o", str(tmp_path / "all.nc")]
    assert cli.run([*arguments, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    joined = bnnzoo.concat([folder / f"{seed}.nc" for seed in range(3)])
    written = bnnzoo.open(tmp_path / "all.nc")
    assert written.attributes == joined.attributes
    assert (output["chains"], output["draws"]) == (10, 15)
    assert cli.run(arguments) == 2
    assert "all.nc: exists; use another -o" in capsys.readouterr().err
    assert cli.run([*arguments, "--force"]) == 0
    # More seeds can be joined to a joined run.
    entrances.run_recipe(tiny.recipe("random-walk", seed=3), out=tmp_path / "3.nc")
    more = ["merge", str(tmp_path / "all.nc"), str(tmp_path / "3.nc"), "-o", str(tmp_path / "more.nc")]
    assert cli.run(more) == 0
    assert json.loads(bnnzoo.open(tmp_path / "more.nc").attributes["seeds"]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("names", "message"), [(["0.nc"], "expected two or more runs"), (["0.nc", "none.nc"], "no such run")]
)
def test_merge_refuses_runs_that_cannot_be_joined(names, message, folder, tmp_path, capsys):
    arguments = ["merge", *(str(folder / name) for name in names), "-o", str(tmp_path / "all.nc")]
    assert cli.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("as_options")
def test_predictions_kept_at_other_rows_are_not_joined(folder, tmp_path):
    def change(file):
        file["constant_data/x_test"][0] += 1

    other = changed(folder / "1.nc", tmp_path / "other.nc", change)
    with pytest.raises(
        UsageError, match=r"other\.nc: its test rows, or the rows of --keep-at, differ from those of .*0\.nc"
    ):
        bnnzoo.concat([folder / "0.nc", other])


def test_a_joined_run_of_two_versions_names_both(folder, tmp_path):
    def change(file):
        file.attrs["versions"] = json.dumps(json.loads(file.attrs["versions"]) | {"jax": "9.9"})
        file.attrs["plugins"] = json.dumps({"extra": "1"})

    first = bnnzoo.open(folder / "0.nc")
    about = bnnzoo.concat([first, changed(folder / "1.nc", tmp_path / "1.nc", change)]).attributes
    jax = json.loads(first.attributes["versions"])["jax"]
    assert json.loads(about["versions"])["jax"] == f"{jax}, 9.9"
    assert json.loads(about["plugins"]) == {"extra": "1"}
