"""Training and test rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bnnzoo.data.dataset import Dataset
from bnnzoo.errors import UsageError


def split(dataset: Dataset, *, test_fraction: float, seed: int) -> tuple[Dataset, Dataset | None]:
    """(training set, test set), the same for the same seed.

    `test_fraction` 0: every row trains and there is no test set. A data set with a test set of its own keeps
    it, whatever the fraction. Otherwise ceil(test_fraction * N) rows drawn at random are the test set, in the
    class proportions of the whole where every class has two rows and both parts have room for every class.
    """
    if not 0 <= test_fraction < 1:
        raise UsageError(f"test fraction {test_fraction}: it must be at least 0 and below 1")
    if test_fraction == 0:
        return _filled(replace(dataset, test=None), None)
    if dataset.test is not None:
        return _filled(replace(dataset, test=None), dataset.test)
    num_test = math.ceil(test_fraction * dataset.num_data)
    num_train = dataset.num_data - num_test
    if num_train < 1:
        raise UsageError(
            f"{dataset.name}: {dataset.num_data} rows leave none to train on "
            f"at test fraction {test_fraction}; use --test-fraction 0"
        )

    from sklearn.model_selection import train_test_split

    stratify = None
    if dataset.task == "classification":
        counts = np.bincount(dataset.y, minlength=dataset.num_classes)
        if counts.min() >= 2 and min(num_train, num_test) >= dataset.num_classes:
            stratify = dataset.y
    train_rows, test_rows = train_test_split(
        np.arange(dataset.num_data),
        train_size=num_train,
        test_size=num_test,
        shuffle=True,
        random_state=seed,
        stratify=stratify,
    )
    return _filled(dataset.take(train_rows), dataset.take(test_rows))


def _filled(train: Dataset, test: Dataset | None) -> tuple[Dataset, Dataset | None]:
    """Both with what is missing filled in by medians of the training rows, where that was asked for."""
    if train.encoding is None:
        return train, test
    encoding = train.encoding.filled(train.x)
    both = [rows and replace(rows, x=encoding.fill(rows.x), encoding=encoding) for rows in (train, test)]
    assert both[0] is not None
    return both[0], both[1]
