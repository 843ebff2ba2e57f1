"""Training and test rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bnnzoo.data.dataset import Dataset
from bnnzoo.data.targets import recoded
from bnnzoo.errors import UsageError


def split(dataset: Dataset, *, test_fraction: float, seed: int) -> tuple[Dataset, Dataset | None]:
    """(training set, test set), the same for the same seed.

    `test_fraction` 0: every row trains and there is no test set. A data set with a test set of its own keeps
    it, whatever the fraction. Otherwise ceil(test_fraction * N) rows drawn at random are the test set, in the
    class proportions of the whole where both parts have room for every class; the one row of a class trains.
    """
    if not 0 <= test_fraction < 1:
        raise UsageError(f"test fraction {test_fraction}: it must be at least 0 and below 1")
    if test_fraction == 0:
        return _filled(replace(dataset, test=None), None)
    if dataset.test is not None:
        return _filled(replace(dataset, test=None), _alike(dataset.test, dataset))
    num_test = math.ceil(test_fraction * dataset.num_data)
    num_train = dataset.num_data - num_test
    if num_train < 1:
        raise UsageError(
            f"{dataset.name}: {dataset.num_data} rows leave none to train on "
            f"at test fraction {test_fraction}; use --test-fraction 0"
        )

    from sklearn.model_selection import train_test_split

    rows, lone, stratify = np.arange(dataset.num_data), np.arange(0), None
    if dataset.task == "classification":
        counts = np.bincount(dataset.y, minlength=dataset.num_classes)
        seen = np.sum(counts >= 2)
        # Of a class with one row nothing could be learned, were it tested on.
        if len(single := np.flatnonzero(counts[dataset.y] == 1)) < num_train and len(rows) - len(single) > num_test:
            rows, lone = np.setdiff1d(rows, single), single
            if min(num_train - len(lone), num_test) >= seen:
                stratify = dataset.y[rows]
    train_rows, test_rows = train_test_split(
        rows,
        train_size=num_train - len(lone),
        test_size=num_test,
        shuffle=True,
        random_state=seed,
        stratify=stratify,
    )
    return _filled(dataset.take(np.concatenate([train_rows, lone])), dataset.take(test_rows))


def _alike(test: Dataset, train: Dataset) -> Dataset:
    """A test set with the codes of the training set's classes: its own rows may lack one."""
    if test.class_names == train.class_names:
        return test
    y = recoded(test.y, test.class_names, train.class_names, f"{train.name}: test rows")
    return replace(test, y=y, class_names=train.class_names)


def _filled(train: Dataset, test: Dataset | None) -> tuple[Dataset, Dataset | None]:
    """Both with what is missing filled in by medians of the training rows, where that was asked for."""
    if train.encoding is None:
        return train, test
    encoding = train.encoding.filled(train.x, train.name)
    both = [rows and replace(rows, x=encoding.fill(rows.x), encoding=encoding) for rows in (train, test)]
    assert both[0] is not None
    return both[0], both[1]
