"""Rejection and importance sampling with any proposal: the closed form is reached only with the proposal's density."""

from __future__ import annotations

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jaxtyping import Array
from scipy import stats

import bnnzoo
from bnnzoo import cli
from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.evaluation.evidence import estimators
from bnnzoo.finding import spell_settings
from bnnzoo.samplers import Importance, Rejection
from bnnzoo.samplers.independent import proposals
from bnnzoo.testing.targets import Target, regression, skewed

Z, LEVEL = 4.89, 1e-6
LINE, SKEWED = regression(), skewed()
WIDE = dist.MultivariateNormal(
    jnp.asarray(LINE.mean + 0.5 * LINE.sd, jnp.float32), jnp.asarray(4 * LINE.covariance, jnp.float32)
)


class Logistic(eqx.Module):
    """A user-defined density with heavier tails than any Gaussian. With share 0 its density is not given."""

    share: Any = np.float32(1.0)

    def sample(self, key: Any) -> Array:
        return jax.random.logistic(key, (1,))

    def log_prob(self, value: Any) -> Array:
        return self.share * (-value[0] - 2 * jnp.log1p(jnp.exp(-value[0])))


SLOW = pytest.mark.slow
PROPOSALS = [
    pytest.param(LINE, "gaussian", id="gaussian"),
    pytest.param(LINE, "laplace", id="laplace", marks=SLOW),
    pytest.param(LINE, WIDE, id="numpyro", marks=SLOW),
    pytest.param(SKEWED, Logistic(), id="own"),
]


@eqx.filter_jit
def _drawn(sampler: Any, posterior: Any, keys: Any) -> Any:
    start = jnp.zeros(posterior.layout.dim)
    state = sampler.init(posterior, start, num_warmup=0, key=jax.random.key(1))

    def draw(key: Any) -> Any:
        new, step_stats = sampler.step(posterior, state, key=key)
        return {"theta": new.position, **step_stats}

    return jax.lax.map(draw, keys, batch_size=250)


def draw_many(sampler: Any, target: Target, count: int) -> dict[str, np.ndarray]:
    """Return independent draws and their statistics."""
    result = _drawn(sampler, target.posterior, jax.random.split(jax.random.key(2), count))
    result = {name: np.asarray(value, float) for name, value in result.items()}
    # In the proposal's tails, the density is a difference of large float32 numbers.
    expected = jax.vmap(target.posterior.log_density)(result["theta"][:200].astype(np.float32))
    np.testing.assert_allclose(result["lp"][:200], expected, rtol=1e-4, atol=1e-3)
    return result


def furthest(target: Target, theta: np.ndarray, weights: np.ndarray) -> float:
    """Return the largest z of weighted means and second moments of independent draws."""
    shares = weights / weights.sum()
    centred = (theta - target.mean) / target.sd
    values = np.concatenate([centred, centred**2 - 1], 1)
    means = shares @ values
    return float(np.abs(means / np.sqrt(shares**2 @ (values - means) ** 2)).max())


@pytest.mark.long
@pytest.mark.parametrize(("target", "proposal"), PROPOSALS)
def test_weights_make_the_law_of_the_closed_form(target, proposal):
    result = draw_many(Importance(proposal=proposal, proposal_scale=1.4), target, 20_000)
    assert furthest(target, result["theta"], np.exp(result["log_weight"] - result["log_weight"].max())) < Z
    # Control: without the proposal's density in the weight.
    assert furthest(target, result["theta"], np.exp(result["lp"] - result["lp"].max())) > Z
    estimate = estimators.of_weights(result["log_weight"][None])
    assert target.log_evidence is not None
    assert abs(estimate.log_evidence - target.log_evidence) < Z * estimate.se + 2e-3  # float32's sum of 200 rows
    assert estimate.se < 0.02


def least(target: Target, theta: np.ndarray) -> float:
    """Return the smallest Kolmogorov-Smirnov p value of the parameters."""
    assert target.cdf is not None
    return min(float(stats.kstest(column, "uniform").pvalue) for column in target.cdf(theta).T)


def kept_as_the_closed_form_says(target: Target, sampler: Any) -> None:
    assert sampler.stated_exactness == "approximate"
    result = draw_many(sampler, target, 3000)
    assert result["accepted"].all()
    assert result["log_excess"].max() <= 0
    assert least(target, result["theta"]) > LEVEL
    # k times the acceptance is the evidence.
    estimate = estimators.of_acceptance(result["log_bound"][None], result["n_steps"][None])
    assert target.log_evidence is not None
    assert abs(estimate.log_evidence - target.log_evidence) < Z * estimate.se + 2e-3


def test_accepted_draws_have_the_law_of_the_closed_form():
    kept_as_the_closed_form_says(SKEWED, Rejection(proposal=Logistic(), block=8))
    # Control: without the proposal's density in the ratio.
    wrong = draw_many(Rejection(proposal=Logistic(np.float32(0.0)), block=8), SKEWED, 3000)
    assert least(SKEWED, wrong["theta"]) < LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("proposal", ["gaussian", "laplace", WIDE], ids=["gaussian", "laplace", "numpyro"])
def test_draws_by_any_proposal_have_the_law_of_the_closed_form(proposal, monkeypatch):
    sampler = Rejection(proposal=proposal, proposal_scale=1.4, block=8)
    sampler.check(LINE.posterior)
    kept_as_the_closed_form_says(LINE, sampler)
    monkeypatch.setattr(proposals, "log_prior_ratio", lambda posterior, density, theta: posterior.log_prior(theta))
    wrong = draw_many(Rejection(proposal=proposal, proposal_scale=1.4, block=16), LINE, 3000)
    assert least(LINE, wrong["theta"]) < LEVEL


@pytest.mark.usefixtures("as_options")
def test_a_run_fails_if_its_stated_bound_is_exceeded():
    grid = np.linspace(-30, 10, 100_001)
    peak = float(np.max(2 * grid - np.exp(grid) + 2 * np.log1p(np.exp(-grid))))

    def failure(log_bound: float) -> str:
        sampler = Rejection(proposal=Logistic(), log_bound=log_bound, block=8)
        assert sampler.stated_exactness == "exact"
        match = {name: value[None] for name, value in draw_many(sampler, SKEWED, 500).items() if name != "theta"}
        return spell_settings(sampler.failure(match), "options")

    assert failure(peak + 0.5) == ""
    match = re.search(r"by (\S+) nats, .* use --sampler.log-bound (\S+) or", failure(peak - 0.5))
    assert match is not None
    assert 0.45 < float(match[1]) < 0.501
    assert peak - 0.05 < float(match[2]) < peak + 0.011


@pytest.mark.slow
def test_a_run_ends_where_a_proposal_exceeds_the_bound(tmp_path):
    with pytest.raises(BnnzooError, match=r"exceeded the bound log k = -1 by .* nats.*wider proposal"):
        bnnzoo.sample(
            SKEWED.posterior,
            Rejection(proposal=Logistic(), log_bound=-1.0),
            chains=2,
            warmup=0,
            draws=200,
            out=tmp_path / "run.nc",
        )


def test_an_unsuitable_proposal_is_refused():
    with pytest.raises(UsageError, match=r"a draw of the proposal must have the shape of theta, \[3\] \(got \[\]\)"):
        Importance(proposal=dist.Normal(0.0, 1.0)).check(LINE.posterior)
    # The left tail is heavier than any Gaussian's, so no k is large enough, and the search gives a k with no
    # acceptances.
    with pytest.raises(UsageError, match=r"a draw of the proposal is accepted with probability"):
        Rejection(proposal="laplace").check(SKEWED.posterior)


@pytest.mark.slow
def test_from_the_command_line(tmp_path, capsys):
    out = tmp_path / "run.nc"
    arguments = [
        "sample",
        "linear",
        "importance",
        "--sampler.proposal",
        "gaussian",
        "--sampler.pilot",
        "1000",
        "--quiet",
    ]
    assert cli.run([*arguments, "--likelihood", "gaussian", "--likelihood.scale", "learned", "-o", str(out)]) == 0
    run = bnnzoo.open(out)
    assert run.attributes["regime_ok"] == 1
    assert "proposal: gaussian" in run.attributes["recipe"]
    capsys.readouterr()
    assert cli.run(["evidence", str(out)]) == 0
    assert "importance weights" in capsys.readouterr().out


def test_an_unknown_proposal_is_refused(capsys):
    assert cli.run(["show", "linear", "rejection", "--sampler.proposal", "flat"]) == 2
    assert "--sampler.proposal: must be one of prior, gaussian, laplace (got 'flat')" in capsys.readouterr().err
