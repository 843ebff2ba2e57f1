"""IDX, the format of MNIST and its kin: a folder of image and label files, plain or gzip-compressed.

A file is: two zero bytes, a type byte (8: unsigned bytes, the only one read here), the number of dimensions,
each dimension as a big-endian 32-bit number, then the bytes.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnnzoo.data.check import check_labels
from bnnzoo.data.dataset import Dataset, from_arrays
from bnnzoo.errors import UsageError

_UNSIGNED_BYTES = 8
_MOST_GZIP_SHRINKS = 1100  # gzip makes data at most about 1030 times smaller


def load_idx(folder: Path) -> Dataset:
    """The train files of `folder`, with the t10k files, if there, as its test set. Images stay uint8."""
    images = read_images(folder, "train")
    labels = read_labels(folder, "train")
    if images is None or labels is None:
        missing = "train-images-idx3-ubyte" if images is None else "train-labels-idx1-ubyte"
        raise UsageError(f"{folder}: a folder without {missing}[.gz]; data folders hold MNIST's IDX files")
    train = from_arrays(
        images, labels, task="classification", name=folder.name, target_names=("label",), where=str(folder)
    )
    test_images = read_images(folder, "t10k")
    test_labels = read_labels(folder, "t10k")
    if test_images is None or test_labels is None:
        return train
    where = f"{folder}: t10k"
    if test_images.shape[1:] != images.shape[1:]:
        raise UsageError(
            f"{where}: images of {list(test_images.shape[1:])} pixels, but {list(images.shape[1:])} in train"
        )
    if test_images.shape[0] != test_labels.shape[0]:
        raise UsageError(f"{where}: {test_images.shape[0]} images and {test_labels.shape[0]} labels")
    test = Dataset(
        x=test_images,
        y=check_labels(test_labels, train.num_classes, where),
        task="classification",
        feature_names=(),
        target_names=train.target_names,
        num_classes=train.num_classes,
        name=train.name,
    )
    return Dataset(**{**vars(train), "test": test})


def read_images(folder: Path, part: str) -> NDArray[np.uint8] | None:
    """Images [N, H, W] or [N, C, H, W] of `part`, "train" or "t10k"; None without such a file."""
    path = _find(folder, f"{part}-images", "idx3-ubyte")
    return None if path is None else _read_idx(path, (3, 4))


def read_labels(folder: Path, part: str) -> NDArray[np.uint8] | None:
    """Labels [N] of `part`; None where the folder has no such file."""
    path = _find(folder, f"{part}-labels", "idx1-ubyte")
    return None if path is None else _read_idx(path, (1,))


def _find(folder: Path, stem: str, kind: str) -> Path | None:
    candidates = [folder / f"{stem}{dot}{kind}{packed}" for packed in ("", ".gz") for dot in ("-", ".")]
    return next((path for path in candidates if path.is_file()), None)


def _read_idx(path: Path, num_dims_allowed: tuple[int, ...]) -> NDArray[np.uint8]:
    damaged = "download it again"
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            magic = file.read(4)
            if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTES:
                raise UsageError(
                    f"{path}: not an IDX file of unsigned bytes (it begins {magic.hex() or 'nowhere'}, "
                    f"not 0000{_UNSIGNED_BYTES:02x}); {damaged}"
                )
            num_dims = magic[3]
            if num_dims not in num_dims_allowed:
                raise UsageError(f"{path}: {num_dims} dimensions, not {num_dims_allowed[0]}; is it the right file?")
            header = file.read(4 * num_dims)
            if len(header) < 4 * num_dims:
                raise UsageError(f"{path}: ends inside its header; {damaged}")
            shape = struct.unpack(f">{num_dims}I", header)
            expected = math.prod(shape)
            if expected == 0:
                raise UsageError(f"{path}: empty, its header says {list(shape)}")
            if expected > _MOST_GZIP_SHRINKS * path.stat().st_size:
                raise UsageError(f"{path}: its header says {list(shape)}, more than the file can hold; {damaged}")
            content = file.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
        raise UsageError(f"{path}: cannot be read, or is damaged ({error}); {damaged}") from error
    if len(content) != expected:
        problem = "ends early" if len(content) < expected else "has bytes left over"
        raise UsageError(f"{path}: {problem}: its header says {list(shape)}, {expected} bytes; {damaged}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
