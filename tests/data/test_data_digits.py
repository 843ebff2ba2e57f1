"""Different whole numbers beyond 2^53 are never made equal without an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_data_load import message_of

from bnnzoo.data import load, load_inputs
from bnnzoo.data.checks.check import merged_positions

pytestmark = pytest.mark.usefixtures("as_options")

LONG = [2**53, 2**53 + 1, 2**53 + 50]
FORMS = ("csv", "csv with a gap", "csv with points", "parquet", "parquet with a gap", "polars", "polars with a gap")
FORMS = (*FORMS, "pandas", "Int64", "UInt64", "object", "Int128")


def spec(form: str, numbers: list[int], folder: Path) -> Any:
    """A table of these numbers in column a, with a gap below them where the form has one."""
    gap = [None] if "gap" in form else []
    cells, y = [*numbers, *gap], [i + 0.5 for i in range(len(numbers) + len(gap))]
    if form.startswith("csv"):
        texts = ["" if cell is None else f"{cell}.0" if "points" in form else str(cell) for cell in cells]
        path = folder / "t.csv"
        path.write_text("a,y\n" + "".join(f"{text},{value}\n" for text, value in zip(texts, y, strict=True)))
        return path
    if form.startswith("parquet"):
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"a": pa.array(cells, pa.int64()), "y": y}), folder / "t.parquet")
        return folder / "t.parquet"
    if form.startswith("polars") or form == "Int128":
        pl = pytest.importorskip("polars")
        return pl.DataFrame({"a": pl.Series(cells, dtype=pl.Int128 if form == "Int128" else pl.Int64), "y": y})
    dtype = "int64" if form == "pandas" else form
    return pd.DataFrame({"a": pd.Series(cells, dtype=dtype), "y": y})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("form", FORMS)
def test_different_whole_numbers_stay_different(form, tmp_path):
    message = message_of(load, spec(form, LONG, tmp_path), missing="median")
    assert (
        f"row 1, column a: {LONG[0]} and another whole number cannot be distinguished in float64 (and 1 more); "
        in message
    )
    assert message.endswith("or use --drop a; if the cells are categories, use --categories a")
    apart = [2**53, 2**53 + 2, 2**53 + 50, 2**53]
    data = load(spec(form, apart, tmp_path), missing="median")
    np.testing.assert_array_equal(data.x[:4, 0], [0, 2, 50, 0])
    assert f"row 1, column a: {LONG[0]} and another" in message_of(
        load_inputs, spec(form, LONG, tmp_path), data.signature
    )
    levels = load(spec(form, LONG, tmp_path), categories="a", missing="median").feature_names[:3]
    written = [f"{number}.0" if "points" in form else f"{number}" for number in LONG]
    assert levels == tuple(f"a={number}" for number in written)


def test_different_whole_numbers_of_arrays_stay_different():
    x, y = np.array(LONG), np.arange(3.0)
    for arrays in ((x, y), (x[:, None], y)):
        assert f"x: row 1, column 1: {2**53} and another" in message_of(load, arrays)
    assert f"y: row 1: {2**53} and another" in message_of(load, (y, x), task="regression")
    like = load(pd.DataFrame({"a": [2**53, 2**53 + 2, 2**53 + 50], "y": y})).signature
    assert f"x: row 1, column a: {2**53} and another" in message_of(load_inputs, x, like)
    np.testing.assert_array_equal(load_inputs(x[:1], like), [[0]])


def test_whole_numbers_that_float64_cannot_tell_apart_are_found():
    for numbers, rows in (
        ([2**53, 2**53 + 1, 3, 2**53], [0, 1, 3]),
        ([2**53 - 1, 2**53, 2**53 - 1], []),
        ([-(2**53) - 1, 5, -(2**53)], [0, 2]),
        ([2**63 - 1, 2**63 - 2, 0], [0, 1]),
        ([2**63 - 1, 0, 2**63 - 1], []),
    ):
        np.testing.assert_array_equal(merged_positions(np.array(numbers)), rows)
        np.testing.assert_array_equal(merged_positions(np.array(numbers, object)), rows)
    assert not merged_positions(np.array([2.0**60, 2.0**60 + 1])).size
