"""A run's file in ArviZ: arrays that ArviZ compares row by row have the same rows."""

import importlib
import warnings

import matplotlib.style
import numpy as np
import pytest
import xarray as xr
from arviz_stats import loo, loo_pit

import bnnzoo
from bnnzoo.evaluation.contents import record
from bnnzoo.evaluation.scores import evaluate

ROWS, TEST = 54, 6
KINDS = ("regression", "classification")


def data(kind):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS + TEST, 2))
    noise = rng.normal(size=ROWS + TEST)
    return x, x[:, 0] + 0.3 * noise if kind == "regression" else (x[:, 0] + noise > 0).astype(int)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arviz")
    for kind in KINDS:
        how = {"chains": 2, "warmup": 100, "draws": 150, "init": "prior", "test_fraction": 0.1}
        bnnzoo.sample("linear", "mala", data=data(kind), out=folder / f"{kind}.nc", **how).evaluate()
    return folder


@pytest.fixture(params=KINDS)
def tree(request, folder):
    with xr.open_datatree(folder / f"{request.param}.nc", engine="h5netcdf") as tree:
        yield tree


@pytest.fixture(scope="module")
def plots():
    """Return arviz-plots if it can be imported: 0.8 imports a module that matplotlib 3.11 no longer has."""
    matplotlib.use("Agg")
    before = hasattr(matplotlib.style, "core")
    if not before:
        matplotlib.style.core = matplotlib.style
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield importlib.import_module("arviz_plots")
    except ImportError as error:
        pytest.skip(f"arviz-plots: {error}")
    finally:
        if not before:
            del matplotlib.style.core


def test_predictive_groups_have_the_rows_of_the_observations(tree):
    observed = tree["observed_data"]["y"]
    assert observed.dims == ("row",)
    assert observed.shape == (ROWS,)
    for group in ("posterior_predictive", "log_likelihood"):
        assert tree[group]["y"].dims == ("chain", "draw", "row")
        assert tree[group]["y"].shape == (2, 150, ROWS)


def test_predictions_are_of_the_test_rows(tree):
    constant = tree["constant_data"]
    assert tree["predictions"]["y"].shape == tree["predictions_log_likelihood"]["y"].shape == (2, 150, TEST)
    assert tree["predictions_constant_data"]["x"].dims == ("test_row", "feature")
    np.testing.assert_array_equal(tree["predictions_constant_data"]["x"], constant["x_test"])
    np.testing.assert_array_equal(tree["predictions_constant_data"]["y"], constant["y_test"].values.reshape(TEST))


def test_predictive_draws_belong_to_the_rows_of_their_group(folder):
    """The draws of each row are close to its own target."""
    with xr.open_datatree(folder / "regression.nc", engine="h5netcdf") as tree:
        for group, targets in (("posterior_predictive", "observed_data"), ("predictions", "predictions_constant_data")):
            means, y = tree[group]["y"].values.mean((0, 1)), tree[targets]["y"].values
            assert np.corrcoef(means, y)[0, 1] > 0.85, group
            assert abs(means - y).mean() < 0.5 * abs(np.roll(means, 1) - y).mean(), group


def test_leave_one_out_of_arviz_is_that_of_evaluate(folder):
    run = bnnzoo.open(folder / "regression.nc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a Pareto k that is too large for 300 draws
        result = loo(run.posterior)
    assert result.n_data_points == ROWS
    assert -result.elpd / ROWS == pytest.approx(run.evaluate(save=False)["loo_nll"], rel=1e-2)


def test_loo_pit_is_a_number_between_0_and_1_for_every_row(tree):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = loo_pit(tree)["y"]
    assert result.dims == ("row",)
    assert result.shape == (ROWS,)
    assert ((result >= 0) & (result <= 1)).all()


def test_the_pictures_of_predictions_are_drawn(tree, plots):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("plot_ppc_dist", "plot_loo_pit", "plot_ppc_pit", "plot_ppc_tstat", "plot_ppc_interval"):
            assert getattr(plots, name)(tree) is not None, name
        unseen = plots.plot_ppc_dist(tree, group="predictions", visuals={"observed_dist": False}, num_samples=20)
    assert unseen is not None


@pytest.mark.long
def test_many_rows_keep_fewer_draws_and_all_rows(tmp_path, monkeypatch):
    """The file stays small, and the arrays that ArviZ compares keep the same rows."""
    how = {"chains": 2, "warmup": 20, "draws": 40, "init": "prior", "test_fraction": 0.1}
    run = bnnzoo.sample("linear", "random-walk", data=data("regression"), out=tmp_path / "run.nc", **how)
    monkeypatch.setattr(record, "_GROUP_BYTES", 4 * 2 * ROWS * 10)
    result = evaluate.groups(run.predictor, *run.test_rows())
    for name in ("posterior_predictive", "log_likelihood"):
        assert result[name]["y"].shape == (2, 10, ROWS)
        assert result[name]["draw"].tolist() == list(range(0, 40, 4))
    monkeypatch.setattr(record, "_GROUP_BYTES", 1)
    assert evaluate.groups(run.predictor, *run.test_rows())["log_likelihood"]["y"].shape == (2, 1, ROWS)
