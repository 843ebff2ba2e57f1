"""Predictions as CSV: one number format for each column, and float32 read back to the same bits."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnnzoo.evaluation.predictions.csv_text import csv_text

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


def column(values) -> list[str]:
    return csv_text(pd.DataFrame({"a": np.asarray(values), "b": 0})).splitlines()[1:]


@settings(max_examples=200, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_a_column_reads_back_as_the_same_float32_in_one_notation(values):
    array = np.array(values, np.float32)
    text = csv_text(pd.DataFrame({"mean": array, "label": "x"}))
    values_read = pd.read_csv(io.StringIO(text))["mean"].to_numpy(np.float64).astype(np.float32)
    np.testing.assert_array_equal(values_read, array)
    cells = [line.split(",")[0] for line in text.splitlines()[1:]]
    finite = [cell for cell in cells if cell not in ("", "inf", "-inf")]
    assert len({"e" in cell for cell in finite}) <= 1
    assert all(len(cell.partition("e")[0].strip("-0.").replace(".", "")) <= 9 for cell in finite if "e" in cell)


@pytest.mark.parametrize(
    ("values", "cells"),
    [
        ([0.5, 12.25, -3.0], ["0.5", "12.25", "-3"]),
        ([0.5, 0.00001234567], ["0.5", "0.00001234567"]),
        ([0.5, 1e-12], ["5e-01", "1e-12"]),
        ([1e20, 1.0, 0.0], ["1e+20", "1e+00", "0e+00"]),
        ([1234567.0, 2.5], ["1234567", "2.5"]),
        ([np.float64(0.1) + 1e-12, 1 / 3], ["0.1", "0.33333334"]),
        ([np.nan, 1.0], ["", "1"]),
    ],
)
def test_cells_of_a_column(values, cells):
    assert [cell.split(",")[0] for cell in column(values)] == cells


def test_class_names_and_whole_numbers_stay_as_they_are():
    frame = pd.DataFrame({"predicted": ["1e5", "b"], "count": [3, 40_000_000]})
    assert csv_text(frame) == "predicted,count\n1e5,3\nb,40000000\n"
