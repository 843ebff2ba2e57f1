"""Runs that cannot be distilled are refused before the training, with what is supported."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest
from bnnzoo_distill import distill
from conftest import QUICK

import bnnzoo
from bnnzoo import UsageError

SHORT = {"warmup": 2, "draws": 2, "chains": 2, "seed": 0, "start_steps": 250}
X = np.random.default_rng(0).normal(size=(40, 2))
Y = X @ [1.0, -1.0]


@pytest.mark.parametrize(
    ("problem", "model", "options"),
    [
        ("estimates a density without inputs", "density", {"data": X}),
        ("has 2 targets", "linear", {"data": (X, np.stack([Y, -Y], 1))}),
        (
            "has a likelihood of counts or labels instead of a real target",
            "linear",
            {"data": (X, np.arange(40) % 5), "task": "regression", "likelihood": "poisson"},
        ),
        ("has a single draw and therefore no epistemic", "linear", {"data": (X, Y), "chains": 1, "draws": 1}),
        (r"has images as inputs \(shape \[4, 4\]\)", "mlp", {"data": (np.ones((20, 4, 4)), np.arange(20) % 2)}),
    ],
)
def test_unsupported_runs_are_refused(problem, model, options):
    run = bnnzoo.sample(model, "random-walk", **{**SHORT, **options})
    with pytest.raises(UsageError, match=f"{problem}.*; bnnzoo distill supports tables of inputs with one real target"):
        distill(run)


def test_a_run_that_keeps_predictions_is_refused():
    run = bnnzoo.sample("linear", "random-walk", data=(X, Y), keep="predictions", test_fraction=0.2, **SHORT)
    with pytest.raises(UsageError, match=r"keeps predictions at fixed inputs.*keep="):
        distill(run)


def test_a_posterior_without_a_model_is_refused():
    from bnnzoo.posterior.likelihoods import Gaussian
    from bnnzoo.posterior.priors import Normal

    network = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    rows = X.astype("float32"), Y[:, None].astype("float32")
    posterior = bnnzoo.NetworkPosterior.of(network, Gaussian(0.2), Normal(1.0), *rows)
    run = bnnzoo.sample(posterior, bnnzoo.RandomWalk(), warmup=2, draws=2, out="own.nc")
    with pytest.raises(UsageError, match="defined in Python"):
        distill("own.nc")
    del run


@pytest.mark.parametrize(("name", "value"), [("inputs", 199), ("steps", 0), ("width", 0)])
def test_settings_are_checked(gap_run, name, value):
    with pytest.raises(UsageError, match=f"{name}: must be .* or more"):
        distill(gap_run, **{name: value})


@pytest.mark.filterwarnings("ignore:.*goal")
def test_other_rows_can_replace_the_training_rows(gap_run):
    student = distill(gap_run, data=np.linspace(110, 112, 30)[:, None], **QUICK)
    assert 108 < student.x_low[0] < 110
    assert 112 < student.x_high[0] < 114
    with pytest.raises(UsageError, match=r"inputs have shape \[2\]"):
        distill(gap_run, data=np.ones((3, 2)), **QUICK)


@pytest.mark.filterwarnings("ignore:.*goal")
@pytest.mark.parametrize("labels", [False, True])
def test_without_test_rows_the_check_samples_targets_from_the_run(labels):
    y = np.where(Y > 0, 10, 9) if labels else Y  # as text, 10 comes before 9
    run = bnnzoo.sample("linear", "nuts", data=(X, y), warmup=50, draws=50, chains=2, seed=0, test_fraction=0)
    report = distill(run, **QUICK).report
    assert report["test"]["rows"] == 30
    assert np.isfinite(report["test"]["nll_gap"])
    assert report["test"]["nll_teacher"] < 0.69
