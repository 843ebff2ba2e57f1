"""Tables of mixed columns: what training made of them is what new tables are held to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_data_load import message_of, write

from bnnzoo.data import load, load_inputs, load_like


def table(folder: Path, header: str, *rows: str, name: str = "t.csv") -> str:
    return str(write(folder, "\n".join([header, *rows]) + "\n", name))


# ---------------------------------------------------------------------------------------------- rows left out


def test_levels_of_rows_left_out_keep_their_inputs(tmp_path):
    rows = "blue,1,1.5", "green,2,2.5", "red,3,3.5", "red,,4"
    like = load(table(tmp_path, "c,a,y", *rows), missing="drop").signature
    test = load_like(table(tmp_path, "c,a,y", "red,1,1.5", "green,2,2", "red,,3"), like)
    assert like.feature_names == ("c=blue", "c=green", "c=red", "a")
    np.testing.assert_array_equal(test.x, [[0, 0, 1, 1], [0, 1, 0, 2]])
    np.testing.assert_array_equal(test.y, [[1.5], [2]])


def test_labels_of_rows_left_out_keep_their_classes_and_rows_their_numbers(tmp_path):
    like = load(table(tmp_path, "a,k", "1,lo", "2,mid", "3,hi", "4,"), missing="drop").signature
    test = load_like(table(tmp_path, "a,k", ",hi", "1,lo", "2,", "3,mid"), like)
    assert like.class_names == ("hi", "lo", "mid")
    np.testing.assert_array_equal(test.y, [1, 2])
    unknown = table(tmp_path, "a,k", ",hi", "1,lo", "2,", "3,top")
    assert "row 4, column k: label top, but" in message_of(load_like, unknown, like)


# ---------------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize(
    ("targets", "shown"),
    [
        (["high", "low", "mid"], "'high'"),
        (["2024-01-01", "2024-01-02", "2024-01-03"], "'2024-01-01'"),
        (pd.Categorical(["b", "a", "b"]), "'b'"),
        (pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"]), "'2024-01-01 00:00:00'"),
    ],
    ids=["text", "dates", "categories", "datetimes"],
)
def test_targets_of_regression_are_numbers_in_new_tables_too(targets, shown):
    like = load(pd.DataFrame({"a": [1.0, 2.0, 4.0], "y": [0.5, 1.5, 2.5]})).signature
    new = pd.DataFrame({"a": [1.0, 2.0, 4.0], "y": targets})
    assert f"row 1, column y: not a number ({shown})" in message_of(load_like, new, like)
    numbers = new.assign(y=pd.Categorical([2.5, 0.5, 2.5]))
    np.testing.assert_array_equal(load_like(numbers, like).y, [[2.5], [0.5], [2.5]])
