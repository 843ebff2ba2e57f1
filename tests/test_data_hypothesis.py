"""Generated tables: never a traceback, never invalid data accepted, and good data read exactly."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bnnzoo.data import load, load_inputs
from bnnzoo.data import table as tables
from bnnzoo.errors import UsageError

SETTINGS = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp", "Zs"]), min_size=1, max_size=8
).map(lambda text: f"c{text}")
BAD_TEXT = (
    "| |nan|NaN|NA|inf|-inf|Infinity|1e300|-4e38|1e999|abc|1_0|0x10|1.2.3|True|1e|--1|"
    "1 2|²|٣|1d5|None|#|e5|.|+|-|3,14|1;2|a; b"
)
BAD_CELLS = st.sampled_from(BAD_TEXT.split("|"))


@st.composite
def good_tables(draw):
    """Names, values [N, C] as Python floats, and the file's bytes."""
    num_columns = draw(st.integers(2, 4))
    names = draw(st.lists(NAMES, min_size=num_columns, max_size=num_columns, unique=True))
    rows = draw(st.lists(st.lists(NUMBERS, min_size=num_columns, max_size=num_columns), min_size=1, max_size=6))
    return names, rows, draw(st.sampled_from(["\n", "\r\n"])), draw(st.booleans()), draw(st.booleans())


def encode(names, rows, newline, bom, quoted) -> bytes:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator=newline, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL)
    writer.writerow(names)
    writer.writerows(rows)
    return (b"\xef\xbb\xbf" if bom else b"") + buffer.getvalue().encode("utf-8")


def put(folder: Path, content: bytes, name: str = "t.csv") -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


@SETTINGS
@given(good_tables())
def test_good_tables_are_read_exactly(tmp_path, table):
    names, rows, *_ = table
    data = load(put(tmp_path, encode(*table)), task="regression")
    assert (*data.feature_names, *data.target_names) == tuple(names)
    np.testing.assert_array_equal(np.concatenate([data.x, data.y], axis=1), np.float32(rows))


def test_a_column_of_truths_is_not_one_of_numbers(tmp_path):
    with pytest.raises(UsageError, match="row 1, column a: not a number"):
        load(put(tmp_path, b"a,b\nTrue,1\nFalse,2\n"))


@SETTINGS
@given(good_tables(), BAD_CELLS, st.data())
def test_a_bad_cell_is_found(tmp_path, table, bad, data):
    names, rows, newline, bom, quoted = table
    row = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.integers(0, len(names) - 1))
    cells = [[repr(value) for value in values] for values in rows]
    cells[row][column] = bad
    path = put(tmp_path, encode(names, cells, newline, bom, quoted))
    for read in (lambda: load(path), lambda: load(path, task="regression")):
        with pytest.raises(UsageError) as caught:
            read()
        assert str(caught.value).startswith(f"{path}: row {row + 1}, column {names[column]}: ")
        assert len(str(caught.value).splitlines()) == 1


@SETTINGS
@given(good_tables(), st.data())
def test_damaged_bytes_never_give_a_traceback_or_bad_data(tmp_path, table, data):
    content = bytearray(encode(*table))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content)))
        piece = data.draw(
            st.sampled_from([b"\xff", b"\0", b'"', b",", b"\n", b"\r", b";", b" ", b"\t", b"x", b"1", b"-", b"e"])
        )
        content[position : position + data.draw(st.integers(0, 2))] = piece
    check_any(put(tmp_path, bytes(content)))


@SETTINGS
@given(st.binary(max_size=60), st.sampled_from(["t.csv", "t.tsv", "t.npz", "t.parquet"]))
def test_any_bytes(tmp_path, content, name):
    check_any(put(tmp_path, content, name))


@SETTINGS
@given(st.text(st.sampled_from('a1,"\n\r .-eE+\t;nif_0'), max_size=40))
def test_any_text(tmp_path, content):
    check_any(put(tmp_path, content.encode()))


def check_any(path: str) -> None:
    """`load` either refuses in one line or gives data that keep the promises; never another exception."""
    try:
        data = load(path)
    except UsageError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert message.startswith(f"{path}: ")
        assert len(message.splitlines()) == 1
        return
    assert data.num_data == len(data.y) > 0
    assert np.isfinite(data.x).all()
    assert np.isfinite(data.y).all()
    assert len(set(data.feature_names)) == data.x.shape[1]
    if data.task == "classification":
        assert np.array_equal(np.unique(data.y), np.arange(data.num_classes))


@SETTINGS
@given(st.lists(st.text(st.sampled_from("0123456789.eE+-_ xnaif\t'"), max_size=8), min_size=1, max_size=3))
def test_the_fast_reader_never_accepts_what_the_exact_one_refuses(cells):
    body = "\n".join(f"{cell},1" for cell in cells).encode()
    fast = tables._read_fast(body, ",", 2, [0, 1])
    if fast is None:
        return
    exact = tables._read_exact(body, ",", ["a", "b"], [0, 1], "t.csv")
    np.testing.assert_allclose(fast, exact, rtol=1e-15)


@SETTINGS
@given(good_tables(), st.randoms(use_true_random=False))
def test_inputs_do_not_depend_on_the_order_of_columns(tmp_path, table, random):
    names, rows, newline, bom, quoted = table
    data = load(put(tmp_path, encode(*table)), task="regression")
    order = list(range(len(names)))
    random.shuffle(order)
    shuffled = encode([names[i] for i in order], [[row[i] for i in order] for row in rows], newline, bom, quoted)
    np.testing.assert_array_equal(load_inputs(put(tmp_path, shuffled), data.signature), data.x)
