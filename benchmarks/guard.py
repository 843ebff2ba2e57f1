"""Alarms of the penalty's guard on correct and wrong runs, for targets that few rows dominate.

    python benchmarks/guard.py [--chains 64] [--blocks 5] [--sampling replacement|importance] [--only rare,t] [--skip 0]

The targets are linear and logistic regressions with known posterior (in closed form, or by importance sampling from its
Gaussian approximation). Proposals have the posterior's covariance. The step size is set such that the mean sigma2 meets
its target, where a step counts at most ten times the target.

A setting is *wrong* if, beyond its error, the variance of a weight over all chains is more than a tenth off, or a mean
more than 0.3 of a standard deviation. It is *right* if no variance is more than 3 % off and no mean more than 0.1, and
*nearly right* up to 5 % and 0.15. A run is four chains of 1000 steps, and its alarms are those of the guard. The table
has one line per setting. The last lines count the runs.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.samplers import Penalty
from bnnzoo.samplers.subsampled import influence as _influence
from bnnzoo.samplers.subsampled import row_probabilities
from bnnzoo.sampling import chain_findings

CHAINS_A_RUN, STEPS, THIN, LOOKS_EVERY, DIM = 4, 1000, 10, 4, 5


class Regression(AbstractPosterior):
    """theta ~ N(0, I); y_i ~ N(x_i'theta, 1), Bernoulli(sigmoid(x_i'theta)) or Poisson(exp(x_i'theta))."""

    data: Any
    likelihood_power: Any = np.float32(1.0)
    layout: Layout = eqx.field(static=True, default=Layout((Block("theta", (DIM,), 0),)))
    kind: str = eqx.field(static=True, default="gaussian")

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        return -jnp.sum(theta**2) / 2

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        x, y = batch
        output = x @ theta
        if self.kind == "gaussian":
            return -((y - output) ** 2) / 2
        return y * output - (jnp.logaddexp(0.0, output) if self.kind == "logistic" else jnp.exp(output))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and covariance of the posterior."""
        x, y = (np.asarray(a, float) for a in self.data)
        prior_precision = np.eye(x.shape[1])
        if self.kind == "gaussian":
            covariance = np.linalg.inv(x.T @ x + prior_precision)
            return covariance @ x.T @ y, covariance
        mode = np.zeros(x.shape[1])
        for _ in range(100):
            p = (special.expit if self.kind == "logistic" else np.exp)(x @ mode)
            precision = (x * (p * (1 - p) if self.kind == "logistic" else p)[:, None]).T @ x + prior_precision
            move = np.linalg.solve(precision, x.T @ (y - p) - mode)
            mode = mode + move * min(1.0, 2 / max(np.linalg.norm(move), 1e-12))
        return self._weighted(mode, np.linalg.inv(precision))

    def _weighted(self, mode: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Estimate both from 20 000 weighted draws of Student's t about the mode."""
        x, y = (np.asarray(a, float) for a in self.data)
        rng, dof, dim = np.random.default_rng(0), 8, len(mode)
        t = rng.normal(size=(20_000, dim)) * np.sqrt(dof / rng.chisquare(dof, size=(20_000, 1)))
        draws = mode + 1.1 * t @ np.linalg.cholesky(covariance).T
        logs = -(dof + dim) / 2 * np.log1p((t**2).sum(1) / dof)
        for rows in np.array_split(np.arange(len(draws)), 200):
            outputs = x @ draws[rows].T
            normaliser = np.logaddexp(0, outputs) if self.kind == "logistic" else np.exp(outputs)
            logs[rows] = y @ outputs - normaliser.sum(0) - (draws[rows] ** 2).sum(1) / 2 - logs[rows]
        weights = special.softmax(logs)
        mean = weights @ draws
        return mean, (draws - mean).T @ ((draws - mean) * weights[:, None])


class Setting(NamedTuple):
    name: str
    posterior: Regression
    sampler: Penalty
    target: float


def regression(kind: str, number: float, size: float, *, num_data: int, seed: int) -> Regression:
    """Return a regression on five features; `number` counts the special rows, or is their fraction if below 1."""
    rng = np.random.default_rng(seed)
    x, noise = rng.normal(size=(num_data, DIM)), rng.normal(size=num_data)
    weights = 0.5 * rng.normal(size=DIM)
    count = round(number * num_data) if number < 1 else int(number)
    chosen = rng.permutation(num_data)
    few = chosen[:count]
    if kind == "rare":
        x[:, -1], weights[-1] = 0.0, 1.0
        x[few, -1] = size
    elif kind == "several":
        x[:, 2:] = 0.0
        for feature in (2, 3, 4):
            x[chosen[feature * count : (feature + 1) * count], feature] = size
    elif kind == "outliers":
        noise[few] *= size
    elif kind == "duplicates":
        x[few], noise[few] = size * x[few[:1]], 5.0
    elif kind == "t":
        noise = rng.standard_t(size, num_data)
    elif kind == "lognormal":
        noise = np.exp(size * rng.normal(size=num_data))
        noise = (noise - noise.mean()) / noise.std()
    elif kind == "scales":
        x[few] *= size
    elif kind == "heavy":
        x = rng.standard_t(size, size=(num_data, DIM))
    elif kind == "cluster":
        # The last layer of a network of five tanh units. Few rows lie where only the last unit is not saturated.
        place = rng.normal(size=num_data)
        place[few] = 6 + 0.3 * rng.normal(size=count)
        x = np.column_stack([np.ones(num_data), np.tanh(place[:, None] - np.array([-1.0, 0.0, 1.0, 6.0]))])
        x[:, -1] = (x[:, -1] + 1) * size
    elif kind == "labels":
        output = x @ weights
        x[:, -1] = 1.0
        y = (rng.random(num_data) < special.expit(output + special.logit(count / num_data))).astype(float)
        return _of(x, y, "logistic")
    elif kind == "counts":
        x[:, -1] = 1.0
        y = rng.poisson(np.exp(np.minimum(x @ weights, 3.0))).astype(float)
        y[few] = size
        return _of(x, y, "poisson")
    return _of(x, x @ weights + noise, "gaussian")


def _of(x: np.ndarray, y: np.ndarray, kind: str) -> Regression:
    return Regression((x.astype(np.float32), y.astype(np.float32)), kind=kind)


KINDS = (
    ("clean", 0, 0.0),
    *(("rare", count, value) for count in (1, 3, 20) for value in (0.3, 1.0, 1.7, 3.0)),
    ("rare", 0.003, 1.0),
    ("several", 1, 1.0),
    ("several", 3, 1.7),
    ("outliers", 0.01, 10.0),
    ("outliers", 0.002, 30.0),
    ("duplicates", 5, 3.0),
    ("t", 0, 3.0),
    ("lognormal", 0, 1.5),
    ("scales", 0.01, 10.0),
    ("scales", 0.1, 5.0),
    ("heavy", 0, 2.0),
    ("heavy", 0, 5.0),
    ("cluster", 2, 1.0),
    ("cluster", 10, 1.0),
    ("labels", 0.001, 0.0),
    ("labels", 0.01, 0.0),
    ("counts", 0, 0.0),
    ("counts", 1, 100.0),
)
SHAPES = ((2000, 100, 1.5), (2000, 400, 0.5), (500, 100, 1.5))
"""Rows, data per step, target of sigma2."""
LARGE = (20_000, 100, 1.5)
LARGE_KINDS = (("clean", 0, 0.0), ("rare", 1, 1.0), ("rare", 1, 1.7))
"""Settings in which a row is drawn once in 200 steps."""


def settings(sampling: Any, only: tuple[str, ...]) -> Iterator[Setting]:
    cases = [*((shape, kind) for shape in SHAPES for kind in KINDS), *((LARGE, kind) for kind in LARGE_KINDS)]
    for (num_data, used, target), design in cases:
        kind, number, size = design
        if only and kind not in only:
            continue
        sampler = Penalty(batch_size=used // 20, num_batches=20, sampling=sampling)
        posterior = regression(*design, num_data=num_data, seed=KINDS.index(design))
        name = f"{kind} {number:g} {size:g}, N {num_data}, K {used}, sigma2 {target:g}"
        yield Setting(name, posterior, sampler, target)


LOOKED = ("unseen", "unseen_shift", "skew_bias")
"""Statistics of the guard that the table shows."""


@eqx.filter_jit
def simulate(sampler: Penalty, posterior: Regression, states: Any, keys: Array) -> Any:
    """Return states, positions [chain, draw, dim] and means of the statistics [chain] after `STEPS` steps."""

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
    """Return the mean ratio of sigma2 to its target, limited to ten, and the mean acceptance."""

    def chain(state: Any, key: Array) -> Any:
        step = lambda state, key: sampler.step(posterior, state, key=key)  # noqa: E731
        stats = jax.lax.scan(step, state, jax.random.split(key, 60))[1]
        return jnp.mean(jnp.minimum(stats["sigma2"] / target, 10.0)), jnp.mean(stats["acceptance_rate"])

    sigma2, acceptance = jax.vmap(chain)(states, keys)
    return jnp.mean(sigma2), jnp.mean(acceptance)


@eqx.filter_jit
def with_rows(sampler: Penalty, posterior: Regression, states: Any, keys: Array) -> Any:
    """Return the states with the row probabilities updated, as warm-up does."""

    def update(slices: tuple[Any, Array]) -> Any:
        state, key = slices
        influence = _influence.row_influence(sampler, posterior, state, steps_between=0, key=key)
        return row_probabilities.update_probabilities(state.rows, influence.square)

    return eqx.tree_at(lambda s: s.rows, states, row_probabilities.pool_chains(jax.lax.map(update, (states, keys))))


def started(setting: Setting, chains: int, key: Array) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return states at exact draws with tuned step size, and the posterior's moments."""
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


@eqx.filter_jit
def inspected(sampler: Penalty, posterior: Regression, states: Any, key: Array) -> Any:
    """Return the final inspection of every chain."""
    keys = jax.random.split(key, len(states.position))
    return jax.vmap(lambda state, key: sampler.inspect(posterior, state, key=key))(states, keys)


def measured(setting: Setting, *, chains: int, blocks: int) -> dict[str, Any]:
    """Return the errors of a setting's draws and the alarms of its runs."""
    key_start, key_steps, key_look = jax.random.split(jax.random.key(0), 3)
    states, mean, covariance = started(setting, chains, key_start)
    positions, alarms, looks = [], [], []
    for block in range(blocks + 1):
        keys = jax.random.split(jax.random.fold_in(key_steps, block), chains)
        states, some, means = simulate(setting.sampler, setting.posterior, states, keys)
        if not block:
            continue  # the first block is burn-in towards the chain's own stationary distribution
        positions.append(np.asarray(some))
        if block % LOOKS_EVERY == 0:
            look = inspected(setting.sampler, setting.posterior, states, jax.random.fold_in(key_look, block))
            every, last = ({name: np.asarray(v, float) for name, v in of.items()} for of in (means, look))
            looks.append([np.mean({**every, **last}[name]) for name in LOOKED])
            for first in range(0, chains, CHAINS_A_RUN):
                chosen = slice(first, first + CHAINS_A_RUN)
                run, inspection = ({name: v[chosen].tolist() for name, v in of.items()} for of in (every, last))
                findings = chain_findings.gate_findings(setting.sampler, setting.posterior, run, inspection=inspection)
                alarms.append(sorted({finding.kind for finding in findings}))
    z = (np.concatenate(positions, 1) - mean) / np.sqrt(np.diag(covariance))
    shift = z.mean((0, 1))
    each = ((z - shift) ** 2).mean(1)
    worst = int(np.argmax(np.abs(np.log(each.mean(0)))))
    variance, error = float(each[:, worst].mean()), float(each[:, worst].std(ddof=1) / chains**0.5)
    off, mean_off = abs(variance - 1), float(np.abs(shift).max())
    return {
        "variance": variance,
        "error": error,
        "mean": mean_off,
        "looks": " | ".join(f"{value:.3f}" for value in np.mean(looks, 0)),
        "class": _class(off, error, mean_off),
        "alarms": alarms,
    }


def _class(off: float, error: float, mean_off: float) -> str:
    if off > 0.1 + 2 * error or mean_off > 0.3:
        return "wrong"
    if off < 0.03 + error and mean_off < 0.1:
        return "right"
    return "nearly right" if off < 0.05 + error and mean_off < 0.15 else "between"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--sampling", default="replacement", choices=["replacement", "importance"])
    parser.add_argument("--only", default="", help="kinds of rows, with commas between")
    parser.add_argument("--skip", type=int, default=0, help="settings that an earlier table has already")
    given = parser.parse_args()
    print(f"| rows | variance | mean's error | {' | '.join(LOOKED)} | | alarms | by |\n{'|---' * (6 + len(LOOKED))}|")
    counts = {name: [0, 0] for name in ("right", "nearly right", "between", "wrong")}
    chosen = settings(given.sampling, tuple(filter(None, given.only.split(","))))
    for setting in itertools.islice(chosen, given.skip, None):
        result = measured(setting, chains=given.chains, blocks=given.blocks)
        raised = [alarm for alarm in result["alarms"] if alarm]
        counts[result["class"]][0] += len(raised)
        counts[result["class"]][1] += len(result["alarms"])
        by = Counter(kind for alarm in raised for kind in alarm)
        print(
            f"| {setting.name} | {result['variance']:.3f} ± {result['error']:.3f} | {result['mean']:.2f} "
            f"| {result['looks']} | {result['class']} | {len(raised)}/{len(result['alarms'])} "
            f"| {', '.join(f'{kind} {count}' for kind, count in by.items())} |",
            flush=True,
        )
    print("\n| runs | alarms |\n|---|---|")
    for name, (alarms, total) in counts.items():
        print(f"| {name} | {alarms}/{total} |")


if __name__ == "__main__":
    main()
