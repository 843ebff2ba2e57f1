"""Checkpoints on disk: named arrays and a JSON header. The sampling loop chooses the arrays and their names."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import FiniteFloat, TypeAdapter

from bnnzoo.errors import UsageError
from bnnzoo.files.atomic import copy_atomically
from bnnzoo.store import npz
from bnnzoo.store.schema import CHECKPOINT_BYTES, FINAL_STATE

NEWEST = "checkpoint.npz"
_KEPT_NAME = re.compile(r"^checkpoint-\d{6,9}\.npz$")
_HEADER = "words"


class Checkpoint(NamedTuple):
    """State of a run between two chunks of draws."""

    arrays: Mapping[str, np.ndarray]
    next_step: int
    num_parts: int
    """Number of part files when the checkpoint was written. `resume` computes the draws of later part files again."""
    tuned: dict[str, int | FiniteFloat | str | bool]
    """Sampler fields that the methods `choose` and `tune` of the sampler changed, with their new values."""
    seconds: dict[str, float]
    totals: dict[str, list[float]]
    """Sum of each statistic over the steps so far, one number per chain. Findings are computed from these sums."""


class _CheckpointHeader(NamedTuple):
    next_step: int
    num_parts: int
    tuned: dict[str, int | FiniteFloat | str | bool]
    seconds: dict[str, float]
    totals: dict[str, list[float]]
    run: str
    sha256: str


def save(folder: Path, checkpoint: Checkpoint, *, run: str, keep: bool = False) -> None:
    """Write a checkpoint, completely or not at all.

    If a part file is damaged later, the run can go back to an earlier checkpoint. A copy of the checkpoint is therefore
    stored each time the number of part files has doubled, and also if `keep` is true.

    Args:
        folder: the folder of the part files.
        checkpoint: the state to write.
        run: digest of the header of the run; the digest identifies the run.
        keep: store a copy that later checkpoints do not replace.
    """
    header = {key: value for key, value in checkpoint._asdict().items() if key != "arrays"} | {"run": run}
    text = json.dumps(header | {"sha256": _digest(checkpoint.arrays)}).encode()
    npz.write(folder / NEWEST, {**checkpoint.arrays, _HEADER: np.frombuffer(text, np.uint8)})
    last = max(kept_checkpoints(folder), default=-1)
    if keep or checkpoint.num_parts >= max(1, 2 * last):
        _keep(folder, checkpoint.num_parts)


def load(path: Path, *, run: str | None = None) -> Checkpoint:
    """Read a checkpoint.

    Args:
        path: the file.
        run: digest of the header of the run to which the checkpoint must belong; None accepts any run.

    Raises:
        UsageError: if the checkpoint is missing or damaged, or if it belongs to another run.
    """
    arrays = npz.read(path)
    try:
        header = TypeAdapter(_CheckpointHeader).validate_json(arrays.pop(_HEADER, np.zeros(0, np.uint8)).tobytes())
    except ValueError as error:
        raise UsageError(f"{path}: damaged (its header does not describe a checkpoint)") from error
    if header.sha256 != _digest(arrays):
        raise UsageError(f"{path}: damaged (its arrays were changed after they were written)")
    if run is not None and header.run != run:
        raise UsageError(f"{path}: belongs to another run")
    return Checkpoint(arrays, *header[:-2])


def as_group(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return the group `final_state`, which stores the newest checkpoint in the file of a run; empty if none exists."""
    path = folder / NEWEST
    if not path.is_file():
        return {}
    return {FINAL_STATE: {CHECKPOINT_BYTES: np.frombuffer(path.read_bytes(), np.uint8)}}


def kept_checkpoints(folder: Path) -> dict[int, Path]:
    """Return the path of each copy that `save` has kept. The key is the number of part files when it was written."""
    names = sorted(entry.name for entry in os.scandir(folder) if _KEPT_NAME.match(entry.name))
    return {int(name[len("checkpoint-") : -len(".npz")]): folder / name for name in names}


def has_checkpoint(folder: Path) -> bool:
    """Whether the folder has a checkpoint, readable or damaged."""
    return os.path.lexists(folder / NEWEST) or bool(kept_checkpoints(folder))


def readable_checkpoints(folder: Path, *, run: str, max_parts: int | None = None) -> Iterator[Checkpoint]:
    """Yield every readable checkpoint of the run that needs at most `max_parts` part files, newest first."""
    paths = [folder / NEWEST, *(path for _, path in sorted(kept_checkpoints(folder).items(), reverse=True))]
    for path in paths:
        with suppress(UsageError):
            checkpoint = load(path, run=run)
            if max_parts is None or checkpoint.num_parts <= max_parts:
                yield checkpoint


def go_back(folder: Path, *, run: str, num_parts: int) -> None:
    """Go back to the newest readable checkpoint that needs at most `num_parts` part files.

    This checkpoint replaces the file of the newest checkpoint, which may be damaged or may need later part files. Other
    checkpoints that need later part files are removed. The run then continues from the restored checkpoint.
    """
    for checkpoint in readable_checkpoints(folder, run=run, max_parts=num_parts):
        save(folder, checkpoint, run=run)
        break
    remove_checkpoints(folder, beyond=num_parts)


def remove_checkpoints(folder: Path, *, beyond: int) -> None:
    """Remove the kept checkpoints that need more than `beyond` part files."""
    for number, path in kept_checkpoints(folder).items():
        if number > beyond:
            path.unlink(missing_ok=True)


def _keep(folder: Path, number: int) -> None:
    """Give the newest checkpoint a second name, which the next checkpoint does not replace."""
    path = folder / f"checkpoint-{number:06d}.npz"
    path.unlink(missing_ok=True)
    try:
        os.link(folder / NEWEST, path)
    except OSError:  # the file system has no hard links
        copy_atomically(folder / NEWEST, path)


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
