"""The likelihood `bernoulli` supports every table of two classes, by every entrance."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import bnnzoo
from bnnzoo import cli
from bnnzoo.assembly import Problem
from bnnzoo.data import from_arrays
from bnnzoo.errors import UsageError
from bnnzoo.recipe import resolve
from bnnzoo.sklearn import BayesianClassifier

SHORT = {"warmup": 5, "draws": 5, "chains": 2, "init": "prior"}
X = np.random.default_rng(0).normal(size=(40, 2))
SIDE = X.sum(1) > 0
LABELS = {
    "integers": SIDE.astype(int),
    "others": 3 + 2 * SIDE.astype(int),
    "truths": SIDE,
    "text": np.where(SIDE, "yes", "no"),
}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.long
@pytest.mark.parametrize("labels", LABELS)
def test_two_classes_are_taken_however_they_are_written(labels):
    run = bnnzoo.sample(
        "linear", "random-walk", data=(X, LABELS[labels]), likelihood="bernoulli", task="classification", **SHORT
    )
    assert len(run.predict(X)) == len(X)
    assert run.evaluate((X, LABELS[labels]))["rows"] == len(X)


@pytest.mark.long
@pytest.mark.parametrize("labels", ["integers", "truths", "text"])
def test_two_classes_of_a_file_are_taken_by_the_command_line(labels, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": LABELS[labels]}).to_csv("two.csv", index=False)
    lengths = ["--warmup", "5", "--draws", "5", "--chains", "2", "--init", "prior", "--quiet"]
    sample = [
        "sample",
        "linear",
        "random-walk",
        "--likelihood",
        "bernoulli",
        "--data",
        "two.csv",
        "-o",
        "run.nc",
        *lengths,
    ]
    for arguments in (sample, ["evaluate", "run.nc", "--data", "two.csv"], ["predict", "run.nc", "--data", "two.csv"]):
        assert cli.run(arguments) == 0, capsys.readouterr().err


@pytest.mark.long
def test_a_classifier_fits_with_the_bernoulli_likelihood():
    fitted = BayesianClassifier("linear", "random-walk", likelihood="bernoulli", **SHORT).fit(X, LABELS["text"])
    np.testing.assert_allclose(fitted.predict_proba(X).sum(1), 1, atol=1e-6)


@pytest.mark.usefixtures("as_options")
def test_three_classes_are_refused_with_the_number_of_classes():
    recipe = resolve("linear", "random-walk", [], {"likelihood": "bernoulli"}, in_memory=True)
    with pytest.raises(
        UsageError, match=r"likelihood bernoulli: needs 2 classes \(got 3\); use --likelihood categorical"
    ):
        Problem.from_recipe(recipe, from_arrays(X, np.arange(40) % 3, task="classification"))
