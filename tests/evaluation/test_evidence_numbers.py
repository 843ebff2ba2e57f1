"""The arithmetic of the evidence, against calculations by hand."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tiny
import xarray as xr
from scipy import special, stats

from bnnzoo.errors import UsageError
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.evidence import estimate as evidence_estimate
from bnnzoo.evaluation.evidence import estimators, power_path
from bnnzoo.evaluation.formulas.rhat import convergence
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.models import Linear
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.recipe import as_dict


def test_reasons_to_distrust_a_run_of_a_path():
    attributes = {"converged": 1, "regime_ok": 1, "exactness": "noise-corrected"}
    assert estimators._distrust_reason(attributes) == ""
    assert estimators._distrust_reason({"regime_ok": "not-applicable", "exactness": "exact"}) == ""
    assert estimators._distrust_reason(attributes | {"converged": 0, "regime_ok": 0}) == "has not converged"
    assert estimators._distrust_reason(attributes | {"regime_ok": 0}) == "violates the assumptions of its sampler"
    assert estimators._distrust_reason(attributes | {"exactness": "biased"}) == "uses a biased sampler"


def test_the_numbers_of_each_estimate_of_the_evidence():
    weights = np.array([[1.0, 2.0], [3.0, 6.0]])
    value, se = evidence_estimate.log_mean_exp(np.log(weights).reshape(-1) + 800)
    assert value == pytest.approx(np.log(3) + 800)
    assert se == pytest.approx(np.std([1, 2, 3, 6], ddof=1) / 3 / 2)
    value, se = evidence_estimate.log_mean_exp(np.array([1.5]))
    assert (value, np.isnan(se)) == (1.5, True)
    value, se = evidence_estimate.log_mean_exp(np.full(3, -np.inf))
    assert (value, np.isnan(se)) == (-np.inf, True)
    assert np.isfinite(evidence_estimate.log_mean_exp(np.array([0.0, 1.0]))[1])
    # Two chains whose bound rose on the way; a half and a quarter of the proposals were accepted.
    bound, tries = np.array([[1.0, 2.0, 3.0], [1.0, 1.0, 5.0]]), np.array([[1.0, 3.0, 2.0], [4.0, 4.0, 4.0]])
    estimate = estimators.of_acceptance(bound, tries, -7.0)
    assert estimate.log_evidence == pytest.approx((3 + np.log(0.5) + 5 + np.log(0.25)) / 2 - 7)
    assert estimate.se == pytest.approx(np.sqrt(0.5 / 3 + 0.75 / 3) / 2)
    assert "the accepted fraction of 18 proposals" in estimate.meaning
    assert estimators.of_acceptance(bound, tries).log_evidence == pytest.approx(estimate.log_evidence + 7)
    assert estimators.of_weights(np.log(weights), 7.0).log_evidence == pytest.approx(np.log(3) + 7)
    # Too few weights to have a tail; as many as have one.
    few = estimators.of_weights(np.log(weights))
    assert (few.log_evidence, few.trusted) == (pytest.approx(np.log(3)), False)
    many = estimators.of_weights(0.1 * np.random.default_rng(0).normal(size=(4, 100)))
    assert many.trusted
    assert "trust" not in many.meaning


def test_a_path_by_hand():
    """Powers 0, 0.2, 0.5 and 1; every second run is the first, the third and the last."""
    powers = np.array([0.0, 0.2, 0.5, 1.0])
    values = [np.random.default_rng(i).normal(i, 1 + i, size=(2, 50)) for i in range(4)]
    mean, variance = (np.array([f(v) for v in values]) for f in (np.mean, np.var))

    def rule(indices: list[int]) -> float:
        b, e, v = powers[indices], mean[indices], variance[indices]
        return float(np.sum(np.diff(b) * (e[1:] + e[:-1]) / 2 - np.diff(b) ** 2 / 12 * np.diff(v)))

    estimate = power_path.integrate_powers(powers, values)
    assert estimate.log_evidence == pytest.approx(rule([0, 1, 2, 3]))
    assert estimate.discretisation == pytest.approx(abs(rule([0, 1, 2, 3]) - rule([0, 2, 3])))
    gaps = np.diff(powers)
    linear = np.append(gaps / 2, 0) + np.insert(gaps / 2, 0, 0)
    quadratic = np.append(gaps**2 / 12, 0) - np.insert(gaps**2 / 12, 0, 0)
    errors = [
        convergence((p * v + q * (v - v.mean()) ** 2)[..., None])["mcse"]
        for p, q, v in zip(linear, quadratic, values, strict=True)
    ]
    assert estimate.se == pytest.approx(np.sqrt(np.sum(np.square(errors))))
    with pytest.raises(ValueError, match="longer"):  # a run that has no power
        power_path.integrate_powers(powers, [*values, values[0]])
    assert power_path._every_second_index(4).tolist() == [0, 2, 3]
    assert power_path._every_second_index(5).tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"model": {"name": "mlp", "hidden": [3]}}, "model"),
        ({"likelihood": {"name": "gaussian", "scale": 0.5}}, "likelihood"),
        ({"prior": {"name": "normal", "scale": 2.0}}, "prior"),
        ({"standardise": False}, "standardise"),
        ({"stochastic": "last"}, "stochastic"),
        ({"model": {"name": "mlp"}, "standardise": False}, "model and standardise"),
    ],
)
def test_runs_of_a_path_draw_from_one_posterior_but_for_its_power(change, differs):
    recipe = as_dict(tiny.recipe("nuts"))

    def record(name: str, sha: str = "same", **more: Any) -> Record:
        tree = xr.DataTree(xr.Dataset(attrs={"data_sha256": sha, "recipe": json.dumps(recipe | more)}))
        return Record(tree, Path(name))

    first = record("a.nc")
    # How it is drawn from is of no account, nor where in the recipe that moves the rest to.
    sampler = {"name": "mala", "step_size": 0.25}
    estimators._check_same(first, record("b.nc", likelihood_power=0.5, seed=7, draws=3, thin=2, sampler=sampler))
    with pytest.raises(UsageError, match=f"^b.nc: evidence: differs from a.nc in {differs}"):
        estimators._check_same(first, record("b.nc", **change))
    with pytest.raises(UsageError, match=r"^b\.nc: evidence: its training rows differ from those of a\.nc"):
        estimators._check_same(first, record("b.nc", sha="other"))
    with pytest.raises(UsageError, match=r"^a\.nc: evidence: only some parameters are sampled"):
        estimators._check_same(record("a.nc", stochastic="last"), record("b.nc", stochastic="last"))


def test_the_prior_of_a_draw_is_that_of_its_logarithm_where_it_is_a_scale():
    """The density of log s under s ~ HalfNormal(1) has s as its Jacobian; two draws a chain are kept, in order."""
    x = np.zeros((4, 2), np.float32)
    posterior = NetworkPosterior.of(
        Linear().build((2,), 1, key=jax.random.key(0)), Gaussian(), Normal(2.0), x, x[:, :1]
    )
    assert [block.name for block in posterior.layout.blocks] == ["weight", "bias", "likelihood_scale"]
    draws = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    draws[:, 3] = np.exp(draws[:, 3])
    predictor: Any = Predictor.__new__(Predictor)
    predictor.record = types.SimpleNamespace(shape=(2, 5), attributes={"precision": "float32"})
    predictor._restored_model, predictor.draws = types.SimpleNamespace(posterior=posterior), draws
    result = estimators.log_priors(predictor, np.array([1, 4]))
    expected = stats.norm.logpdf(draws[:, :3], 0, 2).sum(1) + stats.halfnorm.logpdf(draws[:, 3]) + np.log(draws[:, 3])
    np.testing.assert_allclose(result, expected[np.array([[1, 4], [6, 9]])], rtol=1e-5)


def path(*powers: float, monkeypatch: Any, wide: float = 1.0, **about: Any) -> estimators.Evidence:
    """Return runs with these powers, in order; log-likelihoods are about 3 + power, with this sd at power 0."""
    predictors = []
    for power in powers:
        predictor: Any = Predictor.__new__(Predictor)
        attributes = {"likelihood_power": power, "exactness": "exact", "sampler": "swag", "converged": 1} | about
        names = attributes.pop("names_a_model", True)
        predictor.record = types.SimpleNamespace(name=f"{power:g}.nc", attributes=attributes, names_a_model=names)
        noise = np.random.default_rng(int(100 * power)).normal(0, wide if power == 0 else 0.1, size=(2, 200))
        predictor.draws = 3 + power + noise
        predictors.append(predictor)
    monkeypatch.setattr(estimators, "_check_same", lambda first, other: None)
    monkeypatch.setattr(estimators, "kept_draws", lambda predictor: None)
    monkeypatch.setattr(estimators, "log_likelihoods", lambda predictor, indices: predictor.draws)
    return estimators.of_path(predictors)


def test_a_path_is_of_powers_from_0_to_1_in_any_order(monkeypatch):
    result = path(1.0, 0.0, 0.5, monkeypatch=monkeypatch, wide=0.1)
    assert result == path(0.0, 0.5, 1.0, monkeypatch=monkeypatch, wide=0.1)
    assert (result.method, result.trusted) == ("thermodynamic integration", True)
    assert result.log_evidence == pytest.approx(3.5, abs=0.05)
    for powers in ((0.0, 1.0), (0.0, 0.5), (0.5, 0.7, 1.0), (0.0, 0.5, 0.9), (0.0, 0.5, 0.5, 1.0)):
        with pytest.raises(UsageError, match="must be 0, 1, and at least one number in between, each once"):
            path(*powers, monkeypatch=monkeypatch)
    for about, message in (
        ({"names_a_model": False}, "a posterior made in Python is not supported in a set of runs"),
        ({"exactness": "approximate"}, "by swag are approx"),
    ):
        with pytest.raises(UsageError, match=message):
            path(0.0, 0.5, 1.0, monkeypatch=monkeypatch, **about)
    against = path(0.0, 0.5, 1.0, monkeypatch=monkeypatch, wide=0.1, converged=0)
    assert not against.trusted
    assert "0.nc has not converged; 0.5.nc has not converged; 1.nc has not" in against.meaning


def test_stepping_stones_take_the_place_of_an_integral_off_by_a_nat_and_by_five_errors(monkeypatch):
    def method(discretisation: float | None, se: float) -> str:
        estimate = estimators.Evidence(0.0, se, "integral", "", discretisation=discretisation)
        monkeypatch.setattr(estimators, "integrate_powers", lambda powers, values: estimate)
        stones = lambda powers, values: estimators.Evidence(0.0, 0.1, "stones", "")  # noqa: E731
        monkeypatch.setattr(estimators, "stepping_stones", stones)
        return path(0.0, 0.5, 1.0, monkeypatch=monkeypatch).method

    requests = [(1.0, 0.0), (1.01, 0.0), (1.5, 0.25), (1.5, 0.3), (1.5, 0.31), (None, 0.0), (np.nan, np.nan)]
    expected = ["integral", "stones", "stones", "integral", "integral", "integral", "stones"]
    assert [method(*item) for item in requests] == expected


def test_a_density_of_scaled_targets_is_one_of_targets_by_every_row_and_target():
    def units(**about: Any) -> float:
        tree = xr.DataTree.from_dict({"/constant_data": xr.Dataset({"y_sd": ("target", np.array([2.0, 3.0]))})})
        tree.attrs.update({"rows": 5, "task": "regression"} | about)
        return estimators._units(Record(tree, None))

    assert units(signature="") == pytest.approx(-5 * (np.log(2) + np.log(3)))
    assert units(signature="", task="classification") == units() == 0.0


def test_censored_targets_outside_the_file_have_no_known_units():
    """Only targets that are not censored have units, and their number is unknown."""

    def units(rows: int, sd: float) -> float:
        constant = {"y_sd": ("target", np.array([sd])), "x": (("row", "feature"), np.zeros((rows, 1)))}
        y = np.stack([np.zeros((rows, 1)), np.eye(rows, 1)], -1)  # the first row is censored
        groups = {"/constant_data": xr.Dataset(constant), "/observed_data": xr.Dataset({"y": (("row", "t", "b"), y)})}
        tree = xr.DataTree.from_dict(groups)
        tree.attrs.update({"rows": 5, "task": "regression", "signature": ""})
        return estimators._units(Record(tree, None))

    assert units(5, 2.0) == pytest.approx(-4 * np.log(2))
    assert units(0, 1.0) == 0.0
    with pytest.raises(UsageError, match="evidence needs the training rows"):
        units(0, 2.0)


def test_a_scale_that_is_sampled_is_integrated_by_stepping_stones():
    """y ~ N(0, s^2) of 100 rows, s ~ HalfNormal(1): under the prior log L has no variance, its integral no error."""
    rng = np.random.default_rng(1)
    squares = float(np.sum(rng.normal(0, 0.5, 100) ** 2))
    scales = np.linspace(1e-4, 6, 400_001)
    logs = -50 * np.log(2 * np.pi) - 100 * np.log(scales) - squares / 2 / scales**2
    prior = np.log(2) - 0.5 * np.log(2 * np.pi) - scales**2 / 2
    expected = float(special.logsumexp(logs + prior) + np.log(scales[1] - scales[0]))
    powers = (np.arange(11) / 10) ** 5
    values = []
    for power in powers:
        weights = special.softmax(prior + power * logs)
        draws = rng.choice(scales, (4, 1000), p=weights)
        values.append(-50 * np.log(2 * np.pi) - 100 * np.log(draws) - squares / 2 / draws**2)
    integral, stones = power_path.integrate_powers(powers, values), power_path.stepping_stones(powers, values)
    assert integral.discretisation > max(1, 5 * integral.se)
    assert stones.trusted
    assert 0.001 < stones.se < 0.1
    assert abs(stones.log_evidence - expected) < 4 * stones.se
    few = power_path.stepping_stones(powers[[0, 10]], [1000 * rng.normal(size=(4, 1000)), values[10]])
    assert not few.trusted
    assert "do not trust it, add runs with more powers" in few.meaning
    still = power_path.stepping_stones(np.array([0.0, 0.5]), [np.zeros((2, 50)), np.zeros((2, 50))])
    assert (still.log_evidence, still.trusted) == (0.0, False)
    assert "its standard error cannot be estimated: do not trust it" in still.meaning


@pytest.mark.parametrize(("tail", "is_known"), [(0.1, True), (5.0, False)])
def test_a_lower_bound_is_the_best_chains_and_says_how_far_below_it_is(tail, is_known, monkeypatch):
    """Log weights log p(D | theta) + log p(theta) - log q(theta): of a light tail, and of one that few draws carry."""
    weights = np.array([[3.0], [4.0]]) + np.random.default_rng(0).exponential(tail, size=(2, 400))
    log_q = np.random.default_rng(1).normal(size=(2, 800))
    indices, prior = np.arange(0, 800, 2), np.linspace(-1, 1, 400)
    predictor: Any = Predictor.__new__(Predictor)
    predictor.record = types.SimpleNamespace(statistics={"log_q": log_q})
    monkeypatch.setattr(estimators, "kept_draws", lambda predictor: indices)
    monkeypatch.setattr(estimators, "log_likelihoods", lambda predictor, indices: weights - prior + log_q[:, ::2])
    monkeypatch.setattr(estimators, "log_priors", lambda predictor, indices: np.tile(prior, (2, 1)))
    result, best = estimators._of_bound(predictor), weights[weights.mean(1).argmax()]
    assert result.log_evidence == pytest.approx(best.mean())
    assert result.se == pytest.approx(best.std(ddof=1) / 20)
    gap = float(np.log(np.mean(np.exp(best))) - best.mean())
    assert result.gap == (pytest.approx(gap) if is_known else None)
    assert result.trusted is is_known
    unknown = "unknown, because a few draws have most of the weight"
    gap_text = f"{gap:.3g}, estimated from the weights of the draws" if is_known else unknown
    assert result.meaning.startswith("a lower bound, the best of 2 chains;")
    assert result.meaning.endswith(f"larger by KL(q || posterior), which is {gap_text}")
