"""Loading: accepted forms, and one line with file, row and column for everything else."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from bnnzoo.data import Dataset, check_labels, from_arrays, load, load_inputs, load_like
from bnnzoo.data.checks.check import is_coarse
from bnnzoo.data.columns.reading_options import PLAIN
from bnnzoo.errors import BnnzooWarning, NotFoundError, UsageError
from bnnzoo.plugins import registry

pytestmark = pytest.mark.usefixtures("as_options")

GOOD = "x1,x2,y\n1,2,0.5\n3,4,1.5\n5,6,2.5\n"


def write(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def message_of(function, *args, **kwargs) -> str:
    with pytest.raises(UsageError) as caught:
        function(*args, **kwargs)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


# ---------------------------------------------------------------------------------------------- CSV: accepted


@pytest.mark.parametrize(
    "content",
    [
        GOOD.encode(),
        b"\xef\xbb\xbf" + GOOD.encode(),
        GOOD.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode(),
        GOOD.replace("\n", "\r").encode(),
        GOOD.rstrip("\n").encode(),
        (GOOD + "\n\n").encode(),
        GOOD.replace("x1,x2,y", '"x1","x2","y"').encode(),
        GOOD.replace("3,4", '"3","4"').encode(),
        GOOD.replace(",", ", ").encode(),
        GOOD.replace("x1,x2", " x1 ,x2 ").encode(),
        GOOD.replace("5,6", "+5.0,.6e1").encode(),
    ],
    ids=[
        "lf",
        "bom",
        "crlf",
        "bom-crlf",
        "cr",
        "no-last-newline",
        "blank-end",
        "quoted-header",
        "quoted-cells",
        "spaces",
        "header-spaces",
        "number-forms",
    ],
)
def test_csv_variants_read_the_same(tmp_path, content):
    data = load(str(write(tmp_path, content)))
    assert data.task == "regression"
    assert data.feature_names == ("x1", "x2")
    assert data.target_names == ("y",)
    assert data.x.dtype == data.y.dtype == np.float32
    np.testing.assert_array_equal(data.x, [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(data.y, [[0.5], [1.5], [2.5]])
    assert data.num_data == 3
    assert data.name == "data.csv"


def test_csv_target_choice(tmp_path):
    path = write(tmp_path, GOOD)
    data = load(str(path), target=["x1"])
    assert data.feature_names == ("x2", "y")
    assert data.target_names == ("x1",)
    both = load(str(path), target=["y", "x1"])
    assert both.target_names == ("y", "x1")
    np.testing.assert_array_equal(both.y, [[0.5, 1], [1.5, 3], [2.5, 5]])
    assert load(path, target="x1").target_names == ("x1",)


def test_a_tsv_file_is_read(tmp_path):
    data = load(str(write(tmp_path, GOOD.replace(",", "\t"), "data.tsv")))
    np.testing.assert_array_equal(data.x, [[1, 2], [3, 4], [5, 6]])


def test_quoted_names_and_non_ascii(tmp_path):
    data = load(str(write(tmp_path, 'température,"a, b",y\n1,2,3\n4,5,6.5\n')))
    assert data.feature_names == ("température", "a, b")


def test_pandas_column_numbers_are_names(tmp_path):
    assert load(str(write(tmp_path, "0,1,2\n1,2,3.5\n4,5,6\n"))).feature_names == ("0", "1")


@pytest.mark.parametrize(
    ("labels", "task", "num_classes"),
    [
        ([0, 1, 0], "classification", 2),
        ([2, 1, 0], "classification", 3),
        ([1, 2, 1], "regression", 0),
        ([0, 2, 0], "regression", 0),
        ([0, 0, 0], "regression", 0),
        ([0, 1, 0.5], "regression", 0),
        ([-1, 1, 0], "regression", 0),
        (list(range(20)), "classification", 20),
        (list(range(21)), "regression", 0),
    ],
)
@pytest.mark.filterwarnings("ignore:.*there is nothing to predict")
def test_csv_task_default(tmp_path, labels, task, num_classes):
    path = write(tmp_path, "x,label\n" + "".join(f"{i}.5,{label}\n" for i, label in enumerate(labels)))
    data = load(str(path))
    assert (data.task, data.num_classes) == (task, num_classes)
    assert data.y.dtype == (np.int32 if num_classes else np.float32)
    assert data.y.shape == ((len(labels),) if num_classes else (len(labels), 1))
    forced = load(str(path), task="regression")
    assert forced.task == "regression"
    np.testing.assert_array_equal(forced.y[:, 0], np.float32(labels))


def test_long_tables_are_fast_and_their_one_bad_cell_is_found(tmp_path):
    rows = 200_000
    body = "".join(f"{i / 7:.6f},{i % 99},{i % 11}.5\n" for i in range(rows))
    path = write(tmp_path, "x1,x2,y\n" + body)
    start = time.process_time()
    data = load(str(path))
    assert data.num_data == rows
    assert time.process_time() - start < 5
    lines = body.split("\n")
    lines[77776] = "1,2,nan"
    bad = write(tmp_path, "x1,x2,x3\n" + "\n".join(lines))
    assert f"{bad}: row 77777, column x3: not a number (nan); " in message_of(load, str(bad))
    lines[99999] = "1,2"
    bad = write(tmp_path, "x1,x2,x3\n" + "\n".join(lines))
    assert f"{bad}: row 100000: 2 fields, but the header has 3; " in message_of(load, str(bad))


# ---------------------------------------------------------------------------------------------- CSV: refused

BAD_TABLES = {
    "empty": (b"", ["the file is empty"]),
    "blank": (b"\n\n  \n", ["the file is empty"]),
    "header only": (b"a,b,y\n", ["a header but no data rows"]),
    "duplicate names": (b"a,b,a\n1,2,3\n", ["columns 1 and 3 are both named a"]),
    "duplicate after strip": (b"a, a,y\n1,2,3\n", ["columns 1 and 2 are both named a"]),
    "unnamed": (b",a,y\n0,1,2\n", ["column 1 has no name", "index=False"]),
    "no header": (b"1.5,2\n3,4\n", ["no header line"]),
    "blank first line": (b"\na,y\n1,2\n", ["first line is empty"]),
    "control in name": (b'"a\nb",y\n1,2\n', ["the name of column 1", "'a\\nb'"]),
    "latin-1": ("a,y\n1,2\n3,é\n".encode("latin-1"), ["row 2", "not UTF-8 (byte 0xe9)", "save"]),
    "latin-1 header": ("é,y\n1,2\n".encode("latin-1"), ["header: not UTF-8"]),
    "utf-16": ("a,y\n1,2\n".encode("utf-16"), ["UTF-16"]),
    "nul": (b"a,y\n1,2\n1\x002,3\n", ["row 2", "NUL"]),
    "too few fields": (b"a,b,y\n1,2,3\n4,5\n", ["row 2: 2 fields, but the header has 3"]),
    "too many fields": (b"a,b,y\n1,2,3,4\n4,5,6\n", ["row 1: 4 fields, but the header has 3"]),
    "too many later": (b"a,b,y\n1,2,3\n4,5,6,7\n", ["row 2: 4 fields, but the header has 3"]),
    "balanced": (b"a,b,y\n1,2\n3,4,5,6\n", ["row 1: 2 fields"]),
    "blank line": (b"a,y\n1,2\n\n3,4\n", ["row 2: the line is empty"]),
    "text with a semicolon": (b"a,b,y\n1,2,3\n4,p; q,6\n", ["column b: not a number ('p; q'); write"]),
    "no decimal points": (b"a,b,y\n1,2.5,3\n4,1.2.3,6\n", ["row 2, column b: not a number ('1.2.3')"]),
    "text among numbers": (b"a,b,y\n1,2,3\n4,red,6\n", ["row 2, column b: not a number ('red')", "--drop b"]),
    "empty cell": (b"a,b,y\n1,,3\n4,5,6\n", ["row 1, column b: an empty cell", "--missing median"]),
    "blank cell": (b"a,b,y\n1,  ,3\n4,5,6\n", ["row 1, column b: an empty cell"]),
    "nan": (b"a,b,y\n1,2,3\n4,nan,6\n", ["row 2, column b: not a number (nan)", "--missing drop"]),
    "NA": (b"a,b,y\n1,2,3\n4,NA,6\n", ["row 2, column b: a missing cell (NA)"]),
    "nan target": (b"a,b,y\n1,2,3\n4,5,NaN\n", ["row 2, column y: not a number (nan)"]),
    "inf": (b"a,b,y\n1,2,3\n4,-inf,6\n", ["row 2, column b: not finite (-inf)"]),
    "1e300": (b"a,b,y\n1,2,3\n4,1e300,6\n", ["row 2, column b: 1e+300 is too large for float32", "rescale"]),
    "1e300 target": (b"a,b,y\n1,2,3\n4,5,-1e300\n", ["row 2, column y: -1e+300 is too large for float32"]),
    "1e400": (b"a,b,y\n1,2,3\n4,1e400,6\n", ["row 2, column b: '1e400' is too large for float32", "rescale"]),
    "counted": (b"a,b,y\n1,x,3\n4,x,6\n3,5,7\n2,5,8\n", ["row 1, column b", "(and 1 more)"]),
    "underscore": (b"a,y\n1_0,2\n3,4\n", ["row 1, column a: not a number ('1_0')"]),
    "arabic digit": ("a,y\n٣,2\n3,4\n".encode(), ["row 1, column a: not a number"]),
    "true": (b"a,y\nTrue,2\n3,4\n", ["row 1, column a: not a number ('True')"]),
    "decimal comma": (b'a,y\n"3,14",2\n3,4\n', ["row 1, column a", "decimal comma"]),
    "semicolons": (b"a;b;y\n1;2\n", ["the header has only one column, 'a;b;y'", "--separator semicolon"]),
    "one column": (b"a\n1\n2\n", ["no columns are left for inputs"]),
    "open quote": (b'a,y\n1,2\n"3,4\n', ["row 2", "correct the quotes of this row"]),
    "quote then text": (b'a,y\n1,2\n"3"x,4\n', ["row 2", "correct the quotes of this row"]),
    "long text": (b"a,y\n" + b"z" * 500 + b",1\n2,3\n", ["row 1, column a: not a number ('zzz", "..."]),
    "huge field": (b'a,y\n"' + b"z" * 200_000 + b'",1\n', ["row 1", "field larger"]),
    "no category": (b"a,y\n" + b"z" * 500 + b",1\nb,2\n", ["column a: text with a category that has 500 letters"]),
    "stray cr": (b"a,y\n1\r2,3\n", ["row 1"]),
}


@pytest.mark.parametrize("case", BAD_TABLES)
@pytest.mark.filterwarnings("ignore:.*the same in every row")
def test_a_malformed_csv_file_is_refused(tmp_path, case):
    content, parts = BAD_TABLES[case]
    path = write(tmp_path, content)
    message = message_of(load, str(path))
    assert message.startswith(f"{path}: ")
    for part in parts:
        assert part in message


def test_bad_targets(tmp_path):
    path = str(write(tmp_path, "width,height,price\n1,2,3\n4,5,6.5\n"))
    assert "no column named prize; did you mean price?" in message_of(load, path, target=["prize"])
    assert "did you mean price?" in message_of(load, path, target=["PRICE"])
    assert "use one of width, height, price" in message_of(load, path, target=["qqq"])
    assert "named twice" in message_of(load, path, target=["price", "price"])
    # All columns as targets are a density's: there are no inputs.
    assert load(path, target=["price", "width", "height"]).task == "density"
    assert "one column of labels" in message_of(load, path, target=["price", "width"], task="classification")
    assert "unknown task 'cluster'" in message_of(load, path, task="cluster")


# ---------------------------------------------------------------------------------------------- labels

BAD_LABELS = {
    "fractional": ([0, 1, 3.7], ["row 3", "label 3.7 is not an integer"]),
    "one class": ([0, 0, 0], ["every row has label 0"]),
    "many": (list(range(1001)), ["1001 labels", "--task regression"]),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_training_labels(tmp_path, case):
    labels, parts = BAD_LABELS[case]
    path = write(tmp_path, "x,kind\n" + "".join(f"{i}.5,{label}\n" for i, label in enumerate(labels)))
    in_file = message_of(load, str(path), task="classification")
    in_array = message_of(from_arrays, np.ones((len(labels), 2)), np.asarray(labels), task="classification")
    assert in_file.startswith(f"{path}: ")
    assert in_array.startswith("y: ")
    for part in parts:
        assert part in in_file
        assert part in in_array
    if parts[0].startswith("row"):
        assert f"{parts[0]}, column kind" in in_file


@pytest.mark.parametrize(
    ("labels", "names", "codes"),
    [
        ([1, 2, 1], ["1", "2"], [0, 1, 0]),
        ([10, 9, 9], ["9", "10"], [1, 0, 0]),
        ([-1, 1, -1], ["-1", "1"], [0, 1, 0]),
        (["good", "bad", "good"], ["bad", "good"], [1, 0, 1]),
    ],
)
def test_labels_keep_their_names(tmp_path, labels, names, codes):
    path = write(tmp_path, "x,kind\n" + "".join(f"{i}.5,{label}\n" for i, label in enumerate(labels)))
    for data in (load(str(path), task="classification"), from_arrays(np.ones(3), labels, task="classification")):
        assert list(data.class_names) == names
        np.testing.assert_array_equal(data.y, codes)
        assert load_like((np.ones(2), labels[:2]), data.signature).y.tolist() == codes[:2]


TEN = tuple(str(label) for label in range(10))


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.uint64, np.float32, np.float64, bool])
def test_check_labels_accepts(dtype):
    labels = check_labels(np.asarray([1, 0, 1], dtype=dtype), TEN)
    assert labels.dtype == np.int32
    np.testing.assert_array_equal(labels, [1, 0, 1])


@pytest.mark.parametrize(
    ("labels", "part"),
    [
        ([0, 10, 10], "row 2: label 10 (and 1 more) is not one of the model's 10 classes 0, 1, 2"),
        ([0, -1], "row 2: label -1 is not one of the model's"),
        ([0, 2**32 + 1], "row 2: label 4294967297 is not one"),
        ([0, 3.7], "row 2: label 3.7 is not an integer"),
        ([0.0, np.nan], "row 2: label nan is not an integer"),
        ([0.0, np.inf], "row 2: label inf is not an integer"),
    ],
)
def test_check_labels_refuses(labels, part):
    assert part in message_of(check_labels, np.asarray(labels), TEN)


# ---------------------------------------------------------------------------------------------- arrays


def test_from_arrays_regression():
    data = from_arrays(np.arange(4.0), np.arange(4.0))
    assert data.x.shape == data.y.shape == (4, 1)
    assert data.x.dtype == data.y.dtype == np.float32
    assert data.signature == (("x0",), (1,), "float32", ("y",), "regression", (), None, PLAIN)
    two = from_arrays(np.ones((4, 3)), np.ones((4, 2), dtype=int))
    assert two.task == "regression"
    assert two.target_names == ("y0", "y1")


def test_from_arrays_classification():
    data = from_arrays(np.ones((4, 3)), [0, 1, 2, 1])
    assert (data.task, data.num_classes, data.y.dtype) == ("classification", 3, np.int32)
    assert from_arrays(np.ones((4, 3)), [[0], [1], [2], [1]]).y.shape == (4,)
    assert from_arrays(np.ones((2, 3)), [True, False]).num_classes == 2
    assert from_arrays(np.ones((4, 3)), [0, 1, 2, 1], task="regression").y.shape == (4, 1)
    assert from_arrays(np.ones((2, 1)), [0.0, 1.0], task="classification").num_classes == 2


def test_from_arrays_images_keep_bytes():
    images = np.zeros((2, 3, 3), dtype=np.uint8)
    data = from_arrays(images, [0, 1])
    assert data.x.dtype == np.uint8
    assert data.feature_names == ()
    assert from_arrays(images.astype(float), [0, 1]).x.dtype == np.float32
    assert from_arrays(np.zeros((2, 3), dtype=np.uint8), [0, 1]).x.dtype == np.float32


def test_from_arrays_takes_column_names():
    pd = pytest.importorskip("pandas")
    data = from_arrays(pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}), pd.Series([0.5, 1.5]))
    assert data.feature_names == ("a", "b")


@pytest.mark.parametrize(
    ("x", "y", "part"),
    [
        ([[1, 2], [3, np.nan]], [1.0, 2.0], "x: row 2, column 2: not a number (nan)"),
        ([[1, 2], [3, np.inf]], [1.0, 2.0], "x: row 2, column 2: not finite (inf)"),
        ([[np.nan, 2], [3, np.nan]], [1.0, 2.0], "x: row 1, column 1: not a number (nan) (and 1 more)"),
        ([[1, 2], [3, 1e300]], [1.0, 2.0], "x: row 2, column 2: 1e+300 is too large for float32"),
        ([1.0, 2.0], [1.0, np.nan], "y: row 2: not a number (nan)"),
        (np.full((2, 2, 3), np.nan), [1.0, 2.0], "x: row 1, pixel 1,1: not a number (nan) (and 11 more)"),
        ([1.0, 2.0], [1.0], "x has 2 rows and y has 1"),
        ([], [], "x is empty"),
        (np.ones((2, 0)), [1.0, 2.0], "x: must be features [N, D] or images [N, H, W] or"),
        (np.ones((2, 1, 1, 1, 1)), [1.0, 2.0], "[N, C, H, W] (got shape [2, 1, 1, 1, 1])"),
        ([1.0, 2.0], np.ones((2, 1, 1)), "y: must be [N] or [N, T] (got shape [2, 1, 1])"),
        (np.asarray([object(), None]), [1.0, 2.0], "x has dtype object"),
        (["a", "b"], [1.0, 2.0], "x has dtype <U1"),
        ([1j, 2j], [1.0, 2.0], "x has dtype complex128"),
        (
            np.asarray(["2020-01-01", "2020-01-02"], dtype="M8[D]"),
            [1.0, 2.0],
            "x holds dates; give them",
        ),
        ([[1, 2], [3]], [1.0, 2.0], "its rows must have equal lengths"),
        (np.float64(3.0), [1.0], "x is a single number"),
        (np.ma.masked_equal([1.0, 2.0], 2.0), [1.0, 2.0], "x is a masked array"),
    ],
)
def test_bad_arrays(x, y, part):
    assert part in message_of(from_arrays, x, y)


@pytest.mark.parametrize(("steps", "coarse"), [(19, True), (21, False)])
def test_numbers_are_too_close_together_by_their_standard_deviation(steps, coarse):
    """Floats next to 2**30 are 128 apart: half of that is lost of these, of a standard deviation of 64 a step."""
    values = 2.0**30 + 64 + np.array([0, 128.0 * steps] * 10)
    for more in ([], [np.nan], [np.inf, np.nan]):
        assert is_coarse(np.append(values, more)) == coarse
    assert not is_coarse(values[:1])
    if coarse:
        assert "y: float32 cannot represent these numbers" in message_of(from_arrays, np.arange(20.0), values)
        assert "x: column x0: float32 cannot represent" in message_of(from_arrays, values, np.arange(20.0))
    else:
        assert from_arrays(values, values).num_data == 20


def test_one_hot_labels_are_refused():
    message = message_of(from_arrays, np.ones((3, 1)), np.eye(3), task="classification")
    assert "y.argmax(1)" in message


# ---------------------------------------------------------------------------------------------- paths


def test_missing_file_names_near_ones(tmp_path):
    write(tmp_path, GOOD, "housing.csv")
    assert "no such file" in message_of(load, str(tmp_path / "housin.csv"))
    assert "did you mean housing.csv?" in message_of(load, str(tmp_path / "housin.csv"))
    assert "no such folder" in message_of(load, str(tmp_path / "nowhere" / "housing.csv"))
    assert "the name is empty" in message_of(load, "")


def test_relative_and_home_paths(tmp_path, monkeypatch):
    write(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load("data.csv").num_data == load("~/data.csv").num_data == load(Path("data.csv")).num_data == 3
    assert "no such file" in message_of(load, "dat.csv")


def test_not_a_data_file(tmp_path):
    assert "unknown kind of data file .txt" in message_of(load, str(write(tmp_path, GOOD, "data.txt")))
    assert "(no suffix)" in message_of(load, str(write(tmp_path, GOOD, "data")))
    assert "the folder has no train-images-idx3-ubyte" in message_of(load, str(tmp_path))
    os.mkfifo(tmp_path / "pipe.csv")
    assert "not a regular file" in message_of(load, str(tmp_path / "pipe.csv"))
    os.symlink(tmp_path / "gone.csv", tmp_path / "link.csv")
    assert "a link to a file that does not exist" in message_of(load, str(tmp_path / "link.csv"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(tmp_path):
    path = write(tmp_path, GOOD)
    path.chmod(0)
    assert "cannot be read" in message_of(load, str(path))


def test_a_missing_file_of_an_unreadable_folder(tmp_path, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(os, "listdir", refuse)
    assert "no such file, or it cannot be read (Permission denied)" in message_of(load, str(tmp_path / "data.csv"))


# ---------------------------------------------------------------------------------------------- npz


def npz(folder: Path, **arrays) -> Path:
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


def test_arrays_of_an_npz_file_are_read(tmp_path):
    data = load(str(npz(tmp_path, x=np.ones((4, 2)), y=np.arange(4.0))))
    assert (data.task, data.feature_names, data.target_names) == ("regression", ("x0", "x1"), ("y",))
    for name in ("x", "y"):
        alone = load(npz(tmp_path, **{name: np.arange(8.0).reshape(4, 2)}))
        assert (alone.task, alone.x.shape, alone.target_names) == ("density", (4, 2), ("x0", "x1"))
    labelled = load(str(npz(tmp_path, x=np.zeros((4, 2, 2), np.uint8), y=np.asarray([0, 1, 1, 0]))))
    assert (labelled.task, labelled.x.dtype) == ("classification", np.uint8)


@pytest.mark.parametrize(
    ("arrays", "part"),
    [
        ({"z": np.ones(3)}, "no array named x (got z)"),
        ({"arr_0": np.ones((3, 2))}, "no array named x (got arr_0)"),
        ({"x": np.ones(3), "y": np.ones(2)}, "x has 3 rows and y has 2"),
        (
            {"x": np.asarray([None, 1, 2], object), "y": np.ones(3)},
            "Python objects, which is not supported",
        ),
        ({"x": np.asarray([[1, np.nan]]), "y": np.ones(1)}, "x: row 1, column 2: not a number (nan)"),
        ({"x": np.ones(3), "y": np.asarray([2, 2, 2])}, "y: every row has label 2"),
        ({"x": np.asarray(["a"]), "y": np.ones(1)}, "x has dtype <U1"),
    ],
)
def test_bad_npz(tmp_path, arrays, part):
    path = npz(tmp_path, **arrays)
    message = message_of(load, str(path))
    assert message.startswith(f"{path}: ")
    assert part in message


def test_damaged_npz(tmp_path):
    path = npz(tmp_path, x=np.ones((50, 4)), y=np.ones(50))
    contents = path.read_bytes()
    for content in (b"", b"hello", contents[:100], contents[:-30], contents[:200] + b"\xff" * 50 + contents[250:]):
        path.write_bytes(content)
        assert str(path) in message_of(load, str(path))
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    assert "a single array instead of an .npz archive" in message_of(load, str(path))
    assert "tables only" in message_of(load, str(path), target=["y"])


# ---------------------------------------------------------------------------------------------- Parquet


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    for name in ("data.parquet", "data.pq"):
        columns = {
            "a": [1, 2, 3],
            "b": [1.5, 2.5, 3.5],
            "y": [True, False, True],
            "__index_level_0__": [7, 8, 9],
        }
        pq.write_table(pa.table(columns), tmp_path / name)
        data = load(str(tmp_path / name))
        assert (data.task, data.feature_names, data.num_data) == ("classification", ("a", "b"), 3)
        np.testing.assert_array_equal(load_inputs(str(tmp_path / name), data.signature), data.x)
    path = str(tmp_path / "data.parquet")
    pq.write_table(pa.table({"a": [1.0, None], "y": [1.0, 2.0]}), path)
    assert "row 2, column a: not a number (nan)" in message_of(load, path)
    pq.write_table(pa.table({"a": [[1.0], [2.0]], "y": [1.0, 2.0]}), path)
    assert "column a: neither numbers, text, booleans nor dates" in message_of(load, path)
    pq.write_table(pa.table({"a": pa.array([], pa.float64()), "y": pa.array([], pa.float64())}), path)
    assert "no data rows" in message_of(load, path)
    contents = Path(path).read_bytes()
    for content in (b"", b"hello", contents[:50], contents[:-9]):
        Path(path).write_bytes(content)
        assert "not a Parquet file" in message_of(load, path)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = write(tmp_path, b"PAR1", "data.parquet")
    assert "pip install 'bnnzoo[parquet]'" in message_of(load, str(path))


# ---------------------------------------------------------------------------------------------- IDX


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def idx_folder(folder: Path, packed: bool, part: str = "train", n: int = 6, classes: int = 3) -> None:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(n)
    images = rng.integers(0, 256, size=(n, 4, 5), dtype=np.uint8)
    labels = (np.arange(n) % classes).astype(np.uint8)
    for kind, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
        content = idx_bytes(array)
        if packed:
            (folder / f"{part}-{kind}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / f"{part}-{kind}").write_bytes(content)


@pytest.mark.parametrize("packed", [False, True])
def test_idx_round_trip(tmp_path, packed):
    folder = tmp_path / "mnist"
    idx_folder(folder, packed)
    data = load(str(folder))
    images = np.random.default_rng(6).integers(0, 256, size=(6, 4, 5), dtype=np.uint8)
    assert data.x.dtype == np.uint8
    np.testing.assert_array_equal(data.x, images)
    np.testing.assert_array_equal(data.y, [0, 1, 2, 0, 1, 2])
    assert (data.task, data.num_classes, data.test, data.name) == ("classification", 3, None, "mnist")
    np.testing.assert_array_equal(load_inputs(str(folder), data.signature), images)
    idx_folder(folder, packed, part="t10k", n=4)
    test = load(str(folder)).test
    assert test is not None
    assert test.num_data == 4
    np.testing.assert_array_equal(load_inputs(str(folder), data.signature), test.x)
    np.testing.assert_array_equal(load_like(str(folder), data.signature).y, test.y)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "not an IDX file"),
        (b"PK\x03\x04", "not an IDX file"),
        (b"\0\0\x0d\x03" + b"\0" * 12, "not an IDX file of unsigned bytes"),
        (b"\0\0\x08\x01\0\0\0\x01\0", "must have 3 or 4 dimensions (got 1)"),
        (b"\0\0\x08\x03\0\0\0\x01", "ends inside its header"),
        (idx_bytes(np.zeros((0, 4, 5), np.uint8)), "contains no data: its header gives the shape [0, 4, 5]"),
        (idx_bytes(np.zeros((6, 4, 5), np.uint8))[:-1], "ends early"),
        (idx_bytes(np.zeros((6, 4, 5), np.uint8)) + b"x", "is too long"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "the file is too small for this shape"),
        (idx_bytes(np.zeros((5, 4, 5), np.uint8)), "x has 5 rows and y has 6"),
    ],
)
def test_bad_idx(tmp_path, content, part):
    idx_folder(tmp_path / "mnist", packed=False)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(content)
    message = message_of(load, str(tmp_path / "mnist"))
    assert part in message
    assert str(tmp_path / "mnist") in message


def test_damaged_gzip(tmp_path):
    idx_folder(tmp_path / "mnist", packed=True)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    contents = path.read_bytes()
    for content in (b"", b"junk", contents[:-12], contents[:20], contents[:30] + b"\xff\xff\xff" + contents[33:]):
        path.write_bytes(content)
        assert str(path) in message_of(load, str(tmp_path / "mnist"))


def test_idx_test_files_are_checked(tmp_path):
    folder = tmp_path / "mnist"
    idx_folder(folder, packed=False)
    idx_folder(folder, packed=False, part="t10k", n=4, classes=4)
    assert "t10k: row 4: label 3 is not one of the model's 3 classes 0, 1, 2" in message_of(load, str(folder))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(3, np.uint8)))
    assert "4 images but 3 labels" in message_of(load, str(folder))
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((3, 2, 2), np.uint8)))
    assert "images of [2, 2] pixels, but the train images have [4, 5]" in message_of(load, str(folder))
    (folder / "train-labels-idx1-ubyte").unlink()
    assert "has no train-labels-idx1-ubyte" in message_of(load, str(folder))


# ---------------------------------------------------------------------------------------------- new data


def test_inputs_are_matched_by_name(tmp_path):
    like = load(str(write(tmp_path, GOOD))).signature
    path = write(tmp_path, "note,x2,y,x1\nred,20,,10\n,40,z,30\n", "new.csv")
    x = load_inputs(str(path), like)
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, [[10, 20], [30, 40]])
    bad = write(tmp_path, "x_2,x1\n1,2\n", "bad.csv")
    assert "no column named x2; did you mean" in message_of(load_inputs, str(bad), like)
    nan = write(tmp_path, "x2,note,x1\n1,a,2\n3,b,nan\n", "nan.csv")
    assert f"{nan}: row 2, column x1: not a number (nan)" in message_of(load_inputs, str(nan), like)
    big = write(tmp_path, "x2,note,x1\n1,a,2\n1e39,b,4\n", "big.csv")
    assert "row 2, column x2: 1e+39 is too large for float32" in message_of(load_inputs, str(big), like)


def test_inputs_from_one_column(tmp_path):
    like = from_arrays([1.0, 2.0], [1.0, 2.0], feature_names=["t"]).signature
    np.testing.assert_array_equal(load_inputs(str(write(tmp_path, "t\n1\n2\n\n")), like), [[1], [2]])
    assert "row 2, column t: an empty cell" in message_of(load_inputs, str(write(tmp_path, "t\n1\n\n2\n")), like)


def test_inputs_from_arrays(tmp_path):
    data = from_arrays(np.ones((4, 2)), np.arange(4.0))
    like = data.signature
    assert load_inputs(np.zeros((3, 2), dtype=int), like).dtype == np.float32
    assert load_inputs(str(npz(tmp_path, x=np.zeros((3, 2)))), like).shape == (3, 2)
    assert load_inputs(str(npz(tmp_path, arr_0=np.zeros((3, 2)))), like).shape == (3, 2)
    assert load_inputs(data, like) is not None
    assert "no array named x" in message_of(load_inputs, str(npz(tmp_path, z=np.zeros(3))), like)
    message = message_of(load_inputs, np.ones((3, 5)), like)
    assert message.startswith("x: inputs have shape [5], but the model was trained on [2]")
    assert "x: row 2, column 1: not a number (nan)" in message_of(load_inputs, [[1, 2], [np.nan, 1]], like)


def test_inputs_from_a_data_frame():
    pd = pytest.importorskip("pandas")
    like = from_arrays(np.ones((2, 2)), [1.0, 2.0], feature_names=["a", "b"]).signature
    frame = pd.DataFrame({"note": ["u", "v"], "b": [3.0, 4.0], "a": [1, 2]})
    np.testing.assert_array_equal(load_inputs(frame, like), [[1, 3], [2, 4]])
    assert "no column named b" in message_of(load_inputs, frame.drop(columns="b"), like)


def test_image_inputs_keep_the_training_dtype(tmp_path):
    like = from_arrays(np.zeros((2, 3, 3), np.uint8), [0, 1]).signature
    assert load_inputs(np.full((5, 3, 3), 255.0), like).dtype == np.uint8
    assert "whole numbers 0..255" in message_of(load_inputs, np.full((5, 3, 3), 0.5), like)
    assert "whole numbers 0..255" in message_of(load_inputs, np.full((5, 3, 3), 256), like)
    assert "trained on images of shape [3, 3]" in message_of(load_inputs, str(write(tmp_path, GOOD)), like)
    as_float = from_arrays(np.zeros((2, 3, 3)), [0, 1]).signature
    assert load_inputs(np.full((5, 3, 3), 255, np.uint8), as_float).dtype == np.float32


def test_labelled_data_from_a_table(tmp_path):
    like = load(str(write(tmp_path, "a,b,kind\n1,2,0\n3,4,1\n5,6,2\n"))).signature
    test = load_like(str(write(tmp_path, "kind,b,note,a\n1,20,p,10\n1,40,q,30\n", "test.csv")), like)
    np.testing.assert_array_equal(test.x, [[10, 20], [30, 40]])
    np.testing.assert_array_equal(test.y, [1, 1])
    assert (test.num_classes, test.y.dtype, test.signature) == (3, np.int32, like)
    beyond = write(tmp_path, "a,b,kind\n1,2,0\n3,4,3\n", "beyond.csv")
    assert "row 2, column kind: label 3 is not one of the model's 3 classes" in message_of(load_like, str(beyond), like)
    unlabelled = write(tmp_path, "a,b\n1,2\n", "unlabelled.csv")
    assert "no column named kind" in message_of(load_like, str(unlabelled), like)


def test_labelled_data_from_arrays(tmp_path):
    data = from_arrays(np.ones((4, 2)), np.arange(4.0))
    like = data.signature
    test = load_like((np.zeros((3, 2)), [1, 2, 3]), like)
    assert (test.y.shape, test.y.dtype, test.task) == ((3, 1), np.float32, "regression")
    assert load_like(str(npz(tmp_path, x=np.zeros((3, 2)), y=np.ones(3))), like).num_data == 3
    assert load_like(data, like).num_data == 4
    assert "no array named y" in message_of(load_like, str(npz(tmp_path, x=np.zeros((3, 2)))), like)
    assert "y: 2 rows of targets but 3 rows of inputs" in message_of(load_like, (np.zeros((3, 2)), [1, 2]), like)
    assert "but the model has 1 targets" in message_of(load_like, (np.zeros((2, 2)), np.ones((2, 3))), like)
    assert "y: row 2, column 1: not a number" in message_of(load_like, (np.zeros((2, 2)), [[1], [np.nan]]), like)
    labels = from_arrays(np.ones((2, 2)), [0, 1]).signature
    assert "y: row 1: label 2 is not one of" in message_of(load_like, (np.ones((2, 2)), [2, 0]), labels)


# ---------------------------------------------------------------------------------------------- names


@pytest.fixture
def two_names(monkeypatch):
    data = from_arrays(np.ones((4, 2)), [0, 1, 0, 1], name="little")
    entries = {"little": lambda: data, "broken": lambda: 3}

    def fake_load(kind, name):
        assert kind == "datasets"
        if name not in entries:
            raise NotFoundError(f"no data set named {name}; did you mean little?")
        return entries[name]

    monkeypatch.setattr(registry, "load", fake_load)
    return data


def test_registered_names(two_names, tmp_path, monkeypatch):
    assert isinstance(load("little"), Dataset)
    assert load("little").num_classes == 2
    assert load("little", task="regression").y.dtype == np.float32
    assert load_inputs("little", two_names.signature).shape == (4, 2)
    assert load_like("little", two_names.signature).num_data == 4
    with pytest.raises(NotFoundError, match="did you mean little"):
        load("litle")
    assert "must return a bnnzoo Dataset (got int)" in message_of(load, "broken")
    assert "tables only" in message_of(load, "little", target=["y"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "little").mkdir()
    assert "no train-images" in message_of(load, "little")


def test_the_zoos_own_names():
    pytest.importorskip("bnnzoo.plugins.registry")
    for name, task in (("diabetes", "regression"), ("digits", "classification"), ("mdn-sine", "regression")):
        data = load(name)
        assert (data.name, data.task) == (name, task)
        assert load_inputs(name, data.signature).shape[1:] == data.x.shape[1:]
    assert load("mdn-sine").test.num_data == len(load_inputs("mdn-sine", data.signature)) == 5000
    assert load_like("mdn-sine", data.signature).num_data == 5000
    with pytest.raises(NotFoundError, match="diabetes"):
        load("diabetis")


def test_importing_the_folder_is_cheap():
    code = (
        "import sys, bnnzoo.data;"
        "sys.exit(', '.join({'jax', 'pandas', 'sklearn', 'scipy', 'pyarrow'} & set(sys.modules)) or None)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stderr) == (0, "")


def test_a_class_for_most_rows_is_warned_about():
    """A text target that is different in every row, such as a name."""
    x = np.arange(30.0)[:, None]
    with pytest.warns(BnnzooWarning, match="30 classes in 30 rows: with fewer than two rows per class"):
        from_arrays(x, np.array([f"a{i}" for i in range(30)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert from_arrays(x, np.array([f"a{i // 2}" for i in range(30)])).num_classes == 15
