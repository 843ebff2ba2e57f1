"""Run files whose arrays and attributes contradict each other are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tiny
from hostile import edited

import bnnzoo
from bnnzoo.api import entrances
from bnnzoo.errors import UsageError


def _says(name: str, value: Any, holder: str = "/") -> Callable[[Path], None]:
    return edited(lambda file, _: file[holder].attrs.__setitem__(name, value))


def _instead(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    """Another array in the place of one, with its dimensions."""

    def change(file: h5py.File, _: Path) -> None:
        old = file[name]
        values = make(old[...])
        names = [old.dims[i].keys() for i in range(old.ndim)]
        scales = [old.dims[i][0] if names[i] else None for i in range(old.ndim)]
        about = {key: value for key, value in old.attrs.items() if not key.startswith(("DIM", "_Net"))}
        del file[name]
        new = file.create_dataset(name, data=values)
        new.attrs.update(about)
        for i, scale in enumerate(scales[: values.ndim]):
            if scale is not None and values.shape[i] == scale.shape[0]:
                new.dims[i].attach_scale(scale)

    return edited(change)


def _also(name: str, like: str, make: Callable[[np.ndarray], np.ndarray] = np.copy) -> Callable[[Path], None]:
    def change(file: h5py.File, _: Path) -> None:
        new = file.create_dataset(name, data=make(file[like][...]))
        for i in range(new.ndim):
            if len(file[like].dims[i]):
                new.dims[i].attach_scale(file[like].dims[i][0])

    return edited(change)


def _signature(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(file: h5py.File, _: Path) -> None:
        contents = json.loads(file.attrs["signature"])
        change(contents)
        file.attrs["signature"] = json.dumps(contents)

    return edited(edit)


CONTRADICTIONS: dict[str, Callable[[Path], None]] = {
    "test inputs without targets": edited(lambda file, _: file["constant_data"].__delitem__("y_test")),
    "test targets that are no numbers": _instead("constant_data/y_test", lambda y: np.full_like(y, np.nan)),
    "draws that are true or false": _says("dtype", "bool", "posterior/weight"),
    "draws that are whole numbers": _instead("posterior/weight", lambda w: w.astype(np.int8)),
    "draws of another precision": _instead("posterior/weight", lambda w: w.astype(np.float64) * 1e300),
    "a scale with a factor": _says("scale_factor", 1e30, "constant_data/x_sd"),
    "draws with what stands for none": _says("_FillValue", np.float32(0), "posterior/weight"),
    "draws with an offset": _says("add_offset", 1.0, "posterior/bias"),
    "statistics that are dates": _says("units", "days since 1970-01-01", "sample_stats/lp"),
    "weights that are no numbers": _also("sample_stats/log_weight", "sample_stats/lp", lambda lp: lp * np.nan),
    "linear at a point, by another sampler": _also(
        "constant_data/linearised_at_weight", "posterior/weight", lambda w: w[:, 0]
    ),
    "fixed, and sampled": _also("constant_data/fixed_weight", "posterior/weight", lambda w: w[0, 0]),
    "fixed, and of no network": _also("constant_data/fixed_zzz", "posterior/weight", lambda w: w[0, 0]),
    "a noise scale below nothing": _instead("posterior/likelihood_scale", np.negative),
    "a noise scale that is no number": _instead("posterior/likelihood_scale", lambda s: np.full_like(s, np.nan)),
    "fewer draws than it says": _says("draws_done", 7),
    "fewer rows than it says": _says("rows", 5),
    "another sampler than the recipe's": _says("sampler", "nuts"),
    "another precision than the recipe's": _says("precision", "float64"),
    "another power than the recipe's": _says("likelihood_power", 0.5),
    "another seed than the recipe's": _says("seed", 99),
    "ten columns of one name": _signature(lambda fields: fields.update(feature_names=["age"] * 10)),
    "a column too few": _signature(lambda fields: fields.update(feature_names=fields["feature_names"][:9], shape=[9])),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run.nc"
    entrances.run_recipe(tiny.recipe("mala", **{"likelihood.scale": "learned"}), out=out)
    return out


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_contradiction_is_refused(case, finished, tmp_path):
    path = tmp_path / "run.nc"
    shutil.copyfile(finished, path)
    CONTRADICTIONS[case](path)
    looks: list[Callable[[bnnzoo.Run], Any]] = [lambda run: run.evaluate(save=False), lambda run: run.diagnose()]
    for look in looks[: 1 if case.startswith("test") else 2]:  # a diagnosis looks at no test target
        with pytest.raises(UsageError) as caught:
            look(entrances.open(path))
        assert str(path) in str(caught.value)


def test_an_attribute_more_does_no_harm(finished, tmp_path):
    path = tmp_path / "run.nc"
    shutil.copyfile(finished, path)
    _says("mine", np.array([1, 2]))(path)
    assert entrances.open(path).diagnose() == entrances.open(finished).diagnose()
    assert entrances.open(path).summary()["draws"] == tiny.DRAWS
