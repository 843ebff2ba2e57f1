"""References to the training rows of a run whose rows are too large for its file.

The file of such a run has no training rows. It has the path and the size of the data file instead, and the SHA-256 hash
of the training rows.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bnnzoo.assembly.recipe_parts import likelihood_task
from bnnzoo.data import Dataset, load_recipe_data, split
from bnnzoo.data.loading.sources import data_files
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.files import mapped
from bnnzoo.recipe import Recipe
from bnnzoo.store.schema import ROW_SOURCE, ROWS_IN_FILES

MAX_TEST_ROWS = 100_000
"""Largest number of test rows in the file of a run whose training rows are not in its file."""


def row_attributes(recipe: Recipe, train: Dataset | None) -> dict[str, str | int]:
    """Return the root attribute for the file of a run with training rows in temporary files; otherwise return {}.

    The attribute has the path of the data file, or states that the file of the run contains the rows.
    """
    if train is None or not mapped.is_mapped(train.x):
        return {}
    if (path := _data_path(recipe)) is None:
        return {ROWS_IN_FILES: 1}
    return {ROW_SOURCE: json.dumps({"path": str(path), "bytes": _num_bytes(path)})}


def _data_path(recipe: Recipe) -> Path | None:
    """Return the data file or folder from which the training rows can be read again, or None.

    The result is None for data from Python, for a registered data set, and for a recipe with `prior_from`, because an
    earlier run then determines the encoding of the rows.
    """
    if recipe.data is None or recipe.prior_from is not None:
        return None
    path = Path(recipe.data).expanduser().absolute()
    return path if path.exists() else None


def stored_rows(recipe: Recipe, train: Dataset, test: Dataset | None) -> tuple[Dataset, Dataset | None]:
    """Return the training rows and the test rows that the run's file contains.

    A file that refers to a data file contains no training rows, and at most `MAX_TEST_ROWS` evenly spaced test rows.
    """
    if ROW_SOURCE not in row_attributes(recipe, train):
        return train, test
    if test is not None and test.num_data > MAX_TEST_ROWS:
        test = test.take(np.linspace(0, test.num_data - 1, MAX_TEST_ROWS).round().astype(int))
    return train.take(np.arange(0)), test


def referenced_rows(attributes: Mapping[str, Any], recipe: Recipe) -> Dataset | None:
    """Read the training rows to which the file of a run refers; None if the file contains its training rows.

    Args:
        attributes: the root attributes of the file.
        recipe: the recipe of the run.

    Raises:
        UsageError: if the data file is missing or has changed, so that its training rows are not those of the run.
    """
    if ROW_SOURCE not in attributes:
        return None
    source = json.loads(str(attributes[ROW_SOURCE]))
    path = Path(source["path"])
    remedy = "restore the file from a copy, or start the run again with [[force=True]]"
    if not path.exists():
        raise UsageError(f"{path}: no such file, but the run needs the training rows in this file; {remedy}")
    if (size := _num_bytes(path)) != source["bytes"]:
        raise UsageError(
            f"{path}: the data file has changed since the start of the run (got {size} "
            f"bytes, expected {source['bytes']}); {remedy}"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BnnzooWarning)  # the warnings about the data were shown at the start of the run
        rows = load_recipe_data(dataclasses.replace(recipe, data=str(path)))
    rows = rows.as_task(recipe.task or likelihood_task(recipe))
    train, _ = split(rows, test_fraction=recipe.test_fraction, seed=recipe.split_seed)
    if (digest := train.sha256()) != attributes.get("data_sha256"):
        raise UsageError(
            f"{path}: the training rows in this file are not those of the run (got SHA-256 {digest[:12]}..., expected "
            f"{str(attributes.get('data_sha256'))[:12]}...); {remedy}"
        )
    return train


def _num_bytes(path: Path) -> int:
    """Return the size of a file, or of all data files in a folder."""
    files = [path] if path.is_file() else data_files(path)
    return sum(file.stat().st_size for file in files)
