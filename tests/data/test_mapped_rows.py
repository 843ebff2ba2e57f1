"""Large tables: their rows in temporary files equal the rows in memory."""

from __future__ import annotations

import dataclasses
import gzip
import warnings
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bnnzoo.data import Dataset, Scaler, load, load_inputs, load_like, split
from bnnzoo.data.columns.reading_options import Reading
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.files import mapped

pytest.importorskip("pyarrow")
ROWS = 3000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(mapped, "_BLOCK_BYTES", 5000)  # many blocks, of sizes that do not divide the number of rows


@pytest.fixture
def in_files(monkeypatch):
    """Return a function after which every table is large."""
    return lambda: monkeypatch.setattr(mapped, "LARGE_BYTES", 0)


def mixed_frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "a": rng.normal(size=ROWS).astype(np.float32),
            "b": rng.integers(0, 50, ROWS),
            "colour": rng.choice(["red", "green", "blue"], ROWS),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, ROWS), "D"),
            "code": np.where(rng.uniform(size=ROWS) < 0.01, -999.0, rng.uniform(size=ROWS)),
            "y": rng.normal(size=ROWS),
        }
    )


def written(folder: Path, kind: str) -> Path:
    frame = mixed_frame()
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        frame.to_parquet(path, row_group_size=700)
    elif kind == "folder":
        path.mkdir()
        for number, start in enumerate(range(0, ROWS, 1000)):
            frame[start : start + 1000].to_parquet(path / f"part-{number}.parquet", index=False)
    elif kind == "feather":
        frame.to_feather(path)
    else:
        np.save(path, frame[["a", "b", "code", "y"]].to_numpy(np.float64))
    return path


def loaded(path: Path, **options) -> tuple[Dataset, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BnnzooWarning)
        rows = load(path, **options)
    return rows, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("kind", ["parquet", "folder", "feather", "npy"])
@pytest.mark.parametrize("missing", ["error", "drop", "median"])
def test_rows_in_temporary_files_equal_the_rows_in_memory(kind, missing, tmp_path, in_files):
    path = written(tmp_path, kind)
    options: dict[str, Any] = {"missing": missing}
    if missing != "error":
        options["reading"] = Reading(missing_code=("x2=-999" if kind == "npy" else "code=-999",))
    rows, warned = loaded(path, **options)
    in_files()
    large, large_warned = loaded(path, **options)
    assert mapped.is_mapped(large.x)
    assert mapped.is_mapped(large.y)
    assert not mapped.is_mapped(rows.x)
    assert np.array_equal(rows.x, large.x, equal_nan=True)
    assert np.array_equal(rows.y, large.y)
    for field in dataclasses.fields(Dataset):
        if field.name not in ("x", "y"):
            assert getattr(rows, field.name) == getattr(large, field.name), field.name
    assert warned == large_warned
    assert bool(warned) == (missing == "error")
    parts, large_parts = (split(each, test_fraction=0.1, seed=3) for each in (rows, large))
    for part, large_part in zip(parts, large_parts, strict=True):
        assert part is not None
        assert large_part is not None
        assert mapped.is_mapped(large_part.x)
        assert part.sha256() == large_part.sha256()
    train, large_train = parts[0], large_parts[0]
    scaler, large_scaler = Scaler.fit(train, True), Scaler.fit(large_train, True)
    for field in dataclasses.fields(Scaler):
        assert np.array_equal(getattr(scaler, field.name), getattr(large_scaler, field.name)), field.name
    scaled, large_scaled = scaler.apply(train), large_scaler.apply(large_train)
    assert mapped.is_mapped(large_scaled.x)
    assert scaled.sha256() == large_scaled.sha256()
    assert large_scaler.apply(large_train) is large_scaled


@pytest.mark.parametrize("columns", [["colour", "a"], ["colour", "shape"]])
def test_columns_of_text_are_kept_in_temporary_files(columns, tmp_path, in_files):
    frame = mixed_frame().assign(shape="square")
    frame.loc[::3, "shape"] = "round"
    frame.loc[::7, "colour"] = None
    frame[[*columns, "y"]].to_parquet(path := tmp_path / "rows.parquet")
    rows = loaded(path, missing="drop")[0]
    in_files()
    large = loaded(path, missing="drop")[0]
    with pytest.warns(BnnzooWarning, match="429 of 3000 rows left out"):
        new = load_like(path, large.signature)
    for part in (large, new):
        assert mapped.is_mapped(part.x)
        assert part.sha256() == rows.sha256()
    assert mapped.is_mapped(large.y)


def test_new_rows_in_temporary_files_equal_those_in_memory(tmp_path, in_files):
    path = written(tmp_path, "parquet")
    signature = loaded(path)[0].signature
    x, rows = load_inputs(path, signature), load_like(path, signature)
    in_files()
    large_x, large_rows = load_inputs(path, signature), load_like(path, signature)
    assert mapped.is_mapped(large_x)
    assert np.array_equal(x, large_x)
    assert rows.sha256() == large_rows.sha256()


@pytest.mark.parametrize("column", ["a", "y"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_the_message_about_a_bad_cell_of_a_large_table_is_the_same(column, value, tmp_path, in_files):
    frame = mixed_frame().astype({column: np.float64})
    frame.loc[[1234, 2000], column] = value
    frame.to_parquet(path := tmp_path / "bad.parquet")
    messages = []
    for make_large in (lambda: None, in_files):
        make_large()
        with pytest.raises(UsageError) as raised:
            load(path)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert "row 1235" in messages[0]
    assert f"column {column}" in messages[0]


@pytest.mark.parametrize("extra", [b"", b"\0"])
@pytest.mark.parametrize("packed", [False, True])
def test_many_images_are_kept_in_a_temporary_file(packed, extra, tmp_path, in_files):
    images = np.random.default_rng(0).integers(0, 256, (70, 9, 11)).astype(np.uint8)
    labels = np.arange(70, dtype=np.uint8) % 4
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        content = header + array.tobytes() + (extra if name == "images-idx3" else b"")
        path = tmp_path / f"train-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content) if packed else content)
    in_files()
    if extra:
        with pytest.raises(UsageError, match="is too long"):
            load(str(tmp_path))
        return
    rows = load(str(tmp_path))
    assert mapped.is_mapped(rows.x)
    assert rows.x.dtype == np.uint8
    assert np.array_equal(rows.x, images)
    train, test = split(rows, test_fraction=0.2, seed=0)
    assert test is not None
    assert mapped.is_mapped(train.x)
    assert train.num_data + test.num_data == 70


def test_a_truncated_file_of_many_images_is_refused(tmp_path, in_files):
    images = np.zeros((70, 9, 11), np.uint8)
    header = bytes([0, 0, 8, 3]) + np.array(images.shape, ">u4").tobytes()
    (tmp_path / "train-images-idx3-ubyte").write_bytes(header + images.tobytes()[:-1])
    in_files()
    with pytest.raises(UsageError, match="ends early"):
        load(str(tmp_path))


def test_a_csv_stays_in_memory(tmp_path, in_files):
    mixed_frame().to_csv(path := tmp_path / "rows.csv", index=False)
    in_files()
    assert not mapped.is_mapped(loaded(path)[0].x)


@pytest.mark.parametrize("count", [0, 1, 777, 3000])
def test_rows_are_taken_in_the_order_of_the_indices(count):
    rng = np.random.default_rng(count)
    values = rng.normal(size=(ROWS, 3)).astype(np.float32)
    indices = rng.integers(0, ROWS, count)  # some are repeated
    result = mapped.take(mapped.store(values), indices)
    assert mapped.is_mapped(result)
    assert np.array_equal(result, values[indices])
    if count > 1:
        assert not np.array_equal(result, values[np.sort(indices)])


def test_a_temporary_file_has_no_name_and_is_removed_with_its_array(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(mapped.tempfile, "tempdir", None)
    array = mapped.store(np.ones((ROWS, 3)))
    assert array.sum() == 3 * ROWS
    assert not list(tmp_path.iterdir())
    assert array.ctypes.data % 64 == 0  # JAX uses aligned memory without a copy


def test_trimmed_pages_keep_their_content(monkeypatch):
    values = np.random.default_rng(0).normal(size=(ROWS, 3))
    array = mapped.store(values)
    for _ in range(50):
        array += 1
        mapped.time.sleep(mapped._SECONDS_BETWEEN_TRIMS / 10)
    expected = values.copy()
    for _ in range(50):
        expected += 1
    assert np.array_equal(array, expected)


def test_a_full_disk_is_reported_before_anything_is_written(monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(mapped.shutil, "disk_usage", lambda folder: usage(10, 9, 1))
    with pytest.raises(UsageError, match=r"a temporary file needs .* GB of free space .*; free some space.*TMPDIR"):
        mapped.empty((1000,), np.float32)


def test_the_files_of_a_folder_must_have_the_same_columns(tmp_path):
    mixed_frame().to_parquet(tmp_path / "a.parquet", index=False)
    mixed_frame().drop(columns="b").to_parquet(tmp_path / "b.parquet", index=False)
    with pytest.raises(UsageError, match=r"b\.parquet: its columns differ from those of a\.parquet"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (np.zeros((3, 4, 4)), r"must be numbers with the shape \[row, column\] \(got float64\[3, 4, 4\]\)"),
        (np.array([["a", "b"]]), r"must be numbers with the shape"),
        (np.array([[None, 1]], object), "an array of Python objects"),
        (b"\x93NUMPY", r"not a \.npy file, or damaged"),
    ],
)
def test_a_wrong_npy_file_is_refused(content, problem, tmp_path):
    path = tmp_path / "rows.npy"
    path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content, allow_pickle=True)
    with pytest.raises(UsageError, match=problem):
        load(path)
