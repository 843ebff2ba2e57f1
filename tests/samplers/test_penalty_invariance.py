"""The penalty sampler has the predicted distribution: many short chains against an exact transition matrix."""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import numpy as np
import oracle
import pytest
from gaussian_mean import GaussianMean, Z, agrees, evolve, from_exact_draws, scores

from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers import Penalty
from bnnzoo.samplers.subsampled.noise_penalty import Difference

pytestmark = pytest.mark.usefixtures("optimised")

N, BATCHES = 120, 20
SIZES = {("replacement", 1): 6, ("replacement", 2): 3, ("disjoint", 1): 3, ("disjoint", 2): 2}
"""Rows per batch for a mean sigma2 of 1 and of 2: with proposals of one posterior sd, sigma2 is N/K, or N/K - 1."""


def _quick(*pairs: tuple[str, int]) -> list[Any]:
    """Return all of `SIZES`; those that are not selected are slow tests."""
    return [pytest.param(*key, marks=() if key in pairs else pytest.mark.slow) for key in SIZES]


def _sampler(posterior: GaussianMean, size: int, *, num_batches: int = BATCHES, kind: type[Penalty] = Penalty, **more):
    return kind(step_size=posterior.sd, batch_size=size, num_batches=num_batches, preconditioner="identity", **more)


def _predicted(posterior: GaussianMean, sampler: Penalty, **more: Any) -> oracle.Law:
    """Return the prediction of the oracle, in units of the posterior's standard deviation."""
    size, num_batches = sampler.plan(posterior.num_data)[:2]
    total, used = posterior.num_data, size * num_batches
    ratio = total**2 / used * posterior.sd**2
    if sampler.sampling == "disjoint":
        ratio *= total / (total - 1) * (1 - used / total)
    dof = used - 1 if sampler.variance == "pooled" else num_batches - 1
    return oracle.law(ratio, dof, sampler.correction, **more)


# ---- the oracle itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "variance"), [((1, 19, 1), 1.0152), ((10, 9, 1), 1.201), ((10, 99, 1), 1.018), ((10, 9, 0), 3.007)]
)
def test_the_oracle_gives_known_values(arguments, variance):
    """The values are from another program, and from simulations with an error of 2 %; the last one has no penalty."""
    assert oracle.law(*arguments).variance == pytest.approx(variance, rel=2e-3)


# ---- invariance ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("sampling", "sigma2"), _quick(("replacement", 1), ("disjoint", 2)))
def test_pooled_variance_keeps_the_posterior(sampling, sigma2):
    posterior = GaussianMean.of(N)
    sampler = _sampler(posterior, SIZES[sampling, sigma2], sampling=sampling)
    values, means = from_exact_draws(sampler, posterior)
    predicted = _predicted(posterior, sampler)
    assert abs(predicted.variance - 1) < 0.005
    assert agrees(scores(values, variance=predicted.variance))
    assert abs(means["acceptance_rate"] - predicted.acceptance) <= 0.02
    assert means["sigma2"] == pytest.approx(sigma2, rel=0.03)


@pytest.mark.parametrize(("sampling", "sigma2"), _quick(("replacement", 2)))
def test_batch_means_keep_the_law_predicted_of_few_degrees_of_freedom(sampling, sigma2):
    """The plain penalty, whose bias is known: 1.5 % and more of the variance."""
    posterior = GaussianMean.of(N)
    sampler = _sampler(posterior, SIZES[sampling, sigma2], sampling=sampling, variance="batch-means", correction=1)
    values, means = from_exact_draws(sampler, posterior)
    predicted = _predicted(posterior, sampler)
    assert predicted.variance > 1.01
    assert agrees(scores(values, variance=predicted.variance))
    assert abs(means["acceptance_rate"] - predicted.acceptance) <= 0.02


@pytest.mark.slow
def test_a_thousand_data_in_twenty_batches():
    """The documented design D1."""
    posterior = GaussianMean.of(1000)
    sampler = _sampler(posterior, 50, variance="batch-means", correction=1)
    values, _ = from_exact_draws(sampler, posterior)
    assert agrees(scores(values, variance=_predicted(posterior, sampler).variance))


class Scaled(Penalty):
    """A wrong penalty, for `factor` times the variance."""

    factor: Number = number(1.0)

    def difference(self, *arguments: Any, **more: Any) -> Difference:
        result = super().difference(*arguments, **more)
        return result._replace(sigma2=self.factor * result.sigma2)


WRONG = {
    "sigma2 / 4": {"kind": functools.partial(Scaled, factor=0.5)},
    "sigma2": {"kind": functools.partial(Scaled, factor=2.0)},
    "no penalty": {"correction": 0},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_penalty_is_detected(wrong):
    """Positive controls of the tests above: the same chains with a wrong penalty fail by far."""
    posterior = GaussianMean.of(N)
    sampler = _sampler(posterior, SIZES["replacement", 1], **WRONG[wrong])
    values, _ = from_exact_draws(sampler, posterior)
    expected = _predicted(posterior, _sampler(posterior, SIZES["replacement", 1]))
    assert abs(scores(values, variance=expected.variance)["variance"]) > 2 * Z


# ---- a far start ---------------------------------------------------------------------------------


def _from_afar(sampler: Penalty, posterior: GaussianMean) -> tuple[np.ndarray, float]:
    starts = np.full((10_000, 1), posterior.mean + 5 * posterior.sd)
    final, means = evolve(sampler, posterior, starts, steps=100, seed=3)
    return posterior.standardised(final), float(means["acceptance_rate"].mean())


@pytest.mark.long
@pytest.mark.parametrize("sampling", [pytest.param("replacement", marks=pytest.mark.slow), "disjoint"])
def test_chains_from_distant_positions_converge(sampling):
    posterior = GaussianMean.of(N)
    sampler = _sampler(posterior, SIZES[sampling, 1], sampling=sampling)
    values, acceptance = _from_afar(sampler, posterior)
    predicted = _predicted(posterior, sampler, steps=100, start=5.0)
    assert abs(predicted.mean) < 1e-3
    assert agrees(scores(values, variance=predicted.variance))
    assert abs(acceptance - predicted.acceptance) <= 0.02


@pytest.mark.long
def test_chains_that_do_not_move_are_detected():
    """Positive control: chains frozen at exact draws keep any distribution, but fail the far start and acceptance."""
    posterior = GaussianMean.of(N)
    frozen = eqx.tree_at(lambda s: s.step_size, _sampler(posterior, 6), np.float32(50 * posterior.sd))
    values, acceptance = _from_afar(frozen, posterior)
    assert not agrees(scores(values))
    assert abs(acceptance - _predicted(posterior, _sampler(posterior, 6)).acceptance) > 0.1


# ---- the guard -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_batches", "size", "sigma2"),
    [pytest.param(2, 60, 1, marks=pytest.mark.slow), (3, 40, 1), pytest.param(10, 1, 12, marks=pytest.mark.slow)],
)
def test_the_guard_reports_biased_batch_means(num_batches, size, sigma2):
    posterior = GaussianMean.of(N)
    sampler = _sampler(posterior, size, num_batches=num_batches, variance="batch-means")
    values, means = from_exact_draws(sampler, posterior)
    assert means["sigma2"] == pytest.approx(sigma2, rel=0.05)
    assert sampler.findings(posterior, means)
    assert scores(values)["variance"] > Z


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["replacement", "disjoint"])
def test_the_guard_is_silent_where_the_penalty_is_exact(sampling):
    posterior = GaussianMean.of(N)
    sampler = _sampler(posterior, SIZES[sampling, 1], sampling=sampling)
    _, means = from_exact_draws(sampler, posterior, chains=2000)
    assert not sampler.findings(posterior, means)


@pytest.mark.long
def test_pooled_variance_holds_far_beyond_the_guard():
    """Mean sigma2 of 10, of a thousand data: within 3 % of the posterior's variance, and as predicted."""
    posterior = GaussianMean.of(1000)
    sampler = _sampler(posterior, 10, num_batches=10)
    values, means = from_exact_draws(sampler, posterior, chains=20_000)
    assert means["sigma2"] == pytest.approx(10, rel=0.05)
    assert "sigma2" in {finding.kind for finding in sampler.findings(posterior, means)}
    predicted = _predicted(posterior, sampler)
    assert abs(predicted.variance - 1) <= 0.03
    assert agrees(scores(values, variance=predicted.variance))
