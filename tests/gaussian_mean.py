"""The mean of a Gaussian: a posterior known exactly, and many short chains that start at exact draws of it."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import stats

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.samplers import AbstractSampler

Z = 4.89
"""Quantile that a standard normal exceeds in absolute value once in a million."""
LEVEL = 1e-6


class NormalPrior(AbstractPosterior):
    """theta ~ N(0, 1); subclasses define the likelihood."""

    data: Any
    likelihood_power: Any = np.float32(1.0)
    layout: Layout = eqx.field(static=True, default=Layout((Block("theta", (1,), 0),)))

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        return -jnp.sum(theta**2) / 2


class GaussianMean(NormalPrior):
    """theta ~ N(0, 1), x_i ~ N(theta, 1); the x_i have mean 0.3 and population variance 1.

    The posterior is N(0.3 N / (N + 1), 1 / (N + 1)). A datum's difference is linear in x_i, so that
    Var(delta) = N^2 / K (theta' - theta)^2 with replacement.
    """

    @classmethod
    def of(cls, num_data: int, values: np.ndarray | None = None) -> GaussianMean:
        """Return the posterior for data like `values`; the default is normal quantiles."""
        if values is None:
            values = stats.norm.ppf((np.arange(num_data) + 0.5) / num_data)
        return cls((values - values.mean()) / values.std() + 0.3)

    @property
    def mean(self) -> float:
        return 0.3 * self.num_data / (self.num_data + 1)

    @property
    def sd(self) -> float:
        return (self.num_data + 1) ** -0.5

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        return -((batch - theta[0]) ** 2) / 2

    def draws(self, count: int, *, seed: int) -> np.ndarray:
        """Return exact posterior draws [count, 1]."""
        return self.mean + self.sd * np.random.default_rng(seed).normal(size=(count, 1))

    def standardised(self, theta: np.ndarray) -> np.ndarray:
        """Return (theta - mean) / sd, [count]."""
        return (np.asarray(theta, float)[:, 0] - self.mean) / self.sd


def evolve(
    sampler: AbstractSampler, posterior: AbstractPosterior, starts: np.ndarray, *, steps: int, seed: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return final positions [chain, dim] of untuned chains, and the mean statistics of each chain."""
    dtype = jnp.zeros(()).dtype
    keys = jax.random.split(jax.random.key(seed), len(starts))
    final, means = _evolve(sampler, posterior, jnp.asarray(starts, dtype), keys, steps)
    return np.asarray(final), {name: np.asarray(value) for name, value in means.items()}


@eqx.filter_jit
def _evolve(sampler: Any, posterior: Any, starts: Array, keys: Array, steps: int) -> Any:
    def chain(start_and_key: Any) -> Any:
        start, key = start_and_key
        state = sampler.init(posterior, start, num_warmup=0, key=jax.random.fold_in(key, steps))

        def step(i, carry):
            state, totals = carry
            state, step_stats = sampler.step(posterior, state, key=jax.random.fold_in(key, i))
            return state, {name: totals[name] + step_stats[name] for name in totals}

        shapes = jax.eval_shape(lambda s: sampler.step(posterior, s, key=key)[1], state)
        zeros = {name: jnp.zeros(shape.shape) for name, shape in shapes.items()}
        state, totals = jax.lax.fori_loop(0, steps, step, (state, zeros))
        return state.position, {name: total / steps for name, total in totals.items()}

    # Blocks of chains small enough for the cache.
    return jax.lax.map(chain, (starts, keys), batch_size=min(len(starts), 500))


def from_exact_draws(
    sampler: AbstractSampler, posterior: GaussianMean, *, chains: int = 10_000, steps: int = 30, seed: int = 2
) -> tuple[np.ndarray, dict[str, float]]:
    """Return standardised final states of chains that start at exact draws, and the means of the statistics."""
    final, means = evolve(sampler, posterior, posterior.draws(chains, seed=1), steps=steps, seed=seed)
    return posterior.standardised(final), {name: float(value.mean()) for name, value in means.items()}


def scores(values: np.ndarray, *, variance: float = 1.0, mean: float = 0.0) -> dict[str, float]:
    """Return z of the mean, z of the variance, and the Kolmogorov-Smirnov p value of i.i.d.

    values for a normal distribution.
    """
    count = len(values)
    return {
        "mean": float((values.mean() - mean) * (count / variance) ** 0.5),
        "variance": float((((values - mean) ** 2).mean() / variance - 1) * (count / 2) ** 0.5),
        "ks": float(stats.kstest(values, stats.norm(mean, variance**0.5).cdf).pvalue),
    }


def agrees(statistics: dict[str, float]) -> bool:
    """Whether scores pass at the level of one false alarm in a million each."""
    return abs(statistics["mean"]) <= Z and abs(statistics["variance"]) <= Z and statistics["ks"] >= LEVEL
