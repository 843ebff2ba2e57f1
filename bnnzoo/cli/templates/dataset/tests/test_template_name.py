"""Tests that the data set is registered, reproducible, and can be split."""

import numpy as np
from bnnzoo.data import split
from bnnzoo.plugins import registry

from bnnzoo_template_name.dataset import load


def test_is_registered():
    assert registry.load("datasets", "template-name") is load


def test_is_reproducible():
    first, second = load(), load()
    np.testing.assert_array_equal(first.x, second.x)
    np.testing.assert_array_equal(first.y, second.y)


def test_can_be_split():
    dataset = load()
    train, test = split(dataset, test_fraction=0.1, seed=0)
    assert test is not None
    assert train.num_data + test.num_data == dataset.num_data
    assert train.signature == test.signature == dataset.signature
