"""Data without a named model or sampler: the chosen recipe, its precedence, and the messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bnnzoo
from bnnzoo import cli
from bnnzoo.api import choose_recipe
from bnnzoo.data import from_arrays
from bnnzoo.errors import UsageError
from bnnzoo.recipe import read_layer, shipped

SHORT: dict[str, Any] = {"chains": 2, "warmup": 60, "draws": 20, "start_steps": 250}
WORDS = [word for name, value in SHORT.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def dataset(rows: int = 50, task: str = "regression", shape: tuple[int, ...] = (3,)) -> Any:
    random = np.random.default_rng(0)
    y = np.arange(rows) % 3 if task == "classification" else random.normal(size=rows)
    return from_arrays(random.normal(size=(rows, *shape)).astype(np.float32), y, task=task, name="houses")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (dataset(), "small-table"),
        (dataset(choose_recipe.MAX_FULL_BATCH_ROWS), "small-table"),
        (dataset(choose_recipe.MAX_FULL_BATCH_ROWS + 1), "large-table"),
        (dataset(task="classification"), "small-table-classes"),
        (dataset(choose_recipe.MAX_FULL_BATCH_ROWS + 1, "classification"), "large-table-classes"),
        (dataset(shape=(8, 8)), "images"),
        (dataset(shape=(8, 8), task="classification"), "images"),
    ],
)
def test_the_rule_names_a_recipe_that_is_shipped(data, name):
    result, why = choose_recipe.recipe_rule(data)
    assert result == name
    assert why.startswith(f"{data.num_data} {'images' if name == 'images' else 'rows'}")
    path = shipped(name)
    assert path is not None
    layer = read_layer(path)
    assert {"model", "sampler"} <= set(layer.parts)
    # With only data given, the budget determines the lengths.
    assert not {"warmup", "draws", "thin", "budget", "data"} & set(layer.run)


def test_the_task_that_is_asked_for_decides():
    counts = np.arange(50) % 3
    data = np.random.default_rng(0).normal(size=(50, 3)), counts
    for options, name in (({}, "small-table-classes"), ({"likelihood": "poisson"}, "small-table")):
        layer, _ = choose_recipe.choose_recipe([], options, data)
        assert layer.source.endswith(f"{name}.yaml")


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(1)
    x = random.normal(size=(60, 2))
    rows = [f"{a},{b},{a - b + 0.1 * e}" for (a, b), e in zip(x, random.normal(size=60), strict=True)]
    (tmp_path / "houses.csv").write_text("\n".join(["size,age,price", *rows]))
    return "houses.csv"


def test_the_chosen_recipe_is_shown_and_can_be_overridden(table, tmp_path, capsys):
    assert cli.run(["show", "--data", table]) == 0
    text = capsys.readouterr().out
    assert "name: mams" in text
    assert "name: gaussian" in text  # so few rows leave no held-out rows for a comparison
    assert "budget: '2m'" in text.replace('"', "'")
    (tmp_path / "mine.yaml").write_text("chains: 3\nlikelihood: gaussian\n")
    assert cli.run(["show", "--data", table, "--config", "mine.yaml", "--thin", "5"]) == 0
    text = capsys.readouterr().out
    assert "chains: 3\n" in text
    assert "name: gaussian" in text
    assert "thin: 5\n" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mlp", "--data", "houses.csv"], "no sampler; name one"),
        ([], "no model and no sampler; name both"),
        (["--data", "gone.csv"], "gone.csv: no such file"),
        (["--data", "houses.csv", "--chains", "0"], "--chains: must be >= 1"),
    ],
)
def test_options_without_a_possible_choice_are_refused(table, arguments, message, capsys):
    assert cli.run(["sample", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.long
def test_one_command_from_a_table_to_an_answer(table, capsys):
    assert cli.run(["sample", "--data", table, *WORDS, "-o", "run.nc"]) == 0
    out, err = capsys.readouterr()
    assert (
        "houses.csv: 60 rows, few enough for a sampler that uses all rows in each step; using the recipe small-table"
        in err
    )
    keys = [line.split()[0] for line in out.splitlines()]
    assert keys[-4:] == ["rmse", "nll", "coverage_90", "next"]
    assert cli.run(["show", "run.nc"]) == 0
    out = capsys.readouterr().out
    assert out == bnnzoo.open("run.nc").attributes["recipe"]
    assert "thin: 1\n" in out
    assert cli.run(["show", "gone.nc"]) == 2
    assert "gone.nc: no such run" in capsys.readouterr().err


@pytest.mark.slow
def test_sample_chooses_the_same_recipe_from_python(table, tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 2)).astype(np.float32)
    run = bnnzoo.sample(data=(x, np.arange(60) % 2), out=tmp_path / "run.nc", **SHORT)
    assert run.attributes["sampler"] == "mams"
    assert run.attributes["likelihood"] == "categorical"
    with pytest.raises(UsageError, match="no model and no sampler; name both"):
        bnnzoo.sample(**SHORT)
    with pytest.raises(UsageError, match="no sampler; name one"):
        bnnzoo.sample("mlp", data=(x, x[:, 0]), **SHORT)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::bnnzoo.errors.BnnzooWarning")
@pytest.mark.parametrize(
    ("parts", "held_out", "is_sound"),
    [((), 0.1, True), ((), 0.0, True), (("mlp", "ensemble"), 0.0, False)],
    ids=["as chosen", "chains start at overfitted networks", "control: overfitted networks"],
)
def test_chains_do_not_overfit_pure_noise(parts, held_out, is_sound):
    """The targets are pure noise: 90 % intervals contain nearly 90 % of new targets, and no density is extreme."""
    random = np.random.default_rng(5)
    x, y = random.normal(size=(1300, 10)), random.normal(size=1300)
    # With numbers of steps in place of a time budget, the training is as long on a slow machine.
    lengths = {"start_steps": 20_000, **({} if parts else {"warmup": 1000, "draws": 500, "thin": 2})}
    run = bnnzoo.sample(*parts, data=(x[:300], y[:300]), test_fraction=0, start_held_out=held_out, **lengths)
    evaluation = run.evaluate((x[300:], y[300:]), save=False)
    sound = evaluation["coverage_90"] > 0.82 and evaluation["nll"] < 0.5 * np.log(2 * np.pi) + 0.5 + 0.1
    assert sound == is_sound, evaluation
