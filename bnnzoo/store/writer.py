"""The writer of one run: part files (chunks of draws) during the run, and the NetCDF file at its end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from bnnzoo.errors import BnnzooError, BusyError, UsageError
from bnnzoo.files.atomic import check_free, sync_folder
from bnnzoo.files.shell import resume_call
from bnnzoo.store import checkpoint, command, netcdf, npz, reading, run_parts
from bnnzoo.store.attributes import find_fault, with_digests
from bnnzoo.store.checkpoint import Checkpoint
from bnnzoo.store.command import COMMAND, Command
from bnnzoo.store.lock import RunLock
from bnnzoo.store.run_parts import (
    HEADER,
    HIDDEN_MANIFEST,
    MANIFEST,
    Header,
    Manifest,
    Part,
    Static,
    Unfinished,
    parts_folder,
)
from bnnzoo.store.schema import Attributes, Dims, Group

_LONGEST_NAME = 255
"""Longest file name in bytes on common file systems."""


class Store:
    """The part files of one run, and the lock of the run.

    Groups are arguments of the form {"posterior": {name: array [chain, draw, ...]}, "sample_stats": ...}.
    """

    def __init__(self, out: Path):
        self.out, self.folder = out, parts_folder(out)
        self._lock = RunLock(out, self.folder)
        self._run: Unfinished | None = None
        self._manifest_name = MANIFEST
        self._started_by: Command | None = None

    @property
    def run(self) -> Unfinished:
        """Header and manifest of the run, as they are on disk."""
        assert self._run is not None, "call create or reopen first"
        return self._run

    @property
    def num_parts(self) -> int:
        """Number of part files in the manifest."""
        return len(self.run.manifest.parts)

    def claim(self, *, force: bool, started_by: Command | None = None) -> None:
        """Lock the folder, so that no other process can start this run. Call this method before any slow work.

        Args:
            force: replace an existing file or unfinished run.
            started_by: the command of the run. Messages show this command if the run must be started again.

        Raises:
            UsageError: if the file or an unfinished run exists and `force` is false, if `out` cannot be written, or if
                another process is writing the run.
        """
        refuse_existing(self.out, force=force)
        try:
            self._lock.acquire()
            # another process may have started a run before the lock was acquired
            refuse_existing(self.out, force=force)
            self._started_by = started_by
            # An unfinished run keeps its own command until `create` replaces the run.
            if started_by is not None and not run_parts.holds_run(self.folder):
                command.write(self.folder, started_by)
        except BnnzooError:
            self.release()
            raise

    def create(
        self,
        attributes: Attributes,
        dims: Dims,
        static: Mapping[str, Group],
        *,
        variable_attributes: Mapping[str, Attributes] | None = None,
        is_hidden: bool = False,
    ) -> None:
        """Write the first files of a new run. Call `claim` first.

        Args:
            attributes: root attributes.
            dims: dimension names by variable.
            static: groups without draws, such as constant_data.
            variable_attributes: attributes of the variables of sample_stats, by variable.
            is_hidden: whether readers find no run in the folder until `reveal` is called.
        """
        self._lock.check()
        run_parts.remove_files(self.folder, keep={COMMAND} if self._started_by else ())
        if self._started_by is not None:
            command.write(self.folder, self._started_by)
        arrays = run_parts.flatten_groups(static)
        npz.write(self.folder / "data.npz", arrays)
        header = Header(
            attributes=dict(attributes),
            dims={name: list(names) for name, names in dims.items()},
            variable_attributes={
                name: dict(named_attributes) for name, named_attributes in (variable_attributes or {}).items()
            },
        )
        run_parts.write_json(self.folder / HEADER, header)
        data_file = Static(
            file="data.npz", sha256=npz.sha256(self.folder / "data.npz"), arrays=run_parts.describe_arrays(arrays)
        )
        manifest = Manifest(header=npz.sha256(self.folder / HEADER), static=[data_file])
        self._run = Unfinished(self.folder, header, manifest)
        self._manifest_name = HIDDEN_MANIFEST if is_hidden else MANIFEST
        self._publish()

    def reveal(self) -> None:
        """Make a hidden run (see `create`) an unfinished run, which other processes can read and resume."""
        (self.folder / self._manifest_name).replace(self.folder / MANIFEST)
        self._manifest_name = MANIFEST
        sync_folder(self.folder)

    def reopen(self, num_parts: int, *, expected: Unfinished | None = None, break_lock: bool = False) -> None:
        """Continue an unfinished run after its first `num_parts` part files, and remove later part files.

        The run continues from the newest readable checkpoint that needs only the kept part files.

        Args:
            num_parts: number of part files to keep: `Checkpoint.num_parts` of the checkpoint.
            expected: the run as it was when its checkpoint was read, before the lock was taken.
            break_lock: take the lock from another process that is no longer active.

        Raises:
            UsageError: if there is no unfinished run, if another process is writing the run, or if the run has changed
                since `expected` was read.
        """
        if not run_parts.holds_run(self.folder):
            raise UsageError(f"{self.out}: no unfinished run has this path ({self.folder.name} is missing)")
        self._lock.acquire(break_stale=break_lock)
        try:
            self._run = run_parts.load(self.folder)
            if expected is not None and _identity(expected) != _identity(self.run):
                raise BusyError(f"{self.out}: another process has just continued this run; try again")
            # The newest checkpoint must never need a part file that the manifest does not name.
            checkpoint.go_back(self.folder, run=self.run.manifest.header, num_parts=num_parts)
        except BnnzooError:
            self.release()
            raise
        del self.run.manifest.parts[num_parts:]
        # The manifest is written before the part files are removed, because it must never name a missing file.
        self._publish()
        manifest = self.run.manifest
        committed_files = {committed.file for committed in [*manifest.static, *manifest.parts]}
        # The checkpoints stay: if the process is killed before its first checkpoint, the run continues from them again.
        checkpoint_files = {path.name for path in checkpoint.kept_checkpoints(self.folder).values()}
        kept_files = {HEADER, MANIFEST, COMMAND, checkpoint.NEWEST} | committed_files | checkpoint_files
        run_parts.remove_files(self.folder, keep=kept_files)

    def append(self, groups: Mapping[str, Group]) -> None:
        """Write one chunk of draws as a part file, and then add it to the manifest."""
        self._lock.check()
        manifest, arrays = self.run.manifest, run_parts.flatten_groups(groups)
        name = run_parts.part_name(len(manifest.parts))
        path = self.folder / name
        npz.write(path, arrays)
        draws = {group: next(iter(values.values())).shape[1] for group, values in groups.items() if values}
        manifest.chains = next(iter(arrays.values())).shape[0]
        manifest.variables |= run_parts.describe_arrays(arrays, skip=2)
        manifest.parts.append(Part(file=name, bytes=path.stat().st_size, sha256=npz.sha256(path), draws=draws))
        self._publish()

    def add_static(self, group: str, values: Group, dims: Dims) -> None:
        """Write a group without draws, such as constant_data, to a new file. It replaces arrays of the same name."""
        self._lock.check()
        manifest, arrays = self.run.manifest, run_parts.flatten_groups({group: values})
        name = f"data-{1 + max(int('0' + static.file[5:-4]) for static in manifest.static):06d}.npz"
        npz.write(self.folder / name, arrays)
        descriptions = run_parts.describe_arrays(arrays)
        dim_names = {variable: list(names) for variable, names in dims.items()}
        static = Static(file=name, sha256=npz.sha256(self.folder / name), arrays=descriptions, dims=dim_names)
        manifest.static = [*(file for file in manifest.static if not set(file.arrays) <= set(descriptions)), static]
        self._publish()

    def save(self, state: Checkpoint, *, keep: bool = False) -> None:
        """Write a checkpoint after all part files so far. If `keep` is true, later checkpoints do not replace it."""
        self._lock.check()
        checkpoint.save(self.folder, state, run=self.run.manifest.header, keep=keep)

    def values(self, group: str, name: str) -> np.ndarray:
        """Read all draws of a variable so far, with shape [chain, draw, ...]."""
        return np.concatenate([groups[group][name] for _, groups in self.run.parts() if group in groups], 1)

    def update(self, attributes: Attributes) -> None:
        """Set root attributes.

        Raises:
            BnnzooError: if a file with these values would be unreadable. The files on disk are then unchanged.
        """
        self._lock.check()
        if reason := find_fault(self.run.attributes | attributes):
            raise BnnzooError(f"{self.out}: the file would be unreadable: {reason}")
        self.run.manifest.attributes.update(attributes)
        self._publish()

    def finish(self, *, complete: bool, last: Callable[[], Attributes] = dict) -> None:
        """Build the NetCDF file from the part files. If the run is complete, remove the part files.

        The file of an incomplete run never replaces the file of a complete run.

        Args:
            complete: whether the run has all its draws.
            last: a function that returns further root attributes. It is called after all arrays are written, because
                the attribute `seconds_writing` contains the time of writing them.
        """
        if complete or not reading.is_complete(self.out):
            attributes = {**self.run.attributes, "complete": int(complete)}
            last_state = checkpoint.as_group(self.folder) if complete else {}
            netcdf.build(self.run, self.out, lambda: with_digests(attributes | last()), last_state)
        if complete:
            run_parts.remove_files(self.folder)
        self.release()

    def abandon(self) -> None:
        """Remove the part files of a run that ended with an error before its first step."""
        run_parts.remove_files(self.folder)

    def release(self) -> None:
        """Release the lock. If the folder contains no unfinished run and no other files, remove the folder too."""
        is_empty = not run_parts.holds_run(self.folder)
        if is_empty and self._lock.is_held:
            (self.folder / COMMAND).unlink(missing_ok=True)
        self._lock.release(remove=is_empty)

    def _publish(self) -> None:
        self.run.manifest.seal = run_parts.seal(self.run.manifest)
        run_parts.write_json(self.folder / self._manifest_name, self.run.manifest)


def _identity(run: Unfinished) -> tuple[str, list[str]]:
    """Return the digests of the header and of the part files, which identify a run and the draws so far."""
    return run.manifest.header, [part.sha256 for part in run.manifest.parts]


def discard(out: Path, *, finished: bool) -> None:
    """Remove the unfinished run of `out`. If `finished` is true, remove the file `out` too.

    Raises:
        UsageError: if another process is writing the run.
    """
    run = Store(out)
    run.claim(force=True)
    run_parts.remove_files(run.folder)
    if finished:
        out.unlink(missing_ok=True)
    run.release()


def remove_unfinished(out: Path) -> None:
    """Remove the unfinished run of `out`, if one exists. When resumed, it would replace a new file at `out`.

    Raises:
        UsageError: if another process is writing the run.
    """
    if run_parts.holds_run(parts_folder(out)):
        discard(out, finished=False)


def refuse_existing(out: Path, *, force: bool = False, remedy: str = "another [[out]], or [[force=True]]") -> None:
    """Check that a run can be written to `out`.

    Args:
        out: the file to write.
        force: whether an existing file or unfinished run may be replaced.
        remedy: the remedy in the message if the file or an unfinished run exists.

    Raises:
        UsageError: if `out` cannot be written, or if `force` is false and `out` or an unfinished run exists.
    """
    folder = parts_folder(out)
    if any(len(os.fsencode(name)) > _LONGEST_NAME for name in folder.parts):
        raise UsageError(f"{out}: its name is too long; use a shorter [[out]]")
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(
            f"{folder}: must be a folder, because the draws are written there during the run; remove this file, or "
            "use another [[out]]"
        )
    if run_parts.holds_run(folder) and not force:
        raise UsageError(
            f"{out}: an unfinished run is here; continue it with {resume_call(out)}, or use {remedy} to replace it"
        )
    check_free(out, force=force, remedy=remedy)


def check_room(
    out: Path,
    num_bytes: int,
    *,
    remedy: str = "use fewer [[draws]], fewer [[chains]], another [[out]], or [[force=True]]",
) -> None:
    """Check that the disk has enough free space for twice the draws (part files and final file).

    Args:
        out: the file to write.
        num_bytes: size of all draws.
        remedy: the remedy in the message if there is too little space.

    Raises:
        UsageError: if the folder does not exist, or if there is too little space. The message gives both sizes.
    """
    folder = out.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{out}: the folder {folder} does not exist; create it, or use another [[out]]")
    free = shutil.disk_usage(folder).free
    # Twice the size, because the part files and the final file exist at the same time.
    if 2 * num_bytes > free:
        raise UsageError(
            f"{out}: writing needs {2 * num_bytes / 1e9:.3g} GB, but only {free / 1e9:.3g} GB are free; {remedy}"
        )
