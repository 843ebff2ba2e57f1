"""An unfinished run on disk: the files in its folder, and checks of their consistency.

    run.nc.parts/header.json       root attributes at the start of the run, dimensions
    run.nc.parts/data.npz          observed_data, constant_data; data-000001.npz: arrays added later
    run.nc.parts/p000-000012.npz   the draws and statistics of one chunk
    run.nc.parts/p000.json         the manifest: committed parts, digests, types and shapes; later root attributes
    run.nc.parts/checkpoint.npz    see checkpoint.py
    run.nc.parts/command.json      the command that started the run, see command.py
    run.nc.parts/lock, owner.json  see lock.py

A part file contains one chunk of draws. Each file is complete or absent, and no file that the manifest names is written
twice. Even if the writer is killed, the files therefore match the manifest and can be read. (An HDF5 file that grows
during the run may be unreadable after a kill.)
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from bnnzoo.errors import UsageError
from bnnzoo.files.atomic import write_atomically
from bnnzoo.files.shell import resume_call
from bnnzoo.finding import setting
from bnnzoo.store import checkpoint, command, npz
from bnnzoo.store.manifest import Header, Manifest, Part, Static
from bnnzoo.store.npz import Declared
from bnnzoo.store.schema import POSTERIOR, SAMPLE_STATS, WARMUP, Attributes, dims_of

HEADER, MANIFEST, HIDDEN_MANIFEST = "header.json", "p000.json", ".clearing.tmp"
"""`HIDDEN_MANIFEST` replaces `MANIFEST` while a folder is filled or cleared; the folder then contains no run."""
_OWN_FILES = re.compile(r"^(header\.json|p000\.json|command\.json|(p000|data|checkpoint)(-\d{6,9})?\.npz|\..*\.tmp)$")
_DRAWS = re.compile(r"^p000-\d{6,9}\.npz$")
_MAX_JSON = 2**26
_BLOCK_BYTES = 2**23
"""Size of a block of joined part files, in bytes. A block ends when it has at least this size."""
# fmt: off
_CONSTANT_ATTRIBUTES = frozenset({
    "bnnzoo_version", "data_sha256", "device", "exactness", "likelihood", "likelihood_power", "model", "padded_rows",
    "placement", "plugins", "precision", "row_source", "rows", "sampler", "seed", "signature", "task", "versions",
})
# fmt: on
"""Root attributes that never change during a run."""
Groups = dict[str, dict[str, np.ndarray]]
T = TypeVar("T")


class Unfinished(NamedTuple):
    """The checked header and manifest of an unfinished run. Arrays are checked when they are read."""

    folder: Path
    header: Header
    manifest: Manifest

    @property
    def attributes(self) -> Attributes:
        """Root attributes of the run."""
        return self.header.attributes | self.manifest.attributes

    @property
    def dims(self) -> dict[str, list[str]]:
        """Dimension names of the variables."""
        return self.header.dims | {
            name: dim_names for static in self.manifest.static for name, dim_names in static.dims.items()
        }

    @property
    def draws(self) -> dict[str, int]:
        """Number of draws per chain, for each group with draws."""
        totals: dict[str, int] = {}
        for part in self.manifest.parts:
            for group, count in part.draws.items():
                totals[group] = totals.get(group, 0) + count
        return totals

    def static(self) -> Groups:
        """Read the groups observed_data and constant_data.

        Raises:
            UsageError: if the files are damaged.
        """
        arrays: dict[str, np.ndarray] = {}
        self.check(0)
        for static in self.manifest.static:
            arrays |= npz.read(self.folder / static.file, _shapes(static))
        return _group_arrays(arrays)

    def parts(self) -> Iterator[tuple[Part, Groups]]:
        """Yield every part with its groups {"posterior": {name: array [chain, draw, ...]}, ...}, in order.

        Raises:
            UsageError: at the first damaged part file.
        """
        for number, part in enumerate(self.manifest.parts):
            yield part, _group_arrays(self._with_remedy(number, npz.read))

    def blocks(self) -> Iterator[tuple[dict[str, int], Groups]]:
        """Yield blocks of successive parts. A block is a pair: the draws per chain in each group, and the groups.

        Short parts are joined, because a run has hundreds of them and each block has a fixed cost for the caller.

        Raises:
            UsageError: at the first damaged part file.
        """
        waiting: list[Groups] = []
        size = 0
        for _, groups in self.parts():
            if waiting and (groups.keys() != waiting[0].keys() or size >= _BLOCK_BYTES):
                yield _join_parts(waiting)
                waiting, size = [], 0
            waiting.append(groups)
            size += sum(array.nbytes for values in groups.values() for array in values.values())
        if waiting:
            yield _join_parts(waiting)

    def check(self, num_parts: int | None = None) -> None:
        """Compare the data files and part files with the digests, sizes, types and shapes in the manifest.

        Args:
            num_parts: check only this number of part files, from the first; None checks all of them.

        Raises:
            UsageError: at the first damaged file, with the remedy.
        """
        for static in self.manifest.static:
            if reason := _difference(self.folder / static.file, static.sha256):
                remedy = f"restore it from a copy, or {command.restart_advice(self.folder, force=True)}"
                raise UsageError(f"{self.folder / static.file}: damaged ({reason}); {remedy}")
            npz.check(self.folder / static.file, _shapes(static))
        for number, part in enumerate(self.manifest.parts[:num_parts]):
            if reason := _difference(self.folder / part.file, part.sha256, part.bytes):
                remedy = self._remedy(number)
                raise UsageError(f"{self.folder / part.file}: damaged ({reason}); {remedy}")
            # A correct digest does not prove that the manifest describes the arrays correctly.
            self._with_remedy(number, npz.check)

    def checkpoint(self, num_parts: int | None = None) -> checkpoint.Checkpoint:
        """Read the newest checkpoint.

        Args:
            num_parts: read the newest readable checkpoint that needs at most this number of part files.

        Raises:
            UsageError: if there is no such checkpoint, or if `num_parts` is None and the newest checkpoint is damaged.
        """
        run, newest = self.manifest.header, self.folder / checkpoint.NEWEST
        if num_parts is None:
            if not os.path.lexists(newest):
                remedy = command.restart_advice(self.folder, force=True)
                raise UsageError(f"{self.out}: the run stopped before its first checkpoint; {remedy}")
            try:
                return checkpoint.load(newest, run=run)
            except UsageError as error:
                raise UsageError(f"{error}; {self._remedy(len(self.manifest.parts))}") from error
        earlier = next(checkpoint.readable_checkpoints(self.folder, run=run, max_parts=num_parts), None)
        if earlier is None:
            remedy = command.restart_advice(self.folder, force=True)
            raise UsageError(
                f"{self.out}: {setting('from_part', num_parts)}: there is no readable checkpoint at this or an "
                f"earlier part file; {remedy}"
            )
        return earlier

    @property
    def out(self) -> Path:
        """The NetCDF file of the run, which is written at its end."""
        return self.folder.with_name(self.folder.name.removesuffix(".parts"))

    def _remedy(self, number: int) -> str:
        """Return the remedy if part file `number` is damaged: resume from an earlier checkpoint, or start again."""
        earlier = next(checkpoint.readable_checkpoints(self.folder, run=self.manifest.header, max_parts=number), None)
        if earlier is None:
            return f"no earlier checkpoint can be read; {command.restart_advice(self.folder, force=True)}"
        call = resume_call(self.out, setting("from_part", earlier.num_parts))
        return f"go back to the last readable checkpoint with {call}"

    def _with_remedy(self, number: int, read: Callable[[Path, Mapping[str, Declared]], T]) -> T:
        """Call `read` for part file `number`. If it fails, add the remedy to the message."""
        part = self.manifest.parts[number]
        try:
            return read(self.folder / part.file, self._declared(part))
        except UsageError as error:
            raise UsageError(f"{error}; {self._remedy(number)}") from error

    def _declared(self, part: Part) -> dict[str, Declared]:
        chains, variables = self.manifest.chains, self.manifest.variables
        return {
            key: Declared(dtype, (chains, part.draws[group], *shape))
            for key, (dtype, shape) in variables.items()
            if (group := key.split("/")[0]) in part.draws
        }


def _join_parts(parts: list[Groups]) -> tuple[dict[str, int], Groups]:
    """Join successive parts with the same groups. Return the draws per chain in each group, and the joined groups."""
    joined: Groups = {
        group: {name: np.concatenate([part[group][name] for part in parts], 1) for name in values}
        for group, values in parts[0].items()
    }
    return {group: next(iter(values.values())).shape[1] for group, values in joined.items() if values}, joined


def parts_folder(out: Path) -> Path:
    """Return the folder of an unfinished run: `run.nc.parts` next to `run.nc`."""
    return out.with_name(out.name + ".parts")


def holds_run(folder: Path) -> bool:
    """Whether a folder contains an unfinished run: a manifest, or part files whose manifest was lost."""
    if os.path.lexists(folder / MANIFEST):
        return True
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return HIDDEN_MANIFEST not in names and any(map(_DRAWS.match, names))


def remove_files(folder: Path, *, keep: Collection[str] = ()) -> None:
    """Remove the files of a run from its folder, except the lock, the files in `keep`, and files of the user.

    The manifest is renamed first and removed last. If the process is killed in between, the remaining files therefore
    do not count as a run.
    """
    if MANIFEST not in keep and os.path.lexists(folder / MANIFEST):
        (folder / MANIFEST).replace(folder / HIDDEN_MANIFEST)
    for path in sorted(folder.iterdir(), key=lambda path: path.name == HIDDEN_MANIFEST):
        if _OWN_FILES.match(path.name) and path.name not in keep:
            path.unlink(missing_ok=True)


def load(folder: Path) -> Unfinished:
    """Read the header and manifest of an unfinished run.

    Raises:
        UsageError: if there is no unfinished run, or if its header and manifest are damaged or contradict each other.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise UsageError(f"{folder}: must be a folder with the part files of a run (missing, or a file, or a link)")
    if not holds_run(folder):
        raise UsageError(
            f"{folder}: contains no part files of a run; if the run stopped during its preparation, remove this folder"
        )
    manifest = _read_json(folder / MANIFEST, Manifest)
    header = _read_json(folder / HEADER, Header)
    if reason := _difference(folder / HEADER, manifest.header):
        raise damaged(folder / HEADER, f" ({reason})")
    run = Unfinished(folder, header, manifest)
    if reason := _contradiction(run):
        raise damaged(folder / MANIFEST, f": {reason}")
    return run


def damaged(path: Path, reason: str) -> UsageError:
    """Return the error for a damaged header or manifest. `reason` follows the word "damaged" in the message."""
    return UsageError(f"{path}: damaged{reason}; restore it from a copy, or start the run again with [[force=True]]")


def seal(manifest: Manifest) -> str:
    """Return the digest of a manifest, without the field `seal` that contains it."""
    return hashlib.sha256(manifest.model_dump_json(exclude={"seal"}).encode()).hexdigest()


def _contradiction(run: Unfinished) -> str:
    """Return a message about the first contradiction in the header and the manifest; empty if there is none."""
    manifest, groups = run.manifest, {key.split("/")[0] for key in run.manifest.variables}
    if changed := _CONSTANT_ATTRIBUTES & set(manifest.attributes):
        return f"it contains attributes that only {HEADER} may contain: {', '.join(sorted(changed))}"
    if [part.file for part in manifest.parts] != [part_name(number) for number in range(len(manifest.parts))]:
        return "part files are missing, or in a wrong order"
    for part in manifest.parts:
        for prefix in ("", WARMUP):
            draws = {part.draws.get(group, 0) for group in {prefix + POSTERIOR, prefix + SAMPLE_STATS} & groups}
            if len(draws) > 1 or not set(part.draws) <= groups:
                return f"{part.file} contains different numbers of draws and statistics"
    sizes: dict[tuple[str, str], int] = {}
    arrays = [(key, shape, 2) for key, (_, shape) in manifest.variables.items()]
    arrays += [(key, shape, 0) for static in manifest.static for key, (_, shape) in static.arrays.items()]
    for key, shape, skip in arrays:
        group, name = key.split("/", 1)
        names = dims_of(name, len(shape) + skip, run.dims, skip=skip)
        if len(set(names)) < len(names):
            return f"two dimensions of {ascii(name)[1:-1]} have the same name"
        for dim, size in zip(names, shape, strict=True):
            if sizes.setdefault((group, dim), size) != size:
                return f"the dimension {ascii(dim)[1:-1]} has two sizes"
    return "" if manifest.seal == seal(manifest) else "its attributes were changed after they were written"


def part_name(number: int) -> str:
    """Return the name of the part file with this number."""
    return f"p000-{number:06d}.npz"


def write_json(path: Path, model: BaseModel) -> None:
    """Write a header or a manifest, completely or not at all."""
    write_atomically(path, lambda file: file.write(model.model_dump_json().encode()))


def describe_arrays(arrays: Mapping[str, np.ndarray], *, skip: int = 0) -> dict[str, tuple[str, list[int]]]:
    """Return the type and shape of each array, without its first `skip` dimensions, for the manifest."""
    return {key: (array.dtype.name, list(array.shape[skip:])) for key, array in arrays.items()}


def flatten_groups(groups: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the arrays of all groups in one mapping with keys "group/name"."""
    return {f"{group}/{name}": array for group, values in groups.items() for name, array in values.items()}


def _shapes(static: Static) -> dict[str, Declared]:
    return {key: Declared(*declared) for key, declared in static.arrays.items()}


def _group_arrays(arrays: Mapping[str, np.ndarray]) -> Groups:
    groups: Groups = {}
    for key, array in arrays.items():
        group, name = key.split("/", 1)
        groups.setdefault(group, {})[name] = array
    return groups


def _difference(path: Path, digest: str, size: int | None = None) -> str:
    """Return a message if a file differs from its digest or size in the manifest; empty if it does not."""
    try:
        num_bytes = npz.check_regular(path)
    except UsageError as error:
        return str(error).removeprefix(f"{path}: ")
    if size is not None and num_bytes != size:
        return f"{num_bytes} bytes long, expected {size}"
    return "" if npz.sha256(path) == digest else f"its sha256 differs from the value in {MANIFEST}"


def _read_json(path: Path, kind: type[Any]) -> Any:
    if npz.check_regular(path) > _MAX_JSON:
        raise damaged(path, f" (larger than {_MAX_JSON} bytes)")
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(key)[:80] for key in first["loc"])
        raise damaged(path, f" ({place + ': ' if place else ''}{first['msg']})") from error
