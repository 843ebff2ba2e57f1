"""A run whose prior has the moments of the draws of an earlier run (`prior_from`)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import arviz_stats as az
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import bnnzoo
from bnnzoo import cli
from bnnzoo.api import choose_recipe
from bnnzoo.api.choose_recipe import recipe_and_data
from bnnzoo.assembly import sequential
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.files import mapped
from bnnzoo.recipe import resolve

pytestmark = pytest.mark.filterwarnings("ignore:.*has not converged", "ignore:.*settled", "ignore:.*between the chains")

NOISE = 0.5
LINEAR: dict[str, Any] = {
    "likelihood": "gaussian",
    "likelihood.scale": NOISE,
    "sampler.conditionals": "conjugate",
    "standardise": False,
    "test_fraction": 0.0,
    "init": "prior",
    "chains": 4,
    "warmup": 0,
    "draws": 1000,
    "progress": False,
}
"""Linear regression with known noise: Gibbs steps draw from the exact posterior, so the draws are independent."""


@pytest.mark.long
def test_gibbs_uses_the_moments_of_a_learned_noise_scale(tmp_path):
    """Both samplers must agree. The control is the same run with the prior HalfNormal(1) of the scale."""
    x, y = _rows()
    options = LINEAR | {"likelihood.scale": "learned", "warmup": 500}
    earlier = bnnzoo.sample("linear", "gibbs", data=(x, y), out=tmp_path / "earlier.nc", **options)
    noisy = (x[:16], y[:16] + np.random.default_rng(1).normal(size=16).astype(np.float32) * 3)
    by_name = {
        "gibbs": bnnzoo.sample("linear", "gibbs", data=noisy, prior_from=str(earlier.path), seed=1, **options),
        "nuts": bnnzoo.sample(
            "linear", "nuts", data=noisy, prior_from=str(earlier.path), seed=2,
            **{name: value for name, value in options.items() if name != "sampler.conditionals"},
        ),
        "control": bnnzoo.sample("linear", "gibbs", data=noisy, seed=1, **options),
    }  # fmt: skip
    scales = {
        name: np.log(run.posterior["posterior"]["likelihood_scale"].to_numpy()).reshape(4, -1)
        for name, run in by_name.items()
    }
    errors = {name: values.std() / float(az.ess(values)) ** 0.5 for name, values in scales.items()}
    gap = scales["gibbs"].mean() - scales["nuts"].mean()
    assert abs(gap) < 5 * np.hypot(errors["gibbs"], errors["nuts"])
    assert scales["control"].mean() - scales["nuts"].mean() > 20 * np.hypot(errors["control"], errors["nuts"])


def _rows() -> tuple[np.ndarray, np.ndarray]:
    """Return 64 rows whose inputs are orthogonal to each other and to the intercept, and then 16 other rows."""
    generator = np.random.default_rng(0)
    design = np.tile([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], (16, 1))
    x = np.concatenate([design, generator.normal(size=(16, 2)) + 1]).astype(np.float32)
    y = x @ [1.0, -0.5] + 2 + NOISE * generator.normal(size=80)
    return x, y.astype(np.float32)


def _exact(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and sd of the slopes and the intercept, for the prior N(0, 1)."""
    design = np.column_stack([x, np.ones(len(x))]).astype(float)
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(3))
    return covariance @ design.T @ y / NOISE**2, np.sqrt(np.diag(covariance))


def _draws(run: bnnzoo.Run) -> np.ndarray:
    posterior = run.posterior["posterior"]
    return np.concatenate([np.asarray(posterior["weight"])[:, :, 0], np.asarray(posterior["bias"])], 2).reshape(-1, 3)


def _distance(draws: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> tuple[float, float]:
    """Return the largest error of a mean in sds, and the largest relative error of an sd."""
    return float(np.abs((draws.mean(0) - mean) / sd).max()), float(np.abs(draws.std(0) / sd - 1).max())


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    """The run on the first 64 rows, whose posterior has independent parameters."""
    x, y = _rows()
    path = tmp_path_factory.mktemp("linear") / "first.nc"
    bnnzoo.sample("linear", "gibbs", data=(x[:64], y[:64]), out=path, **LINEAR)
    return path


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Path:
    """A short run of a network with a learned noise scale, whose chains are far from each other."""
    path = tmp_path_factory.mktemp("network") / "first.nc"
    _sample_network(path, init="prior")
    return path


def _sample_network(out: Path, **options: Any) -> bnnzoo.Run:
    x, y = np.random.default_rng(1).normal(size=(2, 40, 1)).astype(np.float32)
    lengths = {"chains": 3, "warmup": 5, "draws": 10, "thin": 1, "progress": False, "model.hidden": "3"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bnnzoo.sample("mlp", "random-walk", data=(3 * x + 2, y), out=out, **(lengths | options))


def _problem(path: Path, data: Any = None, *, model: str = "mlp", **options: Any) -> Any:
    x, y = np.random.default_rng(2).normal(size=(2, 30, 1)).astype(np.float32)
    dataset = bnnzoo.data.from_arrays(*(data or (x, y)))
    recipe = resolve(model, "random-walk", [], {"prior_from": str(path), **options}, in_memory=True)
    return sequential.build_problem(recipe, dataset)


@pytest.mark.long
def test_two_steps_give_the_posterior_of_all_rows(first, tmp_path):
    x, y = _rows()
    data = (x[64:], y[64:])
    mean, sd = _exact(x, y)
    second = bnnzoo.sample("linear", "gibbs", data=data, out=tmp_path / "b.nc", prior_from=str(first), **LINEAR)
    in_means, in_sds = _distance(_draws(second), mean, sd)
    assert in_means < 0.1
    assert in_sds < 0.05
    alone = bnnzoo.sample("linear", "gibbs", data=data, out=tmp_path / "c.nc", **LINEAR)  # the control must fail
    in_means, in_sds = _distance(_draws(alone), mean, sd)
    assert in_means > 0.5
    assert in_sds > 0.3


@pytest.mark.long
def test_the_prior_keeps_the_dependence_of_the_parameters(tmp_path, monkeypatch):
    """The inputs have a correlation of 0.9, so the coefficients are dependent. With independent ones, the sum errs."""
    generator = np.random.default_rng(3)
    x = (generator.normal(size=(400, 2)) @ np.linalg.cholesky([[1, 0.9], [0.9, 1]]).T).astype(np.float32)
    y = (x @ [1.0, -0.5] + 2 + NOISE * generator.normal(size=400)).astype(np.float32)
    first, data = tmp_path / "a.nc", (x[300:], y[300:])
    bnnzoo.sample("linear", "gibbs", data=(x[:300], y[:300]), out=first, **LINEAR)
    design = np.column_stack([x, np.ones(len(x))]).astype(float)
    exact = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(3))
    mean = exact @ design.T @ y / NOISE**2
    options = {k: v for k, v in LINEAR.items() if k != "sampler.conditionals"} | {"warmup": 500}

    def sd_of_sum(name: str) -> float:
        run = bnnzoo.sample("linear", "nuts", data=data, out=tmp_path / name, prior_from=str(first), **options)
        draws = _draws(run)
        assert np.all(np.abs((draws.mean(0) - mean) / np.sqrt(np.diag(exact))) < (0.2 if name == "b.nc" else 2))
        return float(np.std(draws[:, 0] + draws[:, 1]) / np.sqrt(exact[:2, :2].sum()))

    assert sd_of_sum("b.nc") == pytest.approx(1, abs=0.08)
    with xr.open_dataset(tmp_path / "b.nc", group="constant_data") as constant:
        assert constant["prior_factor"].shape == (3, 3)
    monkeypatch.setattr(sequential, "_MAX_DEPENDENT", 0)  # the control must fail
    assert sd_of_sum("c.nc") > 1.4


@pytest.mark.parametrize(
    ("correlation", "factors"), [(0.0, (1, 1, 1)), (0.5, (1.28, 0.97, 0.97)), (0.9, (1.77, 0.85, 0.85))]
)
def test_the_documented_errors_for_dependent_coefficients(correlation, factors):
    """The factors of docs/python.md, in closed form: sds of the sum and of both coefficients."""
    generator, prior = np.random.default_rng(0), np.eye(2)
    x = generator.normal(size=(400, 2)) @ np.linalg.cholesky([[1, correlation], [correlation, 1]]).T
    first = np.linalg.inv(x[:300].T @ x[:300] + prior)
    second = np.linalg.inv(x[300:].T @ x[300:] + np.diag(1 / np.diag(first)))
    exact = np.linalg.inv(x.T @ x + prior)
    directions = np.array([[1, 1], [1, 0], [0, 1]])
    ratios = [np.sqrt(v @ second @ v / (v @ exact @ v)) for v in directions]
    np.testing.assert_allclose(ratios, factors, atol=0.02)


class _Named(eqx.Module):
    likelihood_layer: eqx.nn.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.likelihood_layer(x)


def test_a_network_may_have_parameters_with_names_like_those_of_a_likelihood(tmp_path):
    network, (x, y) = _Named(eqx.nn.Linear(2, 1, key=jax.random.key(0))), _rows()
    options = {"likelihood": "gaussian", "init": "prior", "chains": 2, "warmup": 5, "draws": 20, "progress": False}
    earlier, out = str(tmp_path / "a.nc"), tmp_path / "b.nc"
    bnnzoo.sample(network, "random-walk", data=(x[:64], y[:64]), out=earlier, **options)
    bnnzoo.sample(network, "random-walk", data=(x[64:], y[64:]), out=out, prior_from=earlier, **options)
    assert np.isfinite(bnnzoo.open(out, model=network).predict(x).to_numpy()).all()


@pytest.mark.long
def test_a_run_without_the_earlier_file_can_be_evaluated_and_resumed(first, tmp_path):
    x, y = _rows()
    old, out = tmp_path / "old.nc", tmp_path / "new.nc"
    old.write_bytes(first.read_bytes())
    run = bnnzoo.sample("linear", "gibbs", data=(x[64:], y[64:]), out=out, prior_from=str(old), **LINEAR)
    expected = run.evaluate((x[:64], y[:64]))["nll"]
    run.posterior.close()
    old.unlink()
    opened = bnnzoo.open(out)
    assert opened.evaluate((x[:64], y[:64]))["nll"] == expected
    assert opened.summary()["prior_from"] == str(old)
    opened.posterior.close()
    mean, sd = _exact(x, y)
    longer = bnnzoo.resume(out, draws=1500, progress=False)
    in_means, _ = _distance(_draws(longer)[-2000:], mean, sd)
    assert in_means < 0.1


def test_the_prior_has_the_moments_of_the_draws(network, monkeypatch):
    monkeypatch.setattr(sequential, "_MAX_DEPENDENT", 0)
    posterior = _problem(network).network_posterior
    draws = xr.open_dataset(network, group="posterior").load()
    for name, variable in draws.data_vars.items():
        values = np.asarray(variable, np.float64)
        values = np.log(values) if name == "likelihood_scale" else values
        np.testing.assert_allclose(posterior.prior.means[name], values.mean((0, 1)), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(posterior.prior.sds[name], values.std((0, 1)), rtol=1e-4)
    expected = sum(
        -0.5 * np.sum(((0.1 - m) / posterior.prior.sds[name]) ** 2 + np.log(2 * np.pi * posterior.prior.sds[name] ** 2))
        for name, m in posterior.prior.means.items()
    )
    theta = np.full(posterior.layout.dim, 0.1, np.float32)
    np.testing.assert_allclose(posterior.log_prior(jnp.asarray(theta)), expected, rtol=1e-4)


def test_rows_are_scaled_as_in_the_earlier_run(network):
    scaler, constant = _problem(network).description.scaler, xr.open_dataset(network, group="constant_data")
    for name in ("x_mean", "x_sd", "y_mean", "y_sd"):
        np.testing.assert_array_equal(getattr(scaler, name), constant[name])
    constant.close()


@pytest.mark.long
def test_settings_and_initial_positions_are_those_of_the_earlier_run(tmp_path):
    out = tmp_path / "last.nc"
    _sample_network(out, init="prior", stochastic="last", **{"likelihood.scale": 0.4})
    for options in ({"model.hidden": "auto"}, {"model": "bnnzoo:mlp", "likelihood": "bnnzoo:gaussian"}):
        recipe = _problem(out, **options).recipe
        assert (recipe.stochastic, recipe.init) == ("last", str(out))
        assert recipe.model.fields["hidden"] == [3]
        assert recipe.likelihood.fields["scale"] == 0.4
    assert _problem(out, **{"likelihood.scale": 0.2}).recipe.likelihood.fields["scale"] == 0.2
    with pytest.raises(UsageError, match="the parameters that are not sampled must be those of the earlier run"):
        _problem(out, init="map")
    second = _sample_network(tmp_path / "second.nc", prior_from=str(out))
    fixed = [each.posterior["constant_data"]["fixed_layers_0_weight"] for each in (second, bnnzoo.open(out))]
    np.testing.assert_array_equal(*fixed)


@pytest.mark.parametrize("max_rows", [10, 100])
def test_a_chosen_recipe_has_the_model_of_the_earlier_run(max_rows, network, first, monkeypatch):
    """The number of new rows determines only the sampler; linear and mlp take no setting of the other recipe."""
    monkeypatch.setattr(choose_recipe, "MAX_FULL_BATCH_ROWS", max_rows)
    x, y = _rows()
    for path, data, model in ((first, (x[64:], y[64:]), "linear"), (network, (x[64:, :1], y[64:]), "mlp")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recipe, dataset, _ = recipe_and_data([], {"prior_from": str(path), "test_fraction": 0.0}, data)
            problem = sequential.build_problem(recipe, dataset)
        assert (problem.recipe.model.name, problem.recipe.stochastic) == (model, "all")
        assert problem.recipe.sampler.name == ("penalty" if max_rows == 10 else "mams")
        assert problem.recipe.likelihood.name == "gaussian"


def test_chains_in_different_modes_are_a_warning(network, first):
    with pytest.warns(BnnzooWarning, match="of the variance of the parameters is between the chains"):
        _problem(network)
    x, y = _rows()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _problem(first, (x[64:], y[64:]), model="linear")


def test_repeated_rows_are_a_warning(first):
    x, y = _rows()
    with pytest.warns(BnnzooWarning, match=r"64 of 80 rows of .* are also training rows"):
        _problem(first, (x, y), model="linear")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "linear"}, "the earlier run has [[model=mlp]] (got linear); use the model of that run"),
        ({"model.hidden": "4"}, "the earlier run has [[model.hidden=3]] (got 4); use the model of that run"),
        ({"likelihood": "student-t"}, "the earlier run has [[likelihood=gaussian]] (got student-t)"),
        ({"standardise": False}, "the earlier run has [[standardise=True]] (got False); use the same value"),
        ({"data": (np.ones((5, 2)), np.ones(5))}, "the inputs must be those of the model, x0 (got x0, x1)"),
        ({"prior": "normal"}, "sets the prior, so it conflicts with [[prior]]"),
    ],
)
def test_a_run_that_does_not_fit_is_refused(options, message, network):
    with pytest.raises(UsageError) as error:
        _problem(network, **options)
    assert message in error.value.args[0]


def test_columns_are_matched_by_name(first, tmp_path):
    x, y = _rows()
    frame = pd.DataFrame({"y": y[64:], "x1": x[64:, 1], "x0": x[64:, 0]})
    frame.to_csv(tmp_path / "new.csv", index=False)
    recipe = resolve("linear", "gibbs", [], {"data": str(tmp_path / "new.csv"), "prior_from": str(first)})
    problem = sequential.build_problem(recipe)
    is_new = (problem.train.x[:, None] == x[64:]).all(2)
    assert is_new.sum() == problem.train.num_data
    frame = frame.rename(columns={"x1": "other"})
    with pytest.raises(UsageError, match="no column named x1"):
        bnnzoo.sample("linear", "gibbs", data=(frame[["other", "x0"]], frame["y"]), prior_from=str(first), **LINEAR)


def test_unknown_columns_and_unused_values_of_missing_codes_are_reported(first, tmp_path):
    x, y = _rows()
    pd.DataFrame({"x0": x[64:, 0], "x1": x[64:, 1], "y": y[64:]}).to_csv(tmp_path / "new.csv", index=False)
    options = {"data": str(tmp_path / "new.csv"), "prior_from": str(first), "missing": "drop"}
    with pytest.raises(UsageError, match="'x2=-9': no column named x2; use one of x0, x1, y"):
        sequential.build_problem(resolve("linear", "gibbs", [], {**options, "missing_code": "x2=-9"}))
    problem = sequential.build_problem(resolve("linear", "gibbs", [], {**options, "missing_code": "x1=-9"}))
    assert any("'x1=-9': no cell contains this code" in note for note in problem.train.notes)


FRAME = pd.DataFrame(
    {
        "colour": ["red", "green", "blue", "red"] * 5,
        "size": np.random.default_rng(4).normal(size=20).round(3),
        "day": pd.date_range("2024-01-01", periods=20).astype(str),
        "price": np.random.default_rng(5).normal(size=20).round(3),
    }
)
CLASSES = FRAME.assign(price=["low", "high"] * 10)


def _earlier(out: Path, data: Any, **options: Any) -> Path:
    """Write a short run of a linear model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lengths = {"chains": 2, "warmup": 0, "draws": 4, "init": "prior", "test_fraction": 0.0, "progress": False}
        bnnzoo.sample("linear", "random-walk", data=data, out=out, **(lengths | options))
    return out


def _next(first: Path, data: Any, **options: Any) -> Any:
    """Return the problem of a run on new rows, with the data loaded as in `bnnzoo.sample`."""
    spec = {"data": data} if isinstance(data, str) else {}
    words = {"model": "linear", "sampler": "random-walk", "prior_from": str(first), "test_fraction": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recipe, dataset, _ = recipe_and_data([], words | spec | options, None if spec else data)
        return sequential.build_problem(recipe, dataset)


@pytest.mark.long
def test_rows_in_memory_need_not_have_all_levels_or_the_order_of_columns(tmp_path):
    first = _earlier(tmp_path / "first.nc", FRAME)
    rows = FRAME.iloc[[0, 3, 4]][["price", "day", "size", "colour"]]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    in_memory = _next(first, rows)
    np.testing.assert_array_equal(in_memory.train.x, _next(first, str(tmp_path / "rows.csv")).train.x)
    assert in_memory.train.feature_names == bnnzoo.data.load(FRAME).feature_names
    np.testing.assert_array_equal(in_memory.train.x[:, -1], [0, 3, 4])


@pytest.mark.long
def test_new_rows_may_have_one_class_only(tmp_path):
    first = _earlier(tmp_path / "first.nc", CLASSES)
    assert _next(first, CLASSES.iloc[::2]).train.class_names == ("high", "low")
    (rows := CLASSES.iloc[::2]).to_csv(tmp_path / "rows.csv", index=False)
    np.testing.assert_array_equal(_next(first, str(tmp_path / "rows.csv")).train.y, np.ones(len(rows)))


@pytest.mark.long
def test_a_recipe_without_loaded_data_has_the_training_rows_of_its_data_set(tmp_path):
    """The data set has its own test rows."""
    first = _earlier(tmp_path / "first.nc", "mdn-sine")
    recipe = resolve("linear", "random-walk", [], {"data": "mdn-sine", "prior_from": str(first)})
    with pytest.warns(BnnzooWarning, match="600 of 600 rows of mdn-sine are also training rows"):
        problem = sequential.build_problem(recipe)
    assert (problem.train.num_data, problem.test.num_data) == (600, 5000)


def test_options_for_reading_apply_to_the_new_rows(tmp_path):
    first = _earlier(tmp_path / "first.nc", FRAME)
    lines = FRAME.to_csv(index=False, sep=";").splitlines()
    lines[1] = "red;-999;2024-01-01;0.5"
    (tmp_path / "rows.csv").write_text("\n".join(["a title", *lines]), encoding="utf-16")
    options = {"encoding": "utf-16", "skip_rows": "1", "missing_code": "size=-999"}
    problem = _next(first, str(tmp_path / "rows.csv"), missing="drop", **options)
    assert problem.train.num_data == 19
    assert problem.train.reading.missing_code == ("size=-999",)
    problem = _next(first, str(tmp_path / "rows.csv"), missing="median", **options)
    assert problem.train.x[0, 3] == np.median(FRAME["size"][1:].astype(np.float32))


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "size"}, "[[target=size]]: must select the columns of the run of [[prior_from]] (price); remove"),
        ({"columns": "size"}, "must select the columns of the run of [[prior_from]] (colour, size, day)"),
        ({"exposure": "size"}, "[[exposure=size]]: must select the columns of the run of [[prior_from]] (none)"),
        ({"categories": "size"}, "[[categories=size]]: the column has no categories in the run of [[prior_from]]"),
        ({"drop": "day"}, "[[drop=day]]: the run of [[prior_from]] uses this column; remove the option"),
        ({"censored": True}, "the earlier run has [[censored=False]] (got True); use the same value"),
    ],
)
def test_options_that_contradict_the_earlier_run_are_refused(options, message, tmp_path):
    first = _earlier(tmp_path / "first.nc", FRAME)
    with pytest.raises(UsageError) as error:
        _next(first, FRAME, **options)
    assert message in error.value.args[0]
    same = {"target": "price", "columns": "size,day,colour", "categories": "colour"}
    assert _next(first, FRAME, **same).train.num_data == 20


@pytest.mark.long
def test_targets_are_censored_as_in_the_earlier_run(tmp_path):
    rows = FRAME.assign(price=[">1", *FRAME["price"][1:].astype(str)])
    first = _earlier(tmp_path / "first.nc", rows, censored=True, likelihood="gaussian")
    problem = _next(first, rows)
    assert problem.recipe.censored
    assert problem.train.y.shape == (20, 1, 2)


def test_rows_that_are_only_referenced_are_not_read(tmp_path, monkeypatch):
    np.save(tmp_path / "rows.npy", FRAME[["size", "price"]])
    monkeypatch.setattr(mapped, "LARGE_BYTES", 0)
    first = _earlier(tmp_path / "first.nc", str(tmp_path / "rows.npy"))
    (tmp_path / "rows.npy").rename(tmp_path / "new.npy")
    assert _next(first, str(tmp_path / "new.npy")).train.num_data == 20


def test_the_earlier_run_may_have_no_rows(first, tmp_path):
    """The file of a federated run has none, because the rows stay with their owners."""
    with xr.open_datatree(first, engine="h5netcdf") as file:
        tree = file.load()
    for group, name in (("constant_data", "x"), ("observed_data", "y")):
        rows = tree[group][name].dims[0]
        tree[group] = xr.DataTree(tree[group].to_dataset().isel({rows: slice(0, 0)}))
    del tree.attrs["digests"]
    tree.to_netcdf(tmp_path / "all.nc", engine="h5netcdf")
    x, y = _rows()
    assert _problem(tmp_path / "all.nc", (x[64:], y[64:]), model="linear", test_fraction=0.0).train.num_data == 16


@pytest.mark.long
def test_codes_in_new_rows_are_a_warning(tmp_path):
    first = _earlier(tmp_path / "first.nc", FRAME[["size", "price"]])
    rows = pd.DataFrame({"size": [0.125, -999.0], "price": [0.25, 0.5]})
    recipe = resolve("linear", "random-walk", [], {"prior_from": str(first)}, in_memory=True)
    with pytest.warns(BnnzooWarning, match="may be a code for a missing cell"):
        sequential.build_problem(recipe, bnnzoo.data.from_arrays(rows[["size"]], rows[["price"]]))


@pytest.mark.long
def test_a_run_of_directions_is_refused(tmp_path):
    _sample_network(tmp_path / "directions.nc", stochastic="identified:1", start_steps=250)
    with pytest.raises(UsageError, match="directions, which another run cannot use"):
        _problem(tmp_path / "directions.nc")


def test_the_setting_of_higher_precedence_determines_the_prior():
    table = [bnnzoo.recipe.read_layer("small-table")]
    assert resolve(None, None, table, {"prior_from": "old.nc"}, in_memory=True).prior is None
    assert resolve(None, None, table, {}, in_memory=True).prior.name == "ard"


@pytest.mark.long
def test_the_command_line_reports_the_prior(first, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x, y = _rows()
    np.savetxt("new.csv", np.column_stack([x, y])[64:], delimiter=",", header="x0,x1,y", comments="")
    arguments = ["sample", "linear", "gibbs", "--data", "new.csv", "--prior-from", str(first), "--draws", "50"]
    assert cli.run([*arguments, "--warmup", "0", "-o", "new.nc"]) == 0
    captured = capsys.readouterr()
    assert f"the moments of the parameters in 4000 draws of {first}" in captured.err
    assert ["prior_from", str(first)] in [line.split() for line in captured.out.splitlines()]
