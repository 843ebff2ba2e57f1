"""Tables of mixed columns: new tables are encoded as in training."""

from __future__ import annotations

import datetime as dt
import warnings
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_data_load import message_of, write

from bnnzoo.data import Signature, from_arrays, load, load_inputs, load_like, load_recipe_data, split
from bnnzoo.data.formats.frames import with_exposure
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.recipe import resolve

pytestmark = pytest.mark.usefixtures("as_options")


def table(folder: Path, header: str, *rows: str, name: str = "t.csv") -> str:
    return str(write(folder, "\n".join([header, *rows]) + "\n", name))


# ---------------------------------------------------------------------------------------------- excluded rows


def test_levels_of_rows_left_out_keep_their_inputs(tmp_path):
    rows = "blue,1,1.5", "green,2,2.5", "red,3,3.5", "red,,4"
    like = load(table(tmp_path, "c,a,y", *rows), missing="drop").signature
    with pytest.warns(BnnzooWarning, match=r"1 of 3 rows left out, because of missing cells in a \(1\)"):
        test = load_like(table(tmp_path, "c,a,y", "red,1,1.5", "green,2,2", "red,,3"), like)
    assert like.feature_names == ("c=blue", "c=green", "c=red", "a")
    np.testing.assert_array_equal(test.x, [[0, 0, 1, 1], [0, 1, 0, 2]])
    np.testing.assert_array_equal(test.y, [[1.5], [2]])


@pytest.mark.filterwarnings("ignore:.*rows left out:bnnzoo.errors.BnnzooWarning")
def test_labels_of_rows_left_out_keep_their_classes_and_rows_their_numbers(tmp_path):
    like = load(table(tmp_path, "a,k", "1,lo", "2,mid", "3,hi", "4,"), missing="drop").signature
    test = load_like(table(tmp_path, "a,k", ",hi", "1,lo", "2,", "3,mid"), like)
    assert like.class_names == ("hi", "lo", "mid")
    np.testing.assert_array_equal(test.y, [1, 2])
    gaps = table(tmp_path, "a,k", ",hi", "1,")
    assert "every row has a missing cell, in the columns a (1), k (1); fill in missing cells, or" in message_of(
        load_like, gaps, like
    )
    unknown = table(tmp_path, "a,k", ",hi", "1,lo", "2,", "3,top")
    assert "row 4, column k: label top is not one of" in message_of(load_like, unknown, like)


def test_gaps_are_filled_by_medians_of_the_training_rows():
    """Numbers, dates and booleans have medians, and text has none. A gap in a complete column has no indicator."""
    frame = pd.DataFrame(
        {
            "c": ["a", "b", None, "a"],
            "v": [10.0, None, 1.0, 2.0],
            "d": ["2024-01-03", None, "2024-01-01", "2024-01-02"],
            "t": [True, None, True, False],
            "w": [5.0, 6.0, 8.0, 9.0],
            "y": [0.5, 1.5, 2.5, 3.5],
        }
    )
    data, _ = split(load(frame, missing="median"), test_fraction=0.0, seed=0)
    gaps = ("c is missing", "v", "v is missing", "d", "d is missing", "t", "t is missing", "w")
    assert data.feature_names == ("c=a", "c=b", *gaps)
    filled = [
        [1, 0, 0, 10, 0, 2, 0, 1, 0, 5],
        [0, 1, 0, 2, 1, 1, 1, 1, 1, 6],
        [0, 0, 1, 1, 0, 0, 0, 1, 0, 8],
        [1, 0, 0, 2, 0, 1, 0, 0, 0, 9],
    ]
    np.testing.assert_array_equal(data.x, filled)
    like = Signature.from_json(data.signature.to_json())
    none = frame.assign(**dict.fromkeys("cvdtw"))
    np.testing.assert_array_equal(load_inputs(none, like), 4 * [[0, 0, 1, 2, 1, 1, 1, 1, 1, 7]])
    np.testing.assert_array_equal(load_like(frame, like).x, filled)
    raw = load(frame, missing="median")
    np.testing.assert_array_equal(load_inputs(raw, like), filled)
    _, own = split(replace(raw, test=raw.take([1, 2])), test_fraction=0.1, seed=0)
    np.testing.assert_array_equal(own.x, filled[1:3])


def test_columns_of_codes_become_categories_on_request(tmp_path):
    """Codes may be whole numbers, digits with leading zeros or mixed text; new rows may have numbers."""
    path = table(tmp_path, "month,zip,code,y", "1,01,1,3.5", "2,1,2,4.5", "10,01,x,5.5", "2,1,3,6.5")
    assert "column code: not a number ('x')" in (message := message_of(load, path))
    assert message.endswith("use --drop code; if the cells are categories, use --categories code")
    data = load(path, categories="month,zip,code")
    twice = load(table(tmp_path, "a,y", "1,1.5", "1.0,2.5", "2,3.5", "1.00,4.5", name="a.csv"), categories="a")
    assert twice.feature_names == ("a=1", "a=2")
    np.testing.assert_array_equal(twice.x, [[1, 0], [1, 0], [0, 1], [1, 0]])
    truth = load(table(tmp_path, "a,y", "True,1.5", "false,2.5", "true,3.5", name="a.csv"), categories="a")
    np.testing.assert_array_equal(truth.x, [[1, 0], [0, 1], [1, 0]])
    for written in (("01", "1"), ("1.5", "1.50"), ("1", "1.0", "01"), ("1", "x", "1.0")):
        rows = [f"{text},{i}.5" for i, text in enumerate(written)]
        other = load(table(tmp_path, "a,y", *rows, name="a.csv"), categories="a")
        assert other.feature_names == tuple(f"a={text}" for text in sorted(written))
    levels = {"month": ["1", "10", "2"], "zip": ["01", "1"], "code": ["1", "2", "3", "x"]}
    names = [f"{column}={level}" for column, several in levels.items() for level in several]
    assert list(data.feature_names) == names
    expected = np.array([[1, 0, 0, 1, 0, 1, 0, 0, 0], [0, 0, 1, 0, 1, 0, 1, 0, 0], [0, 1, 0, 1, 0, 0, 0, 0, 1]])
    np.testing.assert_array_equal(data.x[:3], expected)
    new = pd.DataFrame({"month": [10.0, 1.0], "zip": ["1", "01"], "code": [2, 3]})
    result = load_inputs(new, Signature.from_json(data.signature.to_json()))
    np.testing.assert_array_equal(result, [[0, 1, 0, 0, 1, 0, 1, 0, 0], [1, 0, 0, 1, 0, 0, 0, 1, 0]])
    frame = pd.DataFrame({"month": [1, 2, 10], "y": [0.5, 1.5, 2.5]})
    assert load(frame, categories=["month"]).feature_names == ("month=1", "month=10", "month=2")


def test_codes_are_known_by_value_where_tables_write_them_beside_gaps(tmp_path):
    """The codes 1.0 and 1 are equal, but 01 and 1 are different."""
    like = load(table(tmp_path, "a,y", "1.0,3.5", "2.0,4.5", "1.0,5.5"), categories="a").signature
    for new in ("1", "1.0"):
        np.testing.assert_array_equal(load_inputs(table(tmp_path, "a", new), like), [[1, 0]])
    like = load(table(tmp_path, "a,y", "01,3.5", "2.0,4.5", "01,5.5"), categories="a").signature
    assert "category '1' does not occur" in message_of(load_inputs, table(tmp_path, "a", "1"), like)


def test_labels_that_float64_cannot_tell_apart_are_refused(tmp_path):
    path = table(tmp_path, "a,y", f"1,{2**53}", f"2,{2**53 + 1}", f"3,{2**53 + 2}")
    assert f"row 1, column y: {2**53} and another" in message_of(load, path, task="classification")
    path = table(tmp_path, "a,y", f"1,{2**53}", f"2,{2**53 + 2}", f"3,{2**53 + 4}")
    assert "column y: whole numbers from 2^53 on cannot be distinguished" in message_of(
        load, path, task="classification"
    )
    path = table(tmp_path, "a,y", f"1,{2**53 - 1}", f"2,{2**53 - 2}")
    assert load(path, task="classification").class_names == (str(2**53 - 2), str(2**53 - 1))


def test_a_comma_beside_another_separator_does_not_split(tmp_path):
    for mark in ";|":
        rows = (f"1,5{mark}100", f"2,5{mark}150", f"3,5{mark}170")
        data = load(table(tmp_path, f"size{mark}price, EUR", *rows))
        assert (data.feature_names, data.target_names) == (("size",), ("price, EUR",))
        np.testing.assert_array_equal(data.x[:, 0], [1.5, 2.5, 3.5])
    for good in ("p;q,1.5", "p,2.5", "q,3.5"), ("p;q,1.5", "p;r,2.5", "p;q,3.5"):
        assert load(table(tmp_path, "a;b,y", *good)).target_names == ("y",)


def test_a_column_that_no_training_row_has_has_no_median():
    frame = pd.DataFrame({"a": np.arange(20.0) / 2, "b": [None] * 19 + [3.0], "y": np.arange(20) + 0.5})
    data = load(frame, missing="median")
    message = [message_of(split, data, test_fraction=0.5, seed=seed) for seed in range(8) if _held_out(data, seed)]
    assert message
    for each in message:
        assert each.startswith("data: column b: every cell is missing in the training rows, so there is no median")


def _held_out(data, seed: int) -> bool:
    """Return whether the last row is a test row."""
    plain = replace(data, x=data.x[:, :1], encoding=None, feature_names=("a",))
    return 9.5 in split(plain, test_fraction=0.5, seed=seed)[1].x


def test_a_series_of_targets_may_be_called_0():
    frame = pd.DataFrame(np.arange(12.0).reshape(4, 3) + 0.5)
    assert load((frame[[1, 2]], frame[0])).target_names == ("0",)


def test_too_many_or_too_long_levels_are_told_with_their_cure(tmp_path):
    long = table(tmp_path, "a,y", "x" * 201 + ",1.5", "b,2.5", name="a.csv")
    message = "column a: text with a category that has 201 letters; the limit is 200; use --drop a, or write its "
    message += "content as numbers"
    assert message_of(load, long).endswith(message)
    codes = table(tmp_path, "a,b,y", *(f"{i},{i % 7}.5,{i % 5}.5" for i in range(200)), name="a.csv")
    message = "column a: text with 200 categories, more than 100; use --drop a, or remove it from --categories to read "
    message += "numbers"
    assert message_of(load, codes, categories="a").endswith(message)


@pytest.mark.parametrize("dtype", ["object", "string", "category", "Int64", "datetime64[s]"])
def test_a_cell_that_is_none_is_an_empty_one(dtype):
    cells = ["2024-01-01", None] if dtype == "datetime64[s]" else [1, None] if dtype == "Int64" else ["x", None]
    frame = pd.DataFrame({"a": pd.Series(cells, dtype=dtype), "y": [1.5, 2.5]})
    assert "data: row 2, column a: an empty cell; " in message_of(load, frame)


def test_an_array_of_targets_is_not_called_x():
    x, fields = np.arange(4.0), np.zeros(4, [("a", float)])
    for y in (fields, np.ones(4) * 1j):
        message = message_of(load, (x, y))
        assert message.startswith("y has dtype ")
        assert "x." not in message
    assert message_of(load, (x, fields)).endswith("give it as a data frame")


def test_only_an_input_can_be_made_a_category(tmp_path):
    path = table(tmp_path, "a,b,y", "1,2,0.5", "2,1,1.5")
    assert "no column named c" in message_of(load, path, categories="c")
    assert "column y cannot be a category, because it is the target; use --task classification" in message_of(
        load, path, categories="y"
    )
    for other in ({"drop": "a"}, {"columns": "b"}, {"task": "density"}):
        assert "column a cannot be a category, because it is not an input" in message_of(
            load, path, categories="a", **other
        )


def test_a_median_of_zero_is_one():
    frame = pd.DataFrame({"v": [-1.0, None, 0, 1], "y": [0.5, 1.5, 2.5, 3.5]})
    data, _ = split(load(frame, missing="median"), test_fraction=0.0, seed=0)
    like = Signature.from_json(data.signature.to_json())
    np.testing.assert_array_equal(load_inputs(frame, like), [[-1, 0], [0, 1], [0, 0], [1, 0]])


@pytest.mark.filterwarnings("ignore:.*rows left out:bnnzoo.errors.BnnzooWarning")
def test_a_level_never_seen_in_a_row_left_out_is_no_fault():
    frame = pd.DataFrame({"c": ["r", "b", "r"], "a": [1.0, 2, 4], "y": [0.5, 1.5, 2.5]})
    like = load(frame, missing="drop").signature
    new = frame.assign(c=["r", "z", "b"])
    result = load_like(new.assign(a=[1, None, 4]), like)
    np.testing.assert_array_equal(result.x, [[0, 1, 1], [1, 0, 4]])
    np.testing.assert_array_equal(result.y, [[0.5], [2.5]])
    assert "row 2, column c: category 'z' does not occur" in message_of(load_like, new, like)


@pytest.mark.parametrize("seed", range(3))
def test_medians_are_of_the_training_rows_alone(seed):
    values = np.where(np.arange(12) % 4 == 1, np.nan, np.arange(12.0) ** 2)
    data = load(pd.DataFrame({"v": values, "y": np.arange(12) + 0.5}), missing="median")
    parts = split(data, test_fraction=0.5, seed=seed)
    median = np.nanmedian(values[(parts[0].y[:, 0] - 0.5).astype(int)])
    assert median != np.nanmedian(values)
    for part in parts:
        raw = values[(part.y[:, 0] - 0.5).astype(int)]
        np.testing.assert_array_equal(part.x[:, 0], np.where(np.isnan(raw), median, raw))


def test_a_hundred_levels_are_a_category_and_one_more_is_none():
    frame = pd.DataFrame({"c": [f"c{i}" for i in range(100)] + ["c0"] * 10, "y": np.arange(110) / 7})
    assert load(frame).x.shape == (110, 100)
    frame.loc[109, "c"] = "c100"
    assert "column c: text with 101 categories, more than 100" in message_of(load, frame)


def test_the_treatment_of_unseen_levels_is_stored_and_can_be_changed():
    frame = pd.DataFrame({"c": ["a", "b", "a"], "y": [1.5, 2, 4]})
    new = pd.DataFrame({"c": ["z", "b"], "y": [1.5, 2]})
    for choice in ("zero", "error"):
        like = Signature.from_json(load(frame, unseen=choice).signature.to_json())
        for read in (load_inputs, load_like):
            for unseen in (None, "error", "zero"):
                if (unseen or choice) == "error":
                    assert "category 'z' does not occur" in message_of(read, new, like, unseen=unseen)
                else:
                    x = read(new, like, unseen=unseen)
                    np.testing.assert_array_equal(getattr(x, "x", x), [[0, 0], [0, 1]])


# ---------------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize(
    ("targets", "text"),
    [
        (["high", "low", "mid"], "'high'"),
        (["2024-01-01", "2024-01-02", "2024-01-03"], "'2024-01-01'"),
        (pd.Categorical(["b", "a", "b"]), "'b'"),
        (pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"]), "'2024-01-01 00:00:00'"),
    ],
    ids=["text", "dates", "categories", "datetimes"],
)
def test_targets_of_regression_are_numbers_in_new_tables_too(targets, text):
    like = load(pd.DataFrame({"a": [1.0, 2.0, 4.0], "y": [0.5, 1.5, 2.5]})).signature
    new = pd.DataFrame({"a": [1.0, 2.0, 4.0], "y": targets})
    assert f"row 1, column y: not a number ({text})" in message_of(load_like, new, like)
    numbers = new.assign(y=pd.Categorical([2.5, 0.5, 2.5]))
    np.testing.assert_array_equal(load_like(numbers, like).y, [[2.5], [0.5], [2.5]])


@pytest.mark.parametrize(
    ("labels", "names", "same"),
    [
        (["true", "false", "true"], ("False", "True"), [True, False, True]),
        (["1.0", "0.0", "1.0"], ("0", "1"), [1, 0, 1]),
        (["01", "02", "01"], ("1", "2"), [1.0, 2.0, 1.0]),
        (["yes", "no", "yes"], ("no", "yes"), ["yes ", " no", "yes"]),
        (["0", "1", "0"], ("0", "1"), [False, True, False]),
    ],
)
def test_labels_of_new_tables_match_the_training_labels(tmp_path, labels, names, same):
    frame = pd.DataFrame({"a": [1.0, 2.0, 4.0], "k": labels})
    data = load(frame, task="classification")
    assert data.class_names == names
    frame.to_csv(tmp_path / "t.csv", index=False)
    for new in (frame, frame.assign(k=same), tmp_path / "t.csv", (frame[["a"]].to_numpy(), np.array(same))):
        np.testing.assert_array_equal(load_like(new, data.signature).y, data.y)


def test_targets_beside_inputs_are_matched_by_name_and_counted():
    x = pd.DataFrame({"a": [1.0, 2.0, 4.0]})
    y = pd.DataFrame({"u": [1.0, 2.0, 3.0], "v": [10.0, 20.0, 35.0]})
    like = load((x, y)).signature
    assert like.target_names == ("u", "v")
    other = y[["v", "u"]].rename(columns=str.upper)
    for inputs in (x, x.to_numpy()):
        np.testing.assert_array_equal(load_like((inputs, y[["v", "u"]]), like).y, y)
        np.testing.assert_array_equal(load_like((inputs, other), like).y, other)
        np.testing.assert_array_equal(load_like((inputs, y.to_numpy()), like).y, y)
        for wrong in (y[["u"]], y.assign(w=0.0), y.rename(columns={"v": "w"})):
            message = message_of(load_like, (inputs, wrong), like)
            assert message == f"y: must have the targets of the model, u, v (got {', '.join(wrong)})"
    first = load((x, y["u"])).signature
    assert "y: must have the targets of the model, u (got y0, y1)" in message_of(load_like, (x, np.ones((3, 2))), first)
    assert load_like((x, pd.DataFrame({"other": [1.0, 2.0, 3.0]})), first).y.shape == (3, 1)


def test_inputs_and_targets_of_a_data_set_are_matched_by_name():
    frame = pd.DataFrame({"a": [1.0, 2, 4], "b": [9.0, 7, 8], "u": [0.5, 1, 2], "v": [5.0, 6, 8]})
    data = load(frame, target=("u", "v"))
    like = data.signature
    other = load(frame[["b", "a", "v", "u"]], target=("v", "u"))
    arrays = from_arrays(data.x, data.y)
    for new in (other, arrays, frame):
        np.testing.assert_array_equal(load_inputs(new, like), data.x)
        np.testing.assert_array_equal(load_like(new, like).y, data.y)
    np.testing.assert_array_equal(load_like(data, arrays.signature).x, data.x)
    for wrong, place in ((frame.rename(columns={"b": "w"}), "inputs"), (frame.drop(columns="b"), "inputs")):
        message = message_of(load_inputs, load(wrong, target=("u", "v")), like)
        assert message.startswith(f"data: the {place} must be those of the model, a, b (got a")
    message = message_of(load_like, load(frame.rename(columns={"v": "w"}), target=("u", "w")), like)
    assert message == "data: the targets must be those of the model, u, v (got u, w)"


def test_the_columns_of_a_density_are_matched_by_name_in_pairs_and_data_sets():
    x, y = pd.DataFrame({"b": [1.5, 2, 3], "a": [2.5, 1, 0], "unused": [1.0, 2, 4]}), pd.Series([0.5, 1, 2], name="c")
    like = load((x, y), task="density", drop="unused").signature
    rows = np.column_stack([x["b"], x["a"], y])
    for new in ((x[["a", "b"]], y), (x, y), (x, y.to_numpy()), load((x[["a", "b"]], y)), from_arrays(rows[:, :2], y)):
        np.testing.assert_array_equal(load_inputs(new, like), rows)
        np.testing.assert_array_equal(load_like(new, like).x, rows)
    assert "no column named a" in message_of(load_inputs, (x[["b"]], y), like)


@pytest.mark.parametrize(
    "labels",
    [
        ["01", "02", "01"],
        ["1", "2", "a"],
        ["2020-01", "2020-02", "2020-01"],
        ["none", "mild", "none"],
        ["true", "false", "true"],
        ["1.0", "0.0", "1.0"],
    ],
)
@pytest.mark.parametrize("kind", [np.array, pd.Series, list])
def test_labels_beside_a_frame_are_those_of_arrays(labels, kind):
    x = pd.DataFrame({"a": [1.0, 2.0, 4.0], "c": ["red", "blue", "red"]})
    data, plain = load((x, kind(labels)), task="classification"), load((x[["a"]].to_numpy(), labels))
    assert data.class_names == plain.class_names == tuple(sorted(set(labels)))
    np.testing.assert_array_equal(data.y, plain.y)
    np.testing.assert_array_equal(load_like((x, kind(labels)), data.signature).y, data.y)


def test_labels_that_differ_in_spaces_are_one_class():
    data = load((np.ones((6, 1)), np.array(["New York", "New  York", "LA", "LA", "a", "a "])))
    assert data.class_names == ("LA", "New York", "a")
    np.testing.assert_array_equal(data.y, [1, 1, 0, 0, 2, 2])
    assert Signature.from_json(data.signature.to_json()) == data.signature


def test_only_the_first_fault_of_a_signature_is_reported():
    """Otherwise a file of a few megabytes would cause a message that is far longer."""
    with pytest.raises(ValueError, match="feature_names") as result:
        Signature.from_json('{"feature_names": [' + "1, " * 10_000 + "1]}")
    assert len(str(result.value)) < 2000


def test_data_sets_of_another_task_are_read_for_the_models():
    digits = load("digits")
    like = load("digits", task="regression").signature
    np.testing.assert_array_equal(load_like(digits, like).y[:, 0], digits.y)
    numbers = load("digits", task="regression")
    np.testing.assert_array_equal(load_like(numbers, digits.signature).y, digits.y)
    few, most = (load((np.ones((4, 1)), np.array(names))) for names in (["v", "w"] * 2, ["u", "v", "w", "v"]))
    assert load_like(few, most.signature).y.tolist() == [1, 2, 1, 2]
    rows = load(np.arange(6.0).reshape(3, 2))
    regression = load((np.ones((3, 2)), np.array([1.5, 2.5, 3.5]))).signature
    assert "the data have no inputs, because every column is a target" in message_of(load_like, rows, regression)
    assert "the data have no inputs, because every column is a target" in message_of(load_like, rows, digits.signature)


@pytest.mark.parametrize("spec", [(), (np.ones(3),), (np.ones(3),) * 3, (pd.DataFrame({"a": [1.0]}),)])
def test_a_tuple_that_is_not_a_pair_is_refused(spec):
    like = load((np.ones((3, 1)), np.array([1.5, 2.5, 3.5]))).signature
    for message in (message_of(load, spec), message_of(load_like, spec, like)):
        assert message == f"data: must be a pair (x, y) (got a tuple of {len(spec)})"


# ---------------------------------------------------------------------------------------------- arrays for tables


def test_arrays_are_encoded_like_the_columns_of_the_table(tmp_path):
    seconds = 1.7e9 + 60.0 * np.arange(5)
    frame = pd.DataFrame({"t": seconds, "a": [1.0, np.nan, 3, 5, 4], "y": [1.5, 2, 3, 5, 4]})
    data, _ = split(load(frame, missing="median"), test_fraction=0.0, seed=0)
    like, array = data.signature, frame[["t", "a"]].to_numpy()
    np.savez(tmp_path / "new.npz", x=array, y=frame["y"].to_numpy())
    for new in (array, tmp_path / "new.npz", data):
        np.testing.assert_array_equal(load_inputs(new, like), data.x)
    np.testing.assert_array_equal(load_like((array, frame["y"].to_numpy()), like).x, data.x)
    first = load(frame[["t", "y"]]).signature
    np.testing.assert_array_equal(load_inputs(seconds[:3], first), [[0], [60], [120]])
    assert "inputs have shape [3], but the model was trained on [2]" in message_of(load_inputs, np.ones((2, 3)), like)
    gap = load(frame[["t", "y"]], missing="drop").signature
    assert "x: row 2, column t: not a number (nan)" in message_of(load_inputs, [1.7e9, np.nan], gap)
    assert "x has dtype <U1, not numbers" in message_of(load_inputs, np.array([["a", "b"]]), like)
    later = load(frame[["t", "y"]].iloc[1:])
    assert "not encoded as in training; give its file or data frame" in message_of(load_inputs, later, first)
    assert "not encoded as in training" in message_of(load_like, later, first)


def test_arrays_are_no_columns_of_text(tmp_path):
    like = load(table(tmp_path, "c,day,a,y", "red,2024-01-01,1,2", "blue,2024-01-02,2,3.5")).signature
    for array in (np.ones((2, 4)), np.ones((2, 3))):
        message = message_of(load_inputs, array, like)
        assert "x: an array, but the model was trained on a table with text, dates or times (c, day); give a" in message


# ---------------------------------------------------------------------------------------------- types of columns


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ([f"{hour % 12:02}:30" for hour in range(24)] + ["24:00"], "not a time of day ('24:00')"),
        (["True"] * 5 + ["False"] * 5 + ["Ture"], "not a boolean ('Ture')"),
        (["2024-01-02"] * 3 + ["2024-01-"], "not a date ('2024-01-')"),
        (["na"] * 3 + ["1", "2", "red"], "not a number ('red')"),
    ],
)
def test_cells_unlike_half_of_their_column_are_mistakes(tmp_path, cells, problem):
    path = table(tmp_path, "v,y", *(f"{cell},{i}.5" for i, cell in enumerate(cells)))
    assert f"row {len(cells)}, column v: {problem}" in message_of(load, path, missing="median")


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["10:00:36", "10:30", "0:06", "23:59:59.5"], [10.01, 10.5, 0.1, 24 - 0.5 / 3600]),
        (["2024-03-17 17:00+02:00", "2024-03-17 17:00+01:00", "2024-03-18T17:00-01"], [0, 1 / 24, 27 / 24]),
        (["2024-03-02", "2024-02-28 06:00", "2024-03-01 12:00"], [2.75, 0, 2.25]),
        (["2024/3/2", "2024-02-28", "2024/03/01"], [3, 0, 2]),
        (["2024-03", "2024-01", "2023-12"], [91, 31, 0]),
        (["1969-12-31 18:00", "1970-01-02", "1970-01-02 06:00"], [0, 1.25, 1.5]),
        (["\u22121.5", "+2", ".5e1", "-3."], [-1.5, 2, 5, -3]),
        (["TRUE", "false", "True", "FALSE"], [1, 0, 1, 0]),
    ],
)
def test_numbers_are_parsed_from_cells(tmp_path, cells, numbers):
    path = table(tmp_path, "v,y", *(f"{cell},{i}.5" for i, cell in enumerate(cells)))
    frame = pd.DataFrame({"v": cells, "y": np.arange(len(cells)) + 0.5})
    for spec in (path, frame):
        np.testing.assert_allclose(load(spec).x[:, 0], numbers, rtol=1e-6)


def test_moments_of_a_zone_are_counted_as_time_goes():
    """The clocks of Berlin go forward that night. A note names the first day, also before 1970."""
    moments = pd.to_datetime(["2024-03-30 12:00", "2024-03-31 12:00", "2024-04-01 12:00"]).tz_localize("Europe/Berlin")
    data = load(pd.DataFrame({"t": moments, "y": [1.5, 2, 4]}))
    np.testing.assert_allclose(24 * data.x[:, 0], [0, 23, 47], rtol=1e-6)
    old = load(pd.DataFrame({"t": ["1969-12-31 18:00", "1970-01-02"], "y": [1.5, 2]}))
    assert [data.notes[0][-10:], old.notes[0][-10:]] == ["2024-03-30", "1969-12-31"]


@pytest.mark.parametrize("dtype", ["Int64", "Float64", "boolean", "int64[pyarrow]"])
def test_gaps_of_any_type_of_numbers_are_gaps(dtype):
    frame = pd.DataFrame({"v": pd.array([1, None, 0, 1], dtype=dtype), "y": [1.5, 2, 4, 3]})
    data, _ = split(load(frame, missing="median"), test_fraction=0.0, seed=0)
    np.testing.assert_array_equal(data.x, [[1, 0], [1, 1], [0, 0], [1, 0]])
    np.testing.assert_array_equal(load(frame, missing="drop").x, [[1], [0], [1]])


GAPS = ("nan", "+nan", "-nan", "NA", "n/a", "#N/A", "#na", "NULL", "None", "<NA>", "NaT")


@pytest.mark.parametrize("gap", GAPS)
def test_words_for_missing_values_are_gaps_in_any_case(tmp_path, gap):
    for cell in (gap, gap.upper(), gap.lower()):
        path = table(tmp_path, "v,c,y", "1,a,1.5", f"{cell},{cell},2", "3,b,4")
        frame = pd.DataFrame({"v": ["1", cell, "3"], "c": ["a", cell, "b"], "y": [1.5, 2, 4]})
        for spec in (path, frame):
            data, _ = split(load(spec, missing="median"), test_fraction=0.0, seed=0)
            assert data.feature_names == ("v", "v is missing", "c=a", "c=b", "c is missing")
            np.testing.assert_array_equal(data.x, [[1, 0, 1, 0, 0], [2, 1, 0, 0, 1], [3, 0, 0, 1, 0]])


def test_booleans_and_zero_or_one_are_interchangeable_in_new_tables():
    for trained in ([True, False, True], ["true", "False", "TRUE"], [1.0, 0.0, 5.0]):
        like = load(pd.DataFrame({"v": trained, "y": [1.5, 2, 4]})).signature
        for new in ([True, False, True], ["true", "FALSE", "True"], [1, 0, 1], [1.0, 0.0, 1.0], ["1", "0", "1"]):
            x = load_inputs(pd.DataFrame({"v": new}), like)
            np.testing.assert_array_equal(x[:, 0], [1, 0, 1])


def test_categories_keep_their_order_and_unused_ones_are_dropped():
    pl = pytest.importorskip("polars")
    cells, order = ["mid", "low", "mid"], ["none", "mid", "low", "high"]
    rest = {"y": [1.5, 2, 4]}
    for frame in (
        pd.DataFrame({"v": pd.Categorical(cells, order), **rest}),
        pl.DataFrame({"v": pl.Series(cells, dtype=pl.Enum(order)), **rest}),
    ):
        data = load(frame)
        assert data.feature_names == ("v=mid", "v=low")
        np.testing.assert_array_equal(data.x, [[1, 0], [0, 1], [1, 0]])


def test_numbers_as_text_are_not_known_by_value_where_one_is_written_otherwise():
    like = load(pd.DataFrame({"v": pd.Categorical(["01", "2", "01"]), "y": [1.5, 2, 4]})).signature
    assert "category '1' does not occur in the training rows" in message_of(
        load_inputs, pd.DataFrame({"v": ["1", "x"]}), like
    )
    np.testing.assert_array_equal(load_inputs(pd.DataFrame({"v": ["01", "2"]}), like), [[1, 0], [0, 1]])


@pytest.mark.parametrize(
    "levels", [("yes", "no", "maybe"), ("t", "f", "on"), ("am", "pm", "12:30"), ("may", "june", "1")]
)
def test_ordinary_levels_are_read_as_text(tmp_path, levels):
    path = table(tmp_path, "v,y", *(f"{word},{i}.5" for i, word in enumerate(levels)))
    assert load(path).feature_names == tuple(f"v={word}" for word in sorted(levels))


def test_lists_of_arrow_are_refused_by_name():
    pa = pytest.importorskip("pyarrow")
    for dtype, cells in ((pa.list_(pa.int64()), [[1], [2]]), (pa.struct([("p", pa.int64())]), [{"p": 1}, {"p": 2}])):
        frame = pd.DataFrame({"a": pd.Series(cells, dtype=pd.ArrowDtype(dtype)), "y": [1.5, 2.5]})
        assert "column a: neither numbers, text, booleans nor dates" in message_of(load, frame)


DAY = dt.datetime(2024, 2, 27, 3)
POLARS = {
    "counts": ([3, 1, 2, None], "Int64", "float"),
    "long counts": ([3, 1, 2, 9], "Int128", None),
    "small": ([3, 1, 2, 9], "UInt8", "uint8"),
    "single": ([0.5, 0.25, None, 0.1], "Float32", "float32"),
    "money": ([Decimal("0.10"), None, Decimal("1.25"), Decimal("7")], None, None),
    "truth": ([True, False, None, True], "Boolean", None),
    "text": (["b", "a", None, "b"], "String", None),
    "category": (["b", "a", None, "b"], "Categorical", "category"),
    "date": ([(DAY + dt.timedelta(days=i)).date() for i in range(3)] + [None], "Date", None),
    "moment": ([DAY + dt.timedelta(hours=i) for i in range(3)] + [None], "Datetime", None),
    "list": ([[1], [2], [3], [4]], None, None),
    "nothing": ([None] * 4, "Float64", None),
}
"""Cells, and the names of their type in polars and pandas."""


@pytest.mark.parametrize("kind", POLARS)
@pytest.mark.parametrize("missing", ["median", "drop"])
def test_polars_and_pandas_frames_are_one_table(kind, missing):
    pl = pytest.importorskip("polars")
    cells, of_polars, of_pandas = POLARS[kind]
    rest = {"a": [1.5, 2.5, 4.0, 4.5], "y": [0.5, 1.5, 3.0, 2.0]}
    first = pl.DataFrame({"v": pl.Series(cells, dtype=getattr(pl, of_polars) if of_polars else None), **rest})
    other = pd.DataFrame({"v": pd.Series(cells, dtype=of_pandas), **rest})

    def read_frame(frame: Any) -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                data = load(frame, missing=missing)
            except UsageError as error:
                return str(error)
        messages = [str(warning.message) for warning in caught]
        return repr((data.feature_names, data.x.tolist(), data.y.tolist(), data.notes, messages))

    result = read_frame(first)
    assert result == read_frame(other)
    assert result.startswith("data: column v: ") == (kind in ("list", "nothing"))


# ---------------------------------------------------------------------------------------------- text as written


def test_levels_that_look_like_numbers_stay_as_written(tmp_path):
    rows = [f"{v},{i % 5}.5" for i, v in enumerate(["1.1"] * 2 + ["1.10"] * 2 + ["beta"] * 6)]
    like = load(table(tmp_path, "v,y", *rows)).signature
    assert like.feature_names == ("v=1.1", "v=1.10", "v=beta")
    np.testing.assert_array_equal(load_inputs(table(tmp_path, "v", "1.10", "1.1"), like), [[0, 1, 0], [1, 0, 0]])
    sizes = load(table(tmp_path, "v,y", "0.50,1.5", "1.0,2", "big,3", "big,1", "huge,4")).signature
    x = load_inputs(table(tmp_path, "v", "0.50", "1.0"), sizes, unseen="zero")
    np.testing.assert_array_equal(x, [[1, 0, 0, 0], [0, 1, 0, 0]])


def test_numbers_that_are_categories_are_known_by_value(tmp_path):
    frame = pd.DataFrame({"v": pd.Categorical([1.0, 2.5, 1.0]), "y": [0.5, 1.5, 2.5]})
    like = load(frame).signature
    assert like.feature_names == ("v=1", "v=2.5")
    for name in ("v=1", "v=2.5"):
        value = name[2:]
        new = table(tmp_path, "v", f"{float(value)}", f"{value}e0")
        np.testing.assert_array_equal(load_inputs(new, like), [[value == "1", value != "1"]] * 2)


def test_numbers_with_a_decimal_comma_are_known_by_value(tmp_path):
    rows = "1,0;0,5;3", "2,0;1,5;4", "1;2,5;3", "2,5;0,5;4"
    like = load(table(tmp_path, "zip;y;k", *rows), categories="zip", target="y").signature
    assert like.feature_names == ("zip=1", "zip=2.0", "zip=2.5", "k")
    new = table(tmp_path, "zip;k", "2;3,5", "2,50;4,5", name="new.csv"), table(tmp_path, "zip,k", "2,3.5", "2.5,4.5")
    for path in new:
        np.testing.assert_array_equal(load_inputs(path, like), [[0, 1, 0, 3.5], [0, 0, 1, 4.5]])
    classes = load(table(tmp_path, "a,k", "1.5,3", "2.5,4", "3.5,3"), task="classification").signature
    with pytest.warns(BnnzooWarning, match="numbers with a decimal comma"):
        test = load_like(table(tmp_path, "a;k", "1,5;3,0", "2,5;4,0"), classes)
    np.testing.assert_array_equal(test.y, [0, 1])
    # In a file with points, a comma is no decimal mark.
    lists = load(table(tmp_path, "v,y", '"1,0",1.5', "1,2.5", '"1,0",3'), categories="v").signature
    assert lists.feature_names == ("v=1", "v=1,0")


@pytest.mark.parametrize("levels", [("01", "02", "A1"), ("TRUE", "FALSE", "unknown"), ("1e1", "2.", "x")])
def test_a_level_is_known_whatever_else_a_table_holds(tmp_path, levels):
    first, second, third = levels
    rows = [f"{i}.5,{level}" for i, level in enumerate([first, second, third, third, third])]
    like = load(table(tmp_path, "y,v", *rows), target="y").signature
    x = load_inputs(table(tmp_path, "v", first, first), like)
    np.testing.assert_array_equal(x, [[float(name == f"v={first}") for name in like.feature_names]] * 2)
    labels = load(table(tmp_path, "y,v", *rows), target="v").signature
    test = load_like(table(tmp_path, "y,v", f"1,{second}", f"2,{second}"), labels)
    assert test.y.tolist() == [labels.class_names.index(second)] * 2


def test_levels_of_a_long_wide_file_are_as_written(tmp_path):
    cells = ["01", "02", "03"] * 2731 + ["A1"] * 11807
    rows = [cell + 62 * ",0.25" + f",{i % 7}.5" for i, cell in enumerate(cells)]
    header = ",".join(["v", *(f"c{i}" for i in range(62)), "y"])
    like = load(table(tmp_path, header, *rows), columns="v").signature
    assert like.feature_names == ("v=01", "v=02", "v=03", "v=A1")


# ---------------------------------------------------------------------------------------------- lines and headers


def test_lines_ending_in_two_carriage_returns_are_complete(tmp_path):
    ends = "a,y\r\r\n1,1.5\r\r\n,2.5\r\r\n3,3.5\r\r\n4,4.5\r\r\n"
    data = load(write(tmp_path, ends), missing="drop")
    np.testing.assert_array_equal(np.hstack([data.x, data.y]), [[1, 1.5], [3, 3.5], [4, 4.5]])
    quoted = load(write(tmp_path, ends.replace("3,", '"3",').replace(",2.5", "2,2.5")))
    np.testing.assert_array_equal(quoted.x[:, 0], [1, 2, 3, 4])


def test_the_last_cell_of_the_last_line_may_be_missing(tmp_path):
    path = table(tmp_path, "y\ta", "1.5\t1", "2.5\t2", "3.5\t", name="t.tsv")
    np.testing.assert_array_equal(load(path, target="y", missing="drop").x, [[1], [2]])


def test_spaces_before_quotes_do_not_belong_to_the_cell(tmp_path):
    path = table(tmp_path, "a,c,y", '1, "p, q",2.5', '2,  "r",3')
    assert load(path).feature_names == ("a", "c=p, q", "c=r")


@pytest.mark.parametrize(
    "first",
    ["5.1,3.5,1.4,0.2,Iris-setosa", "5,3,1,0,Iris-setosa", "7,Iris-setosa", "-1,x", "1,3,red", "3,4,red", "2.0,b"],
)
def test_a_file_without_a_header_is_refused(tmp_path, first):
    path = table(tmp_path, first, *[first] * 3)
    number = first.split(",")[0]
    message = message_of(load, path)
    assert f"{path}: no header line: the first line holds numbers ({number}); put a line of column names" in message


@pytest.mark.parametrize("quote", ["", '"'])
def test_rows_are_counted_alike_with_and_without_quotes(tmp_path, quote):
    rows = [f"{quote}{i % 9}{quote},{i * i}.25,{i}.5" for i in range(40)]
    np.testing.assert_array_equal(load(table(tmp_path, "a,b,y", *rows)).x[:, 1], np.arange(40.0) ** 2 + 0.25)
    for row in (0, 17, 39):
        short = [*rows[:row], "1,2", *rows[row + 1 :]]
        assert f"row {row + 1}: 2 fields, but the header has 3" in message_of(load, table(tmp_path, "a,b,y", *short))
        wrong = [*rows[:row], "1,red,2.5", *rows[row + 1 :]]
        assert f"row {row + 1}, column b: not a number ('red')" in message_of(load, table(tmp_path, "a,b,y", *wrong))


@pytest.mark.parametrize("header", ["0,1,2", "1,2,k", "k,2019,2020,2021", "0,kind,1", "7,a"])
def test_column_names_may_be_numbers(tmp_path, header):
    names = header.split(",")
    rows = [",".join("pqrs"[i] if name == "7" else f"{i}.25" for name in names) for i in range(4)]
    data = load(table(tmp_path, header, *rows), task="regression")
    assert list(dict.fromkeys(name.split("=")[0] for name in data.feature_names)) == names[:-1]


# ---------------------------------------------------------------------------------------------- tables from elsewhere


def test_the_labels_of_a_parquet_files_rows_are_no_column(tmp_path):
    frame = pd.DataFrame({"size": [1.0, 2, 3, 4], " price ": [10.5, 20, 30, 41]})
    for index in (pd.Index([4, 3, 2, 1], name="id"), pd.Index(list("abcd")), pd.RangeIndex(4, name="row")):
        frame.set_axis(index).to_parquet(tmp_path / "t.parquet")
        loaded_data = load(tmp_path / "t.parquet")
        assert (loaded_data.feature_names, loaded_data.target_names) == (("size",), ("price",))
        np.testing.assert_array_equal(loaded_data.y[:, 0], frame[" price "].astype(np.float32))


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "pandas", "polars"])
def test_columns_are_those_of_their_names_wherever_they_stand(tmp_path, kind):
    frame = pd.DataFrame(
        {"b": [1.5, 2.5, 4], "u": [10.5, 20, 40], "y": [0.5, 3.5, 2.5], "a": [7.5, 8, 6], "z": [0] * 3}
    )
    path = tmp_path / f"t.{kind}"
    if kind == "parquet":
        frame.to_parquet(path)
    elif kind in ("csv", "tsv"):
        frame.to_csv(path, index=False, sep="," if kind == "csv" else "\t")
    spec = {"pandas": frame, "polars": pytest.importorskip("polars").DataFrame(frame.to_dict("list"))}.get(kind, path)
    data = load(spec, target=["y", "b"], columns=["a", "u"])
    assert (data.feature_names, data.target_names) == (("u", "a"), ("y", "b"))
    np.testing.assert_array_equal(data.x, frame[["u", "a"]])
    np.testing.assert_array_equal(data.y, frame[["y", "b"]])
    reloaded = load_like(spec, data.signature)
    np.testing.assert_array_equal(reloaded.x, data.x)
    np.testing.assert_array_equal(reloaded.y, data.y)
    assert load(spec, drop="z").target_names == ("a",)
    rows = load(spec, task="density", columns=["a", "b"])
    assert rows.feature_names == rows.target_names == ("b", "a")
    np.testing.assert_array_equal(rows.x, frame[["b", "a"]])


@pytest.mark.parametrize(
    ("cells", "types", "message"),
    [
        ([2932897, 1, 2], ["int32", "date32"], "a cell of type date32[day] cannot be read (year 10000"),
        ([1, 2, 3], ["int64", "time64[ns]"], "a cell of type time64[ns] cannot be read (Value 1"),
        ([b"a", b"\xff", b"c"], ["binary", "string"], "a cell of type string cannot be read (In chunk 0: Invalid"),
    ],
)
def test_a_column_of_parquet_that_cannot_be_read_is_named_with_its_type(tmp_path, cells, types, message):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    first, second = (pa.type_for_alias(name) for name in types)
    column = pa.array(cells, first).view(second)
    pq.write_table(pa.table({"size": [1.0, 2, 3], "a": column, "y": [0.5, 1.5, 2.5]}), path := tmp_path / "t.parquet")
    assert f"t.parquet: column a: {message}" in message_of(load, path)
    assert load(path, drop="a").feature_names == ("size",)


def test_a_type_that_no_reader_of_parquet_knows_is_not_called_damage(tmp_path):
    pl = pytest.importorskip("polars")
    pl.DataFrame({"a": pl.Series([1, 2], dtype=pl.Int128), "y": [0.5, 1.5]}).write_parquet(tmp_path / "t.parquet")
    assert "t.parquet: a column has a type that pyarrow cannot read (Integers" in message_of(
        load, tmp_path / "t.parquet"
    )


def test_truth_beside_gaps_is_of_its_column_wherever_that_stands(tmp_path):
    like = load(table(tmp_path, "a,b,y", "True,False,1.5", ",True,2.5", "False,False,3.5"), missing="median").signature
    new = table(tmp_path, "b,a", "False,True", "True,", ",False")
    np.testing.assert_array_equal(load_inputs(new, like), [[1, 0, 0], [np.nan, 1, 1], [0, 0, np.nan]])


def test_every_table_option_of_a_recipe_is_applied(tmp_path):
    path = table(tmp_path, "c,a,k,b", "red,1,3,7", "blue,2,5,8", "red,,3,9", "red,4,3,7.5")
    options = {"data": path, "target": "k", "task": "classification", "missing": "drop", "unseen": "zero"}
    for columns in ({"columns": "c,a"}, {"drop": "b"}):
        data = load_recipe_data(resolve("mlp", "nuts", [], {**options, **columns}))
        assert (data.feature_names, data.target_names) == (("c=blue", "c=red", "a"), ("k",))
        assert (data.class_names, data.y.tolist()) == (("3", "5"), [0, 1, 0])
        assert data.left_out == "1 of 4 rows left out, because of missing cells in a (1)"
        assert data.encoding.unseen == "zero"
        numbers = data.as_task("regression")
        np.testing.assert_array_equal(numbers.y, [[3], [5], [3]])
        assert numbers.left_out == data.left_out


def test_rows_of_a_density_that_were_left_out_are_told(tmp_path):
    data = load(table(tmp_path, "a,b", "1.5,2", ",3", "3.5,4.5"), task="density", missing="drop")
    np.testing.assert_array_equal(data.x, [[1.5, 2], [3.5, 4.5]])
    assert data.left_out == "1 of 3 rows left out, because of missing cells in a (1)"


def test_targets_in_as_many_columns_as_rows_keep_their_rows():
    x, y = pd.DataFrame({"a": [1.0, 2], "c": ["r", "b"]}), np.array([[1.5, 2], [3, 4.5]])
    data = load((x, y))
    assert data.target_names == ("y0", "y1")
    np.testing.assert_array_equal(data.y, y)
    assert list(x) == ["a", "c"]


def test_a_digest_is_of_inputs_and_targets_and_their_forms():
    rows = np.arange(12.0).reshape(4, 3)
    first = from_arrays(rows, [1.5, 2, 4, 3])
    assert first.sha256() == from_arrays(rows.copy(), [1.5, 2, 4, 3]).sha256()
    others = (
        from_arrays(rows, [1.5, 2, 3, 4]),
        from_arrays(rows[:, ::-1], [1.5, 2, 4, 3]),
        from_arrays(rows.reshape(4, 3, 1), [1.5, 2, 4, 3]),
        first.take([1, 0, 2, 3]),
    )
    assert len({data.sha256() for data in (first, *others)}) == 5


def test_other_targets_are_no_inputs():
    x, y = pd.DataFrame({"a": [1.0, 2, 3, 5]}), pd.DataFrame({"u": [1.5, 2, 3, 4], "v": [9.0, 8, 7, 5.5]})
    loaded_data = load((x, y), target="u")
    assert (loaded_data.feature_names, loaded_data.target_names) == (("a",), ("u",))
    assert "y: no column named a" in message_of(load, (x, y), target="a")
    assert load((x, y)).target_names == ("u", "v")


def test_rows_of_one_label_are_not_paired_with_others():
    x, y = pd.DataFrame({"a": [1.0, 2, 3]}, index=[7, 8, 9]), pd.Series([1.5, 2, 3], index=[9, 8, 7])
    assert "the same labels (index) in a different order" in message_of(load, (x, y))
    load((x, y.loc[x.index]))
    load((x, y.set_axis([1, 2, 3])))


def test_dates_of_another_zone_are_not_taken_for_these():
    def frame(*dates: str) -> pd.DataFrame:
        return pd.DataFrame({"t": dates, "y": [1.5, 2, 3][: len(dates)]})

    with_zone = "2024-01-01 00:00+02:00", "2024-01-02 00:00+02:00", "2024-02-01 00:00+02:00"
    without = tuple(date.partition("+")[0] for date in with_zone)
    for trained, new in ((with_zone, without), (without, with_zone)):
        like = load(frame(*trained)).signature
        assert "a time zone, but the training dates were" in message_of(load_inputs, frame(*new), like)
        np.testing.assert_allclose(load_inputs(frame(*trained), like)[:, 0], [0, 1, 31])
    stamps = pd.DataFrame({"t": pd.to_datetime(without), "y": [1.5, 2, 3]})
    like = load(stamps.assign(t=stamps["t"].dt.tz_localize("Europe/Berlin"))).signature
    assert "dates without a time zone" in message_of(load_inputs, stamps, like)


@pytest.mark.parametrize("zone", ["Z", " UTC", " GMT", "+00", "+00:00", "+0000"])
def test_zones_as_programs_write_them(zone):
    days = [f"2024-03-{day:02d} 17:00:00{zone}" for day in (17, 18, 20)]
    np.testing.assert_array_equal(load(pd.DataFrame({"t": days, "y": [1.5, 2, 4]})).x[:, 0], [0, 1, 3])


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["3/17/2024 5:00 PM", "3/18/2024 6:00 AM"], "not a date"),
        (["3/17/2024, 17:00", "3/18/2024, 17:00"], "not a date"),
        (["2024.03.17", "2024.03.18"], "not a date"),
        (["17-Mar-2024", "18-Apr-2024"], "not a date"),
        (["5 EUR", "6 EUR"], "not a number"),
        (["EUR 5", "EUR 6"], "not a number"),
        (["(5)", "(6)"], "not a number"),
        (["$-5", "$6"], "not a number"),
        (["?", "2", "7", "?", "?"], "not a number ('?')"),
        (["--", "2", "7", "--", "--"], "not a number ('--')"),
    ],
)
def test_ambiguous_text_is_not_guessed(cells, message):
    for name in ("inputs", "targets"):
        columns = {"t": cells, "y": np.arange(len(cells)) + 0.5}
        frame = pd.DataFrame(columns if name == "inputs" else dict(reversed(columns.items())))
        assert message in message_of(load, frame)


TEXTS = (
    ["A 5", "B 6"],
    ["S", "M", "L"],
    ["12 Main St", "13 Main St"],
    ["ABC", "DEF"],
    ["BMW 320", "KIA 500"],
    ["12_345", "12_346"],
    ["10 marbles 20", "12 mayor 99"],
    ["?", "a", "b"],
    ["?", "?", "2"],
    ["yes", "no"],
    ["#1", "a #2"],
    *(["a", word, "b"] for word in ("missing", "unknown", "-", "no", "nil", "n.a.")),
)


@pytest.mark.parametrize("cells", TEXTS)
def test_text_columns_stay_text(tmp_path, cells):
    frame = pd.DataFrame({"t": cells, "y": np.arange(len(cells)) + 0.5})
    frame.to_csv(tmp_path / "t.csv", index=False)
    for spec in (frame, tmp_path / "t.csv"):
        assert set(load(spec).feature_names) == {f"t={cell}" for cell in cells}


def test_whole_numbers_of_an_array_are_classes_where_they_are_few():
    x = np.arange(600.0)[:, None]
    for y, task in (
        (np.arange(600) * 3, "regression"),
        (np.arange(600), "regression"),
        (np.random.default_rng(0).poisson(30, 600), "regression"),
        (np.arange(600) % 3 - 1, "classification"),
        (np.arange(600) % 26, "classification"),
        (np.arange(600) % 20 * 5, "classification"),
        (np.arange(600) % 21 * 5, "regression"),
    ):
        assert load((x, y)).task == task
    with pytest.warns(BnnzooWarning, match="600 classes in 600 rows"):
        assert len(load((x, np.arange(600) * 3), task="classification").class_names) == 600


def test_unused_columns_may_have_any_name(tmp_path):
    path = table(tmp_path, ",a,b,b,y", "0,1,2,3,1.5", "1,2,3,4,2.5")
    assert "column 1 has no name" in message_of(load, path)
    assert load(path, columns=["a"], target="y").feature_names == ("a",)
    assert "columns 3 and 4 are both named b" in message_of(load, path, columns=["a", "b"], target="y")
    like = load(pd.DataFrame({" a ": [1.0, 2], "y": [1.5, 2.5]})).signature
    np.testing.assert_array_equal(load_inputs(path, like), [[1], [2]])


def test_advice_about_column_names_suits_the_source():
    numbers = np.arange(4) + 0.5
    unnamed = pd.DataFrame({"": numbers, "a": numbers, "y": numbers})
    advice = "data: column 1 has no name; name it, or leave it out with --columns a,y; "
    assert message_of(load, unnamed).startswith(advice)
    # All columns of a pair are used, so no option can leave out a column.
    assert message_of(load, (unnamed, numbers)) == "x: column 1 has no name; name it"
    encoded = pd.DataFrame({"a": ["red", "blue"] * 2, "a=red": numbers, "y": numbers})
    assert message_of(load, encoded) == (
        "data: inputs: columns 2 and 3 are both named a=red; at least one of them encodes a category or missing cells "
        "of a table column; rename that column"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("# made by hand\na,y\n1,1.5\n", "the first line is a comment"),
        ("a b y\n1 2 1.5\n3 4 2.5\n", "the header has only one column, 'a b y', and the rows contain spaces"),
    ],
)
def test_the_separator_is_stated(tmp_path, content, message):
    assert message in message_of(load, write(tmp_path, content, "t.csv"))


def test_marks_of_byte_order_are_no_part_of_a_name(tmp_path):
    path = write(tmp_path, b"\xef\xbb\xbf\xef\xbb\xbfa,y\n1,1.5\n2,2.5\n", "t.csv")
    assert load(path).feature_names == ("a",)


def test_a_column_cannot_be_asked_for_and_dropped(tmp_path):
    path = table(tmp_path, "a,b,y", "1,2,1.5", "2,3,2.5")
    assert "column a is both selected and dropped" in message_of(load, path, columns=["a", "b"], drop=["a"])
    assert "an empty entry" in message_of(load, path, drop=["a,"])
    empty = table(tmp_path, "a,b,y", "1,2,", "2,3,")
    assert "name another --target" in message_of(load, empty)


def test_notes_about_targets_depend_on_the_task(tmp_path):
    path = table(tmp_path, "a,y", *(f"{i / 7},{i % 3}" for i in range(30)))
    assert any("taken as classes" in note for note in load(path).notes)
    assert not any("taken as" in note for note in load(path).as_task("regression").notes)


def test_arrays_of_few_whole_numbers_state_the_task(tmp_path):
    x, y = np.arange(30.0), np.arange(30) % 3
    targets = {"classes": (y, y.astype(np.uint8)[:, None]), "numbers": (y.astype(float),)}
    for task, several in targets.items():
        for each in several:
            assert [f"3 whole numbers from 0 to 2, taken as {task}" in note for note in load((x, each)).notes] == [True]
    np.savez(path := tmp_path / "t.npz", x=x, y=y)
    (note,) = load(path).notes
    assert note.startswith("target y: ")
    assert note.endswith("use --task regression to read them as numbers")
    for silent in (load((x, y), task="classification"), load((x, y + 0.5)), load((x, np.stack([y, y], 1)))):
        assert silent.notes == ()


def test_a_density_of_a_frame_and_targets_models_the_columns_of_both():
    x, y = pd.DataFrame({"a": [1.5, 2, 3], "b": [2.5, 1, 0]}), pd.Series([0.5, 1, 2], name="c")
    assert load((x, y), task="density").feature_names == ("a", "b", "c")
    assert load((x, y), task="density", columns=["a", "c"]).feature_names == ("a", "c")
    assert load((x, y), task="density", target="c").feature_names == ("c",)


def test_medians_of_an_earlier_run_are_kept():
    frame = pd.DataFrame({"a": [1.0, None, 3.0, 8.0], "y": [0.5, 1, 2, 3]})
    like = split(load(frame, missing="median"), test_fraction=0.0, seed=0)[0].signature
    rows = load_like(pd.DataFrame({"a": [100.0, None, 300.0], "y": [0.5, 1, 2]}), like)
    train, _ = split(rows, test_fraction=0.0, seed=0)
    assert train.signature == like
    np.testing.assert_array_equal(train.x, [[100, 0], [3, 1], [300, 0]])


@pytest.mark.parametrize("task", ["classification", None])
def test_a_target_of_booleans_becomes_zero_and_one_for_regression(task):
    data = load((np.arange(3.0), np.array([False, True, True])), task=task).as_task("regression")
    np.testing.assert_array_equal(data.y, [[0], [1], [1]])


def test_errors_about_labels_count_the_rows_of_the_table(tmp_path):
    path = table(tmp_path, "a,k", ",1", "1,2", "2,2.5")
    message = message_of(load, path, task="classification", missing="drop")
    assert "row 3, column k: label 2.5 is not an integer" in message


def test_missing_cells_of_a_density_name_a_remedy_that_works(tmp_path):
    like = load(table(tmp_path, "a,b", "1.5,2", ",3", "3.5,4.5"), task="density", missing="drop").signature
    message = message_of(load_like, table(tmp_path, "a,b", "1.5,2", ",3"), like)
    assert message.endswith("row 2, column a: an empty cell; leave such rows out")
    path = table(tmp_path, "a,b", "1.5,", ",3")
    assert "--missing median" not in message_of(load, path, task="density", missing="drop")


def test_polars_inputs_keep_their_names_beside_an_exposure_and_unnamed_targets():
    pl = pytest.importorskip("polars")
    frame = with_exposure(pl.DataFrame({"a": [1.5, 2.5], "b": [1, 2]}), [1.0, 2.0])
    assert list(frame) == ["a", "b", "exposure"]
    assert load((pl.DataFrame({"a": [1.5, 2.5]}), pl.Series([0.5, 1.5]))).target_names == ("y",)


def test_an_exposure_is_not_the_only_input(tmp_path):
    path = table(tmp_path, "time,count", "1,0", "2,3", "3,9")
    for options in ({}, {"target": "count"}):
        message = message_of(load, path, exposure="time", **options)
        assert "no columns are left for inputs beside the target count and the exposure time; add a column" in message


def test_data_frames_of_other_libraries_are_refused_by_name():
    class Frame(dict):
        columns = ("a", "y")

    rows = Frame(a=[1.5, 2.5], y=[0.5, 1.5])
    for spec in (rows, (rows, [0.5, 1.5])):
        message = message_of(load, spec)
        assert "must be a data frame of pandas, polars or pyarrow (got test_data_tables.Frame); convert it" in message
