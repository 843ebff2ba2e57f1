"""New rows, evaluation and estimators after training on a table: suspicious values are reported everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bnnzoo.cli import run as command
from bnnzoo.data import load
from bnnzoo.data.columns.codes import find_codes
from bnnzoo.data.loading.new_codes import warn_of_new_codes
from bnnzoo.data.rows.dataset import Dataset
from bnnzoo.errors import BnnzooWarning
from bnnzoo.sklearn import BayesianRegressor

pytestmark = pytest.mark.filterwarnings("ignore:.*(not settled|settled|different in every row)")

WORDS = ("red", "green", "blue")


def rows(count: int = 40) -> str:
    return "".join(f"{i * 37 % 101}.5,2024-01-1{i % 3},{WORDS[i % 3]},{i}.5\n" for i in range(count))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a run on a table of numbers, dates and text."""
    folder = tmp_path_factory.mktemp("doors")
    (folder / "t.csv").write_text("a,d,c,y\n" + rows())
    lengths = ["--warmup", "5", "--draws", "5", "--chains", "1"]
    arguments = ["sample", "linear", "nuts", "--data", str(folder / "t.csv"), *lengths, "-o", str(folder / "r.nc")]
    assert command([*arguments, "--quiet"]) == 0
    return folder


def warnings_of(folder: Path, capsys, door: str, content: str) -> str:
    """The messages of a command on a new file."""
    path = folder / "new.csv"
    path.write_text(content)
    assert command([door, str(folder / "r.nc"), "--data", str(path)]) == 0
    return capsys.readouterr().err


@pytest.mark.long
def test_codes_in_few_new_rows_are_questioned(folder, capsys):
    text = warnings_of(folder, capsys, "predict", "a,d,c\n-999,2024-01-11,red\n3,9999-12-31,red\n")
    assert "column a (-999 in 1 of 2 rows, training rows 0.5 to 100.5), column d (9999-12-31)" in text
    assert "outside the range of the training rows" in warnings_of(
        folder, capsys, "predict", "a,d,c\n9999,2024-01-11,red\n"
    )
    assert "outside" not in warnings_of(folder, capsys, "predict", "a,d,c\n99.5,2024-01-11,red\n250,2025-01-11,red\n")


def test_codes_in_targets_of_new_rows_are_questioned(folder, capsys):
    text = warnings_of(folder, capsys, "evaluate", "a,d,c,y\n3,2024-01-11,red,-999\n4,2024-01-11,red,5\n")
    assert "target y (-999 in 1 of 2 rows, training rows 0.5 to 39.5)" in text


def test_training_rows_are_read_only_for_suspicious_new_values():
    data = Dataset(np.ones((3, 1), np.float32), np.ones((3, 1), np.float32), "regression", ("a",), ("y",), (), "t")
    warn_of_new_codes(np.array([[1.0], [2.0]], np.float32), None, data.signature, lambda _: pytest.fail("read"), "new")
    steps = (np.arange(60, dtype=np.float32) % 5 + 1)[:, None]
    with pytest.warns(BnnzooWarning, match=r"column a \(9 in 1 of 2 rows, training rows 1 to 5\)"):
        warn_of_new_codes(np.array([[1.0], [9.0]], np.float32), None, data.signature, lambda _: steps, "new")
    expected = np.concatenate([np.full((3, 1), -999, np.float32), steps])  # training has warned of a code of its own
    warn_of_new_codes(np.array([[1.0], [-999.0]], np.float32), None, data.signature, lambda _: expected, "new")


@pytest.mark.slow
def test_an_estimator_questions_codes_in_new_rows():
    frame = pd.DataFrame({"a": np.arange(40) * 37 % 101 + 0.5, "b": np.arange(40) % 7 / 2})
    model = BayesianRegressor("linear", "nuts", warmup=5, draws=5, chains=1).fit(frame, np.arange(40) / 3)
    with pytest.warns(BnnzooWarning, match="column a .-999 in 1 of 1 rows"):
        model.predict(pd.DataFrame({"a": [-999.0], "b": [1.0]}))


SCALES = {
    "one to five": ([1, 2, 3, 4, 5] * 6 + [9, 9], [9]),
    "several codes": ([1, 2, 3, 4, 5] * 6 + [8, 9], [8, 9]),
    "no or yes": ([0, 1] * 9 + [9], [9]),
    "a step that is rare": ([1, 1, 1, 2, 2, 3] * 5 + [4, 9, 9], []),
    "one to nine": (list(range(1, 10)) * 3, []),
    "not from one": ([3, 4, 5, 6] * 9 + [9], []),
    "a seven": ([1, 2, 3, 4, 5] * 6 + [7, 7], []),
    "as many as steps": ([0, 1, 9, 9] * 6, []),
    "few rows": ([1, 2, 1, 2, 9], []),
    "fractions": ([0, 0.5, 1] * 9 + [9], []),
}


@pytest.mark.parametrize("case", SCALES)
def test_codes_beside_a_scale_are_questioned(case):
    values, codes = SCALES[case]
    assert [code.value for code in find_codes("q", np.array(values, float))] == codes


def test_counts_rarely_look_like_a_scale_with_codes():
    rng = np.random.default_rng(0)
    result = 0
    for _ in range(1000):
        size = int(rng.choice([12, 30, 100, 1000]))
        result += bool(find_codes("n", rng.poisson(rng.choice([0.5, 1, 2, 4]), size).astype(float)))
        result += bool(find_codes("n", rng.geometric(0.4, size).astype(float)))
    assert result < 20  # 1 percent


def test_a_missing_code_among_classes_is_questioned(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f"{i % 7}.5,{i % 5 + 1}\n" for i in range(30)) + "1.5,99\n2.5,99\n")
    with pytest.warns(BnnzooWarning, match=r"target y \(99 in 2 of 32 rows, others 1 to 5\)"):
        load(path, task="classification")
