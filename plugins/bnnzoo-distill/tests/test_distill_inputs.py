"""Generated inputs are possible rows: codes and categories are copied, and whole numbers stay whole."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from bnnzoo_distill.inputs import Columns, generate, push_outside

from bnnzoo.data import load


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": rng.uniform(0, 9, 300),
            "kind": rng.choice(["a", "b", "c"], 300),
            "code": rng.choice([1, 2, 24], 300),
            "year": rng.integers(1900, 2000, 300),
            "half": rng.choice([-0.5, 0.5], 300),
            "y": rng.normal(size=300),
        }
    )
    frame.loc[::7, "size"] = np.nan
    frame["depth"] = rng.normal(size=300)
    dataset = load(frame, target=["y"], missing="median")
    x = np.where(np.isnan(dataset.x), 4.0, dataset.x)
    return x, dataset.signature, {name: i for i, name in enumerate(dataset.feature_names)}


def test_generated_inputs_are_possible_rows(table):
    rows, signature, at = table
    columns = Columns.of_rows(rows, signature)
    x = generate(rows, columns, 3000, np.random.default_rng(1))
    assert x.shape == (3000, rows.shape[1])
    assert x.dtype == np.float32
    kinds = [at[f"kind={level}"] for level in "abc"]
    assert np.all(x[:, kinds].sum(1) == 1)
    assert set(x[:, at["code"]]) == {1, 2, 24}
    assert set(x[:, at["half"]]) == {-0.5, 0.5}
    assert np.all(x[:, at["year"]] == np.round(x[:, at["year"]]))
    assert len(np.unique(x[:, at["year"]])) > 100
    pairs = {tuple(pair) for pair in rows[:, [at["size"], at["size is missing"]]]}
    assert {tuple(pair) for pair in x[:, [at["size"], at["size is missing"]]]} <= pairs
    assert not np.isin(x[:, at["depth"]], rows[:, at["depth"]]).any()


def test_a_quarter_of_the_inputs_is_beyond_the_range(table):
    rows, signature, _ = table
    columns = Columns.of_rows(rows, signature)
    rng = np.random.default_rng(1)

    def fraction_outside(x):
        return ((x < columns.low) | (x > columns.high)).any(1).mean()

    assert fraction_outside(generate(rows, columns, 4000, rng)) > 0.25
    assert fraction_outside(generate(rows, columns, 4000, rng, outside=0.0)) < 0.2
    assert fraction_outside(push_outside(rows, columns, rng)) == 1


def test_rows_of_codes_alone_are_recombined():
    rows = np.array([[0, 1], [1, 0], [1, 1]], np.float32).repeat(5, 0)
    columns = Columns.of_rows(rows, load((rows, rows[:, 0] * 0.5)).signature)
    assert not columns.can_leave_range
    rng = np.random.default_rng(0)
    assert np.isin(generate(rows, columns, 100, rng), [0, 1]).all()
    assert push_outside(rows, columns, rng) is rows


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_rows_are_enough(count):
    rows = np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32)
    signature = load((np.random.default_rng(1).normal(size=(9, 2)), np.arange(9.0))).signature
    x = generate(rows, Columns.of_rows(rows, signature), 50, np.random.default_rng(2))
    assert np.isfinite(x).all()
