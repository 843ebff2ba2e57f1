"""Bias of the noisy samplers: ratios of variances on a problem with a known answer.

    python benchmarks/bias_table.py [--chains 20000]

The problem is the mean of N = 1000 numbers with unit noise. The posterior is N(0.3 N / (N + 1), 1 / (N + 1)). Chains
start at exact draws and take 30 steps. The sd of the proposal is one posterior sd. Their final positions are compared
with the posterior: the ratio of the variance to the true variance (standard error sqrt(2 / chains)), and the error of
the mean in posterior standard deviations. If each step draws K data with replacement, the mean sigma2 is N / K.
"""

from __future__ import annotations

import argparse
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.samplers import AbstractSampler, Penalty, Sgld

N, STEPS = 1000, 30


class GaussianMean(AbstractPosterior):
    """theta ~ N(0, 1), x_i ~ N(theta, 1)."""

    data: Any
    likelihood_power: Number = number(1.0)
    layout: Layout = eqx.field(static=True, default=Layout((Block("theta", (1,), 0),)))

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        return -jnp.sum(theta**2) / 2

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        return -((batch - theta[0]) ** 2) / 2


def standardised(x: np.ndarray) -> np.ndarray:
    """Scale to mean 0.3 and population variance 1."""
    return (0.3 + (x - x.mean()) / x.std()).astype(np.float32)


MEAN, SD = 0.3 * N / (N + 1), (N + 1) ** -0.5


def ends(posterior: GaussianMean, sampler: AbstractSampler, chains: int, *, steps: int = STEPS, sd: float = SD) -> Any:
    """Return the final positions, in posterior standard deviations, and the means of the statistics."""

    @jax.jit
    def run(posterior: Any, starts: Any, keys: Any) -> Any:
        def chain(theta: Any, key: Any) -> Any:
            state = sampler.init(posterior, theta, num_warmup=0, key=key)

            def step(state: Any, key: Any) -> Any:
                return sampler.step(posterior, state, key=key)

            state, stats = jax.lax.scan(step, state, jax.random.split(key, steps))
            return state.position[0], jax.tree.map(lambda a: jnp.mean(a.astype(jnp.float32)), stats)

        return jax.lax.map(lambda at: chain(*at), (starts, keys), batch_size=1000)

    rng = np.random.default_rng(1)
    starts = jnp.asarray(MEAN + sd * rng.normal(size=(chains, 1)), jnp.float32)
    position, stats = run(posterior, starts, jax.random.split(jax.random.key(0), chains))
    return (np.asarray(position, float) - MEAN) / SD, {k: float(np.mean(v)) for k, v in stats.items()}


def penalties(posterior: GaussianMean, chains: int) -> None:
    levels = (0.25, 1, 2, 4, 10)
    print("| rule | " + " | ".join(f"sigma2 {s:g}" for s in levels) + " |")
    print("|---|" + "---|" * len(levels))
    rules = {
        'no penalty (`correction 0`, "batched")': {"correction": 0},
        "batch means, M = 2, 3 terms": {"variance": "batch-means", "num_batches": 2},
        "batch means, M = 4, 3 terms": {"variance": "batch-means", "num_batches": 4},
        "batch means, M = 10, 1 term": {"variance": "batch-means", "num_batches": 10, "correction": 1},
        "batch means, M = 10, 3 terms": {"variance": "batch-means", "num_batches": 10},
        "pooled, 1 term": {"correction": 1},
        "pooled, 3 terms (the default)": {},
    }
    for name, fields in rules.items():
        cells = []
        for level in levels:
            batches = fields.get("num_batches", 1)
            common = {"step_size": SD, "preconditioner": "identity", "num_batches": batches}
            sampler = Penalty(**{**common, **fields, "batch_size": round(N / level / batches)})
            positions, stats = ends(posterior, sampler, chains)
            findings = sampler.findings(posterior, stats)
            cells.append(f"{positions.var():.3f}{' *' if findings else ''}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print("\n`*`: the run's own guard refuses it (`regime_ok = 0`).\n")


def sgld(posterior: GaussianMean, chains: int) -> None:
    print("| SGLD, 2 eta a = 0.2 | measured | its formula | posterior |")
    print("|---|---|---|---|")
    a = N + 1
    for n in (10, 100, 1000):
        eta = 0.1 / a
        noise = N**2 / n
        formula = (1 + eta * noise / 2) / (1 - eta * a / 2)
        sampler = Sgld(step_size=eta, batch_size=n)
        positions, _ = ends(posterior, sampler, chains, steps=120, sd=SD * formula**0.5)
        print(f"| n = {n} | {positions.var():.3f} | {formula:.3f} | 1 |", flush=True)
    print()


def tempered(posterior: GaussianMean, chains: int) -> None:
    """Print the table of the tempered target: all data at likelihood power n / N."""
    print("| likelihood power | exact variance of that target | penalty, pooled, disjoint |")
    print("|---|---|---|")
    for power in (1.0, 0.1):
        there = eqx.tree_at(lambda p: p.likelihood_power, posterior, np.float32(power))
        ratio = (N + 1) / (1 + power * N)
        sampler = Penalty(
            step_size=SD * ratio**0.5, preconditioner="identity", batch_size=50, num_batches=10, sampling="disjoint"
        )
        positions, _ = ends(there, sampler, chains, sd=SD * ratio**0.5)
        print(f"| {power:g} | {ratio:.3f} | {positions.var():.3f} |", flush=True)
    print()


def heavy_tails(chains: int) -> None:
    """Print the table of data with heavy tails: K data per step, a proposal such that sigma2 is 1."""
    rng = np.random.default_rng(2)
    print("| data | K | sigma2 | variance | mean's error | guard |")
    print("|---|---|---|---|---|---|")
    for name, x in (
        ("normal", rng.normal(size=N)),
        ("2 % from 10 t3", np.where(rng.uniform(size=N) < 0.02, 10 * rng.standard_t(3, N), rng.normal(size=N))),
        ("lognormal", np.exp(rng.normal(size=N))),
    ):
        posterior = GaussianMean(jnp.asarray(standardised(x)))
        for used in (20, 100, 500):
            sampler = Penalty(
                step_size=SD * (used / N) ** 0.5, preconditioner="identity", batch_size=used, num_batches=1
            )
            end, stats = ends(posterior, sampler, chains, steps=int(STEPS * N / used))
            guard = "ok" if not sampler.findings(posterior, stats) else "rejected"
            print(
                f"| {name} | {used} | {stats['sigma2']:.2f} | {end.var():.3f} | {end.mean():+.3f} | {guard} |",
                flush=True,
            )
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=20_000)
    chains = parser.parse_args().chains
    posterior = GaussianMean(jnp.asarray(standardised(np.random.default_rng(0).normal(size=N))))
    penalties(posterior, chains)
    sgld(posterior, chains)
    tempered(posterior, chains)
    heavy_tails(chains)


if __name__ == "__main__":
    main()
