"""A safety check of an untrusted NetCDF file before anything in it is used.

HDF5 files can name other files (links, external storage, virtual data sets), declare arrays larger than any memory, and
hold types that libraries turn into objects. A run's file needs none of that: it has a root with groups, and groups with
arrays of numbers. Anything else is refused. The check uses h5py's low-level calls, which follow no link.
"""

# pyright: reportAttributeAccessIssue=false
# (h5py's low-level modules are compiled and have no stubs.)
from __future__ import annotations

import stat
import traceback
import zlib
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5s, h5t, h5z

from bnnzoo.errors import UsageError

_MOST_GROUPS, _MOST_VARIABLES, _MOST_ATTRIBUTES, _MOST_RANK = 64, 20_000, 1000, 16
_MOST_CHUNKS = 2**20
_MOST_TEXT = 2**25
_MOST_ATTRIBUTE = 2**22
_SCALES = {"DIMENSION_LIST": h5t.VLEN, "REFERENCE_LIST": h5t.COMPOUND, "CLASS": h5t.STRING, "NAME": h5t.STRING}
"""Types of HDF5's own attributes that mark dimension scales and the dimensions they belong to."""
_LAYOUTS = (h5d.COMPACT, h5d.CONTIGUOUS, h5d.CHUNKED)
_FILTERS = (h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32)


class _Refused(Exception):
    pass


def check(path: Path) -> None:
    """Check every group, array and attribute of a file.

    Raises:
        UsageError: if the file is missing, or is not a tree of groups and arrays stored in itself.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path}: not a regular file")
    try:
        # Use the same driver as all other readers: HDF5 refuses a file that is already open with another one.
        with h5py.File(path, "r") as file:
            _Walk(found.st_size).go(file.id)
    # A damaged file makes HDF5 raise many kinds of exceptions.
    except Exception as error:
        # The frames of the traceback hold HDF5 objects, some of which cannot be freed at the exit of the process.
        traceback.clear_frames(error.__traceback__)
        if isinstance(error, _Refused):
            raise UsageError(f"{path}: not a file that bnnzoo wrote: {error}") from None
        reason = _short(error)
        if "file signature not found" in reason:
            reason = "no HDF5 signature; a run is the .nc file that bnnzoo sample -o writes"
        raise UsageError(f"{path}: not a NetCDF file of bnnzoo, or damaged ({reason})") from error


class _Walk:
    """Totals over a file of `size` bytes: declared array bytes, text, and objects seen."""

    def __init__(self, size: int):
        self.size = size
        self.declared = self.text = 0
        self.seen: set[tuple[int, int]] = set()

    def go(self, file: Any) -> None:
        """Check the root, its groups and their arrays."""
        root = h5g.open(file, b"/")
        self._attributes(root, "/")
        for name, kind in self._members(root, "/", _MOST_GROUPS):
            if kind == h5o.TYPE_DATASET:
                self._dataset(root, name, f"/{name}")
                continue
            group = h5g.open(root, name.encode())
            self._attributes(group, name)
            for variable, inner in self._members(group, name, _MOST_VARIABLES):
                where = f"{name}/{variable}"
                if inner != h5o.TYPE_DATASET:
                    raise _Refused(f"{_shown(where)} is a nested group or a type")
                self._dataset(group, variable, where)

    def _members(self, group: Any, where: str, most: int) -> list[tuple[str, int]]:
        """Return names and kinds of a group's members, each of which must have exactly one name."""
        if group.get_num_objs() > most:
            raise _Refused(f"{_shown(where)} has more than {most} members")
        names: list[bytes] = []
        group.links.iterate(names.append)
        found = []
        for raw in names:
            name = raw.decode("utf-8")
            if not name or name.startswith(".") or "/" in name or not name.isprintable() or len(name) > 255:
                raise _Refused(f"{_shown(where)} has the unexpected member {_shown(name)}")
            if group.links.get_info(raw).type != h5l.TYPE_HARD:
                raise _Refused(f"{_shown(name)} in {_shown(where)} is an external or symbolic link")
            about = h5o.get_info(group, raw)
            identity = (int(about.fileno), int(about.addr))
            if identity in self.seen:
                raise _Refused(f"{_shown(name)} in {_shown(where)} has two names")
            self.seen.add(identity)
            if about.type not in (h5o.TYPE_GROUP, h5o.TYPE_DATASET):
                raise _Refused(f"{_shown(name)} in {_shown(where)} is neither a group nor an array")
            found.append((name, about.type))
        return found

    def _dataset(self, group: Any, name: str, where: str) -> None:
        dataset = h5d.open(group, name.encode())
        kind, space, made = dataset.get_type(), dataset.get_space(), dataset.get_create_plist()
        if made.get_layout() not in _LAYOUTS:
            raise _Refused(f"{_shown(where)} is a virtual data set")
        if made.get_layout() == h5d.CONTIGUOUS and made.get_external_count():
            raise _Refused(f"{_shown(where)} is stored in another file")
        if kind.get_class() not in (h5t.INTEGER, h5t.FLOAT) or kind.get_size() > 8:
            raise _Refused(f"{_shown(where)} is not an array of numbers")
        if space.get_simple_extent_type() == h5s.NULL or space.get_simple_extent_ndims() > _MOST_RANK:
            raise _Refused(f"{_shown(where)} has an unsupported shape")
        shape = space.get_simple_extent_dims()
        self.declared += kind.get_size() * prod(shape)
        # An uncompressed file holds what it declares, except for dimension lengths and values that were never written.
        if self.declared > 8 * self.size + 2**26:
            raise _Refused(
                f"{_shown(where)} has shape {list(shape)}, far more than the {self.size} bytes of the file hold"
            )
        filters = [made.get_filter(i)[0] for i in range(made.get_nfilters())]
        if not set(filters) <= set(_FILTERS) or len(filters) != len(set(filters)):
            raise _Refused(f"{_shown(where)} is compressed in an unsupported way")
        if made.get_layout() == h5d.CHUNKED:
            chunks = self._chunks(dataset, where)
            if h5z.FILTER_DEFLATE in filters:
                self._inflated(dataset, chunks, kind.get_size() * prod(made.get_chunk()), where)
        self._attributes(dataset, where)

    def _chunks(self, dataset: Any, where: str) -> list[Any]:
        """Return an array's chunks, after checking that each exists, lies in its own place and uses all filters.

        HDF5 would read a missing chunk as zeros.
        """
        if dataset.get_num_chunks() > _MOST_CHUNKS:
            raise _Refused(f"{_shown(where)} has unsupported chunks")
        lengths, sizes = dataset.shape, dataset.get_create_plist().get_chunk()
        wanted = prod(-(-length // size) for length, size in zip(lengths, sizes, strict=True))
        found: list[Any] = []
        dataset.chunk_iter(found.append)
        begins = {chunk.chunk_offset for chunk in found}
        for begin in begins:
            if any(at >= length or at % size for at, length, size in zip(begin, lengths, sizes, strict=True)):
                raise _Refused(f"{_shown(where)} has a chunk at an invalid position")
        if not len(begins) == len(found) == wanted:
            raise _Refused(f"{_shown(where)} has {len(begins)} of its {wanted} chunks")
        if any(chunk.filter_mask for chunk in found):
            raise _Refused(f"{_shown(where)} has chunks that are compressed in another way than it declares")
        end = 0
        for place, size in sorted((chunk.byte_offset, chunk.size) for chunk in found):
            if place < end or place + size > self.size:
                raise _Refused(f"{_shown(where)} has chunks that overlap, or end beyond the file")
            end = place + size
        return found

    def _inflated(self, dataset: Any, chunks: list[Any], most: int, where: str) -> None:
        """Check that no chunk decompresses to more than its declared size, which HDF5 would not limit."""
        if most > 2**28:
            raise _Refused(f"{_shown(where)} has unsupported chunks")
        for chunk in chunks:
            _, packed = dataset.read_direct_chunk(chunk.chunk_offset)
            if len(zlib.decompressobj().decompress(packed, most + 8)) > most + 4:
                raise _Refused(f"{_shown(where)} unpacks to more bytes than it declares")

    def _attributes(self, holder: Any, where: str) -> None:
        count = h5a.get_num_attrs(holder)
        if count > _MOST_ATTRIBUTES:
            raise _Refused(f"{_shown(where)} has too many attributes ({count})")
        for index in range(count):
            attribute = h5a.open(holder, index=index)
            kind, space = attribute.get_type(), attribute.get_space()
            number = space.get_simple_extent_npoints()
            name = attribute.get_name().decode("utf-8", "replace")
            label = f"attribute {name} of {where}"
            if attribute.get_storage_size() > _MOST_ATTRIBUTE or number > _MOST_ATTRIBUTE:
                raise _Refused(f"{_shown(label)} is too long ({attribute.get_storage_size()} bytes)")
            # HDF5 reads dimension-scale attributes as their expected type without checking it.
            if not _is_plain(kind) or (name in _SCALES and kind.get_class() != _SCALES[name]):
                raise _Refused(f"{_shown(label)} has an unsupported type")
            if _varies(kind):
                self._check_length(number, kind, label)
            if number and kind.get_class() == h5t.STRING:
                self._text(attribute, kind, label)

    def _check_length(self, number: int, kind: Any, label: str) -> None:
        """Check the number of texts or references, which are stored outside the attribute and may share one place."""
        if kind.get_class() != h5t.STRING:
            if number > _MOST_RANK:
                raise _Refused(f"{_shown(label)} has too many dimensions ({number})")
        elif number > 1 and number * self.size > _MOST_TEXT * 8:
            raise _Refused(f"{_shown(label)} has too many texts ({number})")

    def _text(self, attribute: Any, kind: Any, label: str) -> None:
        """Read the texts of an attribute, and check that they are UTF-8 and not too long in total."""
        value = np.empty(attribute.shape, object if kind.is_variable_str() else kind.dtype)
        attribute.read(value, mtype=h5t.py_create(kind.dtype))
        for one in value.reshape(-1):
            content = one or b""
            self.text += len(content)
            try:
                content.decode("utf-8")
            except UnicodeDecodeError:
                raise _Refused(f"{_shown(label)} is not UTF-8") from None
        if self.text > _MOST_TEXT:
            raise _Refused(f"{_shown(label)} has more than {_MOST_TEXT} letters of text")


def _is_plain(kind: Any) -> bool:
    """Whether a type is a number, a text, or a type that HDF5's dimension scales use."""
    held = kind.get_class()
    if held in (h5t.INTEGER, h5t.FLOAT, h5t.STRING):
        return True
    if held == h5t.REFERENCE:
        return kind.equal(h5t.STD_REF_OBJ)
    if held == h5t.ENUM:
        return kind.get_super().get_class() == h5t.INTEGER
    if held == h5t.VLEN:
        return kind.get_super().get_class() == h5t.REFERENCE
    if held == h5t.COMPOUND:
        members = [kind.get_member_type(i).get_class() for i in range(kind.get_nmembers())]
        return sorted(members) == sorted([h5t.REFERENCE, h5t.INTEGER])
    return False


def _varies(kind: Any) -> bool:
    return kind.get_class() == h5t.VLEN or (kind.get_class() == h5t.STRING and kind.is_variable_str())


def _shown(name: str) -> str:
    """Return a name from the file as one short ASCII line."""
    return ascii(name[:80])[1:-1]


def _short(error: Exception) -> str:
    return _shown(" ".join(str(error).split())) or type(error).__name__
