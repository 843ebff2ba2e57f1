"""The estimators of `bnnzoo.sklearn`: scikit-learn's own checks, and properties that these do not cover."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
import types

import equinox as eqx
import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from bnnzoo.api import entrances
from bnnzoo.data import load
from bnnzoo.errors import InterruptedRunError, UsageError
from bnnzoo.evaluation.predictions import predictive_samples
from bnnzoo.sklearn import BayesianClassifier, BayesianRegressor
from bnnzoo.sklearn.arguments import calibration_pair

SMALL = {
    "model": "linear",
    "sampler": "laplace",
    "chains": 1,
    "warmup": 60,
    "draws": 20,
    "start_steps": 250,
    "start_held_out": 0.0,
    "chain_method": "vectorized",
    "precision": "float64",
}
QUICK = {
    **{"model": "linear", "sampler": "random-walk", "likelihood": "gaussian", "init": "prior", "chains": 1},
    **{"warmup": 10, "draws": 20, "chain_method": "vectorized"},
}
"""An estimator that compiles little, for tests of calls whose results need not be good."""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnnzoo.errors.BnnzooWarning")
def test_columns_of_a_numeric_frame_keep_their_names_with_missing_codes():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(20, 60, 40), "bmi": rng.normal(size=40)})
    frame.loc[3, "age"] = -9
    estimator = BayesianRegressor(missing="median", missing_code=("age=-9",), **SMALL)
    estimator.fit(frame, frame["bmi"])
    assert {"age", "bmi"} <= set(estimator.run_.predictor.signature.feature_names)
    assert len(estimator.run_.predict(frame)) == 40


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnnzoo.errors.BnnzooWarning")
def test_an_estimator_of_an_own_network_goes_through_a_pickle():
    x = np.linspace(-1, 1, 30)[:, None]
    network = eqx.nn.Linear(1, 1, key=jax.random.key(0))
    estimator = BayesianRegressor(**SMALL | {"model": network, "likelihood": "gaussian"}).fit(x, x[:, 0])
    unpickled = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(unpickled.predict(x), estimator.predict(x))


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [BayesianRegressor, BayesianClassifier])
def test_scikit_learns_own_checks(estimator):
    """The process has no type checks, because some of scikit-learn's checks use invalid types."""
    code = f"""
from sklearn.utils.estimator_checks import check_estimator
from bnnzoo.sklearn import {estimator.__name__}
print(len(check_estimator({estimator.__name__}(**{SMALL!r}))), "checks")
"""
    process = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    assert int(process.stdout.split()[-2]) > 40


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*settled:bnnzoo.errors.BnnzooWarning")
def test_a_frame_of_text_goes_through_a_pickle():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=60), "colour": rng.choice(["red", "blue"], 60)})
    price = 2 * frame["size"] + (frame["colour"] == "red") + 0.1 * rng.normal(size=60)
    estimator = clone(BayesianRegressor(**SMALL)).fit(frame, price)
    mean, sd = estimator.predict(frame, return_std=True)
    assert mean.shape == sd.shape == (60,)
    assert estimator.score(frame, price) > 0.7  # twenty draws
    unpickled = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(unpickled.predict(frame), mean)
    low, high = estimator.predict_quantiles(frame, (0.05, 0.95)).T
    np.testing.assert_array_equal(estimator.predict_quantiles(frame, 0.95)[:, 0], high)
    for quantiles in (1.0, (0.5, 0.0)):
        with pytest.raises(UsageError, match="quantiles: must be numbers between 0 and 1"):
            estimator.predict_quantiles(frame, quantiles)
    assert 0.75 < np.mean((low < price) & (price < high)) <= 1
    assert estimator.sample_y(frame, 7).shape == (60, 7)
    assert unpickled.run_.predictor.signature.feature_names == ("size", "colour=blue", "colour=red")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*settled:bnnzoo.errors.BnnzooWarning")
def test_a_regression_on_text_names_the_classifier():
    x = np.zeros((4, 1))
    with pytest.raises(ValueError, match=r"^y: text cannot be a target of regression \(got 'a'\); use Bayesian"):
        BayesianRegressor().fit(x, ["a", "b", "a", "b"])


@pytest.mark.long
def test_labels_beside_a_frame_of_text_are_as_they_are_written():
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"size": rng.normal(size=60), "colour": rng.choice(["red", "blue"], 60)})
    y = np.where(x["size"] > 0, "01", np.where(x["colour"] == "red", "none", "none  here"))
    estimator = BayesianClassifier(**SMALL).fit(x, np.char.add(y, " "))
    assert list(estimator.classes_) == ["01", "none", "none here"]
    assert estimator.predict_proba(x).shape == (60, 3)
    assert np.mean(estimator.predict(x)[x["size"] > 0.5] == "01") > 0.9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*settled:bnnzoo.errors.BnnzooWarning")
def test_an_estimator_without_settings_chooses_a_recipe():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    run = BayesianRegressor(budget="2s", start_steps=250).fit(x, x[:, 0] + 0.1 * rng.normal(size=60)).run_
    assert (run.attributes["model"], run.attributes["sampler"]) == ("mlp", "mams")


@pytest.mark.parametrize(
    ("parameters", "keywords"),
    [
        ({}, (None, None)),
        ({"sampler": "laplace"}, ("mlp", "laplace")),
        ({"model": "linear", "budget": "3s"}, ("linear", "nuts")),
    ],
)
def test_omitted_parameters_are_left_to_sample(parameters, keywords, monkeypatch):
    """A length that was not given is not requested: the data or the budget determine it."""

    class Asked(Exception):
        pass

    def sample(model, sampler, **options):
        raise Asked((model, sampler), set(options) & {"chains", "warmup", "draws", "thin", "budget", "start_steps"})

    monkeypatch.setattr(entrances, "sample", sample)
    with pytest.raises(Asked) as caught:
        BayesianRegressor(**parameters).fit(np.arange(8.0).reshape(4, 2), np.arange(4.0))
    assert caught.value.args == (keywords, set(parameters) & {"budget"})


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*settled:bnnzoo.errors.BnnzooWarning")
def test_classes_keep_their_names():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = np.where(x[:, 0] > 0, "good", "bad")
    estimator = BayesianClassifier(**SMALL).fit(x, y)
    assert list(estimator.classes_) == ["bad", "good"]
    assert estimator.score(x, y) > 0.9
    np.testing.assert_allclose(estimator.predict_proba(x).sum(1), 1)
    assert set(estimator.sample_y(x, 5).ravel()) == {"bad", "good"}
    assert list(estimator.run_.predict(x)["predicted"]) == list(estimator.predict(x))


@pytest.mark.filterwarnings("ignore::bnnzoo.errors.BnnzooWarning")
def test_samples_are_those_of_the_predictive_distribution():
    """More samples than draws are all different, because each has its own noise."""
    x = np.linspace(-1, 1, 20)[:, None]
    estimator = BayesianRegressor(**QUICK).fit(x, x[:, 0])
    for random_state in (3, np.int64(3)):
        samples = estimator.sample_y(x[:2], 3000, random_state=random_state)
        np.testing.assert_array_equal(samples.T, estimator.predict_distribution(x[:2]).sample(3000, seed=3))
    assert len(np.unique(samples[0])) > 2990
    assert estimator.sample_y(x[:2], 4, random_state=np.random.RandomState(1)).shape == (2, 4)


def test_wrong_arguments_of_estimators_are_refused(monkeypatch):
    x = np.zeros((2, 1))
    signature = types.SimpleNamespace(class_names=("0", "1"))
    for cls, method in ((BayesianRegressor, "predict_interval"), (BayesianClassifier, "predict_set")):
        estimator = estimator_of(cls, monkeypatch, signature=signature)
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            getattr(estimator, method)(x, calibration=(x, np.zeros(3)))
        monkeypatch.setattr(estimator, "predict_proba", lambda X: np.zeros((2, 2)), raising=False)
        with pytest.raises(UsageError, match="n_samples: must be a whole number, 1 or more"):
            estimator.sample_y(x, 0)
    for calibration in ("test", 3, (x,), x):
        with pytest.raises(UsageError, match=r"calibration: must be a pair \(X, y\) of rows"):
            calibration_pair(calibration)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*settled:bnnzoo.errors.BnnzooWarning")
@pytest.mark.filterwarnings("ignore:.*rows left out:bnnzoo.errors.BnnzooWarning")
def test_rows_that_are_left_out_leave_no_trace():
    """A class that occurs only in such rows is no class, and neither is a missing label."""
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"a": rng.normal(size=40), "c": rng.choice(["r", "b"], 40)})
    x.loc[[38, 39], "a"] = np.nan
    y = np.array(["lo", "hi"] * 18 + [None, "lo"] + ["zz"] * 2, dtype=object)
    estimator = BayesianClassifier(**SMALL, missing="drop").fit(x, y)
    assert list(estimator.classes_) == ["hi", "lo"]
    assert estimator.predict_proba(x[:5]).shape == (5, 2)
    with pytest.raises(ValueError, match="y contains missing labels"):
        BayesianClassifier(**SMALL).fit(x[:38], y[:38])
    prices = np.where(np.arange(40) == 3, np.nan, rng.normal(size=40))
    assert BayesianRegressor(**SMALL, missing="drop").fit(x, prices).run_.attributes["rows"] == 37


def test_columns_may_have_any_name(monkeypatch):
    """A frame with a column y, beside targets without a name; and one of numbers near each other and far from 0."""

    class Asked(Exception):
        pass

    def sample(model, sampler, *, data, **options):
        raise Asked(load(data).feature_names)

    monkeypatch.setattr(entrances, "sample", sample)
    seconds = 1.7e9 + np.arange(4.0)
    for frame in (
        pd.DataFrame({"x": [1.0, 2, 3, 4], "y": [2.0, 1, 4, 3], "c": list("rbrb")}),
        pd.DataFrame({"x": seconds, "y": [2.0, 1, 4, 3]}),
    ):
        with pytest.raises(Asked) as caught:
            BayesianRegressor().fit(frame, pd.Series([1.5, 2, 3, 4], name="price"))
        assert caught.value.args[0][:2] == ("x", "y")


# ---- arithmetic, on predictors with answers of their own -------------------------------------------


def estimator_of(cls, monkeypatch, **predictor):
    """Return a fitted estimator whose predictor gives these results."""
    estimator = cls(seed=5)
    estimator.run_ = types.SimpleNamespace(predictor=types.SimpleNamespace(**predictor))
    monkeypatch.setattr(estimator, "_inputs", lambda X: X)
    return estimator


@pytest.mark.parametrize("flat", [False, True])
def test_predictions_are_in_the_units_of_the_targets(flat, monkeypatch):
    moments = types.SimpleNamespace(
        mean=np.array([[0.5, -1], [2, 3]]),
        aleatoric=np.array([[9, 1], [0.25, 4]]),
        epistemic=np.array([[16, 3], [0.75, 5]]),
    )
    scaler = types.SimpleNamespace(y_mean=np.float32([1, -5]), y_sd=np.float32([2, 10]))
    quantiles = np.arange(12.0).reshape(3, 2, 2)  # quantile, row, target
    requests = []

    def fake_quantiles(predictor, x, levels, *, seed):
        requests.append((levels, seed))
        return quantiles

    monkeypatch.setattr(predictive_samples, "quantiles", fake_quantiles)
    monkeypatch.setattr(predictive_samples, "sample_rows", lambda predictor, x, count, seed: quantiles[:count])
    estimator = estimator_of(BayesianRegressor, monkeypatch, moments=lambda x: moments, scaler=scaler)
    estimator._flat = flat
    of = (lambda values: values[:, 0]) if flat else (lambda values: values)
    mean, sd = estimator.predict(np.zeros((2, 1)), return_std=True)
    np.testing.assert_allclose(mean, of(np.array([[2, -15], [5, 25]])))
    np.testing.assert_allclose(sd, of(np.array([[10, 20], [2, 30]])))
    np.testing.assert_array_equal(estimator.predict(np.zeros((2, 1))), mean)
    by_row = np.moveaxis(quantiles, 0, -1)  # row, target, quantile
    np.testing.assert_array_equal(estimator.predict_quantiles(np.zeros((2, 1)), [0.1, 0.5, 0.8]), of(by_row))
    assert requests == [((0.1, 0.5, 0.8), 5)]
    np.testing.assert_array_equal(estimator.sample_y(np.zeros((2, 1)), 3), of(by_row))


def test_sampled_classes_have_their_names_and_probabilities(monkeypatch):
    chances = np.array([[0.2, 0.1, 0.7], [0.5, 0.3, 0.2]])
    moments, signature = types.SimpleNamespace(mean=chances), types.SimpleNamespace(class_names=("9", "10", "2"))
    estimator = estimator_of(BayesianClassifier, monkeypatch, moments=lambda x: moments, signature=signature)
    estimator.classes_ = np.array([2.0, 9.0, 10.0])
    x = np.zeros((2, 1))
    np.testing.assert_allclose(estimator.predict_proba(x), chances[:, [2, 0, 1]])
    np.testing.assert_array_equal(estimator.predict(x), [2.0, 9.0])
    draws = estimator.sample_y(x, 20_000, random_state=3)
    shares = np.stack([(draws == label).mean(1) for label in estimator.classes_], 1)
    np.testing.assert_allclose(shares, chances[:, [2, 0, 1]], atol=0.015)
    np.testing.assert_array_equal(draws, estimator.sample_y(x, 20_000, random_state=3))
    assert not np.array_equal(draws, estimator.sample_y(x, 20_000, random_state=4))


@pytest.mark.parametrize("has_draws", [True, False])
def test_the_file_that_the_error_of_an_interrupted_fit_names_is_kept(has_draws, monkeypatch, tmp_path):
    def sample(*_, out, **__):
        out.write_text("draws") if has_draws else None
        raise InterruptedRunError(f"continue: bnnzoo.resume({str(out)!r})", 2)

    monkeypatch.setattr(entrances, "sample", sample)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(InterruptedRunError, match="continue"):
        BayesianRegressor().fit(np.arange(8.0).reshape(4, 2), np.arange(4.0))
    assert len(list(tmp_path.glob("*/run.nc"))) == len(list(tmp_path.iterdir())) == has_draws


@pytest.mark.parametrize(
    ("cls", "methods"),
    [
        (BayesianRegressor, ("predict", "predict_quantiles", "predict_interval", "predict_distribution", "sample_y")),
        (BayesianClassifier, ("predict", "predict_proba", "predict_set", "predict_distribution", "sample_y")),
    ],
)
def test_an_estimator_that_is_not_fitted_is_named_as_such(cls, methods):
    for method in methods:
        with pytest.raises(NotFittedError, match="is not fitted yet"):
            getattr(cls(), method)(np.zeros((2, 1)))


def test_calibration_rows_of_bayesian_intervals_are_refused(monkeypatch):
    x = np.zeros((2, 1))
    for cls, method in ((BayesianRegressor, "predict_interval"), (BayesianClassifier, "predict_set")):
        estimator = estimator_of(cls, monkeypatch)
        with pytest.raises(UsageError, match="calibration: is supported for conformal intervals only"):
            getattr(estimator, method)(x, interval="bayesian", calibration=(x, np.zeros(2)))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnnzoo.errors.BnnzooWarning")
def test_calibration_rows_have_the_form_that_fit_accepts():
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"a": rng.normal(size=60), "b": rng.choice(["u", "v"], 60)})
    y = pd.Series(rng.normal(size=60), index=np.arange(60)[::-1], name="b")
    array = np.column_stack([x["a"], x["b"] == "u", x["b"] == "v"])
    for inputs, fitted in (
        (array, BayesianRegressor(**QUICK).fit(array[:30], y[:30])),
        (x, BayesianRegressor(**QUICK).fit(x[:30], y[:30])),
    ):
        ends = fitted.predict_interval(inputs[:5], calibration=(inputs[30:], y[30:]))
        expected = fitted.run_.predict_interval(inputs[:5], calibration=(inputs[30:], y[30:].to_numpy()))
        np.testing.assert_array_equal(ends, expected)
        assert np.isfinite(ends).all()
        with pytest.raises(UsageError, match=r"the model has 1 targets|must have the targets of the model"):
            fitted.predict_interval(inputs[:5], calibration=(inputs[30:], np.zeros((30, 2))))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnnzoo.errors.BnnzooWarning")
def test_censored_calibration_rows_are_refused_and_others_are_used():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 1)), rng.normal(size=60)
    known, one_sided = np.column_stack([y, y]), np.column_stack([y, np.full(60, np.inf)])
    estimator = BayesianRegressor(censored=True, **QUICK).fit(x[:30], known[:30])
    for bounds in (one_sided, np.array([f">{value}" for value in y], object)):
        with pytest.raises(UsageError, match="calibration: rows with censored targets are not supported"):
            estimator.predict_interval(x[:5], calibration=(x[30:], bounds[30:]))
    ends = estimator.predict_interval(x[:5], calibration=(x[30:], known[30:]))
    np.testing.assert_array_equal(ends, estimator.predict_interval(x[:5], calibration=(x[30:], y.astype(str)[30:])))
    assert np.isfinite(ends).all()


def test_every_parameter_of_an_estimator_reaches_sample(monkeypatch):
    """Each parameter is passed by its name; options for cells are passed only with a table."""

    class Asked(Exception):
        pass

    def sample(model, sampler, *, data, out, **options):
        raise Asked(model, sampler, options)

    monkeypatch.setattr(entrances, "sample", sample)
    parameters = {
        **{"likelihood": "student-t", "prior": {"name": "normal", "scale": 2.0}, "chains": 3, "warmup": 7, "draws": 11},
        **{"thin": 2, "budget": "3s", "until": "converged", "seed": 5, "init": "prior", "start_steps": 4},
        **{"start_held_out": 0.25, "standardise": False, "stochastic": "last", "likelihood_power": 0.5},
        **{"chain_method": "sequential", "mesh": "chains=1", "chain_weights": "stacking"},
        **{"precision": "float64", "units": "data", "progress": True},
    }
    cells = {"missing": "median", "unseen": "zero", "missing_code": ("-9",)}
    with_special_data = {"exposure", "censored"}
    named = parameters.keys() | cells.keys() | {"model", "sampler"} | with_special_data
    assert named == BayesianRegressor().get_params().keys()
    rows = np.array([[1.0, 2], [2, 5], [3, 1], [4, 4]])
    frame = pd.DataFrame({"a": rows[:, 0], "c": list("rbrb")})
    for cls, task, y in (
        (BayesianRegressor, "regression", [1.5, 2, 4, 3]),
        (BayesianClassifier, "classification", [0, 1] * 2),
    ):
        for x, more in ((rows, {}), (frame, cells)):
            with pytest.raises(Asked) as caught:
                cls("mlp", "mala", **parameters, **(more or {"unseen": "zero"})).fit(x, y)
            always = {"task": task, "test_fraction": 0, "censored": False, "share_programs": True}
            assert caught.value.args == ("mlp", "mala", {**parameters, **more, **always})
