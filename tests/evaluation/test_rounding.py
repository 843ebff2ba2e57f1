"""Rounded targets, and noise scales that are too small for a density score."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from bnnzoo.api import compare
from bnnzoo.data.encoding.targets import looks_like_counts, note_of_numbers
from bnnzoo.data.rows import rounding
from bnnzoo.evaluation.formulas import metrics
from bnnzoo.evaluation.predictions import noise_scale, per_draw, predictive
from bnnzoo.evaluation.scores import row_scores
from bnnzoo.finding import spell_settings
from bnnzoo.models.linear import Linear
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.intervals import log_likelihood
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal

pytestmark = pytest.mark.usefixtures("as_options")

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        (RANDOM.integers(1, 8, 200), 1.0),
        (RANDOM.integers(0, 9, 200) * 50.0, 50.0),
        (np.round(RANDOM.normal(size=200), 1), 0.1),
        (RANDOM.normal(size=200), 0.0),
        (np.arange(200.0), 0.0),
        (np.round(RANDOM.normal(size=200) * 1000), 0.0),
        (np.full(200, 3.0), 0.0),
        (np.array([1.0, 1.0, 2.0]), 0.0),
    ],
    ids=["classes", "fifties", "tenths", "real", "all different", "fine", "constant", "few"],
)
def test_the_step_of_rounded_targets_is_recognised(values, step):
    assert rounding.rounding_step(np.asarray(values, np.float32)) == pytest.approx(step)


def test_new_targets_must_lie_on_the_grid_of_rounded_targets():
    assert rounding.is_on_grid(np.array([0.1, 0.7, -3.2], np.float32), 0.1, 0.5)
    assert not rounding.is_on_grid(np.array([0.1, 0.75], np.float32), 0.1, 0.5)


@pytest.mark.parametrize(("mean", "sd", "decimals"), [(150.0, 0.3, 2), (3000.0, 4.0, 1), (-3000.0, 4.0, 1)])
def test_rounded_targets_that_are_large_lie_on_their_own_grid(mean, sd, decimals):
    values = np.round(RANDOM.normal(mean, sd, 200), decimals).astype(np.float32)
    step = rounding.rounding_step(values)
    assert step == pytest.approx(10.0**-decimals)
    assert rounding.is_on_grid(values, step, float(values[0]))
    assert not rounding.is_on_grid(values + np.float32(0.4 * step), step, float(values[0]))


@pytest.mark.parametrize("scale", [1e-4, 0.01, 0.3, 1.0, 50.0])
@pytest.mark.parametrize("centre", [0.0, 0.4, -7.0])
def test_the_probability_of_a_step_is_exact_however_narrow_or_far(scale, centre):
    low, high = jnp.array([-0.5]), jnp.array([0.5])
    result = log_likelihood(dist.Normal(jnp.array([centre]), scale).to_event(1), low, high)
    a, b = (-0.5 - centre) / scale, (0.5 - centre) / scale
    a, b = (-b, -a) if a + b > 0 else (a, b)
    expected = stats.norm.logcdf(b) + np.log1p(-np.exp(stats.norm.logcdf(a) - stats.norm.logcdf(b)))
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-5)
    t = log_likelihood(dist.StudentT(4.0, jnp.array([centre]), scale).to_event(1), low, high)
    np.testing.assert_allclose(t, np.log(np.diff(stats.t(4).cdf([a, b])))[0], rtol=2e-2, atol=1e-4)


def test_the_probability_of_a_step_under_a_mixture_of_two_targets():
    weights, means, scales = np.array([0.3, 0.7]), np.array([[0.0, 1.0], [2.0, -1.0]]), np.array([[1.0, 0.5], [0.7, 2]])
    law = dist.MixtureSameFamily(
        dist.Categorical(jnp.asarray(weights)), dist.Normal(jnp.asarray(means), jnp.asarray(scales)).to_event(1)
    )
    low, high = np.array([-0.5, 0.5]), np.array([0.5, 1.5])
    each = np.prod(stats.norm(means, scales).cdf(high) - stats.norm(means, scales).cdf(low), 1)
    np.testing.assert_allclose(
        log_likelihood(law, jnp.asarray(low), jnp.asarray(high)), np.log(weights @ each), rtol=1e-5
    )


def test_a_collapsed_scale_makes_no_better_score_of_rounded_targets():
    """As the scale shrinks, the density at the correct value is unbounded; the probability of its step is not."""
    network = Linear().build((1,), 1, key=jnp.zeros(2, jnp.uint32))
    x, y = np.zeros((3, 1), np.float32), np.zeros((3, 1), np.float32)
    results = {}
    for scale in (1e-3, 1e-4):
        posterior = NetworkPosterior.of(network, Gaussian(scale), Normal(), x, y)
        draws, half = np.zeros((2, 2), np.float32), np.full((3, 1), 0.5, np.float32)
        rounded = per_draw.log_intervals(posterior, draws, np.log([0.5, 0.5]), x, y - half, y + half)
        density = predictive.sums(posterior, draws, x, y, keep_parts=False).moments().log_density
        results[scale] = float(np.mean(density)), float(np.mean(rounded))
    assert results[1e-4][0] > results[1e-3][0] + 2
    assert results[1e-4][1] == pytest.approx(0.0, abs=1e-5) == results[1e-3][1]


def test_runs_on_rounded_targets_are_compared_by_the_probability_of_a_step():
    first = {name: metrics.Estimate(1.0) for name in ("nll", "nll_rounded", "rmse")}
    assert [set(names) for names in compare._comparable_metrics([first, first])] == [{"nll_rounded", "rmse"}] * 2
    other = {name: metrics.Estimate(1.0) for name in ("nll", "rmse")}
    assert [set(names) for names in compare._comparable_metrics([first, other])] == [{"rmse"}] * 2
    assert compare._comparable_metrics([other, other]) == [other, other]


@pytest.mark.parametrize(
    ("scale", "over", "step", "message"),
    [
        (6e-4, 3e-4, 1.0, "less than half of the rounding step 1 of the target: nll cannot compare such predictions"),
        (2e-3, 3e-3, 0.0, r"the noise scale of y is 0.002 (0.3 % of the target's sd): the data seem free of noise"),
        (0.3, 0.2, 0.0, ""),
        (0.6, 0.4, 1.0, ""),
    ],
)
def test_the_verdict_names_a_noise_scale_that_makes_densities_no_score(scale, over, step, message):
    diagnosis = {"noise_scale": scale, "noise_over_sd": over, "noise_of": "y", "noise_step": step}
    result = noise_scale.remark(diagnosis)
    assert (message in result) if message else not result
    assert noise_scale.remark({}) == ""


def test_rows_of_one_distribution_share_its_samples():
    """Quantiles, CRPS and PIT are the same as with separate samples for each row."""
    samples, y = RANDOM.normal(size=(400, 2)).astype(np.float32), RANDOM.normal(size=(7, 2)).astype(np.float32)
    y[0], uniform = samples[3], RANDOM.uniform(size=(7, 2))
    sampled = row_scores.sampled_scores_of_equal_rows(samples, y, uniform)
    expected = row_scores.sampled_scores(np.repeat(samples[:, None], 7, 1), y, uniform)
    np.testing.assert_allclose(sampled.quantiles, expected.quantiles, rtol=1e-6)
    np.testing.assert_allclose(sampled.pit, expected.pit, rtol=1e-6)
    np.testing.assert_allclose(sampled.crps, expected.crps, rtol=1e-4, atol=1e-5)


def test_counts_are_recognised_and_the_note_names_their_likelihoods():
    def note(numbers, task: str) -> str:
        return spell_settings(note_of_numbers("y", numbers, task), "options")

    counts = RANDOM.negative_binomial(1.0, 0.1, 300)
    assert looks_like_counts(counts)
    assert "use --likelihood poisson or negative-binomial to read them as counts" in note(counts, "regression")
    few = RANDOM.poisson(2.0, 300) + (np.arange(300) == 0) * 12
    assert "use --task classification to read them as classes, --likelihood poisson" in note(few, "regression")
    assert "taken as classes; use --task regression" in note(few, "classification")
    for other in (np.arange(1990, 2024), counts * 100, counts + 0.5, -counts, np.array([0, 1] * 20)):
        assert not looks_like_counts(other)
    assert note_of_numbers("y", RANDOM.normal(size=50), "regression") == ""
