"""Draws of a noise scale from its conditional, compared with quadrature for many values of the two parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_mean import Z
from scipy import integrate, optimize, stats

from bnnzoo.samplers.mcmc.log_scale import draw_log_scale

DRAWS = 10_000


@jax.jit
def _drawn(power: Any, rate: Any, keys: Any) -> Any:
    return jax.vmap(lambda key: draw_log_scale(power, rate, key=key))(keys)


def _draws(power: float, rate: float) -> tuple[np.ndarray, np.ndarray]:
    keys = jax.random.split(jax.random.key(3), DRAWS)
    values, tried = _drawn(jnp.float32(power), jnp.float32(rate), keys)
    return np.asarray(values, float), np.asarray(tried)


def _distribution(power: float, rate: float, at: np.ndarray) -> np.ndarray:
    """The distribution function by quadrature in float64."""

    def log_density(u: np.ndarray) -> np.ndarray:
        return -power * u - rate * np.exp(-2 * u) - np.exp(2 * u) / 2

    mode = optimize.minimize_scalar(lambda u: -log_density(u), bounds=(-40, 40), method="bounded").x
    width = (4 * rate * np.exp(-2 * mode) + 2 * np.exp(2 * mode)) ** -0.5
    grid = np.linspace(mode - 60 * width, mode + 60 * width, 40_001)
    density = np.exp(log_density(grid) - log_density(mode))
    area = integrate.cumulative_trapezoid(density, grid, initial=0.0)
    return np.interp(at, grid, area / area[-1])


# Far below 1, far above, no data at all, fewer than none (one datum), a million data.
@pytest.mark.parametrize(
    ("power", "rate"),
    [(199.0, 14400.0), (7.0, 3.0), (0.0, 0.5), (-0.5, 1e-3), (39.0, 2e7), (1e6, 1e4), (1e6, 1e9), (5.0, 1e-9)],
)
def test_a_scale_has_its_conditional_law_whatever_the_units(power, rate):
    """Kolmogorov-Smirnov at a false-alarm level of 1e-6; shifted by a tenth of its sd the law must be refused."""
    values, tried = _draws(power, rate)
    assert np.isfinite(values).all()
    limit = (np.log(2 / 1e-6) / 2 / DRAWS) ** 0.5

    def distance(values: np.ndarray) -> float:
        uniform = np.sort(_distribution(power, rate, values))
        steps = np.arange(DRAWS + 1) / DRAWS
        return float(max(np.max(steps[1:] - uniform), np.max(uniform - steps[:-1])))

    assert distance(values) < limit
    assert distance(values + 0.1 * values.std()) > limit
    # Devroye's bound, e / (e - 1) = 1.58 proposals a draw.
    assert tried.mean() < 1.58 + Z * tried.std() / DRAWS**0.5


def test_without_data_a_scale_has_its_prior():
    """At likelihood power 0, s is half-normal; Kolmogorov-Smirnov at a false-alarm level of 1e-6."""
    values, _ = _draws(-1.0, 0.0)
    assert stats.kstest(np.exp(values), stats.halfnorm.cdf).pvalue > 1e-6
    assert stats.kstest(1.1 * np.exp(values), stats.halfnorm.cdf).pvalue < 1e-6


@pytest.mark.parametrize("rate", [0.0, np.inf, np.nan])
def test_infinite_residuals_give_nan_without_an_endless_loop(rate):
    value, tried = draw_log_scale(jnp.float32(3.0), jnp.float32(rate), key=jax.random.key(0))
    assert np.isnan(value)
    assert tried == 0
