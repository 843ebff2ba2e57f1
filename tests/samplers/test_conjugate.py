"""Every exact sampler, through files, against the closed form of Bayesian linear regression."""

from __future__ import annotations

import numpy as np
import pytest

from bnnzoo.api import entrances
from bnnzoo.recipe import resolve

ROWS, NOISE, CHAINS = 150, 0.5, 64
THRESHOLD = 6.07
"""Quantile of t with 31 degrees of freedom for one false alarm in a million; with 63 degrees it is stricter."""

SAMPLERS = {
    "penalty": {"batch_size": 50, "num_batches": 20, "draws": 8000},
    "mala": {"draws": 500},
    "random-walk": {"draws": 1200},
    "hmc": {"num_steps": 8, "draws": 1500},
    "nuts": {"draws": 600},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a table with correlated inputs, so that the posterior is correlated too."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(ROWS, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]]) + [0.5, -0.3]
    y = x @ [0.8, -0.4] + 0.3 + NOISE * rng.normal(size=ROWS)
    table = np.column_stack([x, y]).astype(np.float32)
    path = tmp_path_factory.mktemp("conjugate") / "line.csv"
    np.savetxt(path, table, delimiter=",", header="a,b,y", comments="", fmt="%.9g")
    return path, table.astype(float)


def closed_form(table: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of (weight a, weight b, bias) under the prior N(0, I)."""
    design = np.column_stack([table[:, :2], np.ones(len(table))])
    covariance = np.linalg.inv(design.T @ design / noise**2 + np.eye(3))
    return covariance @ design.T @ table[:, 2] / noise**2, covariance


def statistics(theta: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return t statistics over the chains' averages of three means and six (co)variances."""
    rows, columns = np.triu_indices(3)
    centred = theta - mean
    products = (centred[..., rows] * centred[..., columns]).mean(1)
    averages = np.concatenate([centred.mean(1), products - covariance[rows, columns]], 1)
    return averages.mean(0) / (averages.std(0, ddof=1) / len(averages) ** 0.5)


BY_DEFAULT = ("mala",)


@pytest.mark.long
@pytest.mark.parametrize(
    "sampler", [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in SAMPLERS]
)
def test_moments_are_those_of_the_closed_form(sampler, data, tmp_path):
    path, table = data
    fields = dict(SAMPLERS[sampler])
    options = {
        "data": str(path),
        "likelihood": "gaussian",
        "likelihood.scale": NOISE,
        "prior": "normal",
        "prior.scale": 1.0,
        "standardise": False,
        "test_fraction": 0.0,
        "chains": CHAINS,
        "warmup": 400,
        "draws": fields.pop("draws"),
        "init": "prior",
        "seed": 20,
        **{f"sampler.{name}": value for name, value in fields.items()},
    }
    run = entrances.run_recipe(resolve("linear", sampler, [], options), out=tmp_path / "run.nc")
    assert run.attributes["regime_ok"] == (1 if sampler == "penalty" else "not-applicable")
    group = run.posterior["posterior"]
    assert set(group.data_vars) == {"weight", "bias"}
    theta = np.concatenate([group["weight"].values[:, :, 0], group["bias"].values], 2).astype(float)
    assert np.abs(statistics(theta, *closed_form(table, NOISE))).max() < THRESHOLD
    # Positive controls: a wrong noise scale, and a covariance without correlations, are detected.
    assert np.abs(statistics(theta, *closed_form(table, 1.1 * NOISE))).max() > THRESHOLD
    mean, covariance = closed_form(table, NOISE)
    assert np.abs(statistics(theta, mean, np.diag(np.diag(covariance)))).max() > THRESHOLD
