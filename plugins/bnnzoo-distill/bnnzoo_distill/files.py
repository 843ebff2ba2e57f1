"""Reading and writing of students as NetCDF or ONNX files. The extension of the file name determines the format."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bnnzoo import UsageError, store
from bnnzoo.data import Signature
from bnnzoo.errors import DamagedError
from bnnzoo.files.atomic import check_free
from bnnzoo.files.user_paths import checked_path
from bnnzoo.store import hdf5_validation
from bnnzoo_distill.student import Student

_FORMAT = 1
_GROUP = "network"
_VECTORS = ("x_mean", "x_sd", "x_low", "x_high", "tail")
_MAX_LAYERS = 100
_AGAIN = "create the student again with bnnzoo distill"


def check_output(path: str | Path, *, force: bool) -> Path:
    """Check that a student can be written to a file, and return its path.

    Raises:
        UsageError: if the extension of the name is neither .nc nor .onnx, if the folder does not exist, if the file
            exists and `force` is false, or if a package that the format needs is not installed.
    """
    path = checked_path(path)
    if path.suffix not in (".nc", ".onnx"):
        raise UsageError(f"{path}: the name of a student's file must end in .nc or .onnx")
    check_free(path, force=force)
    store.check_room(path, 0)
    if path.suffix == ".onnx":
        from bnnzoo_distill import onnx_file

        onnx_file.check_installed(path)
    return path


def save(student: Student, path: str | Path, *, force: bool = False) -> Path:
    """Write a student to a .nc or .onnx file; see `Student.save`."""
    path = check_output(path, force=force)
    if path.suffix == ".onnx":
        from bnnzoo_distill import onnx_file

        onnx_file.write(student, path)
        return path
    arrays = {name: getattr(student, name) for name in _VECTORS}
    for i, layer in enumerate(student.layers):
        arrays |= {f"weight_{i}": layer[0], f"bias_{i}": layer[1]}
    text = json.dumps(
        {
            "format": _FORMAT,
            "layers": len(student.layers),
            "y_mean": student.y_mean,
            "y_sd": student.y_sd,
            "signature": student.signature.to_json(),
            "report": student.report,
            "about": student.about,
        }
    )
    variables = {
        name: ([f"{name}_dim_{axis}" for axis in range(values.ndim)], values) for name, values in arrays.items()
    }
    tree = xr.DataTree.from_dict({f"/{_GROUP}": xr.Dataset(variables)})
    tree.attrs.update({"student": text, "student_sha256": _digest(text, arrays)})
    store.write_tree(path, tree)
    return path


def load(path: str | Path) -> Student:
    """Read a student from a .nc file. Nothing in the file is executed, and JAX is not imported.

    Raises:
        UsageError: if the file is missing, is not a .nc file, or is a NetCDF file without a student.
        DamagedError: if the file is damaged.
    """
    path = checked_path(path)
    if not path.exists():
        raise UsageError(f"{path}: no such student; create it with bnnzoo distill RUN -o {path}")
    if path.suffix == ".onnx":
        raise UsageError(f"{path}: load reads only .nc files; read this file with onnxruntime")
    hdf5_validation.check(path)
    try:
        text, sha256, arrays = _read(path)
    except Exception as error:  # a damaged file makes HDF5 and xarray raise many kinds of exceptions
        raise DamagedError(f"{path}: damaged, or not the file of a student ({_line(error)}); {_AGAIN}") from None
    if text is None:
        raise UsageError(
            f"{path}: is a NetCDF file, but not a student; create a student with bnnzoo distill RUN -o FILE.nc"
        )
    if sha256 != _digest(text, arrays):
        raise DamagedError(f"{path}: damaged: the content does not match its SHA-256; {_AGAIN}")
    try:
        return _student(json.loads(text), arrays)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(
            f"{path}: damaged, or of another version of bnnzoo-distill ({_line(error)}); {_AGAIN}"
        ) from None


def _line(error: Exception) -> str:
    return ascii(" ".join(f"{type(error).__name__}: {error}".split())[:200])[1:-1]


def _read(path: Path) -> tuple[str | None, str, dict[str, np.ndarray]]:
    """Return the JSON text, the stored SHA-256 and the arrays of a student. Without a student, the text is None."""
    with xr.open_datatree(path, engine="h5netcdf", decode_cf=False) as tree:
        if "student" not in tree.attrs or _GROUP not in tree.children:
            return None, "", {}
        variables = tree[_GROUP].to_dataset().data_vars
        arrays = {str(name): np.asarray(values.values) for name, values in variables.items()}
        return str(tree.attrs["student"]), str(tree.attrs.get("student_sha256")), arrays


def _digest(text: str, arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{values.dtype}{values.shape}".encode() + values.tobytes())
    return digest.hexdigest()


def _student(values: dict[str, Any], arrays: dict[str, np.ndarray]) -> Student:
    """Return the student from the values and arrays of its file.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: if a value or an array is missing or invalid, or if values
            and arrays contradict each other. This can happen despite a correct SHA-256, because anyone can compute it.
    """
    if values["format"] != _FORMAT:
        raise ValueError(f"format {values['format']}, expected {_FORMAT}")
    signature = Signature.from_json(values["signature"])
    count = values["layers"]
    if not isinstance(count, int) or not 1 <= count <= _MAX_LAYERS:
        raise ValueError("invalid number of layers")
    layers = tuple((arrays[f"weight_{i}"], arrays[f"bias_{i}"]) for i in range(count))
    num_outputs = 3 if signature.task == "regression" else signature.num_classes + 1
    size = len(signature.feature_names)
    for weight, bias in layers:
        if weight.ndim != 2 or weight.shape[1] != size or bias.shape != weight.shape[:1]:
            raise ValueError("the shapes of the weights do not match")
        size = len(weight)
    vectors = {name: arrays[name] for name in _VECTORS}
    is_shaped = all(vectors[name].shape == signature.shape for name in _VECTORS[:-1]) and vectors["tail"].shape == (2,)
    numbers = [*vectors.values(), *(array for layer in layers for array in layer), [values["y_mean"], values["y_sd"]]]
    if size != num_outputs or not is_shaped or not all(np.isfinite(array).all() for array in numbers):
        raise ValueError("the arrays do not match the signature, or are not finite")
    report, about = dict(values["report"]), dict(values["about"])
    scale = {"y_mean": float(values["y_mean"]), "y_sd": float(values["y_sd"])}
    fields: dict[str, Any] = vectors | scale
    return Student(signature=signature, layers=layers, **fields, report=report, about=about)
