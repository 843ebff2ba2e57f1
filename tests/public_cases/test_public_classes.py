"""Classes with known probabilities: separation, duplicates, a missing class number, launches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bnnzoo.errors import BnnzooError
from bnnzoo.sklearn import BayesianClassifier


def test_c15_separated_classes_have_the_exact_probabilities(type_command):
    output = type_command(
        "bnnzoo sample linear nuts --data c15_separated.csv --likelihood bernoulli --test-fraction 0 --warmup 500 "
        "--draws 2000 --json -o c15.nc"
    )
    assert output.json()["verdict"].startswith("converged")
    table = type_command("bnnzoo predict c15.nc --data c15_new.csv").table()
    np.testing.assert_allclose(table["p_case"], [0.053, 0.409, 0.984], atol=0.012)
    type_command("bnnzoo sample mlp laplace --data c15_separated.csv --test-fraction 0 -o c15l.nc")
    table = type_command("bnnzoo predict c15l.nc --data c15_new.csv").table()
    assert (np.diff(table["p_case"]) > 0).all()
    assert table["p_case"].min() > 0
    assert table["p_case"].max() < 1
    assert table["entropy"].argmax() == 1


def test_c17_reordered_columns_change_no_prediction(folder):
    frame = pd.read_csv(folder / "c17_duplicates.csv")
    x, y = frame[["x1", "x2"]], (frame["y"] == 1).astype("boolean")
    options = {"model": "linear", "sampler": "nuts", "likelihood": "bernoulli"}
    estimator = BayesianClassifier(**options, warmup=500, draws=1000).fit(x, y)
    assert list(estimator.classes_) == [False, True]
    new = pd.DataFrame({"x1": [0, 0, 1, 1], "x2": [0, 1, 0, 1]})
    probability = estimator.predict_proba(new)[:, 1]
    np.testing.assert_allclose(probability, [0.961, 0.961, 0.039, 0.039], atol=0.008)
    for changed in (new[["x2", "x1"]], new.assign(extra=1)):
        try:
            other = estimator.predict_proba(changed)[:, 1]
        except (ValueError, BnnzooError):  # scikit-learn's own answer to other columns
            continue
        np.testing.assert_array_equal(other, probability)
    missing = y.copy()
    missing[3] = pd.NA
    with pytest.raises((BnnzooError, ValueError)) as caught:
        BayesianClassifier(**options, warmup=5, draws=5).fit(x, missing)
    assert "\n" not in str(caught.value)


def test_c17_missing_text_is_a_level_of_its_own(folder):
    frame = pd.read_csv(folder / "c17_duplicates.csv")
    x = frame[["x1", "x2"]].assign(kind=pd.Series(["a", "b", pd.NA] * 30, dtype="string"))
    estimator = BayesianClassifier(model="linear", sampler="nuts", missing="median", warmup=300, draws=300)
    assert len(estimator.fit(x, frame["y"] == 1).predict(x)) == 90


def test_c17_test_rows_that_repeat_training_rows_are_no_trouble(type_command):
    type_command(
        "bnnzoo sample linear nuts --data c17_duplicates.csv --target y --likelihood bernoulli --warmup 300 "
        "--draws 300 -o c17.nc"
    )
    assert type_command("bnnzoo evaluate c17.nc --json").json()["accuracy"] == 1


def test_c19_a_class_number_that_does_not_occur_gets_no_column(type_command):
    refusal = type_command("bnnzoo sample --data c19_glass.csv", code=2)
    assert "header" in refusal.err
    text = Path("c19_glass.csv").read_text()
    Path("glass.csv").write_text("RI,Na,Mg,Al,Si,K,Ca,Ba,Fe,Type\n" + text)
    output = type_command("bnnzoo sample mlp nuts --data glass.csv --warmup 20 --draws 20 -o c19r.nc")
    assert "--task classification" in output.out + output.err
    type_command(
        "bnnzoo sample mlp nuts --data glass.csv --task classification --model.hidden 10 --budget 2m -o c19.nc"
    )
    scores = type_command("bnnzoo evaluate c19.nc --json").json()
    assert scores["nll"] < 1.4
    assert scores["loo_nll"] < 1.15
    type_command("bnnzoo predict c19.nc --data glass.csv -o c19.csv")
    table = pd.read_csv("c19.csv")
    columns = [f"p_{name}" for name in (1, 2, 3, 5, 6, 7)]
    assert [name for name in table.columns if name.startswith("p_")] == columns
    np.testing.assert_allclose(table[columns].sum(axis=1), 1, atol=1e-5)
    assert set(table["predicted"]) <= {1, 2, 3, 5, 6, 7}


def test_c19_a_noise_scale_that_collapses_on_whole_numbers_is_reported(type_command):
    text = Path("c19_glass.csv").read_text()
    Path("glass.csv").write_text("RI,Na,Mg,Al,Si,K,Ca,Ba,Fe,Type\n" + text)
    type_command("bnnzoo sample mlp nuts --data glass.csv --task regression --budget 30s -o glass.nc")
    output = type_command("bnnzoo evaluate glass.nc")
    assert "nll_rounded" in output.out
    assert "--task classification" in output.out + output.err


def test_c21_both_faulty_columns_are_named_at_once(type_command):
    refusal = type_command("bnnzoo sample linear nuts --data c21_challenger.csv", code=2)
    for phrase in ("row 4", "row 25", "Date", "Damage Incident"):
        assert phrase in refusal.err
    assert "--drop 'Damage Incident'" not in refusal.err
    rows = Path("c21_challenger.csv").read_text().splitlines()
    Path("orings.csv").write_text("\n".join(r for r in rows if not r.endswith("NA") and "Challenger" not in r) + "\n")
    refusal = type_command(
        "bnnzoo sample linear nuts --data orings.csv --likelihood bernoulli --test-fraction 0 --warmup 500 "
        "--draws 2000",
        code=2,
    )
    assert "Date" in refusal.err


def test_c21_the_probability_of_damage_is_exact(type_command):
    rows = Path("c21_challenger.csv").read_text().splitlines()
    Path("orings.csv").write_text("\n".join(r for r in rows if not r.endswith("NA") and "Challenger" not in r) + "\n")
    type_command(
        "bnnzoo sample linear nuts --data orings.csv --drop Date --likelihood bernoulli --test-fraction 0 --warmup 500 "
        "--draws 2000 -o c21.nc"
    )
    table = type_command("bnnzoo predict c21.nc --data c21_new.csv").table()
    np.testing.assert_allclose(table["p_1"], [0.964, 0.832, 0.451, 0.164, 0.082], atol=0.012)
    type_command("bnnzoo report c21.nc -o c21.html")
