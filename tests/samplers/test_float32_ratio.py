"""Log ratios in single precision stay accurate at a million data, whatever constant the likelihood carries."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.samplers import Penalty, RandomWalk

N, SIZE, DIM, PROPOSALS = 1_000_000, 1000, 2, 40


class Line(AbstractPosterior):
    """y ~ N(z' theta, 1), every log-likelihood with `offset` nats too few, which no difference may feel.

    The inputs vary: where all are one, as in the mean of a Gaussian, all residuals are rounded alike, and the
    likelihood itself is 0.01 nats off at a million data.
    """

    data: Any
    likelihood_power: Any = np.float32(1.0)
    layout: Layout = eqx.field(static=True, default=Layout((Block("theta", (DIM,), 0),)))
    offset: Any = np.float32(0)

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        return -jnp.sum(theta**2) / 2

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        return -((batch[:, DIM] - batch[:, :DIM] @ theta) ** 2) / 2 - self.offset


@pytest.fixture(scope="module")
def table():
    """Inputs and target [datum, DIM + 1], the same numbers in both precisions, and the least-squares theta."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(N, DIM))
    y = z @ [0.3, -0.7] + rng.normal(size=N)
    rows = np.column_stack([z, y]).astype(np.float32)
    return rows, np.linalg.lstsq(rows[:, :DIM].astype(float), rows[:, DIM].astype(float))[0].astype(np.float32)


def _change(rows: np.ndarray, theta: np.ndarray, proposal: np.ndarray) -> float:
    """sum_i l_i(there) - l_i(here) in double precision."""
    rows, theta, proposal = (np.asarray(a, float) for a in (rows, theta, proposal))
    sums = rows[:, DIM] - rows[:, :DIM] @ ((theta + proposal) / 2)
    return float(sums @ (rows[:, :DIM] @ (proposal - theta)))


def _rms(errors: Any) -> float:
    assert len(errors) > 10
    return float(np.sqrt(np.mean(np.square(errors))))


@pytest.mark.parametrize("offset", [*(pytest.param(less, marks=pytest.mark.slow) for less in (0, 10)), 100])
def test_the_ratio_of_all_data(offset, table):
    """The chain starts at the mode, where no proposal is certain to be accepted and the ratio is the log acceptance."""
    rows, mode = table
    posterior, sampler = Line(rows, offset=np.float32(offset)), RandomWalk(step_size=1e-3)

    @jax.jit
    def propose(posterior: Any, keys: Array) -> Any:
        state = sampler.init(posterior, jnp.asarray(mode), num_warmup=0, key=jax.random.key(1))

        def step(key: Array) -> Any:
            moved, result = sampler.step(posterior, state, key=key)
            return moved.position, result["acceptance_rate"], result["accepted"]

        return jax.lax.map(step, keys)

    result = propose(posterior, jax.random.split(jax.random.key(0), PROPOSALS))
    thetas, rates, accepted = (np.asarray(a) for a in result)
    prior = lambda theta: -(theta.astype(float) ** 2).sum() / 2  # noqa: E731
    exact = np.array([_change(rows, mode, theta) + prior(theta) - prior(mode) for theta in thetas])
    compared = accepted & (rates < 1)
    assert _rms((np.log(rates) - exact)[compared]) <= 0.005
    assert np.abs(exact[compared]).max() > 0.5


@pytest.mark.parametrize(("offset", "bound"), [(0, 0.02), (10, 0.05), (100, 0.3)])
def test_the_ratio_of_a_batch(offset, bound, table):
    rows, mode = table
    posterior, sampler = Line(rows, offset=np.float32(offset)), Penalty(batch_size=SIZE // 20, num_batches=20)
    rng = np.random.default_rng(1)
    batches = rows[rng.integers(0, N, (PROPOSALS, SIZE))]
    theta, proposal = (mode + 1e-3 * rng.normal(size=(2, PROPOSALS, DIM))).astype(np.float32)

    @jax.jit
    @jax.vmap
    def delta(batch: Array, theta: Array, proposal: Array) -> Array:
        d = posterior.log_likelihood(proposal, batch) - posterior.log_likelihood(theta, batch)
        return sampler.difference(posterior, d, jnp.zeros(())).delta

    result = np.asarray(delta(jnp.asarray(batches), jnp.asarray(theta), jnp.asarray(proposal)), float)
    exact = np.array([-N / SIZE * _change(*each) for each in zip(batches, theta, proposal, strict=True)])
    assert _rms(result - exact) <= bound
    assert np.abs(exact).max() > 20


def test_a_difference_of_sums_is_far_off(table):
    """The positive control: the order of operations that the samplers avoid."""
    rows, position = table
    proposal = position + np.float32(1e-3)
    sums = [
        np.sum(-((rows[:, DIM] - rows[:, :DIM] @ theta) ** 2) / 2 - np.float32(100), dtype=np.float32)
        for theta in (position, proposal)
    ]
    assert abs(float(sums[1] - sums[0]) - _change(rows, position, proposal)) > 0.1
