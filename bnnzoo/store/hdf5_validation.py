"""A safety check of a NetCDF file of unknown origin, before its content is used.

An HDF5 file can refer to other files (links, external storage, virtual data sets). It can declare arrays that exceed
the memory, and contain types that libraries convert to objects. A file of bnnzoo needs none of these: its root
contains groups and arrays of numbers, and each group contains arrays of numbers. All other files give an error. The
check uses the low-level functions of h5py, which follow no link.
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

_MAX_GROUPS, _MAX_VARIABLES, _MAX_ATTRIBUTES, _MAX_RANK = 64, 20_000, 1000, 16
_MAX_CHUNKS = 2**20
_MAX_TEXT = 2**25
_MAX_ATTRIBUTE = 2**22
_SCALES = {"DIMENSION_LIST": h5t.VLEN, "REFERENCE_LIST": h5t.COMPOUND, "CLASS": h5t.STRING, "NAME": h5t.STRING}
"""Names and types of the attributes by which HDF5 marks dimension scales, and arrays that use these scales."""
_LAYOUTS = (h5d.COMPACT, h5d.CONTIGUOUS, h5d.CHUNKED)
_FILTERS = (h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32)


class _Refused(Exception):
    pass


def check(path: Path) -> None:
    """Check every group, array and attribute of a file.

    Raises:
        UsageError: if the file is missing or damaged, or if it contains anything but groups, arrays of numbers and
            their attributes.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path}: not a regular file")
    try:
        # HDF5 cannot open a file with two drivers at the same time, so all readers use this one.
        with h5py.File(path, "r") as file:
            _Validator(status.st_size).check_root(file.id)
    # A damaged file makes HDF5 raise many kinds of exceptions.
    except Exception as error:
        # The frames of the traceback refer to HDF5 objects, and some of these cannot be freed when Python exits.
        traceback.clear_frames(error.__traceback__)
        if isinstance(error, _Refused):
            raise UsageError(f"{path}: not a file that bnnzoo wrote: {error}") from None
        reason = _short_reason(error)
        if "file signature not found" in reason:
            reason = "no HDF5 signature; a run is the .nc file that bnnzoo sample -o writes"
        raise UsageError(f"{path}: not a NetCDF file of bnnzoo, or damaged ({reason})") from error


class _Validator:
    """Validator of a file with `size` bytes. It counts the bytes of all declared arrays and of all texts."""

    def __init__(self, size: int):
        self.size = size
        self.declared = self.text = 0
        self.seen: set[tuple[int, int]] = set()

    def check_root(self, file: Any) -> None:
        """Check the root, its groups and their arrays."""
        root = h5g.open(file, b"/")
        self._check_attributes(root, "/")
        for name, kind in self._members(root, "/", _MAX_GROUPS):
            if kind == h5o.TYPE_DATASET:
                self._check_dataset(root, name, f"/{name}")
                continue
            group = h5g.open(root, name.encode())
            self._check_attributes(group, name)
            for variable, member_kind in self._members(group, name, _MAX_VARIABLES):
                place = f"{name}/{variable}"
                if member_kind != h5o.TYPE_DATASET:
                    raise _Refused(f"{_printable(place)} is a nested group or a named type")
                self._check_dataset(group, variable, place)

    def _members(self, group: Any, place: str, max_members: int) -> list[tuple[str, int]]:
        """Return the name and the kind of each member of a group. Refuse links, and members that have two names."""
        if group.get_num_objs() > max_members:
            raise _Refused(f"{_printable(place)} has more than {max_members} members")
        names: list[bytes] = []
        group.links.iterate(names.append)
        members = []
        for raw_name in names:
            name = raw_name.decode("utf-8")
            if not name or name.startswith(".") or "/" in name or not name.isprintable() or len(name) > 255:
                raise _Refused(f"{_printable(place)} has the unexpected member {_printable(name)}")
            if group.links.get_info(raw_name).type != h5l.TYPE_HARD:
                raise _Refused(f"{_printable(name)} in {_printable(place)} is an external or symbolic link")
            info = h5o.get_info(group, raw_name)
            identity = (int(info.fileno), int(info.addr))
            if identity in self.seen:
                raise _Refused(f"{_printable(name)} in {_printable(place)} is a second name of another member")
            self.seen.add(identity)
            if info.type not in (h5o.TYPE_GROUP, h5o.TYPE_DATASET):
                raise _Refused(f"{_printable(name)} in {_printable(place)} is neither a group nor an array")
            members.append((name, info.type))
        return members

    def _check_dataset(self, group: Any, name: str, place: str) -> None:
        dataset = h5d.open(group, name.encode())
        kind, space, creation = dataset.get_type(), dataset.get_space(), dataset.get_create_plist()
        if creation.get_layout() not in _LAYOUTS:
            raise _Refused(f"{_printable(place)} is a virtual data set")
        if creation.get_layout() == h5d.CONTIGUOUS and creation.get_external_count():
            raise _Refused(f"{_printable(place)} is stored in another file")
        if kind.get_class() not in (h5t.INTEGER, h5t.FLOAT) or kind.get_size() > 8:
            raise _Refused(f"{_printable(place)} is not an array of numbers")
        if space.get_simple_extent_type() == h5s.NULL or space.get_simple_extent_ndims() > _MAX_RANK:
            raise _Refused(f"{_printable(place)} has an unsupported shape")
        shape = space.get_simple_extent_dims()
        self.declared += kind.get_size() * prod(shape)
        # An uncompressed file is about as large as its arrays. The limit is larger, because dimensions without values,
        # and values that were never written, take no space.
        if self.declared > 8 * self.size + 2**26:
            raise _Refused(
                f"{_printable(place)} has shape {list(shape)}; the file has only {self.size} bytes and cannot contain "
                "this array"
            )
        filters = [creation.get_filter(i)[0] for i in range(creation.get_nfilters())]
        if not set(filters) <= set(_FILTERS) or len(filters) != len(set(filters)):
            raise _Refused(f"{_printable(place)} is compressed in an unsupported way")
        if creation.get_layout() == h5d.CHUNKED:
            chunks = self._chunks(dataset, place)
            if h5z.FILTER_DEFLATE in filters:
                self._check_inflated_size(dataset, chunks, kind.get_size() * prod(creation.get_chunk()), place)
        self._check_attributes(dataset, place)

    def _chunks(self, dataset: Any, place: str) -> list[Any]:
        """Return the chunks of an array, after checking them.

        Each chunk must exist, because HDF5 reads a missing chunk as zeros. It must use all filters of the array, and
        must not overlap another chunk.
        """
        if dataset.get_num_chunks() > _MAX_CHUNKS:
            raise _Refused(f"{_printable(place)} has more than {_MAX_CHUNKS} chunks")
        lengths, sizes = dataset.shape, dataset.get_create_plist().get_chunk()
        expected_count = prod(-(-length // size) for length, size in zip(lengths, sizes, strict=True))
        chunks: list[Any] = []
        dataset.chunk_iter(chunks.append)
        offsets = {chunk.chunk_offset for chunk in chunks}
        for offset in offsets:
            if any(
                position >= length or position % size
                for position, length, size in zip(offset, lengths, sizes, strict=True)
            ):
                raise _Refused(f"{_printable(place)} has a chunk at an invalid position")
        if not len(offsets) == len(chunks) == expected_count:
            raise _Refused(f"{_printable(place)} has {len(offsets)} chunks, expected {expected_count}")
        if any(chunk.filter_mask for chunk in chunks):
            raise _Refused(f"{_printable(place)} has chunks that are not compressed as the array declares")
        end = 0
        for start, size in sorted((chunk.byte_offset, chunk.size) for chunk in chunks):
            if start < end or start + size > self.size:
                raise _Refused(f"{_printable(place)} has chunks that overlap, or end beyond the file")
            end = start + size
        return chunks

    def _check_inflated_size(self, dataset: Any, chunks: list[Any], max_bytes: int, place: str) -> None:
        """Check that no chunk decompresses to more than its declared size. HDF5 would not check this."""
        if max_bytes > 2**28:
            raise _Refused(f"{_printable(place)} has chunks of more than {2**28} bytes")
        for chunk in chunks:
            _, compressed = dataset.read_direct_chunk(chunk.chunk_offset)
            # A Fletcher32 checksum adds four bytes.
            if len(zlib.decompressobj().decompress(compressed, max_bytes + 8)) > max_bytes + 4:
                raise _Refused(f"{_printable(place)} unpacks to more bytes than it declares")

    def _check_attributes(self, holder: Any, place: str) -> None:
        count = h5a.get_num_attrs(holder)
        if count > _MAX_ATTRIBUTES:
            raise _Refused(f"{_printable(place)} has too many attributes ({count})")
        for index in range(count):
            attribute = h5a.open(holder, index=index)
            kind, space = attribute.get_type(), attribute.get_space()
            number = space.get_simple_extent_npoints()
            name = attribute.get_name().decode("utf-8", "replace")
            label = f"attribute {name} of {place}"
            if attribute.get_storage_size() > _MAX_ATTRIBUTE or number > _MAX_ATTRIBUTE:
                raise _Refused(f"{_printable(label)} is too long ({attribute.get_storage_size()} bytes)")
            # HDF5 reads the attributes of dimension scales without checking their type.
            if not _is_plain(kind) or (name in _SCALES and kind.get_class() != _SCALES[name]):
                raise _Refused(f"{_printable(label)} has an unsupported type")
            if _has_variable_length(kind):
                self._check_length(number, kind, label)
            if number and kind.get_class() == h5t.STRING:
                self._check_text(attribute, kind, label)

    def _check_length(self, number: int, kind: Any, label: str) -> None:
        """Check the number of texts or references in an attribute. Even a small file can contain very many of them."""
        if kind.get_class() != h5t.STRING:
            if number > _MAX_RANK:
                raise _Refused(f"{_printable(label)} has too many dimensions ({number})")
        elif number > 1 and number * self.size > _MAX_TEXT * 8:
            raise _Refused(f"{_printable(label)} has too many strings ({number})")

    def _check_text(self, attribute: Any, kind: Any, label: str) -> None:
        """Check that the texts of an attribute are UTF-8, and that the total length of all texts so far is allowed."""
        value = np.empty(attribute.shape, object if kind.is_variable_str() else kind.dtype)
        attribute.read(value, mtype=h5t.py_create(kind.dtype))
        for item in value.reshape(-1):
            content = item or b""
            self.text += len(content)
            try:
                content.decode("utf-8")
            except UnicodeDecodeError:
                raise _Refused(f"{_printable(label)} is not UTF-8") from None
        if self.text > _MAX_TEXT:
            raise _Refused(f"{_printable(label)} has more than {_MAX_TEXT} bytes of text")


def _is_plain(kind: Any) -> bool:
    """Whether a type is a number, a text, or a type of HDF5's dimension scales."""
    type_class = kind.get_class()
    if type_class in (h5t.INTEGER, h5t.FLOAT, h5t.STRING):
        return True
    if type_class == h5t.REFERENCE:
        return kind.equal(h5t.STD_REF_OBJ)
    if type_class == h5t.ENUM:
        return kind.get_super().get_class() == h5t.INTEGER
    if type_class == h5t.VLEN:
        return kind.get_super().get_class() == h5t.REFERENCE
    if type_class == h5t.COMPOUND:
        members = [kind.get_member_type(i).get_class() for i in range(kind.get_nmembers())]
        return sorted(members) == sorted([h5t.REFERENCE, h5t.INTEGER])
    return False


def _has_variable_length(kind: Any) -> bool:
    return kind.get_class() == h5t.VLEN or (kind.get_class() == h5t.STRING and kind.is_variable_str())


def _printable(name: str) -> str:
    """Return a name from the file as short ASCII text without line breaks."""
    return ascii(name[:80])[1:-1]


def _short_reason(error: Exception) -> str:
    return _printable(" ".join(str(error).split())) or type(error).__name__
