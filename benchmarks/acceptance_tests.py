"""Acceptance tests on growing batches: bias and rows per step on the problem of `bias_table.py`.

    pip install ./plugins/bnnzoo-minibatch-tests
    python benchmarks/acceptance_tests.py [--chains 10000]

There are N = 1000 rows. Chains start at exact draws and take 30 steps. The sd of the proposal is one posterior sd. The
table shows the ratio of the variance to the posterior's (standard error sqrt(2 / chains)) and the error of the mean in
posterior standard deviations. A second table shows the same for rows that are not normal, with 100 steps. There, the
mini-batch noise is skewed.
"""

from __future__ import annotations

import argparse

import jax.numpy as jnp
import numpy as np
from bias_table import SD, GaussianMean, N, ends, standardised
from bnnzoo_minibatch_tests import Austerity, Confidence, MinibatchBarker

from bnnzoo.samplers import AbstractSampler, Penalty

COMMON = {"step_size": SD, "preconditioner": "identity"}


def row(name: str, sampler: AbstractSampler, posterior: GaussianMean, chains: int, steps: int) -> None:
    positions, stats = ends(posterior, sampler, chains, steps=steps)
    rows, error = stats.get("rows_seen", float(getattr(sampler, "batch_size", 0))), stats.get("test_error")
    guard = "refused" if sampler.findings(posterior, stats) else "ok" if sampler.guarded else "none"
    cells = (
        f"{positions.var():.3f}",
        f"{positions.mean():+.3f}",
        f"{stats['acceptance_rate']:.2f}",
        f"{rows:.0f}",
        "" if error is None else f"{error:.4f}",
        guard,
    )
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=10_000)
    chains = parser.parse_args().chains
    head = "variance | mean's error | acceptance | rows a step | `test_error` | guard |\n|---|---|---|---|---|---|---|"
    posterior = GaussianMean(jnp.asarray(standardised(np.random.default_rng(0).normal(size=N))))
    print(f"| test | {head}")
    for size in (50, 200):
        row(f"`minibatch-barker`, n = {size}", MinibatchBarker(batch_size=size, **COMMON), posterior, chains, 30)
    for error in (0.01, 0.05, 0.2):
        sampler = Austerity(batch_size=50, error=error, **COMMON)
        row(f"`austerity`, error {error:g}", sampler, posterior, chains, 30)
    for error in (0.1, 0.9):
        sampler = Confidence(batch_size=50, error=error, **COMMON)
        row(f"`confidence`, error {error:g}", sampler, posterior, chains, 30)
    row("`penalty`, n = 500", Penalty(batch_size=500, num_batches=1, **COMMON), posterior, chains, 30)
    print(f"\n| rows, `minibatch-barker` | {head}")
    rng = np.random.default_rng(2)
    for name, x in (
        ("2 % from 10 t3", np.where(rng.uniform(size=N) < 0.02, 10 * rng.standard_t(3, N), rng.normal(size=N))),
        ("lognormal", np.exp(rng.normal(size=N))),
        ("1 % at 30", np.where(rng.uniform(size=N) < 0.01, 30.0, 0.0) + rng.normal(size=N)),
    ):
        for size, step in ((20, 0.2), (100, 0.35), (100, 1.0)):
            sampler = MinibatchBarker(batch_size=size, preconditioner="identity", step_size=SD * step)
            there = GaussianMean(jnp.asarray(standardised(x)))
            row(f"{name}, n = {size}, step {step:g}", sampler, there, chains, 100)


if __name__ == "__main__":
    main()
