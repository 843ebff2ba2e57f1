"""Split of a data set into training and test rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from bnnzoo.data.encoding.input_encoding import Encoding
from bnnzoo.data.encoding.targets import recode
from bnnzoo.data.rows.dataset import Dataset
from bnnzoo.errors import UsageError
from bnnzoo.files import mapped


def split(dataset: Dataset, *, test_fraction: float, seed: int) -> tuple[Dataset, Dataset | None]:
    """Return the training set and the test set. The same seed always gives the same split.

    If `test_fraction` is 0, every row is a training row, and the test set is None. For any other fraction, a data set
    with its own test set keeps this test set. Otherwise the test set consists of ceil(test_fraction * N) random rows.

    The two sets have the class proportions of the data if both are large enough to contain every class. The only row of
    a class becomes a training row if enough other rows remain for both sets.

    Args:
        dataset: the data set with N rows.
        test_fraction: the fraction of the rows in the test set, from 0 to below 1.
        seed: the seed of the random split.

    Raises:
        UsageError: if the fraction is invalid or leaves no training rows, if the data set's own test set has a class
            that the training set lacks, or if no median can be computed for a column because it has no value in the
            training rows.
    """
    if not 0 <= test_fraction < 1:
        raise UsageError(f"test_fraction: must be at least 0 and below 1 (got {test_fraction})")
    if test_fraction == 0:
        return _fill_missing(replace(dataset, test=None), None)
    if dataset.test is not None:
        return _fill_missing(replace(dataset, test=None), _with_training_classes(dataset.test, dataset))
    num_test = math.ceil(test_fraction * dataset.num_data)
    num_train = dataset.num_data - num_test
    if num_train < 1:
        raise UsageError(
            f"{dataset.name}: test_fraction {test_fraction} of {dataset.num_data} rows leaves no training rows; "
            "use [[test_fraction=0]]"
        )

    from sklearn.model_selection import train_test_split

    rows, single_rows, stratify = np.arange(dataset.num_data), np.arange(0), None
    if dataset.task == "classification":
        counts = np.bincount(dataset.y, minlength=dataset.num_classes)
        num_classes_to_stratify = np.sum(counts >= 2)
        # If the only row of a class were a test row, the model would not know this class.
        candidates = np.flatnonzero(counts[dataset.y] == 1)
        if len(candidates) < num_train and len(rows) - len(candidates) > num_test:
            rows, single_rows = np.setdiff1d(rows, candidates), candidates
            if min(num_train - len(single_rows), num_test) >= num_classes_to_stratify:
                stratify = dataset.y[rows]
    train_rows, test_rows = train_test_split(
        rows,
        train_size=num_train - len(single_rows),
        test_size=num_test,
        shuffle=True,
        random_state=seed,
        stratify=stratify,
    )
    return _fill_missing(dataset.take(np.concatenate([train_rows, single_rows])), dataset.take(test_rows))


def _with_training_classes(test: Dataset, train: Dataset) -> Dataset:
    """Return a test set whose labels are positions in the class names of the training set.

    The test set need not contain a row of every class.
    """
    if test.class_names == train.class_names:
        return test
    y = recode(test.y, test.class_names, train.class_names, f"{train.name}: test rows")
    return replace(test, y=y, class_names=train.class_names)


def _fill_missing(train: Dataset, test: Dataset | None) -> tuple[Dataset, Dataset | None]:
    """Return both sets. With `missing: median`, missing numbers are replaced by the medians of the training rows."""
    if train.encoding is None:
        return train, test
    encoding = train.encoding.with_medians(train.x, train.name)
    filled_sets = [rows and replace(rows, x=_filled(encoding, rows.x), encoding=encoding) for rows in (train, test)]
    assert filled_sets[0] is not None
    return filled_sets[0], filled_sets[1]


def _filled(encoding: Encoding, x: Float[np.ndarray, "row feature"]) -> Float[np.ndarray, "row feature"]:
    return mapped.map_blocks(encoding.fill, x) if mapped.is_mapped(x) else encoding.fill(x)
