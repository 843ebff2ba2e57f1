"""Damaged and malicious run files, one per row: each is the file of a real run with one change."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t

TEXT = h5py.string_dtype()
SECRET = "the secret of another file"
ESCAPES = "\x1b[2J\x1b]0;mine\x07"
"""Escape codes that clear a terminal and rename its window."""


def edited(change: Callable[[h5py.File, Path], Any]) -> Callable[[Path], None]:
    """Return the file after a change by h5py; the folder contains a file `secret`."""

    def make(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file, path.parent)

    return make


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(change(path.read_bytes())) and None


def replaced(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def _external_storage(file: h5py.File, folder: Path) -> None:
    size = (folder / "secret").stat().st_size
    file["posterior"].create_dataset("out", (size,), "u1", external=[(str(folder / "secret"), 0, size)])


def _external_behind_a_group(file: h5py.File, folder: Path) -> None:
    shutil.copy(file.filename, folder / "other.nc")
    del file["constant_data"]
    file["constant_data"] = h5py.ExternalLink(str(folder / "other.nc"), "/constant_data")


def _virtual(file: h5py.File, folder: Path) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "other.nc"), "/x", (4,))
    file["posterior"].create_virtual_dataset("out", layout)


def _named(name: str) -> Callable[[h5py.File, Path], None]:
    """Rename a member to a name that HDF5's path syntax does not allow, by replacing bytes of the same length."""

    def change(file: h5py.File, folder: Path) -> None:
        file["constant_data"].create_dataset("Q" * len(name), data=np.zeros(3))
        file.close()
        path = folder / "run.nc"
        content = path.read_bytes()
        assert b"Q" * len(name) in content
        path.write_bytes(content.replace(b"Q" * len(name), name.encode()))

    return change


def _many_inflate_more(file: h5py.File, _: Path) -> None:
    """Write a chunk of 64 bytes that decompresses to 64 MB."""
    import zlib

    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_chunk((16,))
    properties.set_deflate(1)
    space = h5s.create_simple((16,))
    dataset = h5d.create(file["posterior"].id, b"out", h5t.NATIVE_FLOAT, space, properties)
    dataset.write_direct_chunk((0,), zlib.compress(b"\0" * 2**26))


def _shared_text(file: h5py.File, _: Path) -> None:
    """Write a thousand attributes of a megabyte each."""
    for index in range(100):
        file["posterior"].attrs[f"a{index}"] = "x" * 2**20


def _ragged() -> np.ndarray:
    rows = np.empty(2, h5py.vlen_dtype("f4"))
    rows[:] = [np.zeros(2, "f4"), np.zeros(3, "f4")]
    return rows


def _deep(file: h5py.File, _: Path) -> None:
    file.create_group("/".join(["deep"] * 2000))


def _loop(file: h5py.File, _: Path) -> None:
    file["posterior/again"] = file["/"]


def _declares(shape: tuple[int, ...], **more: Any) -> Callable[[h5py.File, Path], None]:
    return lambda file, _: file["posterior"].create_dataset("out", shape, "f4", **more) and None


def _dangling_scale(file: h5py.File, _: Path) -> None:
    """Write a dimension that refers to a deleted object."""
    file.create_dataset("scale", data=np.zeros(10)).make_scale("feature")
    file["posterior/weight"].attrs["DIMENSION_LIST"] = np.array([file["scale"].ref] * 4, h5py.ref_dtype)
    del file["scale"]


def _region_reference(file: h5py.File, _: Path) -> None:
    file.attrs["odd"] = np.array([file["posterior/weight"].regionref[:1]], h5py.regionref_dtype)


def _attribute_of_a_named_type(file: h5py.File, _: Path) -> None:
    file["type"] = np.dtype("f8")
    file.attrs.create("odd", 1.0, dtype=file["type"])


def _patched(old: bytes, new: bytes) -> Callable[[Path], None]:
    """Write bytes that HDF5's own functions would not write."""

    def change(content: bytes) -> bytes:
        assert old in content
        return content.replace(old, new)

    return rewritten(change)


def _called(name: bytes, group: str) -> Callable[[Path], None]:
    """Return a file with a member of this name."""

    def make(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            file[group].create_dataset("Q" * len(name), data=np.zeros(3))
        _patched(b"Q" * len(name), name)(path)

    return make


def _says(name: str, value: Any) -> Callable[[Path], None]:
    return edited(lambda file, _: file.attrs.__setitem__(name, value))


def _many_names() -> str:
    return "{" + ",".join(f'"{number}":1' for number in range(300_000)) + "}"


HOSTILE: dict[str, Callable[[Path], None]] = {
    "external storage": edited(_external_storage),
    "external link": edited(lambda f, d: f["posterior"].__setitem__("out", h5py.ExternalLink(str(d / "secret"), "/"))),
    "external link to /dev/zero": edited(lambda f, _: f.__setitem__("g", h5py.ExternalLink("/dev/zero", "/"))),
    "external link on the way": edited(_external_behind_a_group),
    "soft link": edited(lambda f, _: f["posterior"].__setitem__("out", h5py.SoftLink("/posterior/weight"))),
    "soft link in a loop": edited(lambda f, _: f["posterior"].__setitem__("out", h5py.SoftLink("/posterior/out"))),
    "dangling soft link": edited(lambda f, _: f.__setitem__("out", h5py.SoftLink("/nowhere"))),
    "hard link in a loop": edited(_loop),
    "one array under two names": edited(lambda f, _: f["posterior"].__setitem__("out", f["posterior/weight"])),
    "virtual data set": edited(_virtual),
    "declared size no machine has": edited(_declares((2**20, 2**20, 2**10))),
    "declared size in chunks": edited(_declares((2**30, 2**10), chunks=(64, 64))),
    "declared size packed": edited(_declares((2**31,), chunks=(2**20,), compression="gzip")),
    "packed bomb": edited(lambda f, _: f["posterior"].create_dataset("o", data=np.zeros(2**27, "u1"), compression=9)),
    "chunk that unpacks to more": edited(_many_inflate_more),
    "unknown filter": edited(_declares((64,), chunks=(64,), compression="lzf")),
    "scale-offset filter": edited(_declares((64,), chunks=(64,), scaleoffset=4)),
    "text of varying length": edited(lambda f, _: f["posterior"].create_dataset("o", data=["a"], dtype=TEXT)),
    "opaque": edited(lambda f, _: f["posterior"].create_dataset("o", data=np.zeros(3, "V7"))),
    "compound": edited(lambda f, _: f["posterior"].create_dataset("o", data=np.zeros(3, [("a", "f4"), ("b", "i4")]))),
    "vlen of numbers": edited(lambda f, _: f["posterior"].create_dataset("o", (3,), h5py.vlen_dtype("f4"))),
    "object references": edited(lambda f, _: f["posterior"].create_dataset("o", (3,), h5py.ref_dtype)),
    "region references": edited(lambda f, _: f["posterior"].create_dataset("o", (3,), h5py.regionref_dtype)),
    "array type": edited(lambda f, _: f["posterior"].create_dataset("o", (3,), np.dtype(("f4", (1000, 1000))))),
    "named type": edited(lambda f, _: f.__setitem__("type", np.dtype("f8"))),
    "null space": edited(lambda f, _: f["posterior"].create_dataset("o", data=h5py.Empty("f4"))),
    "group in a group": edited(lambda f, _: f.create_group("posterior/inner")),
    "groups without end": edited(_deep),
    "a thousand groups": edited(lambda f, _: [f.create_group(f"g{i}") for i in range(1000)]),
    "name ..": edited(_named("..")),
    "name ../../x": edited(_named("../../xx")),
    "name with a newline": edited(lambda f, _: f["posterior"].create_dataset("a\nbnnzoo: all is well", data=[1.0])),
    "many attributes": edited(lambda f, _: [f["posterior"].attrs.create(f"a{i}", 1) for i in range(2000)]),
    "much text": edited(_shared_text),
    "many texts": edited(lambda f, _: f.attrs.create("texts", ["x"] * 4000, dtype=TEXT)),
    "attribute of an odd type": edited(lambda f, _: f.attrs.create("odd", np.zeros(2, "V3"))),
    "attribute of vlen numbers": edited(lambda f, _: f.attrs.__setitem__("odd", _ragged())),
    "no recipe": edited(lambda f, _: f.attrs.__delitem__("recipe")),
    "recipe is a number": edited(lambda f, _: f.attrs.__setitem__("recipe", 3)),
    "a recipe of 3 MB": edited(lambda f, _: f.attrs.__setitem__("recipe", "a: " + "x " * 1_500_000)),
    "much JSON": edited(lambda f, _: f.attrs.__setitem__("tuned", '{"a":[' + "[]," * 20_000_000 + "[]]}")),
    "JSON of many wrong values": edited(lambda f, _: f.attrs.__setitem__("stops", "[" + "{}," * 1_300_000 + "{}]")),
    "JSON of many wrong names": edited(lambda f, _: f.attrs.__setitem__("plugins", _many_names())),
    "complete is text": edited(lambda f, _: f.attrs.__setitem__("complete", "yes")),
    "no posterior": edited(lambda f, _: f.__delitem__("posterior")),
    "empty": rewritten(lambda _: b""),
    "text": rewritten(lambda _: b"chain,draw\n1,2\n"),
    "half": rewritten(lambda content: content[: len(content) // 2]),
    "without its last byte": rewritten(lambda content: content[:-1]),
    "only a signature": rewritten(lambda content: content[:8]),
    "a damaged head": rewritten(lambda content: content[:40] + b"\xff" * 60 + content[100:]),
    "a pickle": rewritten(lambda _: b"\x80\x04cos\nsystem\n(S'touch owned'\ntR."),
    "a pipe": replaced(lambda path: os.mkfifo(path)),
    "/dev/zero": replaced(lambda path: path.symlink_to("/dev/zero")),
    "a folder": replaced(lambda path: path.mkdir()),
    "a link to itself": replaced(lambda path: path.symlink_to(path)),
    "dimension that is gone": edited(_dangling_scale),
    "attribute that refers to a region": edited(_region_reference),
    "attribute of a named type": edited(_attribute_of_a_named_type),
    "ten thousand groups deep": edited(lambda f, _: f.create_group("/".join(["d"] * 10_000)) and None),
    "texts without their heap": _patched(b"GCOL", b"GCOK"),
    "unlimited and endless": edited(_declares((2**40, 4), maxshape=(None, 4), chunks=(1024, 4))),
    "text that is not UTF-8": _says("regime", np.bytes_(b"\xff\xfe")),
    "name that is not UTF-8": _called(b"\xff\xfe\xfd\xfc\xfb", "posterior"),
    "two arrays of one name": _called(b"x_test", "constant_data"),
    "name with a terminal's escapes": edited(lambda f, _: f["posterior"].create_dataset(ESCAPES, data=[1.0])),
    "attribute's name with a terminal's escapes": edited(lambda f, _: f.attrs.__setitem__(ESCAPES, np.zeros(2, "V3"))),
    "findings that are no JSON": _says("findings", "["),
    "findings of a hundred thousand brackets": _says("findings", "[" * 60_000),
    "findings of another kind": _says("findings", '[{"topic": "validity"}]'),
    "statistics with a class's name": _says("statistics", '{"lp": {"reduce": "os.system"}}'),
    "seed of a thousand digits": _says("seed", "9" * 1000),
    "negative draws": _says("draws_done", -5),
    "power that is no number": _says("likelihood_power", float("nan")),
    "a device's name of a megabyte": _says("device", "x" * 60000),
    "precision that names a function": _says("precision", "os.system"),
    "an attribute without a value": _says("model", h5py.Empty("f4")),
    "an attribute of many numbers": _says("seed", np.zeros(100)),
}
