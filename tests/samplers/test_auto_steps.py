"""Automatic step size, batch and control variate of mini-batch gradient samplers, on regressions with exact answers."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bnnzoo
from bnnzoo.evaluation.convergence import findings, outcome
from bnnzoo.models import Linear
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.samplers import Sghmc, Sgld
from bnnzoo.samplers.sgmcmc.auto_steps import TARGET, longest_step

NOISE = 0.5


def _rows(count: int, inputs: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, inputs)).astype(np.float32)
    y = x @ (0.3 * rng.normal(size=(inputs, 1))) + NOISE * rng.normal(size=(count, 1))
    return x, y.astype(np.float32)


def _posterior(x: np.ndarray, y: np.ndarray) -> tuple[NetworkPosterior, Any]:
    """Return the posterior, and chains that start two standard deviations from its mode."""
    network = Linear().build(x.shape[1:], 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Gaussian(scale=NOISE), Normal(), x, y)
    mode = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0].T
    away = 2 * NOISE / len(x) ** 0.5 * np.random.default_rng(1).normal(size=(4, mode.shape[1]))
    return posterior, jnp.asarray(mode + away, jnp.float32)


@pytest.mark.long
def test_a_control_variate_and_a_stable_step_are_chosen_for_many_rows():
    """The step size matches the scale of the posterior: at least a hundredth of its variance, and stable."""
    posterior, starts = _posterior(*_rows(20_000, 4))
    fields = Sghmc().choose(posterior, starts)
    assert fields["control_variate"] == "first"
    assert 1e-3 < fields["step_size"] * 20_000 / NOISE**2 < 0.5
    assert fields == Sghmc().choose(posterior, starts)
    # Given fields are not changed, and with a given step size no field is selected.
    fixed_fields = Sghmc(batch_size=100, control_variate="none").choose(posterior, starts)
    assert fixed_fields.keys() == {"step_size"}
    assert fixed_fields["step_size"] < fields["step_size"] / 10
    assert Sghmc(step_size=1e-6).choose(posterior, starts) == {}


@pytest.mark.parametrize(("kind", "noise"), [(Sgld, 0.0), (Sgld, 10.0), (Sghmc, 1.0)])
def test_the_longest_step_keeps_the_predicted_variance_within_its_limit(kind, noise):
    length = longest_step(kind(), noise, 100, TARGET)

    def ratio(length: float) -> float:
        numbers = jnp.asarray(length), jnp.asarray(length * noise)
        return float(kind().variance_ratio(*numbers, num_data=100))

    assert 1 < ratio(length) <= TARGET * 1.001 < ratio(1.2 * length)


def test_a_predicted_variance_above_its_limit_is_not_converged_and_names_the_step():
    good = {
        **{"exactness": "biased", "chains": 4, "rhat": 1.0, "rhat_of": "f", "ess_bulk": 900.0, "ess_bulk_of": "f"},
        **{"ess_tail": 900.0, "ess_tail_of": "f", "draws": 500, "draws_requested": 500, "variance_ratio": 1.09},
    }
    assert outcome.verdict(good, findings.gate_findings(good)).startswith(
        "settled: the draws follow the distribution of a biased"
    )
    bad = findings.gate_findings(good | {"variance_ratio": 201.0, "unbiased_step_size": 2.34e-8})
    verdict = outcome.verdict(good, bad)
    assert verdict.startswith(
        "not settled: variance ratio (predicted variance of the draws / posterior variance) 201, trusted up to 1.1; "
    )
    assert "--sampler.step-size 2.3e-08" in verdict
    assert "--sampler" not in outcome.verdict(good, findings.gate_findings(good | {"variance_ratio": 1.1}))
    # No step size helps chains that have diverged; the result is 0.
    diverged = outcome.verdict(
        good, findings.gate_findings(good | {"variance_ratio": np.inf, "unbiased_step_size": 0.0})
    )
    assert "use a smaller --sampler.step-size (or auto instead of a number), or an exact sampler" in diverged
    first = findings.gate_findings(good | {"variance_ratio_worst": 1.3, "unbiased_step_size": 2.34e-8})
    verdict = outcome.verdict(good, first)
    assert verdict.startswith("not settled: variance ratio in the worst direction")
    assert not findings.gate_findings(good | {"variance_ratio_worst": 1.2})


def _ratio(run: Any, x: np.ndarray) -> float:
    """Return the variance of the draws divided by the exact variance, as a mean over weights."""
    design = np.c_[x, np.ones(len(x))].astype(float)
    exact = np.diag(np.linalg.inv(design.T @ design / NOISE**2 + np.eye(design.shape[1])))
    draws = [run.posterior["posterior"][name].values.reshape(4000, -1) for name in ("weight", "bias")]
    return float(np.mean(np.concatenate(draws, 1).var(0) / exact))


SLOW = {"marks": pytest.mark.slow}


@pytest.mark.parametrize(
    ("sampler", "count", "inputs"),
    [
        pytest.param("sghmc", 5000, 4, **SLOW),
        *(pytest.param(name, 5000, 10, **SLOW) for name in ("sgld", "psgld", "sms-ubu")),
        *(pytest.param(name, 100_000, 50, **SLOW) for name in ("sghmc", "sgld")),
    ],
)
def test_draws_have_the_exact_variance_by_default(sampler, count, inputs):
    x, y = _rows(count, inputs)
    likelihood = {"name": "gaussian", "scale": NOISE}
    how: dict[str, Any] = {"standardise": False, "test_fraction": 0.0, "seed": 1, "warmup": 1000, "draws": 1000}
    run = bnnzoo.sample("linear", sampler, data=(x, y), likelihood=likelihood, **how)
    assert 0.8 < _ratio(run, x) < 1.25
    assert run.diagnose()["variance_ratio"] < 1.1
    assert "step_size" in json.loads(run.attributes["tuned"])
    assert "auto" in str(run.attributes["recipe"])
