"""Checkpoints: loading restores what was saved, and other files are refused."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bnnzoo.errors import UsageError
from bnnzoo.sampling.loop import carry
from bnnzoo.store import checkpoint
from bnnzoo.store.checkpoint import Checkpoint, load, readable_checkpoints, save


class Tree(NamedTuple):
    position: object
    count: object
    key: object


def _tree(dtype=np.float32, size=3):
    keys = jax.random.split(jax.random.key(7, impl="threefry2x32"), 2)
    return Tree(np.arange(2 * size, dtype=dtype).reshape(2, size), np.array([True, False]), keys)


def _checkpoint(tree, num_parts=3):
    records = {"batch_size": 5}, {"compile": 0.1}, {"sigma2": [1.5, 4.0]}
    return Checkpoint(carry.flatten(tree), 17, num_parts, *records)


def test_a_checkpoint_reads_back_as_it_was_written(tmp_path):
    tree = _tree()
    save(tmp_path, _checkpoint(tree, 0), run="this", keep=True)
    save(tmp_path, _checkpoint(tree, 0), run="this")
    loaded_data = load(tmp_path / "checkpoint.npz", run="this")
    assert loaded_data._replace(arrays={}) == _checkpoint(tree, 0)._replace(arrays={})
    assert set(loaded_data.arrays) == {"position", "count", "key"}
    restored_tree = carry.restore(loaded_data.arrays, jax.eval_shape(lambda: jax.tree.map(jnp.asarray, tree)))
    np.testing.assert_array_equal(restored_tree.position, tree.position)
    np.testing.assert_array_equal(restored_tree.count, tree.count)
    assert restored_tree.position.dtype == np.float32
    np.testing.assert_array_equal(jax.random.key_data(restored_tree.key), jax.random.key_data(tree.key))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-000000.npz", "checkpoint.npz"]


@pytest.mark.parametrize("other", [_tree(size=4), _tree(dtype=np.float64), _tree()._replace(count=(np.zeros(2),) * 2)])
def test_another_shape_is_refused(other):
    with pytest.raises(UsageError, match="start the run again"):
        carry.restore(carry.flatten(_tree()), other)


def test_earlier_checkpoints_are_kept_each_time_the_parts_have_doubled(tmp_path):
    for number in range(40):
        save(tmp_path, _checkpoint(_tree(), number), run="this", keep=number == 0)
    assert sorted(checkpoint.kept_checkpoints(tmp_path)) == [0, 1, 2, 4, 8, 16, 32]
    assert next(readable_checkpoints(tmp_path, run="this")).num_parts == 39
    assert next(readable_checkpoints(tmp_path, run="this", max_parts=31)).num_parts == 16
    (tmp_path / "checkpoint-000016.npz").write_bytes(b"damaged")
    assert next(readable_checkpoints(tmp_path, run="this", max_parts=31)).num_parts == 8
    checkpoint.remove_checkpoints(tmp_path, beyond=4)
    assert sorted(checkpoint.kept_checkpoints(tmp_path)) == [0, 1, 2, 4]


def test_a_file_system_without_links_keeps_them_too(tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    save(tmp_path, _checkpoint(_tree()), run="this")
    assert load(tmp_path / "checkpoint-000003.npz", run="this").num_parts == 3


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "checkpoint.npz"
    for content in (b"", b"not a zip", b"PK\x03\x04 half a zip"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"checkpoint\.npz: damaged"):
            load(path, run="this")
    np.savez(path, other=np.zeros(3))
    with pytest.raises(UsageError, match="its header does not describe a checkpoint"):
        load(path, run="this")
    with pytest.raises(UsageError, match="damaged"):
        load(tmp_path / "gone.npz", run="this")


def test_another_runs_checkpoint_is_refused(tmp_path):
    save(tmp_path, _checkpoint(_tree()), run="that")
    with pytest.raises(UsageError, match="belongs to another run"):
        load(tmp_path / "checkpoint.npz", run="this")
    assert list(readable_checkpoints(tmp_path, run="this")) == []


def test_a_damaged_checkpoint_is_refused(tmp_path):
    """The checkpoint is truncated, or one bit is flipped; a flipped bit is detected or has no effect."""
    path = tmp_path / "checkpoint.npz"
    save(tmp_path, _checkpoint(_tree()), run="this")
    content = path.read_bytes()
    for length in range(1, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(UsageError, match="damaged"):
            load(path, run="this")
    refused = 0
    for place in range(0, len(content), 11):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        try:
            loaded_data = load(path, run="this")
        except UsageError:
            refused += 1
            continue
        assert loaded_data._replace(arrays={}) == _checkpoint(_tree())._replace(arrays={})
        for name, array in carry.flatten(_tree()).items():
            np.testing.assert_array_equal(loaded_data.arrays[name], array)
    assert refused > 50


class Bomb:
    went_off = False

    def __reduce__(self):
        return (setattr, (Bomb, "went_off", True))


def test_nothing_is_unpickled(tmp_path):
    path = tmp_path / "checkpoint.npz"
    np.savez(path, words=np.array([Bomb()], dtype=object), position=np.zeros(1))
    with pytest.raises(UsageError, match="damaged"):
        load(path, run="this")
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UsageError, match="damaged"):
        load(path, run="this")
    assert not Bomb.went_off
