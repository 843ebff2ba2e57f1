"""From what a user names, a file, a folder or a registered data set, to checked arrays.

`load` is for training. `load_inputs` and `load_like` are for a trained model: they hold new data to its
`Signature`; where a source has a test set of its own (t10k files, a registered example), they take that one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnnzoo.data.check import check_labels, did_you_mean, finite_float32, training_labels
from bnnzoo.data.dataset import Dataset, Signature, as_inputs, check_task, from_arrays, numeric_array
from bnnzoo.data.idx import load_idx, read_images, read_labels
from bnnzoo.data.table import TABLE_SUFFIXES, Table, column_indices, read_table
from bnnzoo.errors import UsageError

FILE_SUFFIXES = (*TABLE_SUFFIXES, ".npz")
MOST_INFERRED_CLASSES = 20


def load(spec: str | Path, *, target: Sequence[str] = (), task: str | None = None) -> Dataset:
    """The data set `spec` names: a registered name, or a .csv, .tsv, .parquet or .npz file, or an IDX folder.

    `target` names the target columns of a table (default: its last column). Without `task`, a table is
    classification where its one target holds exactly the labels 0..C-1, 2 <= C <= 20, every one of them, and
    regression otherwise; in an .npz the dtype of `y` decides (`from_arrays`).
    """
    targets = (target,) if isinstance(target, str) else tuple(target)
    chosen = check_task(task)
    path = _as_path(spec)
    if path is not None and path.suffix.lower() in TABLE_SUFFIXES and path.is_file():
        return _from_table(read_table(path), targets, chosen, path)
    if targets:
        raise UsageError(f"{spec}: targets can be chosen in tables only ({' '.join(TABLE_SUFFIXES)})")
    if path is None:
        return _with_task(_registered(str(spec)), chosen)
    if path.is_dir():
        return _with_task(load_idx(path), chosen)
    arrays = _read_npz(path, ("x", "y"))
    return from_arrays(arrays["x"], arrays["y"], task=chosen, name=path.name, where=str(path))


def load_inputs(spec: str | Path | Dataset | ArrayLike, like: Signature) -> NDArray[Any]:
    """Inputs [N, *like.shape] of dtype `like.dtype` to predict for: file, folder, name, data set or array x.

    Columns of tables (and of a DataFrame) are matched by name, in any order, and others are ignored. Arrays
    are matched by shape; an .npz holds `x`, or just `arr_0`.
    """
    if isinstance(spec, Dataset):
        return _match((spec.test or spec).x, like, spec.name)
    if not isinstance(spec, str | Path):
        return _match(_by_name(spec, like), like, "x")
    path = _as_path(spec)
    if path is None:
        return load_inputs(_registered(str(spec)), like)
    where = str(path)
    if path.is_dir():
        return _match(_folder_images(path)[0], like, where)
    if path.suffix.lower() == ".npz":
        return _match(_read_npz_inputs(path), like, f"{where}: x")
    _check_tabular(like, where)
    table = read_table(path, like.feature_names or None)
    return _match(finite_float32(table.values, where, table.names), like, where)


def load_like(
    spec: str | Path | Dataset | tuple[ArrayLike, ArrayLike],
    like: Signature,
    target_names: Sequence[str] | None = None,
) -> Dataset:
    """Labelled data to evaluate on: a file, folder, name, data set, or (x, y), held to `like`.

    Features and targets of tables are matched by name (targets: `target_names`, default `like.target_names`);
    labels must be among the model's classes.
    """
    names = like.target_names if target_names is None else tuple(target_names)
    if isinstance(spec, Dataset):
        source = spec.test or spec
        return _labelled(source.x, source.y, like, spec.name, spec.name, ("", ""))
    if not isinstance(spec, str | Path):
        x, y = spec
        return _labelled(_by_name(x, like), y, like, "arrays", "", ("x", "y"))
    path = _as_path(spec)
    if path is None:
        return load_like(_registered(str(spec)), like)
    where = str(path)
    if path.is_dir():
        images, part = _folder_images(path)
        labels = read_labels(path, part)
        if labels is None:
            raise UsageError(f"{where}: no {part}-labels-idx1-ubyte[.gz] beside the images")
        return _labelled(images, labels, like, path.name, where, (f"{part} images", f"{part} labels"))
    if path.suffix.lower() == ".npz":
        arrays = _read_npz(path, ("x", "y"))
        return _labelled(arrays["x"], arrays["y"], like, path.name, where, ("x", "y"))
    _check_tabular(like, where)
    num_features = len(like.feature_names)
    table = read_table(path, (*like.feature_names, *names))
    x = finite_float32(table.values[:, :num_features], where, like.feature_names)
    y = table.values[:, num_features:]
    if like.task == "classification":
        y = check_labels(y[:, 0], like.num_classes, where, names[0])
    else:
        y = finite_float32(y, where, names)
    return _like(_match(x, like, where), y, like, path.name)


def _as_path(spec: str | Path) -> Path | None:
    """The existing file or folder `spec` means; None where it can only be a registered name."""
    text = os.path.expanduser(spec)
    path = Path(text)
    if not str(spec):
        raise UsageError("the data set has an empty name; give a registered name or a path")
    has_separator = any(separator in text for separator in (os.sep, os.altsep) if separator)
    known = path.suffix.lower() in FILE_SUFFIXES
    if not os.path.lexists(text):
        if isinstance(spec, Path) or has_separator or known:
            folder = path.parent
            if not os.path.isdir(folder):
                raise UsageError(f"{spec}: no such file, and no folder {folder}; check the path")
            raise UsageError(
                f"{spec}: no such file; in {folder}: {did_you_mean(path.name, sorted(os.listdir(folder)))}"
            )
        return None
    if not os.path.exists(text):
        raise UsageError(f"{spec}: a link to a file that does not exist; check the path")
    if path.is_dir():
        return path
    if not path.is_file():
        raise UsageError(f"{spec}: not a regular file (a pipe or a device?); write the data to a file first")
    if not known:
        raise UsageError(
            f"{spec}: unknown kind of data file {path.suffix or '(no suffix)'}; "
            f"known are {' '.join(FILE_SUFFIXES)} and IDX folders"
        )
    return path


def _registered(name: str) -> Dataset:
    from bnnzoo import registry

    make: Any = registry.load("datasets", name)
    dataset = make()
    if not isinstance(dataset, Dataset):
        raise UsageError(f"data set {name}: its function returned {type(dataset).__name__}, not a bnnzoo Dataset")
    return dataset


def _with_task(dataset: Dataset, task: str | None) -> Dataset:
    """`dataset` read as `task`: labels as numbers, or whole numbers as labels."""
    if task is None or task == dataset.task:
        return dataset
    again = from_arrays(
        dataset.x,
        dataset.y,
        task=task,
        name=dataset.name,
        feature_names=dataset.feature_names,
        target_names=dataset.target_names,
        where=dataset.name,
    )
    return again if dataset.test is None else replace(again, test=load_like(dataset.test, again.signature))


def _from_table(table: Table, targets: tuple[str, ...], task: str | None, path: Path) -> Dataset:
    where = str(path)
    names = targets or (table.names[-1],)
    columns = column_indices(table.names, names, where)
    if len(set(names)) < len(names):
        raise UsageError(f"{where}: a target is given twice ({', '.join(names)}); name each once")
    others = [i for i in range(len(table.names)) if i not in columns]
    if not others and not targets:
        raise UsageError(
            f"{where}: no columns left for features beside the target {', '.join(names)}; add one, "
            "or name every column with --target for a density"
        )
    feature_names = tuple(table.names[i] for i in others)
    x = finite_float32(table.values[:, others], where, feature_names)
    y = table.values[:, columns]
    if task is None:
        task = "classification" if len(names) == 1 and _are_labels(y[:, 0]) else "regression"
    elif task == "classification" and len(names) > 1:
        raise UsageError(f"{where}: {len(names)} targets; classification has one column of labels")
    if task == "classification":
        labels, num_classes = training_labels(y[:, 0], where, ", ".join(names))
        return Dataset(x, labels, "classification", feature_names, names, num_classes, path.name)
    return Dataset(x, finite_float32(y, where, names), "regression", feature_names, names, 0, path.name)


def _are_labels(y: NDArray[np.float64]) -> bool:
    """Whether y [N] holds exactly the values 0..C-1, 2 <= C <= 20."""
    present = np.unique(y)
    return 2 <= present.size <= MOST_INFERRED_CLASSES and bool(np.all(present == np.arange(present.size)))


def _read_npz(path: Path, names: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The arrays `names` of an .npz file, or all of them."""
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UsageError(f"{path}: not an .npz archive but one array; np.savez({path.name!r}, x=x, y=y)")
            missing = [name for name in names if name not in archive.files]
            if missing:
                held = ", ".join(archive.files) or "nothing"
                raise UsageError(f"{path}: no array {missing[0]}, it holds {held}; np.savez({path.name!r}, x=x, y=y)")
            return {name: archive[name] for name in names or archive.files}
    except UsageError:
        raise
    except Exception as error:  # zipfile, zlib, struct, NumPy's header parser: each has its own
        if "Object arrays" in str(error):
            problem = "an array of Python objects, which is never unpickled; save arrays of numbers"
        else:
            problem = f"not an .npz archive of arrays, or a damaged one ({type(error).__name__}); write it again"
        raise UsageError(f"{path}: {problem}") from error


def _read_npz_inputs(path: Path) -> NDArray[Any]:
    arrays = _read_npz(path)
    if "x" in arrays:
        return arrays["x"]
    if list(arrays) == ["arr_0"]:
        return arrays["arr_0"]
    raise UsageError(f"{path}: no array x, it holds {', '.join(arrays) or 'nothing'}; np.savez({path.name!r}, x=x)")


def _folder_images(folder: Path) -> tuple[NDArray[np.uint8], str]:
    """The images to evaluate on in an IDX folder, and their part: t10k where it has them, else train."""
    for part in ("t10k", "train"):
        images = read_images(folder, part)
        if images is not None:
            return images, part
    raise UsageError(f"{folder}: a folder without t10k- or train-images-idx3-ubyte[.gz]")


def _check_tabular(like: Signature, where: str) -> None:
    if not like.feature_names and like.shape != (0,):
        raise UsageError(f"{where}: a table, but the model was trained on images {list(like.shape)}")


def _by_name(x: Any, like: Signature) -> ArrayLike:
    """The columns of a DataFrame in the order of the training features; anything else as it is."""
    if not hasattr(x, "columns") or not like.feature_names:
        return x
    columns = list(x.columns)
    indices = column_indices([str(column) for column in columns], like.feature_names, "x")
    return x[[columns[i] for i in indices]]


def _match(x: ArrayLike, like: Signature, where: str) -> NDArray[Any]:
    """x [N, *like.shape] with the dtype of the training inputs."""
    if like.shape == (0,):  # only targets: whatever there is beside them
        return np.zeros((len(numeric_array(x, where)), 0), np.float32)
    inputs = as_inputs(x, where)
    if inputs.shape[1:] != like.shape:
        raise UsageError(
            f"{where}: inputs of shape {list(inputs.shape[1:])}, "
            f"but the model was trained on {list(like.shape)}; give the same"
        )
    if inputs.dtype.name == like.dtype:
        return inputs
    if like.dtype == "float32":
        return inputs.astype(np.float32)
    if np.any((inputs < 0) | (inputs > 255) | (inputs != np.floor(inputs))):
        raise UsageError(f"{where}: the model was trained on uint8 images; give whole numbers 0..255")
    return inputs.astype(np.uint8)


def _labelled(x: ArrayLike, y: ArrayLike, like: Signature, name: str, where: str, parts: tuple[str, str]) -> Dataset:
    """x and y from arrays, checked against `like`; `where` and `parts` say in messages which is which."""
    x_where, y_where = (": ".join(filter(None, (where, part))) for part in parts)
    inputs = _match(x, like, x_where)
    targets = numeric_array(y, y_where)
    if targets.shape[0] != inputs.shape[0]:
        raise UsageError(f"{y_where}: {targets.shape[0]} rows of targets for {inputs.shape[0]} of inputs")
    if targets.size != targets.shape[0] * len(like.target_names):
        raise UsageError(f"{y_where}: shape {list(targets.shape)}, but the model has {len(like.target_names)} targets")
    if like.task == "classification":
        targets = check_labels(targets.reshape(-1), like.num_classes, y_where)
    else:
        targets = finite_float32(targets, y_where).reshape(-1, len(like.target_names))
    return _like(inputs, targets, like, name)


def _like(x: NDArray[Any], y: NDArray[Any], like: Signature, name: str) -> Dataset:
    return Dataset(x, y, like.task, like.feature_names, like.target_names, like.num_classes, name)
