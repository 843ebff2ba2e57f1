"""Gradients and variances that are not finite although the density is finite."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_mean import NormalPrior
from jaxtyping import Array, Float

from bnnzoo.samplers import Hmc, Mala, Nuts, Penalty, Sgld, metropolis

CHAINS, STEPS = 16, 100


@jax.custom_jvp
def _nothing(theta: Array) -> Array:
    """Return zero, with a derivative that is NaN beyond 0.5."""
    return jnp.zeros_like(theta)


@_nothing.defjvp
def _slope_of_nothing(primals: Any, tangents: Any) -> Any:
    (theta,), (tangent,) = primals, tangents
    return jnp.zeros_like(theta), jnp.where(theta > 0.5, jnp.nan, 0.0) * tangent


class NoGradient(NormalPrior):
    """A density that is finite everywhere, with a gradient that is NaN beyond 0.5."""

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        return batch * _nothing(theta[0])


class Wild(NormalPrior):
    """Slopes whose squares overflow single precision."""

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        return batch * theta[0]


def _chains(sampler: Any, posterior: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return positions [chain, step], started at 0, and statistics."""

    @jax.jit
    @jax.vmap
    def chain(key: Array) -> Any:
        state = sampler.init(posterior, jnp.zeros(1), num_warmup=0, key=key)

        def step(state: Any, key: Array) -> Any:
            state, result = sampler.step(posterior, state, key=key)
            return state, (state.position[0], result)

        return jax.lax.scan(step, state, jax.random.split(key, STEPS))[1]

    positions, result = chain(jax.random.split(jax.random.key(0), CHAINS))
    return np.asarray(positions), {name: np.asarray(value) for name, value in result.items()}


FIELDS: dict[str, Any] = {"batch_size": 5, "num_batches": 4, "preconditioner": "identity"}
SAMPLERS = {
    "mala": Mala(step_size=0.5, preconditioner="identity"),
    "langevin": Penalty(step_size=0.5, proposal="langevin", **FIELDS),
    "hmc proposal": Penalty(step_size=0.5, proposal="hmc", num_steps=3, **FIELDS),
    "sgld": Sgld(step_size=0.1, batch_size=10),
    "hmc": Hmc(step_size=0.5, num_steps=3),
    "nuts": Nuts(step_size=0.5, max_tree_depth=3),
}


OTHERS = ("hmc proposal", "sgld", "hmc", "nuts")


@pytest.mark.parametrize("sampler", ["mala", "langevin", *(pytest.param(s, marks=pytest.mark.slow) for s in OTHERS)])
def test_a_gradient_that_is_not_finite_moves_no_chain(sampler):
    positions, result = _chains(SAMPLERS[sampler], NoGradient(np.ones(30, np.float32)))
    assert np.isfinite(positions).all()
    assert result["diverging"].any()
    assert len(np.unique(positions)) > CHAINS
    if sampler != "sgld":  # it moves beyond 0.5, and stays there
        assert positions.max() <= 0.5
        assert not result["diverging"].all()
        assert np.isfinite(result["acceptance_rate"]).all()


@pytest.mark.parametrize("size", [1e25, 1e38])
def test_a_variance_that_is_not_finite_rejects(size):
    slopes = (size * np.random.default_rng(0).normal(size=30)).astype(np.float32)
    slopes = np.clip(slopes, -3e38, 3e38)
    sampler, posterior = Penalty(step_size=0.5, **FIELDS), Wild(slopes)
    positions, result = _chains(sampler, posterior)
    np.testing.assert_array_equal(positions, 0.0)
    assert not np.isfinite(result["sigma2"]).any()
    assert result["diverging"].all()
    assert (result["acceptance_rate"] == 0).all()


@pytest.mark.parametrize("sampling", ["replacement", "disjoint"])
@pytest.mark.parametrize("sigma2", [np.inf, np.nan])
def test_the_guard_reports_an_infinite_mean_variance(sigma2, sampling):
    """A single step that overflows is enough."""
    sampler, posterior = Penalty(sampling=sampling, **FIELDS), Wild(np.ones(30, np.float32))
    means = {"sigma2": sigma2, "step_size": 0.1}
    assert [finding.kind for finding in sampler.findings(posterior, means)] == ["sigma2"]


def test_a_proposal_beyond_a_bound_is_a_rejection_and_no_divergence():
    """A ratio that is NaN or +inf counts as divergent."""
    for log_ratio, diverges in ((-np.inf, False), (-1e30, False), (np.nan, True), (np.inf, True), (0.0, False)):
        accepted, rate, diverging = metropolis(jnp.asarray(log_ratio), key=jax.random.key(0))
        assert bool(diverging) == diverges
        assert bool(accepted) == (log_ratio >= 0)
        assert float(rate) == float(log_ratio >= 0)
