"""The prior is found, is normalised, and its draws have its density."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from bnnzoo import registry
from bnnzoo.posterior.layout import network_layout
from scipy import stats

from bnnzoo_template_name.prior import TemplateName

LAYOUT = network_layout(eqx.nn.Linear(1, 1, use_bias=False, key=jax.random.key(0)))
GRID = np.linspace(-200, 200, 400_001, dtype=np.float32)


def density() -> np.ndarray:
    """p(theta) of the one weight on the grid."""
    return np.exp(np.asarray(jax.vmap(lambda t: TemplateName().log_prob(t[None], LAYOUT))(jnp.asarray(GRID))))


def test_is_found():
    assert registry.load("priors", "template-name") is TemplateName


def test_is_normalised():
    np.testing.assert_allclose(np.trapezoid(density(), GRID), 1.0, atol=1e-3)


def test_draws_have_its_density():
    keys = jax.random.split(jax.random.key(0), 4000)
    draws = jax.vmap(lambda key: TemplateName().sample(LAYOUT, key=key)[0])(keys)
    uniform = np.interp(np.asarray(draws), GRID, np.cumsum(density()) * (GRID[1] - GRID[0]))
    # Kolmogorov and Smirnov; one false alarm in a million seeds.
    assert stats.kstest(uniform, "uniform").pvalue > 1e-6
