"""Simulation-based calibration: a correct model passes, wrong models fail, and the reports are correct."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from bnnzoo.errors import UsageError
from bnnzoo.models import Autoregressive, Linear
from bnnzoo.posterior.likelihoods import Categorical, Gaussian
from bnnzoo.posterior.priors import FanIn
from bnnzoo.samplers import AbstractSampler, Mala
from bnnzoo.testing import calibration, check_calibration
from bnnzoo.testing.calibration import LEVEL, _test_ranks
from bnnzoo.testing.calibration_report import CalibrationReport


class State(eqx.Module):
    position: Float[Array, " dim"]


class Prior(AbstractSampler[State]):
    """A wrong sampler that draws from the prior for any data; it is calibrated in every parameter."""

    exactness: ClassVar[Any] = "exact"

    def init(self, posterior, theta, *, num_warmup, key):
        return State(theta)

    def step(self, posterior, state, *, key):
        return State(posterior.sample_prior(key=key)), {"lp": jnp.zeros(())}


class HalfScale(Gaussian):
    """A wrong likelihood that draws data with one scale and evaluates them with half of it."""

    def log_prob(self, output, target):
        return Gaussian(self.scale / 2).distribution(output).log_prob(target)


HOW = {"warmup": 400, "thin": 10}


@pytest.mark.long
def test_a_right_model_is_calibrated():
    report = check_calibration(Linear(), Mala(), likelihood=Gaussian(0.5), **HOW)
    assert report.passed, str(report)
    assert report.uniform.shape == (128, 4)
    assert all(quantity.independent for quantity in report.quantities)
    assert str(report).splitlines()[-1] == "calibrated: 4 quantities over 128 replicates"


def test_a_rank_is_how_many_draws_are_lower_and_chance_decides_between_equals(monkeypatch):
    """With three draws per replicate, the truth is between them, below or above all, or equal to all of them."""
    draws = np.arange(3.0)[None, :, None] + np.zeros((400, 3, 4))
    truth = np.array([1.5, -1.0, 9.0, 0.0]) + np.zeros((400, 1, 4))
    draws[:, :, 3] = 0
    monkeypatch.setattr(calibration, "_run", lambda *_: (None, None))
    monkeypatch.setattr(calibration, "_all_quantities", lambda *_: np.concatenate([truth, draws], 1))
    report = check_calibration(Linear(), Mala(), likelihood=Gaussian(0.5), replicates=400, draws=3)
    ranks = (4 * report.uniform).astype(int)
    assert [set(ranks[:, i].tolist()) for i in range(4)] == [{2}, {0}, {3}, {0, 1, 2, 3}]
    assert np.all(np.bincount(ranks[:, 3]) > 60)
    assert np.ptp(4 * report.uniform[:, 0]) > 0.9  # uniform between its neighbours
    assert {quantity.limit for quantity in report.quantities} == {1e-5 / 8}


def test_how_far_neighbouring_draws_depend_on_each_other():
    values = np.zeros((2, 4, 2))
    values[0, :, 0] = [1, -1, 1, -1]
    values[:, :, 1] = [[3, 5, 5, 3], [0, 0, 1, 1]]
    # (-1 - 1 - 1) / 4 and of a chain that stands still 1; (-1 + 1 - 1) / 4 and (1 - 1 + 1) / 4.
    np.testing.assert_allclose(calibration._dependence(values), [(-0.75 + 1) / 2, 0.0])


def test_a_sampler_that_returns_the_prior_is_found_by_the_likelihood_alone():
    report = check_calibration(Linear(), Prior(), likelihood=Gaussian(0.5), warmup=0, thin=1)
    verdicts = {quantity.name: quantity.verdict for quantity in report.quantities}
    assert verdicts.pop("log-likelihood") == "draws too low"
    assert set(verdicts.values()) == {"calibrated"}
    assert report.verdict.startswith("not calibrated: log-likelihood: draws too low")


@pytest.mark.long
def test_a_wrong_scale_of_the_likelihood_is_found():
    report = check_calibration(Linear(), Mala(), likelihood=HalfScale(0.5), **HOW)
    assert not report.passed
    wrong = {quantity.name: quantity.verdict for quantity in report.quantities if not quantity.calibrated}
    assert wrong
    assert all(verdict != "undecided" for verdict in wrong.values())


def test_the_level_is_kept_and_what_is_wrong_is_named():
    rng = np.random.default_rng(0)
    alarms = sum(not _test_ranks("q", rng.uniform(size=128), 0.0, 0.05).calibrated for _ in range(400))
    # Two tests of 5 % each: about one in ten; 0.025 is four standard deviations of the share.
    assert abs(alarms / 400 - 0.0975) < 0.06
    uniform = rng.uniform(size=512)
    named = {
        "draws too low": uniform**0.5,
        "draws too high": uniform**2,
        "draws too narrow": 0.5 + 0.5 * np.sign(uniform - 0.5) * np.abs(2 * uniform - 1) ** 0.5,
        "draws too wide": 0.5 + 0.5 * np.sign(uniform - 0.5) * np.abs(2 * uniform - 1) ** 2,
    }
    for verdict, values in named.items():
        assert _test_ranks("q", values, 0.0, LEVEL).verdict == verdict
        assert _test_ranks("q", values, 0.5, LEVEL).verdict == "undecided"


def test_a_quantity_that_mixes_slowly_does_not_hide_an_error_of_another():
    uniform = np.random.default_rng(0).uniform(size=512) ** 0.5
    quantities = tuple(_test_ranks(name, uniform, dependence, LEVEL) for name, dependence in (("a", 0.0), ("b", 0.9)))
    report = CalibrationReport("linear", "mala", 63, np.stack([uniform] * 2, 1), quantities)
    assert report.verdict.startswith("not calibrated: a: draws too low (p ")
    assert "; undecided: successive draws of the b have autocorrelation 0.90" in report.verdict


class Sized(Categorical):
    """A likelihood that stores its number of classes."""

    classes: int = eqx.field(static=True, default=2)

    def of_targets(self, count):
        return Sized(count)


def test_the_likelihood_is_that_for_the_number_of_classes():
    posterior, _ = calibration._posterior(Linear(), Sized(), FanIn(), (2,), 4, 0)
    assert posterior.likelihood.classes == 3


@pytest.mark.parametrize("kwargs", [{"input_shape": (0,)}])
def test_inputs_refused_by_the_model_are_reported(kwargs):
    with pytest.raises(ValueError, match="no inputs"):
        check_calibration(Linear(), Mala(), **kwargs)


def test_a_model_of_densities_only_is_refused():
    with pytest.raises(UsageError, match=r"model autoregressive: .* requires a model for regression or classification"):
        check_calibration(Autoregressive(), Mala(), rows=3, warmup=0)
