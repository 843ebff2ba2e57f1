"""`bnnzoo zoo`: recipes that can be run, and the table of results."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny

from bnnzoo import cli, store
from bnnzoo.api import entrances
from bnnzoo.assembly import Problem
from bnnzoo.cli import fleet_runs
from bnnzoo.cli.fleet_runs import (
    RunFiles,
    _CurrentRows,
    compare_files,
    missing_jobs,
    next_command,
    print_runs,
    row_of,
)
from bnnzoo.cli.output import scores_or_warning
from bnnzoo.cli.zoo import _matching_recipes, _recipes, runnable
from bnnzoo.errors import BnnzooWarning, DamagedError, UsageError
from bnnzoo.fleet import Job, Outcome
from bnnzoo.recipe import Layer, read_layer, resolve, shipped_names

MODELS = ("autoregressive", "cnn", "density", "linear", "mdn", "mlp")


def test_the_list_has_the_shipped_recipes_that_name_all_they_need(capsys):
    assert cli.run(["zoo", "--json"]) == 0
    listed = {row["recipe"] for row in json.loads(capsys.readouterr().out)}
    assert {"airfoil-hmc", "mdn.penalty", "tutorial"} <= listed
    assert not listed & {"mlp", "hmc", "tempered"}
    assert listed <= set(shipped_names())


def test_a_pair_without_a_file_can_be_run_too():
    assert "mdn.hmc" not in shipped_names()
    assert "mdn.hmc" in runnable()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["zzz-*"], "no recipe 'zzz-*'"), (["hmc"], "no recipe 'hmc'"), (["linear.zzz"], "linear.zzz")],
)
def test_an_unknown_recipe_is_refused(arguments, message, capsys):
    assert cli.run(["zoo", "run", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_runs_of_a_sweep_have_its_values_and_their_names(tmp_path):
    """An option of the command overrides a sweep over it, and the seed is last in a name."""
    path = tmp_path / "r.yaml"
    path.write_text("model: linear\nsampler: mala\ndraws: 9\nsweep: {seed: [7, 8], chains: [1, 2]}\n")

    def points(
        seeds: list[int], seed: int | None = None, over: Sequence[Layer] = ()
    ) -> dict[str, tuple[int, int, int]]:
        recipes = _recipes([str(path)], over, {"data": None, "seed": seed}, seeds)
        return {name: (recipe.chains, recipe.seed, recipe.draws) for name, recipe in recipes.items()}

    assert points([]) == {f"r,chains={c},seed={seed}": (c, seed, 9) for c in (1, 2) for seed in (7, 8)}
    assert points([0]) == {f"r,chains={c},seed=0": (c, 0, 9) for c in (1, 2)}
    assert points([], seed=5) == {f"r,chains={c}": (c, 5, 9) for c in (1, 2)}
    over = tmp_path / "over.yaml"
    over.write_text("draws: 4\nsweep: {thin: [2]}\n")
    assert points([], 5, [read_layer(over)]) == {f"r,chains={c},thin=2": (c, 5, 4) for c in (1, 2)}


def test_a_pair_refuses_a_sweep_over_its_parts(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("sweep:\n  sampler: [nuts, hmc]\n")
    with pytest.raises(UsageError, match=r"s\.yaml:2:13: sweep\.sampler: conflicts with the pair linear\.mala"):
        _recipes(["linear.mala"], [read_layer(path)], {}, [])


def test_a_pattern_leaves_out_pairs_that_fail_on_the_example():
    assert not [name for name in _matching_recipes(["MLP.*"]) if not name.startswith("mlp.")]
    assert "mlp.nuts" in _matching_recipes(["mlp.*"])
    assert "mlp.rejection" not in _matching_recipes(["mlp.*"])
    assert "density.dropout" not in _matching_recipes(["density.*"])
    assert _matching_recipes(["mlp.rejection", "linear.rej*"]) == ["mlp.rejection", "linear.rejection"]


@pytest.mark.long
@pytest.mark.parametrize("name", [*(f"{model}.rejection" for model in MODELS), "density.dropout"])
def test_the_pairs_that_a_pattern_leaves_out_are_refused(name):
    with pytest.raises(UsageError, match=f"sampler {name.partition('.')[2]}: "):
        Problem.from_recipe(resolve(*name.split("."), [], {}))


@pytest.mark.parametrize("name", ["bnnzoo:Tutorial", "bnnzoo:linear.bnnzoo:MALA", "Linear.mala"])
def test_names_may_contain_packages_and_capitals(name):
    assert _matching_recipes([name]) == [name.casefold().replace("bnnzoo:", "")]


@pytest.mark.slow
def test_a_run_with_only_censored_test_rows_has_no_scores(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *(f"{i % 9},<{i}" for i in range(40))]))
    recipe = tiny.recipe("random-walk", data=str(tmp_path / "t.csv"), censored=True)
    job = Job("one", recipe, tmp_path / "one.nc", tmp_path, False)
    entrances.run_recipe(recipe, out=job.out)
    with pytest.warns(BnnzooWarning, match=r"one\.nc: the test rows have no scores: every row has a censored target"):
        row = row_of(job, Outcome("one", 0, 1.0, ""))
    assert not {"error", "nll"} & set(row)
    assert row["rhat"] > 0


def test_scores_that_cannot_be_computed_are_a_warning():
    def refuse() -> dict[str, float]:
        raise UsageError("every row has a censored target")

    with pytest.warns(BnnzooWarning, match=r"run\.nc: the test rows have no scores: every row has a censored target"):
        assert scores_or_warning(Path("run.nc"), refuse) == {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::bnnzoo.errors.BnnzooWarning")
def test_rows_are_encoded_as_in_the_run_that_determines_the_prior(tmp_path):
    """The new rows lack a category of the earlier rows, so that the encoding of the new rows alone is another one."""
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text("\n".join(["x,c,y", *(f"{i % 9},{'uvw'[i % 3]},{i % 4}.25" for i in range(40))]))
    new.write_text("\n".join(["x,c,y", *(f"{i % 7}.5,{'uv'[i % 2]},{i % 4}.25" for i in range(30))]))
    options = {"prior": None, "warmup": 5, "draws": 20}
    entrances.run_recipe(tiny.recipe("random-walk", data=str(old), **options), out=tmp_path / "old.nc")
    recipe = tiny.recipe("random-walk", data=str(new), prior_from=str(tmp_path / "old.nc"), **options)
    job = Job("one", recipe, tmp_path / "one.nc", tmp_path, False)
    RunFiles().prepare([job], force=False)
    entrances.run_recipe(recipe, out=job.out)
    assert missing_jobs([job], force=False) == []
    new.write_text(new.read_text().replace("3.5,", "4.5,"))
    with pytest.raises(UsageError, match="have changed since"):
        missing_jobs([job], force=False)


@pytest.mark.parametrize(
    ("folder", "names", "arguments"),
    [
        ("runs", ["last,seed=0", "last,seed=1"], "bnnzoo compare runs/last,seed=0.nc runs/last,seed=1.nc"),
        ("runs", ["a,seed=0", "a,seed=1", "b"], "bnnzoo merge runs/a,seed=*.nc -o runs/a.nc"),
        ("my runs", ["a,seed=0", "a,seed=1"], "bnnzoo merge 'my runs/a',seed=*.nc -o 'my runs/a'.nc"),
        ("runs", ["a,seed=0", "b,seed=0"], "bnnzoo compare runs/a,seed=0.nc runs/b,seed=0.nc"),
        ("runs", ["a", "b!"], "bnnzoo report runs/a.nc -o report.html"),
        ("runs", ["a,seed=0", "a,seed=1!", "b"], "bnnzoo compare runs/a,seed=0.nc runs/b.nc"),
        ("runs", ["a!"], ""),
    ],
)
def test_next_command_names_existing_runs(folder, names, arguments, monkeypatch):
    """Runs marked with ! have failed. Runs with `last` have fixed parameters and cannot be merged."""
    monkeypatch.setattr(fleet_runs, "_are_comparable", lambda files: True)
    rows = [{"recipe": name.rstrip("!"), **({"error": "exit code 2"} if "!" in name else {})} for name in names]
    recipes = {
        row["recipe"]: tiny.recipe("nuts", stochastic="last" if "last" in row["recipe"] else "all") for row in rows
    }
    assert next_command(Path(folder), rows, recipes) == arguments


def test_merge_is_not_suggested_for_the_file_of_a_failed_run(tmp_path):
    names = [f"[a],seed={seed}" for seed in range(3)]
    for name in names:
        (tmp_path / f"{name}.nc").touch()
    rows = [{"recipe": name} for name in names]
    recipes = dict.fromkeys(names, tiny.recipe("nuts"))
    start = f"'{tmp_path}/[a]'"
    assert next_command(tmp_path, rows, recipes) == f"bnnzoo merge {start},seed=*.nc -o {start}.nc"
    rows[1]["error"] = "exit code 1"
    files = " ".join(f"'{tmp_path}/{names[seed]}.nc'" for seed in (0, 2))
    assert next_command(tmp_path, rows, recipes) == f"bnnzoo merge {files} -o {start}.nc"


def test_damage_is_reported_instead_of_a_comparison(monkeypatch):
    def refuse(error: UsageError) -> list[str]:
        def compare(files: Sequence[Path]) -> None:
            raise error

        monkeypatch.setattr("bnnzoo.api.compare.compare", compare)
        return compare_files([Path("a.nc"), Path("b.nc")])

    assert refuse(DamagedError("a.nc: damaged")) == ["a.nc: damaged"]
    assert refuse(UsageError("the runs have different test rows")) == []


@pytest.mark.long
def test_next_command_compares_only_runs_with_the_same_rows(tmp_path, monkeypatch):
    changes = {"a": {}, "b": {"seed": 1}, "other": {"split_seed": 1}, "untested": {"test_fraction": 0}}
    recipes = {name: tiny.recipe("random-walk", **change) for name, change in changes.items()}
    for name, recipe in recipes.items():
        entrances.run_recipe(recipe, out=tmp_path / f"{name}.nc")

    opened, closed, open_tree = [], [], store.open_tree

    def open_and_count(path):
        tree = open_tree(path)
        opened.append(path)
        tree.set_close(lambda: closed.append(path))
        return tree

    def command(*names: str) -> str:
        return next_command(tmp_path, [{"recipe": name} for name in names], recipes).removeprefix("bnnzoo ")

    with monkeypatch.context() as patch:
        patch.setattr(store, "open_tree", open_and_count)
        assert command("a", "b").startswith("compare ")
    assert sorted(closed) == opened == [tmp_path / "a.nc", tmp_path / "b.nc"]
    assert command("a", "other") == f"report {tmp_path}/a.nc -o report.html"
    assert command("untested", "untested").startswith("report ")


def test_a_table_of_runs_has_the_columns_that_one_of_them_has(capsys):
    good = {"recipe": "a", "sampler": "nuts", "nll": 1.23456, "nll_standardised": 0.512345, "accuracy": 1.0, "draws": 9}
    print_runs([good, {"recipe": "b", "sampler": "mala", "error": "exit code 2: gone"}])
    assert capsys.readouterr().out.splitlines() == [
        "recipe  sampler  NLL     accuracy  error",
        "a       nuts     0.5123  1",
        "b       mala                       exit code 2: gone",
    ]
    assert compare_files([Path("gone.nc")]) == compare_files([Path("gone.nc")] * 5) == []


def test_rows_are_read_again_if_a_data_option_changes(tmp_path):
    """Jobs with the same data options share the rows; every data option distinguishes them."""
    path = tmp_path / "t.csv"
    path.write_text(
        "\n".join(["a,b,y,z", *(f"{i % 9}.5,{'' if i % 7 == 3 else i % 5},{i % 4}.25,{i % 3}" for i in range(40))])
    )
    options = {"data": str(path), "target": "y", "columns": "a,b,z", "missing": "median", "test_fraction": 0.25}
    rows, current = [], _CurrentRows()
    for more in (
        *({}, {"target": "z"}, {"columns": "a,b"}, {"columns": None, "drop": "z"}, {"missing": "drop"}),
        *({"test_fraction": 0.5}, {"split_seed": 4}),
    ):
        recipe = resolve("linear", "mala", [], {name: v for name, v in {**options, **more}.items() if v is not None})
        rows.append(current.sha256(recipe, "regression"))
        assert rows[-1] == _CurrentRows().sha256(recipe, "regression")
    assert rows[2] == rows[3]
    assert len(set(rows)) == len(rows) - 1


@pytest.mark.slow
def test_a_run_of_two_where_one_fails(tmp_path, capsys):
    """Each job has its own process. The successful row is printed, and the exit code is 1."""
    arguments = ["zoo", "run", "linear.ensemble", "airfoil-ensemble", "-o", str(tmp_path), "--quiet"]
    assert cli.run([*arguments, "--json"]) == 1
    captured = capsys.readouterr()
    assert "1 of 2 recipes failed: airfoil-ensemble" in captured.err
    good, bad = json.loads(captured.out)
    assert (good["recipe"], good["sampler"], bad["recipe"]) == ("linear.ensemble", "ensemble", "airfoil-ensemble")
    assert good["nll"] > 0
    assert good["seconds"] > good["seconds_warmup"] > 0
    assert "exit code 2" in bad["error"]
    assert (tmp_path / "linear.ensemble.nc").exists()
    assert cli.run([*arguments, "--seed", "7"]) == 2
    assert "linear.ensemble.nc: exists" in capsys.readouterr().err


def jobs_of(pid: int) -> list[int]:
    """Return the jobs started by any thread of a process, without other child processes."""
    results = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for word in file.read_text().split():
            with contextlib.suppress(OSError):  # the process has ended
                if b"bnnzoo.cli.job" in Path(f"/proc/{word}/cmdline").read_bytes():
                    results.append(int(word))
    return results


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are looked up in /proc")
def test_interrupting_the_command_ends_the_current_recipe(tmp_path):
    """A SIGTERM to `zoo run` alone ends its child process and starts no other recipe."""
    command = [sys.executable, "-m", "bnnzoo", "zoo", "run", "mdn.random-walk", "mdn.nuts", "-o", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 300
        while not (children := jobs_of(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        (child,) = children
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 143
    assert errors.endswith("bnnzoo: stopped by SIGTERM: 0 of 2 runs are done; run the same command again to continue\n")
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert not list(tmp_path.glob("mdn.nuts*"))
