"""An unfinished run on disk: what its folder holds, and how much of that can be believed.

    run.nc.parts/header.json       what the run is: root attributes, dimensions
    run.nc.parts/data.npz          observed_data, constant_data; data-000001.npz: what was added later
    run.nc.parts/p000-000012.npz   the draws and statistics of one chunk
    run.nc.parts/p000.json         the manifest: which of these count, their digests, what each must hold
    run.nc.parts/checkpoint.npz    see checkpoint.py
    run.nc.parts/command.json      the command that started the run, see command.py
    run.nc.parts/lock, owner.json  see lock.py

Each is whole or absent, and nothing that the manifest names is written twice: whenever the writer is killed, the files
are as the manifest has them. HDF5 appended in place would be unreadable after a kill; this is openable at any moment.
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
from bnnzoo.shell import quoted
from bnnzoo.store import checkpoint, command, npz
from bnnzoo.store.atomic import write_whole
from bnnzoo.store.npz import Declared
from bnnzoo.store.schema import POSTERIOR, SAMPLE_STATS, WARMUP, Attributes, dims_of
from bnnzoo.store.words import Header, Manifest, Part, Static

HEADER, MANIFEST = "header.json", "p000.json"
_OURS = re.compile(r"^(header\.json|p000\.json|command\.json|(p000|data|checkpoint)(-\d{6,9})?\.npz|\..*\.tmp)$")
_DRAWS = re.compile(r"^p000-\d{6,9}\.npz$")
_CLEARING = ".clearing.tmp"
_MOST_JSON = 2**26
_BLOCK_BYTES = 2**23
"""Parts are joined until they hold as much."""
# fmt: off
_FIXED = frozenset({
    "bnnzoo_version", "data_sha256", "device", "exactness", "likelihood", "likelihood_power",
    "model", "placement", "plugins", "precision", "rows", "sampler",
    "seed", "signature", "task", "versions",
})
# fmt: on
"""Root attributes that never change while a run goes on."""
Groups = dict[str, dict[str, np.ndarray]]
T = TypeVar("T")


class Unfinished(NamedTuple):
    """A run that is not finished: words that hold together. Its arrays are checked when they are read."""

    folder: Path
    header: Header
    manifest: Manifest

    @property
    def attributes(self) -> Attributes:
        """Root attributes."""
        return self.header.attributes | self.manifest.attributes

    @property
    def dims(self) -> dict[str, list[str]]:
        """The names of the variables' dimensions."""
        return self.header.dims | {k: v for static in self.manifest.static for k, v in static.dims.items()}

    @property
    def draws(self) -> dict[str, int]:
        """Draws a chain of each group that grows."""
        found: dict[str, int] = {}
        for part in self.manifest.parts:
            for group, count in part.draws.items():
                found[group] = found.get(group, 0) + count
        return found

    def static(self) -> Groups:
        """observed_data and constant_data.

        Raises:
            UsageError: when they are not what was written.
        """
        arrays: dict[str, np.ndarray] = {}
        self.check(0)
        for static in self.manifest.static:
            arrays |= npz.read(self.folder / static.file, _shapes(static))
        return _grouped(arrays)

    def parts(self) -> Iterator[tuple[Part, Groups]]:
        """Every part with its groups {"posterior": {name: [chain, draw, ...]}, ...}, in order.

        Raises:
            UsageError: at one that is not what was written.
        """
        for number, part in enumerate(self.manifest.parts):
            yield part, _grouped(self._naming_cure(number, npz.read))

    def blocks(self) -> Iterator[tuple[dict[str, int], Groups]]:
        """The parts in order, short ones joined: draws a chain of each group, and the groups.

        A run of two minutes has hundreds of parts of a few draws; whoever writes or joins them pays for each.

        Raises:
            UsageError: at a part that is not what was written.
        """
        waiting: list[Groups] = []
        size = 0
        for _, groups in self.parts():
            if waiting and (groups.keys() != waiting[0].keys() or size >= _BLOCK_BYTES):
                yield _joined(waiting)
                waiting, size = [], 0
            waiting.append(groups)
            size += sum(array.nbytes for values in groups.values() for array in values.values())
        if waiting:
            yield _joined(waiting)

    def check(self, num_parts: int | None = None) -> None:
        """Compare every file, of the parts the first so many, with its digest and its sizes. No array is read.

        Raises:
            UsageError: at the first that is not what was written, with what can still be done.
        """
        for static in self.manifest.static:
            if reason := _difference(self.folder / static.file, static.sha256):
                cure = f"put it back from a copy, or {command.again(self.folder, force=True)}"
                raise UsageError(f"{self.folder / static.file}: damaged ({reason}); {cure}")
            npz.check(self.folder / static.file, _shapes(static))
        for number, part in enumerate(self.manifest.parts[:num_parts]):
            if reason := _difference(self.folder / part.file, part.sha256, part.bytes):
                cure = self._cure(number)
                raise UsageError(f"{self.folder / part.file}: damaged ({reason}); {cure}")
            # A digest says that the manifest's writer saw these bytes, not that the manifest is true of them.
            self._naming_cure(number, npz.check)

    def checkpoint(self, num_parts: int | None = None) -> checkpoint.Checkpoint:
        """The newest checkpoint; or the newest of at most so many parts.

        Raises:
            UsageError: when there is none, or the newest of all is damaged and `num_parts` is not given.
        """
        run, newest = self.manifest.header, self.folder / checkpoint.NEWEST
        if num_parts is None:
            if not os.path.lexists(newest):
                cure = command.again(self.folder, force=True)
                raise UsageError(f"{self.out}: stopped before its first checkpoint; {cure}")
            try:
                return checkpoint.load(newest, run=run)
            except UsageError as error:
                raise UsageError(f"{error}; {self._cure(len(self.manifest.parts))}") from error
        found = next(checkpoint.whole(self.folder, run=run, most_parts=num_parts), None)
        if found is None:
            cure = command.again(self.folder, force=True)
            raise UsageError(f"{self.out}: no checkpoint of {num_parts} parts or fewer; {cure}")
        return found

    @property
    def out(self) -> Path:
        """The file that the run will be."""
        return self.folder.with_name(self.folder.name.removesuffix(".parts"))

    def _cure(self, number: int) -> str:
        """What can still be done where part `number` is damaged."""
        found = next(checkpoint.whole(self.folder, run=self.manifest.header, most_parts=number), None)
        if found is None:
            return f"no checkpoint before it is complete; {command.again(self.folder, force=True)}"
        return f"go back to the last whole state with: bnnzoo resume {quoted(self.out)} --from-part {found.num_parts}"

    def _naming_cure(self, number: int, look: Callable[[Path, Mapping[str, Declared]], T]) -> T:
        """Look at part `number`; what is wrong with it is said with what can still be done."""
        part = self.manifest.parts[number]
        try:
            return look(self.folder / part.file, self._declared(part))
        except UsageError as error:
            raise UsageError(f"{error}; {self._cure(number)}") from error

    def _declared(self, part: Part) -> dict[str, Declared]:
        chains, variables = self.manifest.chains, self.manifest.variables
        counts = {key: part.draws.get(key.split("/")[0]) for key in variables}
        return {
            key: Declared(dtype, (chains, count, *shape))
            for key, (dtype, shape) in variables.items()
            if (count := counts[key]) is not None
        }


def _joined(waiting: list[Groups]) -> tuple[dict[str, int], Groups]:
    """Successive parts of the same groups as one, along their draws."""
    joined: Groups = {
        group: {name: np.concatenate([part[group][name] for part in waiting], 1) for name in values}
        for group, values in waiting[0].items()
    }
    return {group: next(iter(values.values())).shape[1] for group, values in joined.items() if values}, joined


def parts_folder(out: Path) -> Path:
    """Where an unfinished run's parts lie: `run.nc.parts` beside `run.nc`."""
    return out.with_name(out.name + ".parts")


def holds_run(folder: Path) -> bool:
    """Whether a folder holds an unfinished run: one that came as far as its manifest, also where that was lost."""
    if os.path.lexists(folder / MANIFEST):
        return True
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return _CLEARING not in names and any(map(_DRAWS.match, names))


def clear(folder: Path, *, but: Collection[str] = ()) -> None:
    """Remove the files of a run from its folder, but for its lock and those named `but`; strangers' files stay.

    What was a manifest says meanwhile that they are to go, and goes last: a kill on the way leaves nothing that looks
    like a run.
    """
    if MANIFEST not in but and os.path.lexists(folder / MANIFEST):
        (folder / MANIFEST).replace(folder / _CLEARING)
    for path in sorted(folder.iterdir(), key=lambda path: path.name == _CLEARING):
        if _OURS.match(path.name) and path.name not in but:
            path.unlink(missing_ok=True)


def load(folder: Path) -> Unfinished:
    """The words of an unfinished run.

    Raises:
        UsageError: when there is none, or they do not hold together.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise UsageError(f"{folder}: not the parts of a run (not a folder)")
    if not holds_run(folder):
        raise UsageError(f"{folder}: not the parts of a run, or of one that was stopped at its start; remove it")
    manifest = _read_words(folder / MANIFEST, Manifest)
    header = _read_words(folder / HEADER, Header)
    if reason := _difference(folder / HEADER, manifest.header):
        raise UsageError(f"{folder / HEADER}: damaged ({reason}); put it back from a copy, or start with --force")
    run = Unfinished(folder, header, manifest)
    if reason := _contradiction(run):
        raise UsageError(f"{folder / MANIFEST}: damaged: {reason}; put it back from a copy, or start with --force")
    return run


def seal(manifest: Manifest) -> str:
    """The digest of a manifest's words, but for itself."""
    return hashlib.sha256(manifest.model_dump_json(exclude={"seal"}).encode()).hexdigest()


def _contradiction(run: Unfinished) -> str:
    """What a run's words say against each other; empty where they agree."""
    manifest, held = run.manifest, {key.split("/")[0] for key in run.manifest.variables}
    if changed := _FIXED & set(manifest.attributes):
        return f"it changes {', '.join(sorted(changed))}"
    if [part.file for part in manifest.parts] != [part_name(number) for number in range(len(manifest.parts))]:
        return "its parts are not all there, in their order"
    for part in manifest.parts:
        for prefix in ("", WARMUP):
            draws = {part.draws.get(prefix + group, 0) for group in (POSTERIOR, SAMPLE_STATS) if prefix + group in held}
            if len(draws) > 1 or not set(part.draws) <= held:
                return f"{part.file} does not hold as many draws as statistics"
    sizes: dict[tuple[str, str], int] = {}
    arrays = [(key, shape, 2) for key, (_, shape) in manifest.variables.items()]
    arrays += [(key, shape, 0) for static in manifest.static for key, (_, shape) in static.arrays.items()]
    for key, shape, skip in arrays:
        group, name = key.split("/", 1)
        names = dims_of(name, len(shape) + skip, run.dims, skip=skip)
        if len(set(names)) < len(names):
            return f"the dimensions of {ascii(name)[1:-1]} have one name"
        for dim, size in zip(names, shape, strict=True):
            if sizes.setdefault((group, dim), size) != size:
                return f"the dimension {ascii(dim)[1:-1]} has two sizes"
    return "" if manifest.seal == seal(manifest) else "its words are not those that were written"


def part_name(number: int) -> str:
    """The file of so many parts' next one."""
    return f"p000-{number:06d}.npz"


def write_words(path: Path, words: BaseModel) -> None:
    """Write a header or a manifest, whole or not at all."""
    write_whole(path, lambda file: file.write(words.model_dump_json().encode()))


def described(arrays: Mapping[str, np.ndarray], *, skip: int = 0) -> dict[str, tuple[str, list[int]]]:
    """Types and shapes, as the manifest has them, of arrays without their first `skip` dimensions."""
    return {key: (array.dtype.name, list(array.shape[skip:])) for key, array in arrays.items()}


def flat(groups: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Groups as the arrays of one file, by "group/name"."""
    return {f"{group}/{name}": array for group, values in groups.items() for name, array in values.items()}


def _shapes(static: Static) -> dict[str, Declared]:
    return {key: Declared(*words) for key, words in static.arrays.items()}


def _grouped(arrays: Mapping[str, np.ndarray]) -> Groups:
    groups: Groups = {}
    for key, array in arrays.items():
        group, name = key.split("/", 1)
        groups.setdefault(group, {})[name] = array
    return groups


def _difference(path: Path, digest: str, size: int | None = None) -> str:
    """Why a file is not the one that was written; empty if it is."""
    try:
        found = npz.check_regular(path)
    except UsageError as error:
        return str(error).removeprefix(f"{path}: ")
    if size is not None and found != size:
        return f"{found} bytes long, not {size}"
    return "" if npz.sha256(path) == digest else f"its sha256 is not the one in {MANIFEST}"


def _read_words(path: Path, kind: type[Any]) -> Any:
    if npz.check_regular(path) > _MOST_JSON:
        raise UsageError(f"{path}: damaged (larger than any that bnnzoo writes)")
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(word)[:80] for word in first["loc"])
        raise UsageError(f"{path}: damaged ({where + ': ' if where else ''}{first['msg']})") from error
