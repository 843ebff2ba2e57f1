"""A network's posterior, piece by piece."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bnnzoo.models import Linear, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.layout import Layout
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Hierarchical, Normal


def _linear(rows: int = 10, **more: Any) -> NetworkPosterior:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2)).astype(np.float32)
    y = rng.normal(size=(rows, 1)).astype(np.float32)
    network = Linear().build((2,), 1, key=jax.random.key(0))
    return NetworkPosterior.of(network, more.pop("likelihood", Gaussian(0.5)), Normal(2.0), x, y, **more)


def test_rows_that_fill_a_mesh_do_not_count():
    posterior = _linear(10)
    assert posterior.padded(5) is posterior
    longer = posterior.padded(3)
    assert (len(longer.data.x), longer.num_data) == (12, 10)
    np.testing.assert_array_equal(longer.data.x[10:], np.repeat(posterior.data.x[9:], 2, 0))
    theta = jnp.asarray([0.3, -0.8, 0.1])
    np.testing.assert_allclose(longer.log_density(theta), posterior.log_density(theta), rtol=1e-6)


def test_what_the_file_holds_goes_back_to_theta():
    posterior = _linear(likelihood=Gaussian())
    theta = np.array([0.3, -0.8, 0.1, -1.5], np.float32)
    natural = posterior.natural(theta[None])
    flat = np.concatenate([np.ravel(natural[block.name]) for block in posterior.layout.blocks])
    np.testing.assert_allclose(posterior.unconstrained(flat), theta, rtol=1e-6)
    assert flat[-1] == pytest.approx(np.exp(-1.5))


def test_a_draw_of_the_prior_is_of_independent_parameters():
    """The first weight and the scale, from other keys."""
    posterior = _linear(likelihood=Gaussian())
    keys = jax.random.split(jax.random.key(0), 2000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: posterior.sample_prior(key=key)))(keys), float)
    correlation = stats.spearmanr(np.abs(drawn)).statistic - np.eye(4)
    correlation_of_logs = stats.spearmanr(np.c_[np.abs(drawn[:, :3]), drawn[:, 3]]).statistic - np.eye(4)
    assert max(np.abs(correlation).max(), np.abs(correlation_of_logs).max()) < 5 / 2000**0.5


def test_a_draw_and_its_mode_predict_by_the_tangent():
    network = Mlp((3,)).build((2,), 1, key=jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    posterior = NetworkPosterior.of(network, Gaussian(0.5), Normal(), x, x[:, :1])
    mode, away = (jnp.asarray(np.random.default_rng(i).normal(size=13), jnp.float32) for i in (1, 2))
    there = posterior.outputs(mode, jnp.asarray(x))
    for step in (1e-2, 1.0):
        _, found = posterior.predictive(jnp.concatenate([mode + step * away, mode]), jnp.asarray(x))
        _, slope = jax.jvp(lambda theta: posterior.outputs(theta, jnp.asarray(x)), (mode,), (away,))
        np.testing.assert_allclose(found, there + step * slope, rtol=1e-4, atol=1e-5)


def test_a_learned_scale_starts_at_a_half():
    for (parameter,) in (Gaussian().parameters(), Hierarchical().parameters(_linear().layout)):
        assert parameter.start == pytest.approx(np.log(0.5))
    assert Hierarchical().parameters(Layout(()))[0].shape == (0,)
