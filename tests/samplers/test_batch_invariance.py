"""If the guard passes, the draws depend neither on the batch size nor on a few outliers."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_mean import NormalPrior, Z, evolve
from jaxtyping import Array, Float

from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.posterior.likelihoods import Heteroscedastic
from bnnzoo.samplers import Penalty

pytestmark = pytest.mark.slow

N, CHAINS = 600, 10_000


class Density(NormalPrior):
    """Mean and raw scale of one Gaussian, as the two outputs of a density network without inputs."""

    layout: Layout = eqx.field(static=True, default=Layout((Block("theta", (2,), 0),)))

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        return jax.vmap(lambda y: Heteroscedastic().log_prob(theta, y[None]))(batch)


class Exact:
    """The posterior of `Density` on a grid: exact draws and moments."""

    def __init__(self, y: np.ndarray):
        self.posterior = Density(y.astype(np.float32))
        # First over the prior, then over six standard deviations of the previous result.
        low, high = np.array([-3.0, -3.0]), np.array([3.0, 5.0])
        for _ in range(3):
            axes = [np.linspace(a, b, 241) for a, b in zip(low, high, strict=True)]
            points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
            with jax.enable_x64(True):
                density = jax.jit(lambda t: jax.lax.map(self.posterior.log_density, t, batch_size=1000))
                logs = np.asarray(density(jnp.asarray(points)))
            weights = np.exp(logs - logs.max())
            weights /= weights.sum()
            self.mean = weights @ points
            self.covariance = (points - self.mean).T @ ((points - self.mean) * weights[:, None])
            sd = np.sqrt(np.diag(self.covariance))
            low, high = self.mean - 6 * sd, self.mean + 6 * sd
        self.points, self.weights = points, weights
        self.cell = np.array([axis[1] - axis[0] for axis in axes])

    def draws(self, count: int) -> np.ndarray:
        rng = np.random.default_rng(1)
        draws = self.points[rng.choice(len(self.points), count, p=self.weights)]
        return draws + self.cell * (rng.random((count, 2)) - 0.5)


def _compare(exact: Exact, size: int, batches: int, step: float) -> tuple[np.ndarray, np.ndarray, set[str]]:
    """Return errors of the means in standard deviations, ratios of the variances, and the guard's findings.

    Chains start at exact draws. `step` is in posterior standard deviations of the mean.
    """
    sampler = Penalty(
        step_size=step * float(exact.covariance[0, 0]) ** 0.5,
        batch_size=size,
        num_batches=batches,
        preconditioner="identity",
    )
    final, means = evolve(sampler, exact.posterior, exact.draws(CHAINS), steps=30, seed=2)
    averages = {name: float(value.mean()) for name, value in means.items()}
    centred = final - exact.mean
    variance = np.diag(exact.covariance)
    kinds = {finding.kind for finding in sampler.findings(exact.posterior, averages)}
    return centred.mean(0) / variance**0.5, (centred**2).mean(0) / variance, kinds


@pytest.fixture(scope="module")
def clean():
    return Exact(np.random.default_rng(3).normal(size=N))


@pytest.fixture(scope="module")
def contaminated():
    """Return data with 2 % from three times Student's t with three degrees of freedom."""
    rng = np.random.default_rng(3)
    y = rng.normal(size=N)
    y[: N // 50] = 3 * rng.standard_t(3, size=N // 50)
    return Exact(y)


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "step"), [(12, 0.1), (50, 0.2), (200, 0.4)])
def test_the_size_of_a_batch_changes_no_moment(size, step, clean):
    """All are compared with the exact moments, so any two sizes agree as well."""
    shift, ratio, findings = _compare(clean, size, 4, step)
    assert not findings
    assert np.abs(shift).max() * CHAINS**0.5 < Z
    assert np.abs(ratio - 1).max() * (CHAINS / 2) ** 0.5 < Z


def test_a_batch_too_small_for_its_step_does(clean):
    """Positive control, which the guard detects as well."""
    shift, ratio, findings = _compare(clean, 3, 4, 0.15)
    assert "sigma2" in findings
    assert abs(shift[1]) * CHAINS**0.5 > 2 * Z
    assert abs(ratio[1] - 1) * (CHAINS / 2) ** 0.5 > Z


# ---- outliers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "batches", "step"),
    [(3, 4, 0.1), (4, 5, 0.25), (10, 5, 0.2), (25, 8, 0.4), (25, 8, 0.1), (50, 16, 0.8)],
)
def test_with_outliers_the_variance_is_right_or_the_guard_reports(size, batches, step, contaminated):
    _, ratio, findings = _compare(contaminated, size, batches, step)
    assert findings or np.abs(ratio - 1).max() <= 0.05 + 5.4 * (2 / CHAINS) ** 0.5


def test_runs_refused_by_the_guard_are_biased_by_outliers(contaminated):
    """Positive control: far outside the regime the variance is wrong."""
    _, ratio, findings = _compare(contaminated, 4, 5, 0.25)
    assert findings
    assert ratio.max() > 1.4
