"""The carry on disk: all that the next step depends on, as one .npz without pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bnnzoo.errors import UsageError
from bnnzoo.store.atomic import write_whole


class Checkpoint(NamedTuple):
    """A run's state between two chunks."""

    carry: PyTree
    next_step: int
    num_parts: int
    tuned: dict[str, Any]
    """Sampler fields that `tune` changed."""
    seconds: dict[str, float]
    totals: dict[str, list[float]]
    """Sums of the statistics so far, for the verdict."""


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all."""
    leaves = {
        f"leaf_{i:04d}": np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        for i, leaf in enumerate(jax.tree.leaves(checkpoint.carry))
    }
    words = json.dumps(checkpoint._replace(carry=None)._asdict()).encode()
    write_whole(path, lambda file: np.savez(file, words=np.frombuffer(words, np.uint8), **leaves))  # type: ignore[arg-type]


def load(path: Path, template: PyTree) -> Checkpoint:
    """Read a checkpoint whose carry has the structure, shapes and types of `template`.

    Raises:
        UsageError: when the file does not fit the recipe it lies beside.
    """
    words, arrays = _read(path)
    wanted, structure = jax.tree.flatten(template)
    if len(arrays) != len(wanted):
        raise UsageError(f"{path}: holds {len(arrays)} arrays where the recipe has {len(wanted)}; start the run again")
    leaves = []
    for i, leaf in enumerate(wanted):
        array = arrays[f"leaf_{i:04d}"]
        if _is_key(leaf):
            leaves.append(jax.random.wrap_key_data(jnp.asarray(array), impl="threefry2x32"))
            continue
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise UsageError(
                f"{path}: array {i} is {array.dtype}{list(array.shape)}, not {leaf.dtype}{list(leaf.shape)}; "
                "start the run again"
            )
        leaves.append(array)
    return Checkpoint(**{**words, "carry": jax.tree.unflatten(structure, leaves)})


def read_words(path: Path) -> dict[str, Any]:
    """What a checkpoint says besides its arrays."""
    return _read(path)[0]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return json.loads(arrays.pop("words").tobytes()), arrays
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise UsageError(f"{path}: not a checkpoint ({error}); start the run again with --force") from error


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
