"""Benchmarks on reference posteriors: distances against seconds, with the Pareto front."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import pytest

pytest.importorskip("bnnzoo_references")

from bnnzoo_bench import read_results
from bnnzoo_bench.child import fit
from bnnzoo_bench.methods import parse_methods, posterior_keywords
from bnnzoo_bench.pareto import ParetoPlot, Point, front, picture, sentence
from bnnzoo_bench.problems import count_folds, find_problems
from bnnzoo_bench.reference_tables import is_of_references, sections
from bnnzoo_bench.running import Plan, check_plan
from conftest import make_table

import bnnzoo
from bnnzoo.errors import NotFoundError, UsageError
from bnnzoo.plugins import registry

POINTS = (Point("slow", 9.0, 0.1), Point("fast", 1.0, 0.5), Point("beaten", 2.0, 0.6), Point("middle", 3.0, 0.2))


@pytest.fixture(autouse=True)
def _with_references(monkeypatch):
    monkeypatch.setenv("BNNZOO_PLUGINS", "bnnzoo-bench,bnnzoo-references,bnnzoo-rwm-example")
    registry.reset()


def test_references_are_problems_with_one_fold(tmp_path):
    problems = find_problems([Path("references")])
    assert {"poisson", "known-network"} <= {problem.name for problem in problems}
    assert all(problem.is_reference and count_folds(problem) == 1 for problem in problems)
    (problem,) = find_problems([Path("references:poisson")])
    assert problem.name == "poisson"
    with pytest.raises(NotFoundError, match="did you mean poisson"):
        find_problems([Path("references:poison")])
    with pytest.raises(UsageError, match="references and tables cannot be in the same benchmark"):
        find_problems([Path("references:poisson"), make_table(tmp_path / "t.csv")])


def test_a_method_is_a_sampler_for_references_and_only_for_them(tmp_path):
    references, tables = find_problems([Path("references:poisson")]), find_problems([make_table(tmp_path / "t.csv")])
    check_plan(Plan(references, [0], parse_methods(["nuts", "bnnzoo-rwm-example:rwm-example"]), 1.0, 0))
    with pytest.raises(UsageError, match="mlp:nuts: a reference fixes the model, so a method must be a sampler"):
        check_plan(Plan(references, [0], parse_methods(["nuts", "mlp:nuts"]), 1.0, 0))
    with pytest.raises(UsageError, match="nuts: is a sampler without a model; write MODEL:nuts, or use "):
        check_plan(Plan(tables, [0], parse_methods(["nuts"]), 1.0, 0))


def test_the_recipe_of_a_reference_gives_the_posterior_and_not_the_steps():
    recipe = "model: {name: mlp, hidden: [3]}\nsampler: nuts\nprior: normal\nwarmup: 5\nprecision: float64\ndata: x\n"
    assert posterior_keywords(recipe) == {"model": {"name": "mlp", "hidden": [3]}, "prior": "normal"}


def test_the_front_has_the_methods_that_no_other_method_beats():
    assert [point.name for point in front(POINTS)] == ["fast", "middle", "slow"]
    assert [point.name for point in front([*POINTS, Point("best", 0.5, 0.05)])] == ["best"]


def test_the_picture_has_every_method_and_a_text():
    plot = ParetoPlot("bumps", POINTS, 0.08)
    svg = picture(plot)
    assert svg.count("<circle") == len(POINTS)
    assert all(f">{point.name}</text>" in svg for point in POINTS)
    assert "two halves of the reference" in svg
    assert 'aria-label="bumps: slow: total variation 0.1 in 9 s;' in svg
    assert sentence(plot) == "Pareto front: fast, middle, slow."


def test_results_of_references_and_of_tables_are_not_mixed(call, capsys, tmp_path, monkeypatch):
    make_table(tmp_path / "t.csv")
    monkeypatch.setattr("bnnzoo_bench.running.fit_in_child", lambda *_: {"status": "failed", "reason": "not fitted"})
    tables = ("--problems", "t.csv", "--methods", "mean", "--folds", "0", "-q")
    references = ("--problems", "references:poisson", "--methods", "laplace", "-q")
    assert call("run", *tables, "-o", "a") == call("run", *references, "-o", "b") == 0
    capsys.readouterr()
    assert call("run", *references, "-o", "a") == 2
    expected = "contains results of tables, so references cannot be added; use another folder: -o a-references\n"
    assert capsys.readouterr().err.endswith(expected)
    assert call("run", *tables, "-o", "b") == 2
    expected = "contains results of references, so tables cannot be added; use another folder: -o b-tables\n"
    assert capsys.readouterr().err.endswith(expected)
    assert call("table", "b", "--metric", "nll", "--reference", "nuts") == 2
    expected = "--reference: not supported for results on reference posteriors; remove --metric, --reference\n"
    assert capsys.readouterr().err == f"bnnzoo: --metric, {expected}"


def test_a_sampler_is_compared_on_the_data_in_the_recipe_of_a_reference(tmp_path, monkeypatch):
    """The name of a user's own reference says nothing about the name of its data. The file may have no test rows."""
    (poisson,) = find_problems([Path("references:bnnzoo-references:poisson")])
    own = shutil.copy(poisson.path, tmp_path / "own.nc")
    with h5py.File(own, "r+") as file:
        del file["constant_data/x_test"], file["constant_data/y_test"]
    calls = []
    monkeypatch.setattr(bnnzoo, "sample", lambda **words: calls.append(words) or bnnzoo.open(own))
    for name, path in ((poisson.name, poisson.path), ("bumps", own)):
        job = {"problem": [name, str(path), None], "fold": 0, "seed": 0, "budget": 1.0, "recipe": ""}
        assert fit({**job, "method": ["laplace", "sampler", "laplace"]})["test_rows"] == 200
    assert [words["data"] for words in calls] == ["reference-poisson"] * 2
    assert (calls[0]["sampler"], calls[0]["likelihood"], calls[0]["test_fraction"]) == (
        "laplace", {"name": "poisson"}, 0.1,
    )  # fmt: skip


@pytest.mark.long
def test_distances_of_a_sampler_are_stored_shown_and_verified(call, capsys, tmp_path):
    words = ("--problems", "references:logistic", "--methods", "laplace,random-walk", "--budget", "2s", "-o", "out")
    assert call("run", *words, "-q") == 0
    assert call("run", *words, "-q") == 0
    lines = read_results("out")
    assert [line["status"] for line in lines] == ["done", "done"]
    assert is_of_references(lines)
    for line in lines:
        assert set(line["metrics"]) == set(line["mcse"])
        assert 0 < line["metrics"]["total_variation"] < 0.5
        assert line["floor"]["total_variation"] < 0.01
        assert line["seconds_run"] > 0
    capsys.readouterr()
    assert call("table", "out") == 0
    out = capsys.readouterr().out
    assert "| two halves of the reference |" in out
    assert "Pareto front: " in out
    assert call("table", "out", "-o", "table.html") == 0
    assert "<svg" in (tmp_path / "table.html").read_text()
    assert call("verify", "out", "--rows", "1", "--seed", "1", "-q") == 0
    assert any(isinstance(part, ParetoPlot) for part in sections(lines))
