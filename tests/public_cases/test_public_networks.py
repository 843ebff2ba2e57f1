"""Networks made by hand whose layers have a state or a key of their own (s6)."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest

import bnnzoo
from bnnzoo.errors import BnnzooError


def _rows() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    return x, x[:, :1]


def test_s6_batch_normalisation_is_refused_in_a_sentence():
    first, last = jax.random.split(jax.random.key(0))
    network = eqx.nn.Sequential(
        [
            eqx.nn.Linear(2, 8, key=first),
            eqx.nn.BatchNorm(8, axis_name="batch", mode="batch"),
            eqx.nn.Linear(8, 1, key=last),
        ]
    )
    with pytest.raises(BnnzooError, match="LayerNorm") as caught:
        bnnzoo.sample(network, "nuts", data=_rows(), likelihood="gaussian", warmup=5, draws=5)
    assert "\n" not in str(caught.value)


def test_s6_dropout_is_refused_in_a_sentence():
    first, last = jax.random.split(jax.random.key(0))
    network = eqx.nn.Sequential([eqx.nn.Linear(2, 8, key=first), eqx.nn.Dropout(0.1), eqx.nn.Linear(8, 1, key=last)])
    with pytest.raises(BnnzooError, match="ropout") as caught:
        bnnzoo.sample(network, "nuts", data=_rows(), likelihood="gaussian", warmup=5, draws=5)
    assert "\n" not in str(caught.value)
