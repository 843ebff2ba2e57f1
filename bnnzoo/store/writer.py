"""A run on disk: part files while it runs, one NetCDF file in ArviZ's schema at the end.

    run.nc.parts/header.json       what the run is: root attributes, dimension names
    run.nc.parts/data.npz          observed_data, constant_data
    run.nc.parts/p000-000012.npz   the draws and statistics of one chunk of process 0
    run.nc.parts/p000.json         which parts count, in order
    run.nc.parts/checkpoint.npz    see checkpoint.py

Each is whole or absent. HDF5 appended in place would be unreadable after a kill; this is openable at any moment.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.store.atomic import publish, write_whole

Group = Mapping[str, np.ndarray]
Attributes = dict[str, str | int | float]


def parts_folder(out: Path) -> Path:
    """Where an unfinished run's parts lie: `run.nc.parts` beside `run.nc`."""
    return out.with_name(out.name + ".parts")


class Store:
    """The writer of one run. Groups are {"posterior": {name: [chain, draw, ...]}, "sample_stats": ...}."""

    def __init__(self, out: Path, process: int = 0):
        self.out, self.folder, self.process = out, parts_folder(out), process
        self.parts: list[dict[str, Any]] = []
        self.attributes: Attributes = {}
        self.dims: dict[str, list[str]] = {}

    def create(
        self,
        attributes: Attributes,
        dims: Mapping[str, list[str]],
        static: Mapping[str, Group],
        *,
        force: bool,
    ) -> None:
        """Start a new run on disk.

        Raises:
            UsageError: if the file or its parts exist and `force` is not given, or another process writes them.
        """
        if not force:
            refuse_existing(self.out)
        elif self.folder.exists():
            self._lock()
            shutil.rmtree(self.folder)
        try:
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise UsageError(f"{self.folder}: cannot be made: {error.strerror}; use another -o") from error
        self._lock()
        self.attributes, self.dims = dict(attributes), {k: list(v) for k, v in dims.items()}
        arrays: dict[str, Any] = {f"{g}/{n}": v for g, values in static.items() for n, v in values.items()}
        write_whole(self.folder / "data.npz", lambda file: np.savez(file, **arrays))
        self._write_header()

    def reopen(self, num_parts: int) -> None:
        """Go on with an unfinished run; parts beyond the checkpoint's `num_parts` are discarded.

        Raises:
            UsageError: if there is none, or another process writes it.
        """
        self._lock()
        self.attributes, self.dims = read_header(self.folder)
        self.parts = _manifest(self.folder, self.process)[:num_parts]
        # The manifest first: it must never name a part that is gone.
        self._write_json(f"p{self.process:03d}.json", {"parts": self.parts})
        known = {part["file"] for part in self.parts}
        for path in self.folder.glob(f"p{self.process:03d}-*.npz"):
            if path.name not in known:
                path.unlink()
        for path in self.folder.glob(".*.tmp"):
            path.unlink()

    def append(self, groups: Mapping[str, Group]) -> None:
        """Write one chunk as a part, then the manifest that makes it count."""
        # NumPy writes an array that is a view of a larger one six times slower.
        flat: dict[str, Any] = {f"{g}/{n}": np.ascontiguousarray(v) for g, s in groups.items() for n, v in s.items()}
        name = f"p{self.process:03d}-{len(self.parts):06d}.npz"
        write_whole(self.folder / name, lambda file: np.savez(file, **flat))
        draws = {g: next(iter(v.values())).shape[1] for g, v in groups.items() if v}
        self.parts.append({"file": name, "bytes": (self.folder / name).stat().st_size, "draws": draws})
        self._write_json(f"p{self.process:03d}.json", {"parts": self.parts})

    def add_static(self, group: str, values: Group, dims: Mapping[str, list[str]]) -> None:
        """Add to the arrays that do not grow, such as constant_data, or replace them."""
        arrays: dict[str, Any] = {f"{g}/{n}": v for g, old in read_static(self.folder).items() for n, v in old.items()}
        arrays |= {f"{group}/{n}": v for n, v in values.items()}
        self.dims |= {name: list(names) for name, names in dims.items()}
        self._write_header()
        write_whole(self.folder / "data.npz", lambda file: np.savez(file, **arrays))

    def values(self, group: str, name: str) -> np.ndarray:
        """A variable of all parts so far, [chain, draw, ...]."""
        parts = (self.folder / part["file"] for part in self.parts)
        return np.concatenate([found[group][name] for part in parts if group in (found := _groups_of(part))], 1)

    def update(self, attributes: Mapping[str, str | int | float]) -> None:
        """Set root attributes."""
        self.attributes.update(attributes)
        self._write_header()

    def finish(self, *, complete: bool) -> None:
        """Build the NetCDF file from the parts; after a complete run, verify it and remove them."""
        self.attributes["complete"] = int(complete)
        write_netcdf(self.folder, self.out, self.attributes, self.dims)
        if complete:
            draws = self.attributes["draws_done"]
            with xr.open_dataset(self.out, group="posterior", engine="h5netcdf") as posterior:
                if posterior.sizes["draw"] != draws:
                    raise BnnzooError(f"{self.out}: holds {posterior.sizes['draw']} draws, not {draws}; parts are kept")
            shutil.rmtree(self.folder)
        else:
            self.release()

    def release(self) -> None:
        """Let another process go on with this run."""
        (self.folder / "lock").unlink(missing_ok=True)

    def _write_header(self) -> None:
        self._write_json("header.json", {"attributes": self.attributes, "dims": self.dims})

    def _write_json(self, name: str, value: Any) -> None:
        write_whole(self.folder / name, lambda file: file.write(json.dumps(value, indent=1).encode()))  # type: ignore[arg-type,return-value]

    def _lock(self) -> None:
        path = self.folder / "lock"
        for _ in range(2):
            try:
                with open(path, "x") as file:
                    file.write(str(os.getpid()))
                return
            except FileNotFoundError:
                raise UsageError(f"{self.out}: no unfinished run here ({self.folder.name} is missing)") from None
            except FileExistsError:
                owner = path.read_text() or "0"
                if owner.isdigit() and _alive(int(owner)):
                    raise UsageError(
                        f"{self.out}: process {owner} is writing this run; wait for it, or stop it"
                    ) from None
                path.unlink(missing_ok=True)


def refuse_existing(out: Path) -> None:
    """Raise if a run at `out` exists, finished or not."""
    if parts_folder(out).exists():
        raise UsageError(f"{out}: an unfinished run is here; use bnnzoo resume {out}, another -o, or --force")
    if out.exists():
        raise UsageError(f"{out}: exists; use another -o, or --force to replace it")


def check_room(out: Path, num_bytes: int) -> None:
    """Raise if the draws will not fit on the disk.

    Raises:
        UsageError: with the bytes needed and free.
    """
    folder = out.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{out}: there is no folder {folder}; make it, or use another -o")
    free = shutil.disk_usage(folder).free
    # Twice: the parts and the file built from them exist at the same time.
    if 2 * num_bytes > free:
        raise UsageError(
            f"{out}: needs {2 * num_bytes / 1e9:.1f} GB while it is written, {free / 1e9:.1f} GB are free; "
            "use fewer --draws, a larger --thin, another -o, or --force"
        )


def read_header(folder: Path) -> tuple[Attributes, dict[str, list[str]]]:
    """Root attributes and dimension names of an unfinished run."""
    try:
        header = json.loads((folder / "header.json").read_text())
        return header["attributes"], header["dims"]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{folder}: not the parts of a run ({error})") from error


def read_static(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """observed_data and constant_data of an unfinished run."""
    groups: dict[str, dict[str, np.ndarray]] = {}
    with np.load(folder / "data.npz", allow_pickle=False) as file:
        for key in file.files:
            group, name = key.split("/", 1)
            groups.setdefault(group, {})[name] = file[key]
    return groups


def open_tree(path: Path) -> xr.DataTree:
    """A run's tree: of the finished file, else of the parts so far.

    Raises:
        UsageError: if there is neither, or the file is not one of ours.
    """
    folder = parts_folder(path)
    if folder.is_dir():
        return _tree_of_parts(folder)
    if not path.exists():
        raise UsageError(f"{path}: no such run; bnnzoo sample MODEL SAMPLER -o {path} makes one")
    if not path.is_file():
        raise UsageError(f"{path}: not a regular file")
    try:
        tree = xr.open_datatree(path, engine="h5netcdf")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a NetCDF file of bnnzoo ({error})") from error
    if "recipe" not in tree.attrs or "posterior" not in tree.children:
        tree.close()
        raise UsageError(f"{path}: a NetCDF file, but not of bnnzoo: no recipe, or no posterior in it")
    return tree


def write_netcdf(folder: Path, out: Path, attributes: Attributes, dims: Mapping[str, list[str]]) -> None:
    """One NetCDF-4 file from an unfinished run's parts, in bounded memory, published whole."""
    import h5netcdf
    import h5py

    manifests = _manifests(folder)
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        _reserve(temporary, sum(path.stat().st_size for path in folder.glob("*.npz")))
        # h5netcdf's own flush does not reach the disk: the handle is ours.
        with h5py.File(temporary, "w", track_order=True) as handle:
            file = h5netcdf.File(handle, mode="w")
            file.attrs.update(attributes)
            sizes = _group_sizes(folder, manifests)
            for name, (num_chains, num_draws) in sizes.items():
                group = file.create_group(name)
                group.dimensions = {"chain": num_chains, "draw": num_draws}
                for dim, size in (("chain", num_chains), ("draw", num_draws)):
                    group.create_variable(dim, (dim,), data=np.arange(size))
            first_chain = 0
            for parts in manifests:
                first_draw: dict[str, int] = {}
                num_chains = 0
                for part in parts:
                    for name, values in _groups_of(folder / part["file"]).items():
                        start = first_draw.get(name, 0)
                        for variable, array in values.items():
                            num_chains, count = array.shape[:2]
                            target = _variable(file.groups[name], variable, array, dims)
                            target[first_chain : first_chain + num_chains, start : start + count] = array
                        first_draw[name] = start + part["draws"][name]
                first_chain += num_chains
            for name, values in read_static(folder).items():
                _write_static(file.create_group(name), values, dims)
            file.close()
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        publish(temporary, out)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BnnzooError(f"{out}: cannot be written: {error}; the parts are kept in {folder}") from error


def add_groups(
    path: Path, groups: Mapping[str, Group], dims: Mapping[str, list[str]], coords: Mapping[str, Group]
) -> None:
    """Add groups to a finished file, replacing those of the same name, through a copy published whole.

    Args:
        coords: by group, the values of its coordinates, for those that are not counted from 0.
    """
    import h5netcdf
    import h5py

    temporary = path.with_name(f".{path.name}.tmp")
    try:
        shutil.copyfile(path, temporary)
        with h5py.File(temporary, "r+") as handle:
            for name in groups:
                if name in handle:
                    del handle[name]
            file = h5netcdf.File(handle, mode="a")
            for name, values in groups.items():
                _write_static(file.create_group(name), values, dims, coords.get(name, {}))
            file.close()
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        publish(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BnnzooError(f"{path}: cannot be written: {error}; the file is as it was") from error


def _write_static(group: Any, values: Group, dims: Mapping[str, list[str]], coords: Group | None = None) -> None:
    for name, array in values.items():
        names = _dims(name, array, dims, skip=0)
        for dim, size in zip(names, array.shape, strict=True):
            if dim not in group.dimensions:
                group.dimensions[dim] = size
        group.create_variable(name, tuple(names), data=array)
    for name, array in (coords or {}).items():
        group.create_variable(name, (name,), data=array)


def _reserve(path: Path, size: int) -> None:
    """Raise OSError if the disk has no room for `size` bytes: HDF5 itself would not survive a write that fails."""
    with open(path, "wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, max(1, size))


def _variable(group: Any, name: str, array: np.ndarray, dims: Mapping[str, list[str]]) -> Any:
    """The variable of a group that grows with the parts, made when first seen."""
    if name not in group.variables:
        names = _dims(name, array, dims, skip=2)
        for dim, size in zip(names, array.shape[2:], strict=True):
            if dim not in group.dimensions:
                group.dimensions[dim] = size
        kind = np.dtype("i1") if array.dtype == bool else array.dtype
        group.create_variable(name, ("chain", "draw", *names), kind)
        if array.dtype == bool:
            group[name].attrs["dtype"] = "bool"
    return group[name]


def _dims(name: str, array: np.ndarray, dims: Mapping[str, list[str]], *, skip: int) -> list[str]:
    return dims.get(name) or [f"{name}_dim_{i}" for i in range(array.ndim - skip)]


def _tree_of_parts(folder: Path) -> xr.DataTree:
    attributes, dims = read_header(folder)
    pieces: dict[str, dict[str, list[np.ndarray]]] = {}
    for part in (part for parts in _manifests(folder) for part in parts):
        for group, values in _groups_of(folder / part["file"]).items():
            for name, array in values.items():
                pieces.setdefault(group, {}).setdefault(name, []).append(array)
    tree: dict[str, xr.Dataset] = {}
    for group, variables in pieces.items():
        arrays = {name: np.concatenate(parts, 1) for name, parts in variables.items()}
        tree[group] = xr.Dataset(
            {n: (["chain", "draw", *_dims(n, a, dims, skip=2)], a) for n, a in arrays.items()},
            coords={d: np.arange(next(iter(arrays.values())).shape[i]) for i, d in enumerate(("chain", "draw"))},
        )
    for group, values in read_static(folder).items():
        tree[group] = xr.Dataset({n: (_dims(n, a, dims, skip=0), a) for n, a in values.items()})
    draws = tree["posterior"].sizes["draw"] if "posterior" in tree else 0
    result = xr.DataTree.from_dict({f"/{name}": dataset for name, dataset in tree.items()})
    result.attrs.update({**attributes, "complete": 0, "draws_done": draws})
    return result


def _groups_of(path: Path) -> dict[str, dict[str, np.ndarray]]:
    groups: dict[str, dict[str, np.ndarray]] = {}
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            group, name = key.split("/", 1)
            groups.setdefault(group, {})[name] = file[key]
    return groups


def _group_sizes(folder: Path, manifests: list[list[dict[str, Any]]]) -> dict[str, tuple[int, int]]:
    """(chains, draws) of each sampled group; chains of unequal length are cut nowhere here: parts agree."""
    sizes: dict[str, tuple[int, int]] = {}
    for parts in manifests:
        draws: dict[str, int] = {}
        for part in parts:
            for name, count in part["draws"].items():
                draws[name] = draws.get(name, 0) + count
        for name, count in draws.items():
            chains = next(
                next(iter(_groups_of(folder / p["file"])[name].values())).shape[0] for p in parts if name in p["draws"]
            )
            before = sizes.get(name, (0, count))
            sizes[name] = (before[0] + chains, min(before[1], count))
    return sizes


def _manifests(folder: Path) -> list[list[dict[str, Any]]]:
    processes = sorted(int(path.stem[1:]) for path in folder.glob("p[0-9][0-9][0-9].json"))
    return [_manifest(folder, process) for process in processes]


def _manifest(folder: Path, process: int) -> list[dict[str, Any]]:
    path = folder / f"p{process:03d}.json"
    if not path.exists():
        return []
    try:
        return json.loads(path.read_text())["parts"]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{path}: damaged ({error})") from error


def _alive(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0
