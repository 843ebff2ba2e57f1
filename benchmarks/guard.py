"""What the penalty's guard catches, and what it lets pass: its operating curve over targets on which few rows decide.

    python benchmarks/guard.py [--chains 64] [--blocks 5] [--sampling replacement|importance] [--only rare,outlier]

Linear and logistic regressions whose posterior is known (in closed form, or by importance sampling from its Gaussian
approximation), the proposals shaped by it and the step size such that the mean sigma2, a step counting at most ten
times its target, meets its target. A setting is *wrong* where the variance of a weight, over all its chains, is more
than a tenth off, or a mean more than a quarter of a standard deviation, and *right* otherwise. A run is four chains of
1000 steps; its alarms are those of the guard. The table has a line a setting, the last lines count the runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.samplers import Penalty, _influence, _row_probabilities
from bnnzoo.sampling import judgement

CHAINS_A_RUN, STEPS, THIN = 4, 1000, 10


class Regression(AbstractPosterior):
    """theta ~ N(0, I); y_i ~ N(x_i'theta, 1), or Bernoulli(sigmoid(x_i'theta))."""

    data: Any
    layout: Layout = eqx.field(static=True)
    logistic: bool = eqx.field(static=True)
    likelihood_power: Number = number(1.0)

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray, *, logistic: bool) -> Regression:
        data = (x.astype(np.float32), y.astype(np.float32))
        return cls(data, Layout((Block("theta", (x.shape[1],), 0),)), logistic)

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        return -jnp.sum(theta**2) / 2

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        x, y = batch
        output = x @ theta
        return y * output - jnp.logaddexp(0.0, output) if self.logistic else -((y - output) ** 2) / 2

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of the posterior."""
        x, y = (np.asarray(a, float) for a in self.data)
        one = np.eye(x.shape[1])
        if not self.logistic:
            covariance = np.linalg.inv(x.T @ x + one)
            return covariance @ x.T @ y, covariance
        mode = np.zeros(x.shape[1])
        for _ in range(100):
            p = special.expit(x @ mode)
            precision = (x * (p * (1 - p))[:, None]).T @ x + one
            move = np.linalg.solve(precision, x.T @ (y - p) - mode)
            mode = mode + move * min(1.0, 2 / max(np.linalg.norm(move), 1e-12))
        return self._weighted(mode, np.linalg.inv(precision))

    def _weighted(self, mode: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By 20 000 draws of Student's t about the mode."""
        x, y = (np.asarray(a, float) for a in self.data)
        rng, dof, dim = np.random.default_rng(0), 8, len(mode)
        t = rng.normal(size=(20_000, dim)) * np.sqrt(dof / rng.chisquare(dof, size=(20_000, 1)))
        draws = mode + 1.1 * t @ np.linalg.cholesky(covariance).T
        logs = -(dof + dim) / 2 * np.log1p((t**2).sum(1) / dof)
        for rows in np.array_split(np.arange(len(draws)), 200):
            outputs = x @ draws[rows].T
            density = y @ outputs - np.logaddexp(0, outputs).sum(0) - (draws[rows] ** 2).sum(1) / 2
            logs[rows] = density - logs[rows]
        weights = special.softmax(logs)
        mean = weights @ draws
        return mean, (draws - mean).T @ ((draws - mean) * weights[:, None])


class Setting(NamedTuple):
    name: str
    posterior: Regression
    sampler: Penalty
    target: float


def rows(kind: str, number: float, size: float, *, num_data: int, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and targets with unit noise but where the kind says otherwise."""
    rng = np.random.default_rng(seed)
    x, noise = rng.normal(size=(num_data, dim)), rng.normal(size=num_data)
    weights = 0.5 * rng.normal(size=dim)
    chosen = rng.choice(num_data, int(number), replace=False)
    if kind == "rare":
        x[:, -1], weights[-1] = 0.0, 1.0
        x[chosen, -1] = size
    if kind == "outliers":
        noise[chosen] *= size
    if kind == "t":
        noise = rng.standard_t(size, num_data)
    if kind == "lognormal":
        noise = np.exp(size * rng.normal(size=num_data))
        noise = (noise - noise.mean()) / noise.std()
    if kind == "scales":
        x[chosen] *= size
    if kind == "heavy":
        x = rng.standard_t(size, size=(num_data, dim))
    if kind == "imbalance":
        output = x @ weights
        odds = special.logit(np.clip(number / num_data, 1e-6, 0.5))
        x = np.column_stack([x[:, 1:], np.ones(num_data)])
        return x, (rng.random(num_data) < special.expit(output + odds)).astype(float)
    return x, x @ weights + noise


KINDS = (
    ("clean", 0, 0.0),
    *(("rare", count, value) for count in (1, 3, 20) for value in (0.3, 1.0, 3.0)),
    ("outliers", 20, 10.0),
    ("outliers", 4, 30.0),
    ("t", 0, 3.0),
    ("lognormal", 0, 1.0),
    ("scales", 20, 10.0),
    ("scales", 200, 5.0),
    ("heavy", 0, 3.0),
    ("imbalance", 2, 0.0),
)
SHAPES = ((2000, 100, 1.5), (2000, 400, 0.5), (500, 100, 0.5))
"""Rows, data a step, target of sigma2."""


def settings(sampling: Any, only: tuple[str, ...]) -> Iterator[Setting]:
    for num_data, used, target in SHAPES:
        sampler = Penalty(batch_size=used // 20, num_batches=20, sampling=sampling)
        for seed, (kind, count, size) in enumerate(KINDS):
            if only and kind not in only:
                continue
            x, y = rows(kind, count, size, num_data=num_data, dim=4, seed=seed)
            posterior = Regression.of(x, y, logistic=kind == "imbalance")
            yield Setting(f"{kind} {count} {size:g}, N {num_data}, K {used}", posterior, sampler, target)


@eqx.filter_jit
def simulate(sampler: Penalty, posterior: Regression, states: Any, keys: Array) -> Any:
    """States and means of the statistics [chain] after so many steps, and positions [chain, draw, dim] on the way."""

    def chain(state: Any, key: Array) -> Any:
        def some(state: Any, key: Array) -> Any:
            state, stats = jax.lax.scan(
                lambda state, key: sampler.step(posterior, state, key=key), state, jax.random.split(key, THIN)
            )
            return state, (state.position, jax.tree.map(lambda v: jnp.mean(v.astype(float)), stats))

        state, (positions, stats) = jax.lax.scan(some, state, jax.random.split(key, STEPS // THIN))
        return state, positions, jax.tree.map(jnp.mean, stats)

    return jax.vmap(chain)(states, keys)


@eqx.filter_jit
def pilot(sampler: Penalty, posterior: Regression, states: Any, keys: Array, target: Array) -> tuple[Array, Array]:
    """Mean sigma2 over its target, a step counting at most ten, and mean acceptance."""

    def chain(state: Any, key: Array) -> Any:
        step = lambda state, key: sampler.step(posterior, state, key=key)  # noqa: E731
        stats = jax.lax.scan(step, state, jax.random.split(key, 60))[1]
        return jnp.mean(jnp.minimum(stats["sigma2"] / target, 10.0)), jnp.mean(stats["acceptance_rate"])

    sigma2, acceptance = jax.vmap(chain)(states, keys)
    return jnp.mean(sigma2), jnp.mean(acceptance)


@eqx.filter_jit
def with_rows(sampler: Penalty, posterior: Regression, states: Any, keys: Array) -> Any:
    """States that have looked at their rows, as warm-up does."""

    def look(one: tuple[Any, Array]) -> Any:
        state, key = one
        found = _influence.of_rows(sampler, posterior, state, steps_between=0, key=key)
        return _row_probabilities.after_look(state.rows, found.square)

    return eqx.tree_at(lambda s: s.rows, states, _row_probabilities.pool_chains(jax.lax.map(look, (states, keys))))


def started(setting: Setting, chains: int, key: Array) -> tuple[Any, np.ndarray, np.ndarray]:
    """States at exact draws with the step size tuned, and the posterior's moments."""
    sampler, posterior = setting.sampler, setting.posterior
    mean, covariance = posterior.moments()
    draws = np.random.default_rng(1).multivariate_normal(mean, covariance, size=chains).astype(np.float32)
    keys = jax.random.split(key, chains)
    init = jax.vmap(lambda theta, key: sampler.init(posterior, theta, num_warmup=1, key=key))
    states = init(jnp.asarray(draws), keys)
    factor = jnp.broadcast_to(jnp.asarray(np.linalg.cholesky(covariance), jnp.float32), (chains, *covariance.shape))
    states = eqx.tree_at(lambda s: s.preconditioner.factor, states, factor)
    eta = 0.3
    for _ in range(6):
        states = eqx.tree_at(lambda s: s.step_size, states, jnp.full((chains,), eta, jnp.float32))
        if setting.sampler.sampling == "importance":
            states = with_rows(sampler, posterior, states, keys)
        sigma2, acceptance = pilot(sampler, posterior, states, keys, jnp.asarray(setting.target))
        factor_of_step = float(sigma2) ** -0.5
        eta *= min(factor_of_step, 0.8 if acceptance < 0.45 else 1.25 if acceptance < 0.6 else 2.0)
    return states, mean, covariance


def measured(setting: Setting, *, chains: int, blocks: int) -> dict[str, Any]:
    """How far the draws of a setting are off, and which of its runs raise an alarm."""
    key_start, key_steps, key_look = jax.random.split(jax.random.key(0), 3)
    states, mean, covariance = started(setting, chains, key_start)
    positions, alarms, unseen = [], [], []
    for block in range(blocks):
        keys = jax.random.split(jax.random.fold_in(key_steps, block), chains)
        states, some, means = simulate(setting.sampler, setting.posterior, states, keys)
        if not block:
            continue  # towards the chain's own law
        positions.append(np.asarray(some))
        if block % 2:
            key = jax.random.fold_in(key_look, block)
            look = judgement.inspected(setting.sampler, setting.posterior, states, key=key)
            unseen.append(look["unseen"])
            every = {name: np.asarray(v, float).tolist() for name, v in means.items()} | look
            for first in range(0, chains, CHAINS_A_RUN):
                run = {name: values[first : first + CHAINS_A_RUN] for name, values in every.items()}
                found = judgement.judged(setting.sampler, setting.posterior, run)
                alarms.append(sorted({finding.kind for finding in found}))
    z = (np.concatenate(positions, 1) - mean) / np.sqrt(np.diag(covariance))
    variance, shift = z.var((0, 1)), z.mean((0, 1))
    worst = int(np.argmax(np.abs(np.log(variance))))
    error = float(((z - shift) ** 2).mean(1)[:, worst].std(ddof=1) / chains**0.5)
    return {
        "variance": float(variance[worst]),
        "error": error,
        "mean": float(np.abs(shift).max()),
        "unseen": float(np.mean(unseen)),
        "wrong": bool(np.abs(variance - 1).max() > 0.1 or np.abs(shift).max() > 0.25),
        "alarms": alarms,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--sampling", default="replacement", choices=["replacement", "importance"])
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    print("| rows | variance | mean's error | unseen | alarms | by |\n|---|---|---|---|---|---|")
    counts: dict[bool, list[int]] = {True: [0, 0], False: [0, 0]}
    for setting in settings(given.sampling, tuple(filter(None, given.only.split(",")))):
        found = measured(setting, chains=given.chains, blocks=given.blocks)
        raised = [alarm for alarm in found["alarms"] if alarm]
        counts[found["wrong"]][0] += len(raised)
        counts[found["wrong"]][1] += len(found["alarms"])
        kinds = ", ".join(sorted({kind for alarm in raised for kind in alarm}))
        print(
            f"| {setting.name}{' *' if found['wrong'] else ''} | {found['variance']:.3f} ± {found['error']:.3f} "
            f"| {found['mean']:.2f} | {found['unseen']:.3f} | {len(raised)}/{len(found['alarms'])} | {kinds} |",
            flush=True,
        )
    print("\n`*`: wrong.\n\n| runs | alarms |\n|---|---|")
    for wrong, (alarms, total) in counts.items():
        print(f"| {'wrong' if wrong else 'right'} | {alarms}/{total} |")


if __name__ == "__main__":
    main()
