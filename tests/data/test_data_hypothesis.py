"""Generated tables: never a traceback, never invalid data accepted, and good data read exactly."""

from __future__ import annotations

import csv
import datetime
import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bnnzoo.data import Signature, load, load_inputs, load_like, split
from bnnzoo.errors import UsageError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*in every row"),
    pytest.mark.filterwarnings("ignore:.*a code for a missing cell"),  # a number may be -999
]

SETTINGS = settings(
    max_examples=100,
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


@pytest.mark.long
@SETTINGS
@given(good_tables())
def test_good_tables_are_read_exactly(tmp_path, table):
    names, rows, *_ = table
    data = load(put(tmp_path, encode(*table)), task="regression")
    assert (*data.feature_names, *data.target_names) == tuple(names)
    np.testing.assert_array_equal(np.concatenate([data.x, data.y], axis=1), np.float32(rows))


@pytest.mark.long
@SETTINGS
@given(good_tables(), BAD_CELLS, st.data())
def test_a_bad_cell_among_numbers_is_found(tmp_path, table, bad, data):
    names, rows, newline, bom, quoted = table
    row = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.integers(0, len(names) - 1))
    cells = [[repr(value) for value in values] for values in rows]
    good = [list(values) for values in cells]
    cells[row][column] = bad
    path = put(tmp_path, encode(names, cells + good, newline, bom, quoted))
    for read in (lambda: load(path), lambda: load(path, task="regression")):
        with pytest.raises(UsageError) as caught:
            read()
        assert str(caught.value).startswith(f"{path}: row {row + 1}, column {names[column]}: ")
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.long
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
    """`load` either refuses in a few lines or gives data that keep the promises; never another exception."""
    try:
        data = load(path)
    except UsageError as error:
        message = str(error)
    else:
        message = ""
    if message:
        # There is a line for each kind of fault, and the target has lines of its own: it cannot be dropped.
        assert all(line.startswith(f"{path}: ") for line in message.splitlines())
        assert len(message.splitlines()) <= 4
        return
    assert data.num_data == len(data.y) > 0
    assert np.isfinite(data.x).all()
    assert np.isfinite(data.y).all()
    assert len(set(data.feature_names)) == data.x.shape[1]
    if data.task == "classification":
        assert np.array_equal(np.unique(data.y), np.arange(data.num_classes))


@SETTINGS
@given(st.lists(st.text(st.sampled_from("0123456789.eE+-_ xnaif\t'"), max_size=8), min_size=1, max_size=3))
def test_a_column_taken_for_numbers_holds_what_python_reads(tmp_path, cells):
    path = put(tmp_path, "\n".join(["a,y", *(f"{cell},1.5" for cell in cells)]).encode())
    try:
        data = load(path, missing="median", task="regression")
    except UsageError:
        return
    if data.encoding is None:
        np.testing.assert_allclose(
            data.x[:, 0], [np.float32(float(cell.replace("\u2212", "-"))) for cell in cells], rtol=1e-6
        )


LEVELS = st.text(st.sampled_from("abcé \"',;.-_=1"), min_size=1, max_size=6).map(lambda text: f"l{text}".strip())
DAYS = st.datetimes(datetime.datetime(1950, 1, 1), datetime.datetime(2100, 1, 1))


@st.composite
def mixed_tables(draw):
    """Columns of text, dates, booleans and numbers with gaps, and a last one of numbers: rows of cells as text."""
    count = draw(st.integers(3, 8))
    levels = draw(st.lists(LEVELS, min_size=1, max_size=3, unique=True))
    kinds = [
        st.sampled_from(levels),
        DAYS.map(lambda day: day.isoformat(sep=draw(st.sampled_from("T ")))),
        st.sampled_from(["True", "False"]),
        NUMBERS.map(repr),
    ]
    gap = st.sampled_from(["", "NA", "nan"])
    columns = [draw(st.lists(st.one_of(kind, kind, gap), min_size=count, max_size=count)) for kind in kinds]
    columns.append([repr(value) for value in draw(st.lists(NUMBERS, min_size=count, max_size=count))])
    return ["text", "day", "truth", "number", "y"], list(zip(*columns, strict=True))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*rows left out:bnnzoo.errors.BnnzooWarning")
@SETTINGS
@given(mixed_tables(), st.sampled_from(["drop", "median"]))
def test_encoded_tables_survive_a_round_trip(tmp_path, table, missing):
    names, rows = table
    path = put(tmp_path, encode(names, rows, "\n", False, False))
    try:
        data = load(path, task="regression", missing=missing)
    except UsageError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert re.search("every cell is missing|every row has a missing cell", message)
        return
    train, _ = split(data, test_fraction=0.0, seed=0)
    assert np.isfinite(train.x).all()
    assert len(train.feature_names) == train.x.shape[1]
    like = Signature.from_json(train.signature.to_json())
    assert like == train.signature
    reencoded = load_like(path, like)
    np.testing.assert_array_equal(reencoded.x, train.x)
    np.testing.assert_array_equal(reencoded.y, train.y)
    if missing == "median":
        np.testing.assert_array_equal(load_inputs(path, like), train.x)
        frame = pd.read_csv(path, keep_default_na=False, dtype=str)
        np.testing.assert_array_equal(load_inputs(frame[names[::-1]], like), train.x)


@pytest.mark.long
@SETTINGS
@given(mixed_tables(), LEVELS)
def test_a_level_never_seen_is_named(tmp_path, table, level):
    names, rows = table
    path = put(tmp_path, encode(names, rows, "\n", False, False))
    try:
        data, _ = split(load(path, task="regression", missing="median"), test_fraction=0.0, seed=0)
    except UsageError:
        return
    text = next(column for column in data.encoding.columns if column.name == "text")
    if " ".join(level.split()) in text.levels:
        return
    rows[1] = (level, *rows[1][1:])
    path = put(tmp_path, encode(names, rows, "\n", False, False), "new.csv")
    with pytest.raises(UsageError, match=r"row 2, column text: category .* does not occur in the training rows"):
        load_inputs(path, data.signature)
    x = load_inputs(path, data.signature, unseen="zero")
    assert not x[1, : len(text.levels)].any()


@pytest.mark.long
@SETTINGS
@given(good_tables(), st.randoms(use_true_random=False))
def test_inputs_do_not_depend_on_the_order_of_columns(tmp_path, table, random):
    names, rows, newline, bom, quoted = table
    data = load(put(tmp_path, encode(*table)), task="regression")
    order = list(range(len(names)))
    random.shuffle(order)
    shuffled = encode([names[i] for i in order], [[row[i] for i in order] for row in rows], newline, bom, quoted)
    np.testing.assert_array_equal(load_inputs(put(tmp_path, shuffled), data.signature), data.x)
