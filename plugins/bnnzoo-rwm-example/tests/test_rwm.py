"""The plugin is found, and its sampler draws from a known Gaussian."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from bnnzoo_rwm_example_sampler import Rwm

from bnnzoo.plugins import registry
from bnnzoo.testing import assert_exact


class Gaussian:
    """N(1, 0.5^2)."""

    def log_density(self, theta):
        return -jnp.sum((theta - 1.0) ** 2) / (2 * 0.5**2)


def test_listed_and_loaded():
    entry = registry.find("samplers", "rwm-example")
    assert (entry.distribution, entry.exactness) == ("bnnzoo-rwm-example", Rwm.exactness)
    assert registry.load("samplers", "rwm-example") is Rwm


def test_listing_imports_no_jax():
    code = "import sys, bnnzoo_rwm_example; print('jax' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_draws_from_a_gaussian():
    sampler, posterior = Rwm(step_size=1.0), Gaussian()
    state = sampler.init(posterior, jnp.zeros(1), num_warmup=0, key=jax.random.key(0))

    @jax.jit
    def chain(state, keys):
        def draw_step(state, key):
            state, stats = sampler.step(posterior, state, key=key)
            return state, (state.position[0], stats["accepted"])

        return jax.lax.scan(draw_step, state, keys)[1]

    draws, accepted = chain(state, jax.random.split(jax.random.key(1), 40_000))
    # About 40 000 / 6 independent draws: the error of the mean is 0.006, that of the deviation 0.0045.
    np.testing.assert_allclose(draws.mean(), 1.0, atol=0.03)
    np.testing.assert_allclose(draws.std(), 0.5, atol=0.025)
    assert 0.2 < accepted.mean() < 0.8


def test_rwm_passes_the_exactness_check():
    assert_exact(Rwm(), targets=("gaussian", "skewed"))
