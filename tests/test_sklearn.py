"""The estimators of `bnnzoo.sklearn`: scikit-learn's own checks, and what they do not look at."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from bnnzoo import zoo
from bnnzoo.sklearn import BayesianClassifier, BayesianRegressor

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


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [BayesianRegressor, BayesianClassifier])
def test_scikit_learns_own_checks(estimator):
    """In a process without the tests' look at types: some of the checks give a constructor what no type allows."""
    code = f"""
from sklearn.utils.estimator_checks import check_estimator
from bnnzoo.sklearn import {estimator.__name__}
print(len(check_estimator({estimator.__name__}(**{SMALL!r}))), "checks")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-2]) > 40


@pytest.mark.filterwarnings("ignore:.*has not converged:bnnzoo.errors.BnnzooWarning")
def test_a_frame_of_text_goes_through_a_pickle():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=60), "colour": rng.choice(["red", "blue"], 60)})
    price = 2 * frame["size"] + (frame["colour"] == "red") + 0.1 * rng.normal(size=60)
    estimator = clone(BayesianRegressor(**SMALL)).fit(frame, price)
    mean, sd = estimator.predict(frame, return_std=True)
    assert mean.shape == sd.shape == (60,)
    assert estimator.score(frame, price) > 0.7  # twenty draws
    again = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(again.predict(frame), mean)
    low, high = estimator.predict_quantiles(frame, (0.05, 0.95)).T
    assert 0.75 < np.mean((low < price) & (price < high)) <= 1
    assert estimator.sample_y(frame, 7).shape == (60, 7)
    assert again.run_.predictor.signature.feature_names == ("size", "colour=blue", "colour=red")


@pytest.mark.filterwarnings("ignore:.*has not converged:bnnzoo.errors.BnnzooWarning")
def test_labels_beside_a_frame_of_text_are_as_they_are_written():
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"size": rng.normal(size=60), "colour": rng.choice(["red", "blue"], 60)})
    y = np.where(x["size"] > 0, "01", np.where(x["colour"] == "red", "none", "none  here"))
    estimator = BayesianClassifier(**SMALL).fit(x, np.char.add(y, " "))
    assert list(estimator.classes_) == ["01", "none", "none here"]
    assert estimator.predict_proba(x).shape == (60, 3)
    assert np.mean(estimator.predict(x)[x["size"] > 0.5] == "01") > 0.9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*has not converged:bnnzoo.errors.BnnzooWarning")
def test_left_to_itself_the_data_choose():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    run = BayesianRegressor(budget="2s", start_steps=250).fit(x, x[:, 0] + 0.1 * rng.normal(size=60)).run_
    assert (run.attributes["model"], run.attributes["sampler"]) == ("mlp", "mclmc")


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, (None, None)),
        ({"sampler": "laplace"}, ("mlp", "laplace")),
        ({"model": "linear", "budget": "3s"}, ("linear", "nuts")),
    ],
)
def test_what_is_left_out_is_left_to_sample(given, asked, monkeypatch):
    """No length is asked for that was not given: the data choose it, or the budget."""

    class Asked(Exception):
        pass

    def sample(model, sampler, **options):
        raise Asked((model, sampler), set(options) & {"chains", "warmup", "draws", "thin", "budget", "start_steps"})

    monkeypatch.setattr(zoo, "sample", sample)
    with pytest.raises(Asked) as caught:
        BayesianRegressor(**given).fit(np.arange(8.0).reshape(4, 2), np.arange(4.0))
    assert caught.value.args == (asked, set(given) & {"budget"})


@pytest.mark.filterwarnings("ignore:.*has not converged:bnnzoo.errors.BnnzooWarning")
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
