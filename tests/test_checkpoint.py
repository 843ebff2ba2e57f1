"""Checkpoints: what goes in comes out, and nothing else is believed."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bnnzoo.errors import UsageError
from bnnzoo.store.checkpoint import Checkpoint, load, read_words, save


class Tree(NamedTuple):
    position: object
    count: object
    key: object


def _tree(dtype=np.float32, size=3):
    keys = jax.random.split(jax.random.key(7, impl="threefry2x32"), 2)
    return Tree(np.arange(2 * size, dtype=dtype).reshape(2, size), np.array([True, False]), keys)


def _checkpoint(tree):
    return Checkpoint(tree, 17, 3, {"batch_size": 5}, {"compile": 0.1}, {"sigma2": [1.5, 4.0]})


def test_round_trip(tmp_path):
    path = tmp_path / "checkpoint.npz"
    tree = _tree()
    save(path, _checkpoint(tree))
    found = load(path, jax.eval_shape(lambda: jax.tree.map(jnp.asarray, tree)))
    assert found._replace(carry=None) == _checkpoint(None)
    np.testing.assert_array_equal(found.carry.position, tree.position)
    np.testing.assert_array_equal(found.carry.count, tree.count)
    assert found.carry.position.dtype == np.float32
    np.testing.assert_array_equal(jax.random.key_data(found.carry.key), jax.random.key_data(tree.key))
    assert read_words(path)["next_step"] == 17
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.npz"]


@pytest.mark.parametrize("other", [_tree(size=4), _tree(dtype=np.float64), _tree()._replace(count=(np.zeros(2),) * 2)])
def test_another_shape_is_refused(other, tmp_path):
    path = tmp_path / "checkpoint.npz"
    save(path, _checkpoint(_tree()))
    with pytest.raises(UsageError, match="start the run again"):
        load(path, other)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "checkpoint.npz"
    for content in (b"", b"not a zip", b"PK\x03\x04 half a zip"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"not a checkpoint .*--force"):
            load(path, _tree())
    np.savez(path, other=np.zeros(3))
    with pytest.raises(UsageError, match="not a checkpoint"):
        load(path, _tree())
    with pytest.raises(UsageError, match="not a checkpoint"):
        load(tmp_path / "gone.npz", _tree())


def test_a_truncated_checkpoint_is_refused(tmp_path):
    path = tmp_path / "checkpoint.npz"
    save(path, _checkpoint(_tree()))
    content = path.read_bytes()
    for length in range(1, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(UsageError, match="not a checkpoint"):
            load(path, _tree())


class Bomb:
    went_off = False

    def __reduce__(self):
        return (setattr, (Bomb, "went_off", True))


def test_nothing_is_unpickled(tmp_path):
    path = tmp_path / "checkpoint.npz"
    np.savez(path, words=np.array([Bomb()], dtype=object), leaf_0000=np.zeros(1))
    with pytest.raises(UsageError, match="not a checkpoint"):
        load(path, _tree())
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UsageError, match="not a checkpoint"):
        read_words(path)
    assert not Bomb.went_off
