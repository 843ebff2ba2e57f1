"""The NetCDF-4 file of a run: its construction from the part files, and the addition of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5netcdf
import h5py
import numpy as np

from bnnzoo.errors import BnnzooError, DamagedError
from bnnzoo.files.atomic import OvertakenError, replacing
from bnnzoo.store.attributes import are_equal, storable, with_digests
from bnnzoo.store.run_parts import Unfinished
from bnnzoo.store.schema import (
    POSTERIOR,
    SAMPLE_STATS,
    SAMPLED,
    Attributes,
    Dims,
    Group,
    dims_of,
)

if TYPE_CHECKING:
    import xarray as xr

_CHUNK_BYTES = 2**18
_FORMAT = ("v110", "v110")
"""The file format of HDF5 1.10. It is the first with checksums for the metadata that locates the arrays."""


def build(run: Unfinished, out: Path, attributes: Callable[[], Attributes], more_groups: Mapping[str, Group]) -> None:
    """Build the NetCDF file from the part files of a run. The memory use does not grow with the run.

    Args:
        run: the unfinished run.
        out: the file to write.
        attributes: a function that returns the root attributes. It is called after all arrays are written.
        more_groups: groups to write besides those of the part files.

    Raises:
        UsageError: if a part file is damaged.
        BnnzooError: if the file cannot be written, or has the wrong number of draws; `out` is then unchanged.
    """
    on_failure = f"the draws so far are kept in the folder {run.folder}"
    with replacing(out, on_failure=on_failure) as disk, _hdf5(disk, "w") as file:
        attributes_by_name = run.header.variable_attributes
        num_chains, num_draws = run.manifest.chains, run.draws
        for name, count in num_draws.items():
            group = file.create_group(name)
            for dim, size in zip(SAMPLED, (num_chains, count), strict=True):
                _create_variable(group, dim, [dim], (size,), np.dtype(int), data=np.arange(size))
        for key, (dtype, shape) in run.manifest.variables.items():
            group, name = key.split("/", 1)
            names = [*SAMPLED, *dims_of(name, 2 + len(shape), run.dims, skip=2)]
            sizes = (num_chains, num_draws[group], *shape)
            about = attributes_by_name.get(name, {}) if group.endswith(SAMPLE_STATS) else {}
            _create_variable(file.groups[group], name, names, sizes, np.dtype(dtype), about=about)
        first = dict.fromkeys(num_draws, 0)
        for draws, groups in run.blocks():
            for name, values in groups.items():
                last = first[name] + draws[name]
                for variable, array in values.items():
                    file.groups[name][variable][:, first[name] : last] = array
                first[name] = last
        for name, values in {**run.static(), **more_groups}.items():
            _write_static(file.create_group(name), values, run.dims)
        written_draws, expected_draws = num_draws.get(POSTERIOR, 0), run.attributes.get("draws_done")
        if expected_draws not in (None, written_draws):
            raise BnnzooError(
                f"{out}: the file would contain {written_draws} draws, expected {expected_draws}; {on_failure}"
            )
        file.attrs.update(attributes())


def add_groups(path: Path, groups: Mapping[str, Group], dims: Dims, coords: Mapping[str, Group]) -> None:
    """Add groups to a finished file, or replace groups of the same name.

    The groups are added to a copy, which then replaces the file. Groups that another process adds at the same time are
    kept.

    Args:
        path: the finished file.
        groups: the variables of each group, by name.
        dims: dimension names of each variable. The key is NAME, or GROUP/NAME for a variable of one group only.
        coords: for each group, the values of coordinates that are not 0, 1, 2, ...

    Raises:
        BnnzooError: if the copy cannot be written, or if the file now belongs to another run. In both cases nothing is
            added to the file.
        DamagedError: if the dimensions in the file are damaged; the file is unchanged.
    """
    run: Mapping[str, Any] = {}
    path = path.resolve()  # replace the target of a link, not the link itself
    while True:
        with open(path, "rb") as source, suppress(OvertakenError):
            run = _same_run(path, source, run)
            return _add_to_copy(path, source, groups, dims, coords)


def check_same_run(path: Path, attributes: Mapping[str, Any]) -> None:
    """Check that a finished file still belongs to the run with the root attributes `attributes`.

    Raises:
        BnnzooError: if another run has replaced the file, or if the file is missing.
    """
    try:
        with open(path, "rb") as source:
            _same_run(path, source, attributes)
    except OSError as error:
        raise BnnzooError(f"{path}: {(error.strerror or str(error)).lower()}; nothing was added to the file") from error


def _same_run(path: Path, file: Any, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the root attributes of a file, and check that they include all attributes in `run` with the same values.

    The root attributes identify the run, because `add_groups` does not change them.

    Raises:
        BnnzooError: if a value differs. Another run has then replaced the file.
    """
    with h5netcdf.File(file, "r") as handle:
        attributes = dict(handle.attrs)
    if not are_equal(attributes, run):
        raise BnnzooError(f"{path}: was replaced by another run, so nothing was added to it; try again")
    return attributes


def _add_to_copy(path: Path, source: Any, groups: Mapping[str, Group], dims: Dims, coords: Mapping[str, Group]) -> None:
    import xarray as xr  # imported here, because it takes a second

    with replacing(path, on_failure="the file is unchanged", instead_of=source) as disk:
        source.seek(0)
        while block := source.read(2**22):
            disk.write(block)
        try:
            with _hdf5(disk, "r+", without=groups) as file:
                for name, values in groups.items():
                    group_dims = {key.removeprefix(f"{name}/"): names for key, names in dims.items()}
                    _write_static(file.create_group(name), values, group_dims, coords.get(name, {}))
            disk.seek(0)
            # HDF5 reads the numbers of dimensions only when a dimension is added. Opening the copy checks them, so a
            # file with wrong numbers never replaces the old one.
            xr.open_datatree(disk, engine="h5netcdf", phony_dims="sort").close()
        except OSError:
            raise
        except Exception as error:
            raise DamagedError(
                f"{path}: damaged: nothing can be added to it ({' '.join(str(error).split())})"
            ) from error


def write_tree(path: Path, tree: xr.DataTree) -> None:
    """Write a run that exists only in memory, in the format of `build`.

    Root attributes that are neither numbers nor texts are left out. bnnzoo does not create such attributes.

    Raises:
        BnnzooError: if the file cannot be written; an old file is unchanged.
    """
    with replacing(path) as disk, _hdf5(disk, "w") as file:
        file.attrs.update(with_digests(storable(tree.attrs)))
        for name, node in tree.children.items():
            group, dataset = file.create_group(name), node.to_dataset(inherit=False)
            dims = {str(key): [str(dim) for dim in values.dims] for key, values in dataset.data_vars.items()}
            _write_static(group, _arrays(dataset.data_vars), dims, _arrays(dataset.coords))
            for key, values in dataset.data_vars.items():
                group.variables[str(key)].attrs.update(values.attrs)


def _arrays(variables: Mapping[Any, xr.DataArray]) -> dict[str, np.ndarray]:
    return {str(name): values.to_numpy() for name, values in variables.items()}


def write_table(path: Path, columns: Group, dim: str) -> None:
    """Write a table, such as predictions, whose columns all have the dimension `dim`.

    Raises:
        BnnzooError: if the file cannot be written; an old file is unchanged.
    """
    with replacing(path) as disk, _hdf5(disk, "w") as file:
        _write_static(file, columns, {name: [dim] for name in columns})
        length = len(next(iter(columns.values()), ()))
        file.create_variable(dim, (dim,), data=np.arange(length))


class _Disk:
    """A file object for HDF5 that stores write errors until HDF5 has finished.

    HDF5 may crash on a failed write, so the error is raised afterwards. The object bypasses Python's buffer, because
    the buffer could write, and fail, while HDF5 only seeks or reads.
    """

    def __init__(self, file: Any):
        file.flush()
        self.file = file.raw
        self.error: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        return self.file.read(size)

    def readinto(self, buffer: Any) -> int:
        return self.file.readinto(buffer)

    def seek(self, *arguments: int) -> int:
        return self.file.seek(*arguments)

    def tell(self) -> int:
        return self.file.tell()

    def write(self, data: Any) -> int:
        self._try(lambda: self._write_whole(memoryview(data).cast("B")))
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        self._try(lambda: self.file.truncate(size))
        return 0 if size is None else size

    def flush(self) -> None:
        self._try(self.file.flush)

    def _write_whole(self, data: memoryview) -> None:
        while data:  # one call may write only a part
            data = data[self.file.write(data) :]

    def _try(self, act: Callable[[], Any]) -> None:
        try:
            if self.error is None:
                act()
        except OSError as error:
            self.error = error


@contextmanager
def _hdf5(file: Any, mode: str, without: Iterable[str] = ()) -> Iterator[Any]:
    """Open an h5netcdf file and delete the groups in `without`.

    Raises:
        OSError: at the end of the block, if a write failed.
    """
    disk = _Disk(file)
    try:
        with h5py.File(disk, mode, track_order=True, libver=_FORMAT) as handle:
            for name in set(without) & set(handle):
                del handle[name]
            opened = h5netcdf.File(handle, mode="a")
            yield opened
            opened.close()
    except Exception:
        if disk.error is not None:
            raise disk.error from None
        raise
    if disk.error is not None:
        raise disk.error


def _storage_options(shape: tuple[int, ...], itemsize: int, *, of_chains: bool = False) -> dict[str, Any]:
    """Return the storage options of a variable: chunks with checksums, so that a read detects a changed bit.

    A chunk contains as many rows, or as many draws of one chain, as fit into 256 KiB. HDF5 can then cache one chunk of
    each chain until the chunk is full. Empty variables and scalars have no chunks.
    """
    if 0 in shape or not shape:
        return {}
    chunk, growing_axis = list(shape), int(of_chains)
    if of_chains:
        chunk[0] = 1
    chunk[growing_axis] = min(
        shape[growing_axis], max(1, _CHUNK_BYTES // max(1, itemsize * prod(shape[growing_axis + 1 :])))
    )
    return {"chunks": tuple(chunk), "fletcher32": True}


def _write_static(group: Any, values: Group, dims: Dims, coords: Group | None = None) -> None:
    for name, array in values.items():
        _create_variable(group, name, dims_of(name, array.ndim, dims), array.shape, array.dtype, data=array)
    for name, array in (coords or {}).items():
        _create_variable(group, name, [name], array.shape, array.dtype, data=array)


def _create_variable(
    group: Any,
    name: str,
    dims: list[str],
    shape: tuple[int, ...],
    dtype: np.dtype,
    *,
    data: np.ndarray | None = None,
    about: Attributes | None = None,
) -> None:
    """Create a variable and its new dimensions.

    Args:
        group: the group of the variable.
        name: name of the variable.
        dims: names of the dimensions.
        shape: lengths of the dimensions.
        dtype: type of the values. Booleans and texts are stored in the form that xarray uses for them.
        data: values; None if they are written later.
        about: attributes of the variable.
    """
    for dim, size in zip(dims, shape, strict=True):
        if dim not in group.dimensions:
            group.dimensions[dim] = size
    is_text, is_boolean = dtype.kind in "UOT", dtype.kind == "b"
    if data is not None and (is_text or is_boolean):
        data = data.astype(object if is_text else "i1")
    kind = h5py.string_dtype() if is_text else np.dtype("i1") if is_boolean else dtype
    of_chains = tuple(dims[: len(SAMPLED)]) == SAMPLED
    options = {} if is_text else _storage_options(shape, dtype.itemsize, of_chains=of_chains)
    variable = group.create_variable(name, tuple(dims), kind, data=data, **options)
    variable.attrs.update(about or {})
    if is_boolean:
        variable.attrs["dtype"] = "bool"
