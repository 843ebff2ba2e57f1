"""Problems, methods and options as text."""

from __future__ import annotations

import numpy as np
import pytest
from bnnzoo_bench.methods import Method, keywords_of, parse_methods
from bnnzoo_bench.problems import Problem, count_folds, find_problems, read_rows
from bnnzoo_bench.running import parse_budget, parse_folds
from conftest import make_folder, make_table

from bnnzoo import UsageError


def test_a_problem_folder_has_the_splits_of_its_mask(tmp_path):
    table = np.arange(12.0).reshape(4, 3)
    path = make_folder(tmp_path / "p", table, [[1, 0], [0, 1], [0, 1], [0, 0]])
    (problem,) = find_problems([path])
    assert (problem.name, count_folds(problem)) == ("p", 2)
    rows = read_rows(problem, 1, seed=0)
    assert rows.y_test.tolist() == [5.0, 8.0]
    assert rows.x.tolist() == [[0.0, 1.0], [9.0, 10.0]]


def test_folds_of_a_csv_file_are_disjoint_splits_that_depend_on_the_seed(tmp_path):
    (problem,) = find_problems([make_table(tmp_path / "t.csv")])
    assert count_folds(problem) == 10
    rows = read_rows(problem, 0, seed=0)
    assert (rows.x.shape, rows.x_test.shape) == ((36, 2), (4, 2))
    assert not set(rows.y) & set(rows.y_test)
    assert set(read_rows(problem, 0, seed=0).y_test) == set(rows.y_test)
    assert set(read_rows(problem, 1, seed=0).y_test) != set(rows.y_test) != set(read_rows(problem, 0, seed=1).y_test)


def test_target_and_text_columns_of_a_csv_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("y,colour,size\n1,red,3\n2,blue,4\n3,red,5\n4,blue,6\n")
    rows = read_rows(Problem("t", path, "y"), 0, seed=0)
    assert sorted([*rows.y, *rows.y_test]) == [1, 2, 3, 4]
    assert rows.x.shape == (3, 3)  # size, and one input per colour


def test_a_folder_of_problems_has_all_of_them(tmp_path):
    make_folder(tmp_path / "all" / "b", np.ones((2, 2)), [[1], [0]])
    make_table(tmp_path / "all" / "a.csv")
    assert [problem.name for problem in find_problems([tmp_path / "all"])] == ["a", "b"]


def test_a_problem_folder_may_have_the_suffix_of_a_reference(tmp_path):
    (problem,) = find_problems([make_folder(tmp_path / "p.nc", np.ones((2, 2)), [[1], [0]])])
    assert not problem.is_reference


def test_without_a_path_the_problem_is_diabetes():
    (problem,) = find_problems([])
    assert read_rows(problem, 0, seed=0).x.shape == (398, 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n1\n", "expected a header with at least two columns, got 1"),
        ("a,b\n1,2\n", "unknown --target 'y'; use one of a, b"),
    ],
)
def test_headers_that_do_not_fit_are_refused(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        find_problems([path], "y" if "b" in text else None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n,3\n2,3\n", "missing cells"),
        ("a,b\n1,x\n2,y\n", "the target 'b' must be numeric"),
        ("a,b\n1,2\n3,2\n4,2\n", "two training rows with different targets"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_rows(Problem("t", path), 0, seed=0)


def test_two_problems_with_one_name_are_refused(tmp_path):
    (tmp_path / "other").mkdir()
    paths = [make_table(tmp_path / "t.csv"), make_table(tmp_path / "other" / "t.csv")]
    with pytest.raises(UsageError, match="the name 't' is also the name of"):
        find_problems(paths)


def test_methods_are_default_pairs_recipes_peers_and_classes(tmp_path):
    (tmp_path / "own.yaml").write_text("model: mlp\n")
    names = ["default", "mlp:nuts", "own.yaml", "linear", "package.module:Class"]
    methods = parse_methods(names)
    assert [method.kind for method in methods] == ["default", "pair", "recipe", "peer", "peer"]
    assert [method.name for method in methods] == ["default", "mlp:nuts", "own", "linear", "package.module:Class"]
    assert len(methods[2].sha256) == 64


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["nutz"], "unknown method 'nutz'; use one of default, catboost"),
        (["linear", "linear"], "occurs twice"),
        ([], "at least one"),
    ],
)
def test_wrong_methods_are_refused(names, message):
    with pytest.raises(UsageError, match=message):
        parse_methods(names)


def test_keywords_of_a_recipe_leave_out_data_requirements_and_example():
    text = (
        "model: {name: mlp, hidden: [4]}\nsampler: nuts\ndata: a.csv\ntarget: [y]\nbudget: null\nexample: {warmup: 3}"
        "\nrequires: [bnnzoo-blackjax]\ntest-fraction: 0.2"
    )
    assert keywords_of(text) == {"model": {"name": "mlp", "hidden": [4]}, "sampler": "nuts"}
    with pytest.raises(UsageError, match="expected a mapping"):
        keywords_of("- a")


@pytest.mark.parametrize(("text", "folds"), [("0-2", [0, 1, 2]), ("0,3,5-6", [0, 3, 5, 6]), ("4", [4])])
def test_folds(text, folds):
    assert parse_folds(text) == folds


@pytest.mark.parametrize("text", ["", "a", "2-0", "-1", "1-"])
def test_wrong_folds_are_refused(text):
    with pytest.raises(UsageError, match="--folds"):
        parse_folds(text)


def test_budgets():
    assert [parse_budget(text) for text in ("90s", "1.5m", "2h")] == [90, 90, 7200]
    for text in ("90", "0s", "-1s", "x"):
        with pytest.raises(UsageError, match="--budget: expected a time"):
            parse_budget(text)


def test_a_method_is_stored_as_text():
    method = Method("linear", "peer", "bnnzoo_bench.peers:Linear")
    assert Method(*list(method)) == method
