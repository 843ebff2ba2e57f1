"""Two ways to keep the anchor of a control variate near a moving chain, as used by `penalty_scaling.py network`.

diminishing     the anchor moves to the chain's position after gaps that grow: the k-th gap is k times the first. This
                adaptation dies out, and is exact only in the limit.
extended        the anchor is part of the state: (theta, a) has density pi(theta) N(a; theta, S). Drawing a given theta
                is exact. Between two draws of a, the penalty moves theta under pi(theta) N(a; theta, S). S is width^2
                times the diagonal covariance of the proposals, which is narrower than the posterior in every direction.

Both need a pass over all data for every new anchor. It is counted and timed.
"""

from __future__ import annotations

import time
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.layout import Layout
from bnnzoo.samplers import Penalty
from bnnzoo.samplers.common.control_variate import make_anchor
from bnnzoo.samplers.common.preconditioner import pool_chains, update_precision


class Tethered(AbstractPosterior):
    """pi(theta) N(anchor; theta, S) for a fixed anchor: the prior has one more term."""

    data: Any
    likelihood_power: Any
    layout: Layout = eqx.field(static=True)
    inner: AbstractPosterior
    anchor: Float[Array, " dim"]
    precision: Float[Array, " dim"]

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.inner.log_prior(theta) - 0.5 * jnp.sum(self.precision * (theta - self.anchor) ** 2)

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        return self.inner.log_likelihood(theta, batch)


class Run(NamedTuple):
    """Stored positions [chain, draw, dim], means of the statistics, and the cost."""

    draws: np.ndarray
    acceptance: float
    sigma2: float
    seconds: float
    steps: int
    data: float


def run(
    posterior: AbstractPosterior,
    thetas: Float[Array, "chain dim"],
    *,
    kind: Literal["diminishing", "extended"],
    seed: int,
    gap: int,
    warmup: int,
    moves: int,
    thin: int,
    width: float = 1.0,
    batch_size: int = 1000,
) -> Run:
    """Sample with `moves` new anchors, after `warmup` anchors that set the step size; gaps are `gap` or grow."""
    sampler = Penalty(
        control_variate="first", proposal="langevin", step_size=0.1, preconditioner="diagonal",
        batch_size=batch_size, num_batches=1,
    )  # fmt: skip
    posterior = jax.device_put(posterior)
    root = jax.random.key(seed)
    keys = lambda n: jax.random.split(jax.random.fold_in(root, n), len(thetas))  # noqa: E731

    @eqx.filter_jit
    def begin(posterior: Any, thetas: Any) -> Any:
        def begin_chain(theta: Any) -> Any:
            state = sampler.init(posterior, theta, num_warmup=1, key=root)
            return eqx.tree_at(
                lambda s: s.preconditioner, state, update_precision(state.preconditioner, posterior, theta)
            )

        return jax.lax.map(begin_chain, thetas)

    @eqx.filter_jit
    def move(posterior: Any, states: Any, keys: Any) -> Any:
        def move_chain(slices: Any) -> Any:
            state, key = slices
            where = state.position
            if kind == "extended":
                spread = width * state.preconditioner.factor
                where = where + spread * jax.random.normal(key, where.shape)
            return eqx.tree_at(lambda s: s.anchor, state, make_anchor(posterior, where, second=False))

        return jax.lax.map(move_chain, (states, keys))

    @eqx.filter_jit
    def steps(posterior: Any, states: Any, keys: Any, rows: int) -> Any:
        def chain(state: Any, key: Any) -> Any:
            target = posterior
            if kind == "extended":
                whole = (posterior.data, posterior.likelihood_power, posterior.layout, posterior)
                target = Tethered(*whole, state.anchor.point, (width * state.preconditioner.factor) ** -2)

            def row(state: Any, i: Any) -> Any:
                def step(state: Any, j: Any) -> Any:
                    state, stats = sampler.step(target, state, key=jax.random.fold_in(key, i * thin + j))
                    return state, (stats["acceptance_rate"], stats["sigma2"])

                state, stats = jax.lax.scan(step, state, jnp.arange(thin))
                return state, (state.position, *jax.tree.map(jnp.mean, stats))

            return jax.lax.scan(row, state, jnp.arange(rows))

        return jax.vmap(chain)(states, keys)

    states = pool_chains(begin(posterior, thetas), final=False, power=sampler.step_power(posterior))
    for k in range(warmup):
        states = move(posterior, states, keys(2 * k))
        states, (_, rate, sigma2) = steps(posterior, states, keys(2 * k + 1), gap // thin)
        calm = float(rate.mean()) > 0.45 and float(sigma2.mean()) < 1.5
        states = eqx.tree_at(lambda s: s.step_size, states, states.step_size * (1.25 if calm else 0.7))
    draws, rates, noises, number = [], [], [], 0
    sizes = [gap // thin * (1 if kind == "extended" else k + 1) for k in range(moves)]
    programs = {n: steps.lower(posterior, states, keys(0), n).compile() for n in set(sizes)}
    started = time.perf_counter()
    for k, rows in enumerate(sizes, warmup):
        states = move(posterior, states, keys(2 * k))
        states, (positions, rate, sigma2) = programs[rows](posterior, states, keys(2 * k + 1), rows)
        draws.append(np.asarray(positions))
        rates.append(np.asarray(rate))
        noises.append(np.asarray(sigma2))
        number += rows * thin
    seconds = time.perf_counter() - started
    mean = lambda parts: float(np.mean(np.concatenate(parts, 1)))  # noqa: E731
    per_step = sampler.evaluations(posterior, {}) + 2 * len(sizes) * posterior.num_data / number
    return Run(np.concatenate(draws, 1), mean(rates), mean(noises), seconds, number, per_step)
