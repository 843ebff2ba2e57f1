"""An audit passes draws only if it excludes biases above its tolerance; otherwise they drifted, or it is undecided."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import bnnzoo
from bnnzoo.evaluation.audit import audit, bias
from bnnzoo.evaluation.audit.audit_result import LEVEL, Effort, decide
from bnnzoo.evaluation.audit.bias import Biases
from bnnzoo.evaluation.audit.drift import Drift
from bnnzoo.evaluation.audit.estimands import LOG_SDS, MEANS, OWN_PARAMETERS, WEIGHTS, Estimands, is_linear, varying
from bnnzoo.models import Linear, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Gaussian, StudentT
from bnnzoo.posterior.priors import Normal
from bnnzoo.testing.targets import regression

UNITS, SNAPSHOTS, SLOPE = 128, 16, 0.3


def chains(rng: np.random.Generator, mean: float, sd: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return N(mean, sd^2) draws of three values, starts, and autoregressive chains that preserve N(0, 1)."""
    run = mean + sd * rng.normal(size=(4, 500, 3))
    starts = mean + sd * rng.normal(size=(UNITS, 3))
    later, value = [], SLOPE * starts + np.sqrt(1 - SLOPE**2) * rng.normal(size=starts.shape)
    for _ in range(SNAPSHOTS):
        later.append(value)
        value = SLOPE * value + np.sqrt(1 - SLOPE**2) * rng.normal(size=starts.shape)
    return run, starts, np.array(later)


def estimated(rng: np.random.Generator, mean: float = 0.0, sd: float = 1.0) -> Biases:
    run, starts, later = chains(rng, mean, sd)
    return bias.estimate(bias.run_moments(run), starts, later)


@pytest.mark.long
@pytest.mark.parametrize(("mean", "sd"), [(0.0, 1.0), (0.5, 1.0), (0.0, 2.6), (0.0, 0.8)])
def test_the_bias_of_mean_and_sd_is_estimated_with_its_error(mean, sd):
    """In thirty independent repeats, the mean is within five standard errors, and the spread is as stated."""
    rng = np.random.default_rng(0)
    result = [estimated(rng, mean, sd) for _ in range(30)]
    values = np.array([item.values for item in result])
    truth = np.repeat([mean, sd - 1], 3)
    assert np.all(np.abs(values.mean(0) - truth) < 5 * values.std(0) / 30**0.5 + 0.01)
    assert 0.7 < np.mean([item.errors for item in result]) / values.std(0).mean() < 1.4


@pytest.mark.long
def test_right_draws_are_rarely_significant_and_wrong_ones_mostly():
    """At level 0.05 of Bonferroni's p, 50 independent repeats: more than 8 have probability below 1e-3."""
    rng = np.random.default_rng(1)
    assert sum(estimated(rng).p_value(6) < 0.05 for _ in range(50)) <= 8
    assert all(estimated(rng, mean=0.3).p_value(6) < LEVEL for _ in range(3))
    assert all(estimated(rng, sd=1.3).p_value(6) < LEVEL for _ in range(3))


def test_a_bias_is_within_its_bound_in_nineteen_of_twenty_repeats():
    rng = np.random.default_rng(2)
    within = [np.abs(np.repeat([0.1, 0.0], 3)) <= estimated(rng, mean=0.1).bounds for _ in range(30)]
    assert np.mean(within) > 0.85
    assert np.mean([estimated(rng).detectable.max() for _ in range(5)]) == pytest.approx(0.13, abs=0.04)


def test_few_starts_and_constant_values_give_no_estimate():
    run, starts, later = chains(np.random.default_rng(3), 0.0, 1.0)
    few = bias.estimate(bias.run_moments(run), starts[:3], later[:, :3])
    assert np.isinf(few.bounds).all()
    assert few.p_value(10) == 1.0
    constant = {"scale": np.zeros((4, 500, 2)), "f": run}
    assert {k: len(v) for k, v in varying(constant, {"scale": np.zeros((9, 2)), "f": later}).items()} == {
        "scale": 0,
        "f": 3,
    }
    # A value that moves only in the exact chains is not left out.
    assert len(varying(constant, {"scale": np.arange(18.0).reshape(9, 2), "f": later})["scale"]) == 2
    stuck = bias.estimate(bias.run_moments(constant["scale"]), starts[:, :2] * 0, later[..., :2])
    assert (stuck.bounds[2:] >= 1).all()


# ---- the decision --------------------------------------------------------------------------------


def decided(
    values: Any = 0.0,
    error: float = 0.03,
    p: float = 0.3,
    pooled: Any = (0.0, 0.02),
    units: int = 128,
    remembered: float = 0.0,
    max_chains: int = 128,
) -> audit.Audit:
    biases = np.full(6, values)
    errors = np.full(6, error / 2**0.5)
    first = Biases(biases, errors, errors, units, np.ones(6, bool), np.full(3, remembered))
    effort = Effort(units, 64, 0.7, 1.0, 0.1)
    return decide(Drift(p, "the log posterior", -4.0), {MEANS: first}, pooled, 0.9, effort, max_chains=max_chains)


def test_a_run_passes_only_where_larger_biases_are_excluded():
    passed = decided()
    assert (passed.outcome, passed.passed) == ("passed", True)
    assert passed.bias_bound < 0.06
    assert passed.detectable == pytest.approx(0.11, abs=0.01)
    assert "steps detect a bias of 11% with 95 % probability" in passed.verdict
    for wrong in (decided(error=0.2), decided(values=0.16, error=0.05), decided(pooled=(0.08, 0.02)), decided(units=8)):
        assert wrong.outcome == "undecided"
        assert not wrong.passed
        assert wrong.verdict.startswith("undecided: ")
    assert "limit 10%) for the sd of all predictions" in decided(pooled=(0.08, 0.02)).verdict


@pytest.mark.parametrize(("max_chains", "remedy"), [(8, "give the audit more chains"), (128, "sample more draws")])
def test_too_few_exact_chains_are_the_reason_of_an_undecided_audit(max_chains, remedy):
    result = decided(values=0.01, units=8, max_chains=max_chains)
    assert result.outcome == "undecided"
    assert result.limited_by == ("chains" if max_chains == 8 else "draws")
    assert result.verdict.startswith("undecided: 8 exact chains are too few (at least 12 are needed); ")
    assert remedy in result.verdict


def test_a_narrow_run_whose_log_posterior_drifts_does_not_pass():
    """An sd that is 10 % +- 5 % too small is undecided alone, and drifted with a significant drift."""
    assert decided(pooled=(-0.1, 0.05)).outcome == "undecided"
    drifted = decided(p=1e-4, pooled=(-0.1, 0.05))
    assert drifted.outcome == "drifted"
    assert not drifted.passed
    assert "the log posterior fell" in drifted.verdict
    assert "the sd of the predictions is 10% ± 5% too small" in drifted.verdict
    assert "outcome" in drifted.record()
    assert "passed" not in drifted.record()


def test_a_function_with_infinite_autocorrelation_does_not_pass():
    """Two modes have proportions 80:20 instead of 50:50.

    The error of the mean is 0.3 sds, and no chain leaves its mode.
    """
    rng = np.random.default_rng(5)

    def around(modes: np.ndarray, copies: int) -> np.ndarray:
        return (modes + rng.normal(size=(copies, modes.size)))[..., None]

    modes = rng.permutation(np.where(np.arange(UNITS) < 0.8 * UNITS, 0.65, -0.65))
    run = around(rng.choice([0.65, -0.65], size=2000, p=[0.8, 0.2]), 1).reshape(4, 500, 1)
    result = bias.estimate(bias.run_moments(run), around(modes, 1)[0], around(modes, 64))
    assert np.abs(result.values[0]) < 0.15  # the bias is not detected
    assert 0.1 < result.remembered[0] < 0.35
    outcome = decide(Drift(0.3, "f", 1.0), {MEANS: result}, (0.0, 0.02), 0.9, Effort(UNITS, 64, 0.7, 1.0, 0.1))
    assert outcome.outcome == "undecided"
    assert "still depend on their starts" in outcome.verdict
    assert decided(remembered=0.2).outcome == "undecided"
    assert estimated(rng).remembered.max() < 0.1


def test_a_significant_bias_is_a_drift_for_any_sign_test():
    result = decided(values=0.3)
    assert result.outcome == "drifted"
    assert result.drifted == MEANS
    assert result.score < 0


# ---- draws of a posterior with a closed form -----------------------------------------------------


def audited(draws: np.ndarray, **more: Any) -> audit.Audit:
    posterior = regression().posterior
    return audit.of_draws(posterior, draws.astype(np.float32), posterior.data.x[:10], **{"seconds": 8.0, **more})


def exact(chains: int = 4, count: int = 750, seed: int = 0) -> np.ndarray:
    target = regression()
    return np.random.default_rng(seed).multivariate_normal(target.mean, target.covariance, size=(chains, count))


@pytest.mark.long
@pytest.mark.parametrize("chains", [4, 1])
def test_exact_draws_of_one_or_four_chains_pass(chains):
    result = audited(exact(chains, 3000 // chains))
    assert result.outcome == "passed", result.verdict
    assert result.bias_bound < 0.2


@pytest.mark.long
@pytest.mark.parametrize(
    ("scale", "shift"), [(2.6, 0.0), (0.7, 0.0), (1.0, 1.0), pytest.param(1.0, -0.4, marks=pytest.mark.slow)]
)
def test_draws_that_are_too_wide_too_narrow_or_shifted_have_drifted(scale, shift):
    target, draws = regression(), exact()
    result = audited(target.mean + scale * (draws - target.mean) + shift * target.sd)
    assert result.outcome == "drifted", result.verdict
    if shift == 0:
        assert np.sign(result.bias_sd) == np.sign(scale - 1)
        assert result.bias_sd == pytest.approx(scale - 1, rel=0.5)


@pytest.mark.long
def test_one_wrong_weight_is_found_though_predictions_hardly_depend_on_it():
    """The posterior correlations are kept; one weight of three is half as wide."""
    target, draws = regression(), exact()
    mean = target.mean[0]
    draws[..., 0] = mean + (draws[..., 0] - mean) / 2
    assert audited(draws).outcome == "drifted"


@pytest.mark.long
def test_a_short_run_and_an_ensemble_are_undecided():
    short = audited(exact(4, 10), seconds=60.0)  # it ends earlier, when the run limits the power
    assert short.outcome == "undecided"
    assert "sample more draws" in short.verdict
    members = np.repeat(exact(8, 1), 50, axis=1)
    assert audited(members).outcome == "undecided"


def test_linear_outputs_are_recognised():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 2)).astype(np.float32)
    network = Mlp(hidden=(4,)).build((2,), 1, key=jax.random.key(0))
    curved = NetworkPosterior.of(network, Gaussian(scale=0.5), Normal(), x, x[:, :1])
    assert not is_linear(curved, rng.normal(size=(16, curved.layout.dim)).astype(np.float32), x)
    line = regression().posterior
    assert is_linear(line, exact(1, 16)[0].astype(np.float32), line.data.x[:10])


def test_log_sds_that_are_infinite_at_a_draw_are_left_out():
    """They belong to heavy tails, which have no mean; possibly all of them are left out."""
    infinite = {LOG_SDS: np.array([[0.1, np.inf, 0.2], [0.3, np.inf, np.inf]])}
    assert varying(infinite, infinite)[LOG_SDS].tolist() == [0]
    assert varying({MEANS: np.zeros((2, 3, 0))}, {MEANS: np.zeros((3, 0))})[MEANS].tolist() == []


@pytest.mark.slow
def test_heavy_tails_without_a_variance_are_audited():
    """The log sd of Student's t with 1.5 degrees of freedom is infinite at every draw."""
    x = np.ones((6, 1), np.float32)
    network = Linear().build((1,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, StudentT(df=1.5, scale=0.1), Normal(), x, x)
    draws = np.random.default_rng(0).normal(size=(4, 20, 2)).astype(np.float32)
    assert audit.of_draws(posterior, draws, x, chains=16, seconds=0.1).outcome in ("drifted", "undecided")


def test_every_weight_of_a_wide_linear_model_is_checked():
    """One wrong weight of 300 affects no prediction at ten rows."""
    x = np.random.default_rng(0).normal(size=(4, 300)).astype(np.float32)
    network = Linear().build((300,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Gaussian(scale=0.5), Normal(), x, x[:, :1])
    draws = np.random.default_rng(1).normal(size=(4, posterior.layout.dim)).astype(np.float32)
    assert Estimands(posterior, posterior, x, draws)(draws)[WEIGHTS].shape == (4, 301)


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [{"name": "gaussian", "scale": 0.5}, {"name": "gaussian"}])
@pytest.mark.parametrize("sampler", ["nuts", {"name": "sgld", "step_size": 3e-4, "batch_size": 5}])
def test_sgld_that_is_too_wide_drifts_and_nuts_passes_with_fixed_and_learned_noise(sampler, likelihood):
    """The constant noise scale is not used for the number of independent draws."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).astype(np.float32)
    y = (x @ np.array([[0.5], [-0.5]]) + 0.5 * rng.normal(size=(200, 1))).astype(np.float32)
    run = bnnzoo.sample(
        "linear",
        sampler,
        data=(x, y),
        likelihood=likelihood,
        standardise=False,
        test_fraction=0.0,
        warmup=1000,
        draws=2000,
        thin=1 if sampler == "nuts" else 20,
    )
    result = run.audit(seconds=60.0)
    assert result.chains == 128
    assert result.outcome == ("passed" if sampler == "nuts" else "drifted"), result.verdict
    assert sampler == "nuts" or result.bias_sd > 1
    assert OWN_PARAMETERS not in result.bias_bound_of or "scale" not in likelihood
