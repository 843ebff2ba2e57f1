"""Read a run from its file, or an unfinished run from its part files.

A file that is damaged, or is not a run, raises an error.
"""

from __future__ import annotations

import hashlib
import json
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import h5py
import numpy as np

from bnnzoo.errors import DamagedError, UsageError
from bnnzoo.files.shell import sample_call
from bnnzoo.finding import setting
from bnnzoo.store import attributes, checkpoint, command, hdf5_validation, run_parts
from bnnzoo.store.checkpoint import Checkpoint
from bnnzoo.store.run_parts import Unfinished, parts_folder
from bnnzoo.store.schema import OBSERVED_DATA, POSTERIOR, SAMPLE_STATS, SAMPLED, dims_of

if TYPE_CHECKING:
    import xarray as xr


def check(path: Path) -> None:
    """Check the files of a run for every problem that can be found without loading the draws.

    Raises:
        UsageError: if there is no run, or if a file is damaged. The message names the file.
    """
    if is_unfinished(path):
        _check_attributes(run_parts.load(parts_folder(path))).check()
        return
    if not path.exists():
        call = sample_call("MODEL", "SAMPLER", setting("out", path))
        raise UsageError(f"{path}: no such run; create it with {call}")
    hdf5_validation.check(path)
    with h5py.File(path, "r") as file:
        if "recipe" not in file.attrs or POSTERIOR not in file:
            raise UsageError(f"{path}: a NetCDF file, but not a run of bnnzoo: the file has no recipe, or no posterior")
        if reason := _fault(file.attrs) or _count_mismatch(file):
            raise UsageError(f"{path}: damaged: {reason}")


def _fault(attrs: Any) -> str:
    try:
        return attributes.find_fault(attrs) or attributes.find_contradiction(attrs)
    except UsageError as error:
        return f"its recipe: {error}"


def _count_mismatch(file: h5py.File) -> str:
    """Return a message if `draws_done` or `rows` differs from the number of draws or rows in the file; else ""."""
    counts = {"draws_done": f"{POSTERIOR}/{SAMPLED[1]}", "rows": f"{OBSERVED_DATA}/y"}
    for name, array_name in counts.items():
        # The file of a federated run has no rows, because they stay with their parties.
        array = file.get(array_name)
        count = array.shape[0] if isinstance(array, h5py.Dataset) and array.ndim else 0
        if name in file.attrs and count != file.attrs[name] and (name != "rows" or count):
            return f"its attribute {name} differs from the length of {array_name}"
    return ""


def attributes_of(path: Path) -> dict[str, Any]:
    """Read the root attributes of a finished or unfinished run.

    Raises:
        UsageError: if there is no run, or if a file is damaged.
    """
    if is_unfinished(path):
        return dict(_check_attributes(run_parts.load(parts_folder(path))).attributes)
    check(path)
    with h5py.File(path, "r") as file:
        return {str(name): _attribute(file, name) for name in file.attrs if name != attributes.DIGESTS}


def groups_of(path: Path) -> set[str]:
    """Return the names of the groups of a file. The caller must have checked the file with `check`."""
    with h5py.File(path, "r") as file:
        return set(file)


def identity_of(path: Path) -> str:
    """Return a digest that identifies a run; empty if the run cannot be read. Groups of `evaluate` do not change it."""
    try:
        attributes = attributes_of(path)
    except UsageError:
        return ""
    return hashlib.sha256(json.dumps(attributes, sort_keys=True, default=str).encode()).hexdigest()


def is_unfinished(path: Path) -> bool:
    """Whether a run must be read from its part files, because the run has part files but no complete file."""
    return run_parts.holds_run(parts_folder(path)) and not is_complete(path)


def is_complete(path: Path) -> bool:
    """Whether the file at this path is a complete run."""
    return _complete(path) == 1


def _complete(path: Path) -> Any:
    """Return the attribute `complete` of a file; None if the file is missing or cannot be read."""
    try:
        hdf5_validation.check(path)
        with h5py.File(path, "r") as file:
            value = _attribute(file, "complete")
            return value if isinstance(value, int) else None
    except (UsageError, OSError):
        return None


def parts_state(path: Path) -> Literal["absent", "begun", "resumable"]:
    """Return the state (see `run_state`) of the part files beside `path`. The file at `path` itself is ignored."""
    if not run_parts.holds_run(parts_folder(path)):
        return "absent"
    return "resumable" if checkpoint.has_checkpoint(parts_folder(path)) else "begun"


def run_state(path: Path) -> Literal["absent", "begun", "resumable", "partial", "complete"]:
    """Return the state of the run at a path.

    Returns:
        "absent": no run. "begun": an unfinished run without a checkpoint. "resumable": an unfinished run with a
        checkpoint. "partial": the file of a stopped run, whose part files are missing. "complete": the file of a
        complete run, or a file that cannot be read.
    """
    if is_unfinished(path):
        return parts_state(path)
    if not path.exists():
        return "absent"
    return "partial" if _complete(path) == 0 else "complete"


def resumable(path: Path, from_part: int | None = None) -> tuple[Unfinished, Checkpoint]:
    """Read an unfinished run and its checkpoint, and check the part files that the checkpoint needs.

    Args:
        path: the NetCDF file of the run.
        from_part: largest number of part files that the checkpoint may need; None for the newest checkpoint.

    Raises:
        UsageError: if there is no unfinished run or no such checkpoint, or if a needed file is damaged.
    """
    folder = parts_folder(path)
    if not run_parts.holds_run(folder):
        if _complete(path) == 0:
            raise UsageError(
                f"{path}: the run stopped before its end, and its folder {folder.name} is missing; start the run "
                "again with [[force=True]]"
            )
        if path.exists():
            check(path)
            raise UsageError(
                f"{path}: is finished, so there is nothing to resume; to add draws, use [[budget=2m]] or [[draws]]"
            )
        if folder.is_dir() and not folder.is_symlink():
            remedy = command.restart_advice(folder, force=False)
            raise UsageError(f"{path}: the run stopped during its preparation, so there is nothing to resume; {remedy}")
        raise UsageError(f"{path}: no such run; correct the path")
    unfinished = run_parts.load(folder)
    if not checkpoint.has_checkpoint(folder) and is_complete(path):
        raise UsageError(
            f"{path}: is finished, but a new run with this path stopped before its first checkpoint; to keep the "
            f"finished run, remove {folder.name}; to replace it, {command.restart_advice(folder, force=True)}"
        )
    saved = _check_attributes(unfinished).checkpoint(from_part)
    unfinished.check(saved.num_parts)
    return unfinished, saved


def open_tree(path: Path) -> xr.DataTree:
    """Return the groups of a run as a tree, from its file or, if the run is unfinished, from its part files.

    Raises:
        UsageError: if there is no run, or if the file is damaged or was not written by bnnzoo.
    """
    import xarray as xr  # imported here, because it takes a second

    check(path)
    if is_unfinished(path):
        return _tree_of_parts(run_parts.load(parts_folder(path)))
    try:
        tree = xr.open_datatree(path, engine="h5netcdf", phony_dims="sort")
        tree.attrs.pop(attributes.DIGESTS, None)  # digests are internal to the file
        for group in tree.subtree:
            for name, values in group.variables.items():
                if len(values.dims) != len(values.shape):
                    raise ValueError(
                        f"{group.name}/{name} has {len(values.shape)} dimensions, but {len(values.dims)} names "
                        "for dimensions"
                    )
                if reason := _decoding_fault(values):
                    raise ValueError(f"{group.name}/{name} {reason}")
        return tree
    # A valid HDF5 file need not be a NetCDF file, and xarray then raises many kinds of exceptions.
    except Exception as error:
        raise UsageError(f"{path}: not a NetCDF file of bnnzoo ({' '.join(str(error).split())[:200]})") from error


def read_array(path: Path, array: xr.DataArray) -> np.ndarray:
    """Return the values of an array. It must be part of the tree that `open_tree` returned for the file `path`.

    Raises:
        DamagedError: if a checksum of HDF5 does not match; the message names the file and the array.
    """
    try:
        return array.to_numpy()
    except OSError as error:
        raise DamagedError(f"{path}: damaged: {array.name} was changed after it was written") from error


def read_group(path: Path, tree: xr.DataTree, name: str) -> dict[str, np.ndarray]:
    """Return the arrays of a group of a tree (see `read_array`); empty if the tree has no such group."""
    variables = tree[name].data_vars if name in tree.children else {}
    return {str(key): read_array(path, array) for key, array in variables.items()}


def _decoding_fault(values: xr.Variable) -> str:
    """Return a message if an attribute of an array made xarray change the numbers of the array; otherwise empty.

    Attributes of the NetCDF conventions scale, shift or mask numbers, or convert them to booleans or times. bnnzoo
    writes only the attribute that converts single bytes to booleans.
    """
    stored_encoding = values.encoding
    if values.dtype.kind not in "biuf" or (
        values.dtype.kind == "b" and np.dtype(stored_encoding.get("dtype", "i1")).itemsize > 1
    ):
        return f"has an attribute that changes the type of its numbers to {ascii(values.dtype.name)[1:-1]}"
    decoding_attributes = sorted({"scale_factor", "add_offset", "missing_value", "_Unsigned"} & set(stored_encoding))
    fill = stored_encoding.get("_FillValue")
    if fill is not None and not np.all(np.isnan(np.asarray(fill, float))):
        decoding_attributes.append("_FillValue")
    return f"has the unexpected attribute {decoding_attributes[0]}" if decoding_attributes else ""


def _check_attributes(run: Unfinished) -> Unfinished:
    """Return the run if its root attributes are valid.

    Raises:
        UsageError: if an attribute is invalid.
    """
    if reason := _fault(run.attributes):
        raise run_parts.damaged(run.folder / run_parts.HEADER, f": {reason}")
    return run


def open_parts(path: Path, *, every: int = 1) -> xr.DataTree:
    """Return the groups of an unfinished run as a tree, even if a complete file exists at `path`.

    Args:
        path: the NetCDF file of the run.
        every: the stride k. Draws 0, k, 2k, ... are read.

    Raises:
        UsageError: if there is no unfinished run, or if it is damaged.
    """
    run = _check_attributes(run_parts.load(parts_folder(path)))
    run.check()
    return _tree_of_parts(run, every)


def _attribute(file: h5py.File, name: str) -> Any:
    """Return a root attribute of the file. An attribute with one element becomes a Python scalar."""
    return attributes.plain(file.attrs.get(name))


def _tree_of_parts(run: Unfinished, every: int = 1) -> xr.DataTree:
    import xarray as xr

    # The full arrays are allocated first, because concatenation at the end would need twice the memory.
    arrays_by_group: dict[str, dict[str, np.ndarray]] = {}
    for key, (dtype, shape) in run.manifest.variables.items():
        group, name = key.split("/", 1)
        if group in run.draws:
            count = ceil(run.draws[group] / every)
            arrays_by_group.setdefault(group, {})[name] = np.empty((run.manifest.chains, count, *shape), dtype)
    first = dict.fromkeys(arrays_by_group, 0)
    for draws, groups in run.blocks():
        for group, values in groups.items():
            last = first[group] + draws[group]
            start, end = ceil(first[group] / every), ceil(last / every)
            for name, array in values.items():
                arrays_by_group[group][name][:, start:end] = array[:, start * every - first[group] :: every]
            first[group] = last
    tree: dict[str, xr.Dataset] = {}
    for group, arrays in arrays_by_group.items():
        attributes_by_name = run.header.variable_attributes if group.endswith(SAMPLE_STATS) else {}
        tree[group] = xr.Dataset(
            {
                n: ([*SAMPLED, *dims_of(n, a.ndim, run.dims, skip=2)], a, attributes_by_name.get(n))
                for n, a in arrays.items()
            },
            coords={d: np.arange(next(iter(arrays.values())).shape[i]) for i, d in enumerate(SAMPLED)},
        )
    for group, values in run.static().items():
        tree[group] = xr.Dataset({n: (dims_of(n, a.ndim, run.dims), a) for n, a in values.items()})
    result = xr.DataTree.from_dict({f"/{name}": dataset for name, dataset in tree.items()})
    result.attrs.update({**run.attributes, "complete": 0, "draws_done": run.draws.get(POSTERIOR, 0)})
    return result
