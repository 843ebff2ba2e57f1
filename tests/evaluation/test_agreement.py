"""Run files whose arrays contradict their attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

import bnnzoo
from bnnzoo.errors import DamagedError, UsageError
from bnnzoo.evaluation.contents import agreement

SHORT: dict[str, Any] = {"chains": 2, "warmup": 100, "draws": 150, "init": "prior", "chain_method": "vectorized"}


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    folder = tmp_path_factory.mktemp("regression")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = x[:, 0] + 0.1 * rng.normal(size=60)
    return bnnzoo.sample("linear", "mala", data=(x, y), out=folder / "run.nc", **SHORT), folder


def damaged(run: bnnzoo.Run, group: str, **change: Any) -> xr.DataTree:
    """Return the tree of a run with some variables of a group replaced, or removed if they are None."""
    groups = {name: node.to_dataset() for name, node in run.posterior.children.items()}
    groups[group] = groups[group].drop_vars(list(change), errors="ignore")
    for name, values in change.items():
        if values is not None:
            leading = ["chain", "draw"] if group in ("posterior", "sample_stats") else []
            rest = [f"{name}_{i}" for i in range(len(leading), np.ndim(values))]
            groups[group][name] = ([*leading, *rest], values)
    return xr.DataTree.from_dict(groups)


@pytest.mark.parametrize(
    ("group", "change", "message"),
    [
        ("posterior", lambda old: {"bias": None}, "posterior/bias is missing"),
        (
            "posterior",
            lambda old: {"a": old["bias"], "z": old["bias"]},
            "posterior/a is not a parameter of the model in the file",
        ),
        (
            "posterior",
            lambda old: {"bias": old["bias"][..., None]},
            r".*/bias is .*, expected float32\[2, 150, 1\]",
        ),
        ("posterior", lambda old: {"bias": old["bias"].astype(float)}, "posterior/bias is float64"),
        (
            "sample_stats",
            lambda old: {"lp": old["lp"][..., None]},
            r".*/lp is .* expected numbers \[2, 150\]",
        ),
        ("sample_stats", lambda old: {"lp": old["lp"].astype("S3")}, r"sample_stats/lp is \|S3"),
        ("observed_data", lambda old: {"y": old["y"][:-1]}, "observed_data/y is"),
        ("constant_data", lambda old: {"x": None}, "constant_data/x is missing"),
        ("constant_data", lambda old: {"x_test": old["x_test"][:, :1]}, "constant_data/x_test is"),
        ("constant_data", lambda old: {"x_test": None}, "constant_data/x_test has no rows"),
        ("constant_data", lambda old: {"y_test": None}, "constant_data/y_test is missing"),
        (
            "constant_data",
            lambda old: {"linearised_at_bias": old["x"][:2, :1]},
            "constant_data/linearised_at_weight belongs to another sampler",
        ),
    ],
)
def test_a_file_whose_arrays_are_not_its_models_is_refused(group, change, message, regression):
    run, _ = regression
    old = {str(name): variable.values for name, variable in run.posterior[group].data_vars.items()}
    agreement.check(damaged(run, group), None, run.predictor._restored_model)
    agreement.check(damaged(run, "constant_data", x_test=None, y_test=None), None, run.predictor._restored_model)
    with pytest.raises(DamagedError, match=f"the run: damaged: {message}"):
        agreement.check(damaged(run, group, **change(old)), None, run.predictor._restored_model)


def test_a_given_posterior_may_lack_sites_but_not_add_any(regression):
    """The file of a NumPyro model also contains deterministic sites; the error names sites that are missing."""
    run = regression[0]
    tree, restored_model = run.posterior, run.predictor._restored_model
    model = restored_model._replace(data_sha256=tree.attrs["data_sha256"])
    old = {str(name): variable.values for name, variable in tree["posterior"].data_vars.items()}
    more, fewer = damaged(run, "posterior", a=old["bias"]), damaged(run, "posterior", weight=None)
    for changed in (more, fewer):
        changed.attrs.update(tree.attrs)
    agreement.check(more, None, model)
    with pytest.raises(UsageError, match="the run: has no draws of the site weight of the given posterior"):
        agreement.check(fewer, None, model)


def test_a_partial_linearisation_point_is_refused(regression):
    run, restored_model = regression[0], regression[0].predictor._restored_model._replace(linearised=True)
    points = {
        f"linearised_at_{block.name}": np.zeros((2, *block.shape), np.float32)
        for block in restored_model.posterior.layout.blocks
    }
    agreement.check(damaged(run, "constant_data", **points), None, restored_model)
    agreement.check(run.posterior, None, restored_model)
    with pytest.raises(DamagedError, match="constant_data/linearised_at_bias is missing"):
        agreement.check(damaged(run, "constant_data", **points | {"linearised_at_bias": None}), None, restored_model)
    with pytest.raises(DamagedError, match="constant_data/linearised_at_bias is"):
        agreement.check(
            damaged(run, "constant_data", **points | {"linearised_at_bias": np.zeros((3, 1))}), None, restored_model
        )


def test_draws_that_no_run_can_store_are_refused(regression):
    """Non-finite weights and scales that have no logarithm are refused; large weights and extreme scales are not."""
    posterior = regression[0].predictor.posterior
    good = np.ones((3, posterior.layout.dim), np.float32)

    def check(place: tuple[int, int], value: float) -> None:
        draws = good.copy()
        draws[place] = value
        agreement.check_finite(draws, posterior, None)

    agreement.check_finite(np.full_like(good, 3e38), posterior, None)
    for value in (0.0, np.inf):
        check((1, -1), value)
    for value in (np.nan, np.inf):
        with pytest.raises(DamagedError, match="posterior contains numbers that are not finite"):
            check((1, 0), value)
    for value in (-1.0, np.nan):
        with pytest.raises(
            DamagedError, match="posterior/likelihood_scale contains numbers outside the range of the parameter"
        ):
            check((1, -1), value)
