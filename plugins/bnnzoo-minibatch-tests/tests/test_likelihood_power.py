"""Every sampler uses the likelihood power: power b with noise sd s is equivalent to noise sd s / sqrt(b)."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bnnzoo_minibatch_tests import Austerity, Confidence, MinibatchBarker
from gaussian_mean import NormalPrior

from bnnzoo.posterior.layout import Block, Layout

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=6).astype(np.float32), RNG.normal(size=6).astype(np.float32)


class Line(NormalPrior):
    """A line y = a x + b with Gaussian noise of a known scale."""

    layout: Layout = eqx.field(static=True, default=Layout((Block("theta", (2,), 0),)))
    scale: Any = np.float32(1.0)

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        x, y = batch
        return -(((y - x * theta[0] - theta[1]) / self.scale) ** 2) / 2


WITH, WITHOUT, CONTROL = (
    Line((X, Y), likelihood_power=np.float32(power), scale=np.float32(scale))
    for scale, power in ((0.5, 0.25), (1.0, 1.0), (0.5, 1.0))
)
COMMON = {"step_size": 0.4, "batch_size": 3}


@pytest.mark.parametrize(
    "sampler",
    [
        MinibatchBarker(**COMMON),
        MinibatchBarker(**COMMON, control_variate="first"),
        Austerity(**COMMON),
        Confidence(**COMMON),
    ],
    ids=["minibatch-barker", "minibatch-barker, first order", "austerity", "confidence"],
)
def test_steps_go_by_the_power(sampler):
    @eqx.filter_jit
    def positions(posterior: Line) -> Any:
        keys = jax.random.split(jax.random.key(2), 12)
        state = sampler.init(posterior, jnp.asarray([0.4, -0.3]), num_warmup=0, key=keys[0])

        def step(state: Any, key: Any) -> Any:
            state, stats = sampler.step(posterior, state, key=key)
            return state, (state.position, stats["acceptance_rate"])

        return jax.lax.scan(step, state, keys)[1]

    same, other, control = ([np.asarray(part) for part in positions(p)] for p in (WITH, WITHOUT, CONTROL))
    for first, two in zip(same, other, strict=True):
        np.testing.assert_allclose(first, two, rtol=1e-3, atol=1e-4)
    # Positive control: without its power the first posterior differs.
    assert np.abs(same[0] - control[0]).max() > 0.01
