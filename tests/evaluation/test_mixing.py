"""Chains that have not mixed although predictions at ordinary rows do not show it, and chains that have mixed."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr
from scipy import signal

import bnnzoo
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.contents.weights import Weights
from bnnzoo.evaluation.convergence import findings, identified, outcome
from bnnzoo.evaluation.convergence.diagnostics import of_quantities
from bnnzoo.evaluation.convergence.probing import probe_rows, spanning_rows
from bnnzoo.evaluation.formulas.combination import worst_combination
from bnnzoo.evaluation.formulas.rhat import rhats
from bnnzoo.models import Linear, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Gaussian, Heteroscedastic, Mixture
from bnnzoo.posterior.priors import Normal


def _chains(size: int, *, seed: int, count: int = 4, draws: int = 1000, keep: float = 0.4) -> np.ndarray:
    """Return mixed chains of correlated values [chain, draw, value]."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(count, draws, size)) * (1 - keep**2) ** 0.5
    noise[:, 0] = rng.normal(size=(count, size))
    return signal.lfilter([1], [1, -keep], noise, axis=1) @ rng.normal(size=(size, size))


def test_a_combination_that_has_not_mixed_is_found_where_each_quantity_has():
    """Chains differ by one sd along the direction of smallest variance; without this (the control) they pass."""
    values = _chains(20, seed=0)
    sizes, vectors = np.linalg.eigh(np.cov(values.reshape(-1, 20).T))
    shift = np.array([1.0, -1.0, 0.5, -0.5])[:, None, None] * sizes[0] ** 0.5 * vectors[:, 0]
    mixed, apart = worst_combination(values), worst_combination(values + shift)
    assert mixed is not None
    assert apart is not None
    assert rhats(values + shift).max() < 1.01
    assert apart.rhat > 1.1 > apart.limit
    assert mixed.rhat <= max(mixed.limit, 1.01)
    result = of_quantities({"f": values + shift}, exactness="exact")
    assert result["rhat"] < 1.01 < result["rhat_combination"]
    assert result["rhat_combination_of"] == "f"


def test_chains_that_have_mixed_raise_no_alarm():
    """Level 0.001 a test: more than 3 of 60 has a probability below 1e-6 under the level."""
    alarms = 0
    for seed in range(60):
        result = worst_combination(_chains(6, seed=seed, draws=300, keep=0.5))
        assert result is not None
        alarms += result.rhat > max(result.limit, 1.01)
    assert alarms <= 3


def test_too_few_draws_or_quantities_are_not_tested():
    assert worst_combination(_chains(3, seed=0, draws=79)) is None
    assert worst_combination(_chains(1, seed=0)) is None
    assert worst_combination(np.full((2, 100, 3), np.nan)) is None


def test_rows_that_alone_have_a_feature_are_probes():
    """Two of 20 000 rows have the feature; non-finite values count as the mean."""
    rng = np.random.default_rng(0)
    x = rng.standard_t(3, size=(20_000, 30)).astype(np.float32)
    x[:, -1] = 0
    x[[777, 12_345], -1] = 0.5
    x[5, 0] = np.nan
    probes = spanning_rows(x, 25, excluded=np.arange(10))
    assert {777, 12_345} & set(probes.tolist())
    assert len(set(probes.tolist())) == 25
    assert not set(probes.tolist()) & set(range(10))
    np.testing.assert_array_equal(probes, spanning_rows(x, 25, excluded=np.arange(10)))


def test_probes_are_ordinary_test_rows_and_rows_that_span_the_inputs():
    x, test = np.arange(300.0)[:, None] % 7, np.arange(100.0)[:, None] % 5
    x[250] = 90.0
    rows = xr.Dataset({"x": (("row", "feature"), x), "x_test": (("test_row", "feature"), test)})
    record = Record(xr.DataTree.from_dict({"/constant_data": rows}), None)
    labels, probes = probe_rows(record, 10)
    assert probes.shape == (10, 1)
    assert labels[:5] == [f"test row {row}" for row in (0, 25, 50, 74, 99)]
    assert labels[int(probes.argmax())] == "training row 250"
    assert 90.0 in probes
    np.testing.assert_array_equal(probes[:5], test[[0, 25, 50, 74, 99]])
    assert probe_rows(record, 1000).inputs.shape == (400, 1)


@pytest.mark.parametrize(
    ("model", "likelihood", "affine", "mixture"),
    [
        (Linear(), Gaussian(scale=0.5), True, False),
        (Linear(), Heteroscedastic(), True, False),
        (Linear(), Mixture(2), True, True),
        (Mlp((3,)), Gaussian(scale=0.5), False, False),
    ],
)
def test_weights_are_identified_where_outputs_are_affine_and_components_keep_their_places(
    model, likelihood, affine, mixture
):
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    network = model.build((2,), likelihood.num_outputs(1), key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, likelihood, Normal(), x, x[:, :1])
    assert bool(identified._is_affine(posterior, x[:8])) == affine
    assert identified._is_mixture(posterior, x[:8]) == mixture


def test_a_parameter_that_never_moves_is_not_converged_with_one_chain_too():
    """Each chain is counted separately; a parameter that moves twice counts as moving."""
    values = np.random.default_rng(0).normal(size=(2, 50, 3))
    values[1, :, 1] = 0.5
    values[1, 30:, 2] = values[1, 30, 2]
    changes = Weights.from_draws(values.reshape(-1, 3), {"weight": 3}, (2, 50)).changes
    np.testing.assert_array_equal(changes, [[2, 2, 2], [2, 0, 2]])
    values[0, :, 0] = np.repeat([1.0, 2.0], 25)
    alone = Weights.from_draws(values[:1].reshape(-1, 3), {"weight": 3}, (1, 50)).changes
    np.testing.assert_array_equal(alone, [[1, 2, 2]])
    good = {
        **{"exactness": "exact", "chains": 1, "rhat": 1.0, "rhat_of": "f", "ess_bulk": 900.0, "ess_bulk_of": "f"},
        **{"ess_tail": 900.0, "ess_tail_of": "f", "draws": 500, "draws_requested": 500, "unmoving": 0},
    }
    assert outcome.verdict(good, findings.gate_findings(good)) == "converged"
    verdict = outcome.verdict(good, findings.gate_findings(good | {"unmoving": 1, "unmoving_of": "likelihood_scale"}))
    assert verdict.startswith(
        "not settled: number of sampled parameters that move at most once in a chain (likelihood_scale) 1, trusted up "
        "to 0"
    )


@pytest.mark.slow
def test_an_identified_weight_that_has_not_mixed_is_named():
    """39 ordinary features, and one that occurs in two of 2000 rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 40))
    x[:, -1] = 0
    x[rng.permutation(2000)[:2], -1] = 0.5
    y = x @ np.r_[rng.normal(size=39) * 0.3, 1.0][:, None] + 0.5 * rng.normal(size=(2000, 1))
    likelihood = {"name": "gaussian", "scale": 0.5}
    how: dict[str, Any] = {"standardise": False, "test_fraction": 0.1, "warmup": 500, "draws": 1000, "thin": 2}
    sampler = {"name": "mala", "preconditioner": "identity"}
    run = bnnzoo.sample("linear", sampler, data=(x, y), likelihood=likelihood, **how)
    verdict = str(run.attributes["verdict"])
    assert verdict.startswith("not settled: ")
    assert "R-hat of weight[0, 39]" in verdict


@pytest.mark.slow
def test_a_noise_scale_in_other_units_is_right_and_converged():
    """The exact law is 10.07 +- 0.36, by quadrature."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 1)).astype(np.float32)
    y = (2 * x + 12 * rng.normal(size=x.shape)).astype(np.float32)
    sampler = {"name": "gibbs", "conditionals": "conjugate"}
    how: dict[str, Any] = {"standardise": False, "test_fraction": 0.0, "warmup": 300, "draws": 1000, "chains": 1}
    run = bnnzoo.sample("linear", sampler, data=(x, y), likelihood="gaussian", seed=1, **how)
    scale = run.posterior["posterior"]["likelihood_scale"].values
    assert abs(scale.mean() - 10.07) < 5 * 0.36 / 900**0.5
    assert abs(scale.std() / 0.36 - 1) < 0.2
    assert run.attributes["verdict"] == "converged"
    assert np.isfinite(run.diagnose()["weights_rhat"])
