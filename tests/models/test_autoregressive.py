"""The autoregressive density: masks, total mass, draws and posterior."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import bnnzoo
from bnnzoo.data import load
from bnnzoo.evaluation.predictions import per_draw
from bnnzoo.models import Autoregressive
from bnnzoo.models.autoregressive import Masked
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.priors import Normal
from bnnzoo.testing import check_model

KEY = jax.random.key(0)


def posterior_of(model: Autoregressive, columns: int, rows: int = 1) -> tuple[NetworkPosterior, Any]:
    """Return the posterior for rows of zeros, and a draw of its prior."""
    likelihood = model.own_likelihood()
    network = model.build((columns,), likelihood.num_outputs(columns), key=KEY)
    zeros = np.zeros((rows, columns), np.float32)
    result = NetworkPosterior.of(network, likelihood, Normal(), zeros, zeros)
    return result, result.sample_prior(key=jax.random.key(7))


def log_densities(posterior: NetworkPosterior, theta: Any, rows: np.ndarray) -> np.ndarray:
    likelihood, outputs = posterior.predictive(theta, jnp.asarray(rows))
    return np.asarray(jax.vmap(likelihood.log_prob)(outputs, jnp.asarray(rows)))


@pytest.mark.parametrize("hidden", [(), (7,), (12, 9)])
def test_the_outputs_of_a_column_see_the_columns_before_it(hidden):
    model = Autoregressive(hidden, components=2)
    posterior, theta = posterior_of(model, 4)
    x = jax.random.normal(KEY, (4,))
    jacobian = np.asarray(jax.jacobian(posterior.network_at(theta))(x)).reshape(4, -1, 4)
    sees = np.abs(jacobian).max(1) > 0
    np.testing.assert_array_equal(sees, np.tri(4, k=-1, dtype=bool))


@pytest.mark.long
@pytest.mark.parametrize("components", [1, 3])
def test_the_density_has_mass_one(components, monkeypatch):
    model = Autoregressive((6,), components=components)
    line = np.linspace(-20, 20, 801, dtype=np.float32)
    posterior, theta = posterior_of(model, 1)
    np.testing.assert_allclose(np.trapezoid(np.exp(log_densities(posterior, theta, line[:, None])), line), 1, atol=1e-3)
    side = np.linspace(-12, 12, 241, dtype=np.float32)
    plane = np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)

    def mass() -> float:
        result, theta = posterior_of(model, 2)
        density = np.exp(log_densities(result, 0.5 * theta, plane)).reshape(241, 241)
        return float(np.trapezoid(np.trapezoid(density, side, axis=1), side))

    np.testing.assert_allclose(mass(), 1, atol=1e-3)
    # If the outputs for a column depended on this column, the result would not be a density.
    monkeypatch.setattr(Masked, "mask", np.array(True))
    assert abs(mass() - 1) > 0.01


def test_rows_are_drawn_column_after_column():
    """Rosenblatt 1952: the distribution functions of a row's columns given those before are independent and uniform."""
    model = Autoregressive((8,), components=2)
    posterior, theta = posterior_of(model, 3)

    def uniform(arrange: Any) -> np.ndarray:
        zeros, key = np.zeros((4000, 3), np.float32), jax.random.key(1)
        draws = per_draw.samples(posterior, np.asarray(theta)[None], zeros, arrange=arrange, key=key)[0]
        outputs = np.asarray(posterior.outputs(theta, jnp.asarray(draws)), np.float64).reshape(-1, 3, 3, 2)
        logits, means, raw = np.moveaxis(outputs, 2, 0)
        weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        return (weights * stats.norm.cdf(draws[..., None], means, np.log1p(np.exp(raw)) + 1e-4)).sum(-1)

    # Three tests, 1e-6 together.
    assert min(stats.kstest(column, "uniform").pvalue for column in uniform(model.arrange).T) > 1e-6 / 3
    # Control: with zeros instead of the previous columns, the draws do not have this density.
    assert min(stats.kstest(column, "uniform").pvalue for column in uniform(None).T) < 1e-6


@pytest.mark.slow
def test_nuts_draws_from_the_posterior_of_one_gaussian():
    """One column, one component: mean m and softplus^-1(scale) r with N(0, 1) priors, their posterior on a grid."""
    rows = np.random.default_rng(0).normal(0.4, 0.7, size=12)
    options: dict[str, Any] = {"test_fraction": 0, "standardise": False, "init": "prior", "chain_method": "vectorized"}
    run = bnnzoo.sample(
        {"name": "autoregressive", "components": 1},
        {"name": "nuts", "max_tree_depth": 5},
        data=rows,
        chains=16,
        warmup=150,
        draws=60,
        **options,
    )
    draws = run.posterior["posterior"]
    parameters = np.concatenate([draws["layers_0_bias"].values, draws["layers_0_weight"].values[..., 0]], 2)

    def moments(prior: float) -> np.ndarray:
        m, r = np.meshgrid(np.linspace(-2, 3, 501), np.linspace(-4, 4, 801), indexing="ij")
        scale = np.log1p(np.exp(r)) + 1e-4
        log_density = stats.norm.logpdf(rows, m[..., None], scale[..., None]).sum(-1)
        log_density += stats.norm.logpdf(m, 0, prior) + stats.norm.logpdf(r, 0, prior)
        weight = np.exp(log_density - log_density.max())
        weight /= weight.sum()
        first = [(weight * v).sum() for v in (m, r)]
        # The masked weights are those of the prior.
        return np.array([*first, *((weight * v**2).sum() for v in (m, r)), 0, 0, 1, 1])

    values = np.concatenate(
        [parameters[..., :2], parameters[..., :2] ** 2, parameters[..., 2:], parameters[..., 2:] ** 2], 2
    ).mean(1)
    limit = stats.t.isf(1e-6 / 16, len(values) - 1)
    error = values.std(0, ddof=1) / len(values) ** 0.5  # chains are the units
    assert np.abs((values.mean(0) - moments(1.0)) / error).max() < limit
    assert np.abs((values.mean(0) - moments(0.25)) / error).max() > limit  # control: another prior is detected


@pytest.mark.slow
def test_two_moons_are_no_gaussian():
    """The held-out log density beats that of a single Gaussian with the moments of the training rows."""
    data = load("two-moons")
    model = {"name": "autoregressive", "hidden": (10,), "components": 3}
    more: dict[str, Any] = {"chain_method": "vectorized", "start_steps": 2000}
    run = bnnzoo.sample(model, "mala", data="two-moons", chains=2, warmup=200, draws=40, thin=5, **more)
    assert data.test is not None
    test = data.test.y.astype(float)
    own = run.predict(data.test.y)["log_density"].to_numpy()
    gaussian = stats.multivariate_normal(data.y.mean(0), np.cov(data.y.T)).logpdf(test)
    gain = own - gaussian
    assert gain.mean() > 10 * gain.std() / len(gain) ** 0.5
    evaluation = run.evaluate()
    np.testing.assert_allclose(evaluation["nll"], -own.mean(), rtol=1e-5)
    np.testing.assert_allclose(
        evaluation["nll"] - evaluation["nll_standardised"], np.log(data.y.std(0)).sum(), rtol=1e-4
    )
    draws = run.predict(draws=500).to_numpy()
    # New rows are close to the data: at most three sds of the noise from a half circle.
    away = np.min(np.linalg.norm(draws[:, None] - data.y[None], axis=2), 1)
    assert np.quantile(away, 0.9) < 0.3
    assert run.plot("density").table["density"].min() >= 0


@pytest.mark.long
def test_autoregressive_model_passes_check_model():
    report = check_model(Autoregressive((8,)), inputs=((3,),))
    assert report.passed, report
