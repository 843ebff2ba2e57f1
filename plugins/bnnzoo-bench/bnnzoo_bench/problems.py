"""Problems of a benchmark: regression tables with divisions into training and test rows, or reference posteriors."""

from __future__ import annotations

import csv
import gzip
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bnnzoo.errors import UsageError

_DATA, _MASK = "data.csv.gz", "test_mask.csv.gz"
_RANDOM_FOLDS = 10
_TEST_FRACTION = 0.1
_MAX_LEVELS = 50
_REFERENCES = "references"
"""The value of --problems that stands for all reference posteriors."""


class Problem(NamedTuple):
    """A table (a folder with fixed folds, or a CSV file with a header), or the file of a reference posterior."""

    name: str
    path: Path
    target: str | None = None

    @property
    def data(self) -> Path:
        """File that contains the rows or the reference posterior."""
        return self.path / _DATA if self.path.is_dir() else self.path

    @property
    def is_reference(self) -> bool:
        """Whether the problem is a reference posterior. The reference fixes the model, and each method is a sampler."""
        return self.path.suffix == ".nc" and not self.path.is_dir()

    @property
    def is_diabetes(self) -> bool:
        """Whether the problem is scikit-learn's diabetes table. Only this table has a compressed CSV file."""
        return self.name == "diabetes" and self.path.suffix == ".gz"


class Rows(NamedTuple):
    """Training and test rows of a fold, in the units of the data."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def find_problems(paths: Iterable[Path], target: str | None = None) -> list[Problem]:
    """Return the problems at the paths, in the order of the paths. The problems in a folder are sorted by name.

    Without a path the only problem is `diabetes`, a table of scikit-learn.

    Args:
        paths: problem folders, CSV files, or folders that contain problem folders or CSV files; `references` for all
            reference posteriors, or `references:NAME` for one of them.
        target: the target column of CSV files; their last column if None.

    Raises:
        UsageError: if there is no problem at a path, a name occurs twice, a CSV file is unreadable or lacks the target,
            or references are combined with tables.
        NotFoundError: if there is no reference with this name.
    """
    paths = list(paths)
    problems = [problem for path in paths for problem in _at(path, target)] if paths else [_diabetes()]
    by_name: dict[str, Problem] = {}
    for problem in problems:
        if (other := by_name.setdefault(problem.name, problem)) is not problem:
            raise UsageError(
                f"{problem.path}: the name {problem.name!r} is also the name of {other.path}; rename one of them"
            )
        if not (problem.path.is_dir() or problem.is_reference or problem.is_diabetes):
            _check_header(problem)
    if len({problem.is_reference for problem in problems}) > 1:
        raise UsageError("--problems: references and tables cannot be in the same benchmark; run two benchmarks")
    return problems


def _at(path: Path, target: str | None) -> list[Problem]:
    if path.is_dir():
        if (path / _DATA).is_file():
            return [Problem(path.resolve().name, path)]
        inside = sorted(p for p in path.iterdir() if (p / _DATA).is_file() or p.suffix.lower() == ".csv")
        if not inside:
            raise UsageError(f"{path}: contains no problems; expected CSV files, or folders with {_DATA} and {_MASK}")
        return [problem for p in inside for problem in _at(p, target)]
    keyword, _, name = str(path).partition(":")
    if keyword == _REFERENCES and not path.exists():
        return _references(name)
    if not path.is_file():
        raise UsageError(f"{path}: no such file or folder; use --problems with a problem folder or a CSV file")
    return [Problem(path.stem, path, target)]


def _references(name: str) -> list[Problem]:
    """Return the reference with this name, or all references for an empty name."""
    from bnnzoo.plugins import registry
    from bnnzoo.plugins.entry_files import file_of

    names = [name] if name else list(registry.entries(registry.REFERENCES))
    if not names:
        raise UsageError("--problems: no references are installed: pip install bnnzoo-references")
    return [Problem(name, file_of(registry.find(registry.REFERENCES, name))) for name in names]


def _diabetes() -> Problem:
    from sklearn import datasets

    return Problem("diabetes", Path(datasets.__file__).parent / "data" / "diabetes_data_raw.csv.gz")


def _check_header(problem: Problem) -> None:
    try:
        with problem.path.open(newline="", encoding="utf-8-sig") as file:
            header = next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(
            f"{problem.path}: cannot be read as CSV ({error}); use a file in UTF-8 with commas between the cells"
        ) from error
    if len(header) < 2:
        raise UsageError(
            f"{problem.path}: expected a header with at least two columns, got {len(header)}; "
            "separate the columns by commas"
        )
    if problem.target is not None and problem.target not in header:
        raise UsageError(f"{problem.path}: unknown --target {problem.target!r}; use one of {', '.join(header)[:300]}")


def count_folds(problem: Problem) -> int:
    """Return the number of folds of a problem.

    Raises:
        UsageError: if the mask, the file with the fixed folds, cannot be read.
    """
    if problem.is_reference:
        return 1
    if not problem.path.is_dir():
        return _RANDOM_FOLDS
    mask = problem.path / _MASK
    try:
        with gzip.open(mask, "rt") as file:
            return len(file.readline().split(","))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{mask}: cannot be read ({error}); write a compressed CSV file without a header, in which column k is 1 "
            "for the test rows of fold k"
        ) from error


def digest(problem: Problem) -> str:
    """Return the SHA-256 of the file `problem.data`."""
    return hashlib.sha256(problem.data.read_bytes()).hexdigest()


def mask_digest(problem: Problem) -> str:
    """Return the SHA-256 of the file with the fixed folds of a problem, "" if there is no such file."""
    mask = problem.path / _MASK
    return hashlib.sha256(mask.read_bytes()).hexdigest() if mask.is_file() else ""


def read_rows(problem: Problem, fold: int, seed: int) -> Rows:
    """Return the rows of a fold. The seed determines the folds of a CSV file.

    Raises:
        UsageError: if cells are missing or not finite, if the target is not numeric, if a text column has more than 50
            different texts, if the mask and the table have different numbers of rows, if the fold has no test rows, or
            if its training targets are all equal.
    """
    x, y = _read_table(problem)
    if problem.path.is_dir():
        mask = np.loadtxt(problem.path / _MASK, delimiter=",", ndmin=2)
        if len(mask) != len(y):
            raise UsageError(
                f"{problem.path / _MASK}: expected {len(y)} rows as in {_DATA}, got {len(mask)}; correct one of the "
                "two files"
            )
        is_test = mask[:, fold] > 0
    else:
        is_test = np.zeros(len(y), bool)
        order = np.random.default_rng([seed, fold]).permutation(len(y))
        is_test[order[: max(1, round(_TEST_FRACTION * len(y)))]] = True
    rows = Rows(x[~is_test], y[~is_test], x[is_test], y[is_test])
    if len(rows.y) < 2 or not len(rows.y_test) or not rows.y.std() > 0:
        raise UsageError(
            f"{problem.path}: fold {fold} needs test rows and two training rows with different targets; use other "
            "folds in --folds"
        )
    return rows


def _read_table(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    if problem.is_diabetes:
        from sklearn.datasets import load_diabetes

        table: Any = load_diabetes(scaled=False)
        return table.data, table.target
    if problem.path.is_dir():
        table = np.loadtxt(problem.data, delimiter=",", ndmin=2)
        x, y = table[:, :-1], table[:, -1]
    else:
        x, y = _read_csv(problem)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise UsageError(f"{problem.data}: missing or infinite cells; fill them or remove their rows")
    return x, y


def _read_csv(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets. A text column becomes one input (0 or 1) for each of its values."""
    import pandas as pd

    frame = pd.read_csv(problem.path)
    y = frame.pop(frame.columns[-1] if problem.target is None else problem.target)
    if not pd.api.types.is_numeric_dtype(y):
        raise UsageError(f"{problem.path}: the target {y.name!r} must be numeric; use --target with another column")
    for name, column in frame.items():
        if not pd.api.types.is_numeric_dtype(column) and column.nunique() > _MAX_LEVELS:
            raise UsageError(f"{problem.path}: column {name!r} has more than {_MAX_LEVELS} different texts; remove it")
    if frame.isna().to_numpy().any():
        raise UsageError(f"{problem.path}: missing cells; fill them or remove their rows")
    return pd.get_dummies(frame).to_numpy(float), y.to_numpy(float)
