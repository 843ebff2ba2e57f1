"""The likelihood is found, is normalised, agrees with its draws, and has a finite gradient."""

import jax
import jax.numpy as jnp
import numpy as np
from bnnzoo import registry
from scipy import stats

from bnnzoo_template_name.likelihood import TemplateName

OUTPUT = jnp.array([0.4])
GRID = np.linspace(-30, 30, 60_001, dtype=np.float32)


def density() -> np.ndarray:
    """p(y | output) on the grid."""
    return np.exp(np.asarray(jax.vmap(lambda y: TemplateName().log_prob(OUTPUT, y[None]))(jnp.asarray(GRID))))


def test_is_found():
    assert registry.load("likelihoods", "template-name") is TemplateName


def test_is_normalised():
    np.testing.assert_allclose(np.trapezoid(density(), GRID), 1.0, atol=1e-3)


def test_draws_have_its_density():
    keys = jax.random.split(jax.random.key(0), 4000)
    draws = jax.vmap(lambda key: TemplateName().sample(OUTPUT, key=key)[0])(keys)
    uniform = np.interp(np.asarray(draws), GRID, np.cumsum(density()) * (GRID[1] - GRID[0]))
    # Kolmogorov and Smirnov; one false alarm in a million seeds.
    assert stats.kstest(uniform, "uniform").pvalue > 1e-6


def test_the_gradient_is_finite():
    gradient = jax.vmap(jax.grad(lambda output, y: TemplateName().log_prob(output, y)))
    outputs = jnp.array([[-50.0], [0.0], [50.0]])
    assert np.isfinite(gradient(outputs, jnp.zeros((3, 1)))).all()
