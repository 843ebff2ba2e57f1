"""IDX, the format of MNIST and similar data: a folder of image and label files, plain or gzip-compressed.

A file starts with two zero bytes, a byte for the type of the data, and a byte for the number of dimensions. The sizes
of the dimensions follow as big-endian 32-bit numbers, and then the data. Only type 8, unsigned bytes, is supported.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnnzoo.data.encoding.targets import check_labels
from bnnzoo.data.rows.dataset import Dataset, UncheckedRows, from_arrays
from bnnzoo.errors import UsageError
from bnnzoo.files import mapped

_UNSIGNED_BYTES = 8
_KINDS = {"images": "idx3-ubyte", "labels": "idx1-ubyte"}
"""Ends of the names of IDX files, by content."""
_MAX_GZIP_RATIO = 1100
"""Maximal size of the data as a multiple of the size of the file. gzip compresses by at most a factor of 1030."""


class IdxFolder:
    """A folder of IDX files.

    The `train` files contain the training images and labels, and the `t10k` files contain the test set. Images are
    arrays of uint8. If they would need more than `mapped.LARGE_BYTES` as float32, they are kept in a temporary file.
    """

    def __init__(self, folder: Path):
        self.where = str(folder)
        self._folder = folder

    def dataset(self, task: str | None) -> Dataset:
        """Return the `train` files as a data set. The `t10k` images and labels, if both exist, are its test set."""
        images, labels = read_images(self._folder, "train"), read_labels(self._folder, "train")
        if images is None or labels is None:
            missing = "train-images-idx3-ubyte" if images is None else "train-labels-idx1-ubyte"
            raise UsageError(
                f"{self.where}: the folder has no {missing}[.gz]; a data folder must contain IDX files, named as those "
                "of MNIST, or Parquet files"
            )
        train = from_arrays(
            images, labels, task="classification", name=self._folder.name, target_names=("label",), where=self.where
        )
        # The checks above return a view of the same bytes, which does not show whether they are in a temporary file.
        return replace(train, x=images, test=self._test(train)).as_task(task)

    def inputs(self) -> tuple[NDArray[Any], str]:
        """Return the images for prediction, and the name of the folder.

        The images come from the `t10k` file if it exists, otherwise from the `train` file.
        """
        images, _ = self._images()
        return images, self.where

    def labelled(self) -> UncheckedRows:
        """Return the images that `inputs` returns and the labels of these images, without checks."""
        images, part = self._images()
        labels = read_labels(self._folder, part)
        if labels is None:
            raise UsageError(
                f"{self.where}: the folder has {part} images, but no {part}-labels-idx1-ubyte[.gz]; add the labels"
            )
        return UncheckedRows(images, labels, f"{self.where}: {part} images", f"{self.where}: {part} labels")

    def _images(self) -> tuple[NDArray[np.uint8], str]:
        for part in ("t10k", "train"):
            images = read_images(self._folder, part)
            if images is not None:
                return images, part
        raise UsageError(
            f"{self.where}: the folder has no t10k-images-idx3-ubyte[.gz] and no train-images-idx3-ubyte[.gz]"
        )

    def _test(self, train: Dataset) -> Dataset | None:
        images, labels = read_images(self._folder, "t10k"), read_labels(self._folder, "t10k")
        if images is None or labels is None:
            return None
        where = f"{self.where}: t10k"
        if images.shape[1:] != train.x.shape[1:]:
            raise UsageError(
                f"{where}: images of {list(images.shape[1:])} pixels, but the train images have "
                f"{list(train.x.shape[1:])}; use the files of one data set"
            )
        if images.shape[0] != labels.shape[0]:
            raise UsageError(
                f"{where}: {images.shape[0]} images but {labels.shape[0]} labels; use the files of one data set"
            )
        labels = check_labels(labels, train.class_names, where)
        return Dataset.from_signature(train.signature, images, labels, train.name)


def read_images(folder: Path, part: str) -> NDArray[np.uint8] | None:
    """Return the images [N, H, W] or [N, C, H, W] of a folder, or None if there is no such file.

    Args:
        folder: the folder.
        part: "train" or "t10k", the first part of the name of the file.
    """
    return _read_idx(folder, f"{part}-images", _KINDS["images"], (3, 4))


def read_labels(folder: Path, part: str) -> NDArray[np.uint8] | None:
    """Return the labels [N] of a folder, or None if there is no such file. `part` is "train" or "t10k"."""
    return _read_idx(folder, f"{part}-labels", _KINDS["labels"], (1,))


def idx_files(folder: Path) -> list[Path]:
    """Return the IDX files of a folder that bnnzoo reads: the images and labels for training and for testing."""
    kinds = ((f"{part}-{name}", kind) for part in ("train", "t10k") for name, kind in _KINDS.items())
    return [path for stem, kind in kinds if (path := _path_of(folder, stem, kind)) is not None]


def _path_of(folder: Path, stem: str, kind: str) -> Path | None:
    paths = [folder / f"{stem}{dot}{kind}{packed}" for packed in ("", ".gz") for dot in ("-", ".")]
    return next(filter(Path.is_file, paths), None)


def _read_idx(folder: Path, stem: str, kind: str, num_dims_allowed: tuple[int, ...]) -> NDArray[np.uint8] | None:
    path = _path_of(folder, stem, kind)
    if path is None:
        return None
    remedy = "download the file again"
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            magic = file.read(4)
            if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTES:
                raise UsageError(
                    f"{path}: not an IDX file of unsigned bytes (its first bytes are {magic.hex() or 'missing'}, "
                    f"expected 0000{_UNSIGNED_BYTES:02x}); {remedy}"
                )
            num_dims = magic[3]
            if num_dims not in num_dims_allowed:
                allowed = " or ".join(map(str, num_dims_allowed))
                raise UsageError(
                    f"{path}: must have {allowed} dimensions (got {num_dims}); check that it is the right file"
                )
            header = file.read(4 * num_dims)
            if len(header) < 4 * num_dims:
                raise UsageError(f"{path}: ends inside its header; {remedy}")
            shape = struct.unpack(f">{num_dims}I", header)
            expected = math.prod(shape)
            if expected == 0:
                raise UsageError(
                    f"{path}: contains no data: its header gives the shape {list(shape)}; use another file"
                )
            if expected > _MAX_GZIP_RATIO * path.stat().st_size:
                raise UsageError(
                    f"{path}: its header gives the shape {list(shape)}, but the file is too small for this shape; "
                    f"{remedy}"
                )
            content = _read_bytes(file, shape)
            too_long = bool(file.read(1))
    except (OSError, EOFError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
        raise UsageError(f"{path}: unreadable or damaged ({error}); {remedy}") from error
    if content is None or too_long:
        problem = "ends early" if content is None else "is too long"
        raise UsageError(
            f"{path}: {problem}: its header gives the shape {list(shape)}, so {expected} bytes must follow the header; "
            f"{remedy}"
        )
    return content


def _read_bytes(file: io.BufferedIOBase, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """Return the next bytes of a file as an array of the given shape, or None if the file has too few."""
    size = math.prod(shape)
    if size * np.dtype(np.float32).itemsize <= mapped.LARGE_BYTES:
        content = file.read(size)
        return np.frombuffer(content, np.uint8).reshape(shape) if len(content) == size else None
    array = mapped.empty(shape, np.uint8)
    for rows in mapped.row_blocks(array):
        block = array[rows]
        content = file.read(block.size)
        if len(content) != block.size:
            return None
        block[:] = np.frombuffer(content, np.uint8).reshape(block.shape)
    return array
