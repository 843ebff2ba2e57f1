"""Cost of the loop: chunks, statistics, thinning and storing, against a hand-written scan of the same kernel.

    python benchmarks/overhead.py [--parallel] [--repeats 5] [--seconds 6]

There are two kernels: SGLD on an MLP 784-100-10 (60 000 images, batch 256; 1 and 4 chains), and random-walk Metropolis
on a regression with 20 parameters and 1000 data. For each the script measures the time that a chain-step takes

    hand    in a hand-written `jax.lax.scan` under `jax.vmap`, which stores every `thin`-th position and nothing else
    loop    in `bnnzoo.sampling.loop.loop.chunks`, vectorised, with all statistics
    stored  in the same loop with every chunk written to part files

Repeats are interleaved, and the table shows medians over the repeats. Only the ratios to `hand` are meaningful. With
`--parallel` the CPU is split and each chain has a device, as in `sample`. The hand-written scan is one program on one
of these devices and is then slower.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bnnzoo.models import Linear, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Categorical, Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.samplers import AbstractSampler, RandomWalk, Sgld
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import Method, place_chains
from bnnzoo.sampling.loop.loop import Keys, chunks
from bnnzoo.store.writer import Store


def classifier() -> NetworkPosterior:
    """Return an MLP 784-100-10 on 60 000 random images."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60_000, 784)).astype(np.float32)
    y = rng.integers(0, 10, 60_000).astype(np.int32)
    network = Mlp((100,), "relu").build((784,), 10, key=jax.random.key(0))
    return NetworkPosterior.of(network, Categorical(), Normal(1.0), x, y)


def regression() -> NetworkPosterior:
    """Return a linear regression with 20 parameters."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 19)).astype(np.float32)
    y = (x.sum(1, keepdims=True) + rng.normal(size=(1000, 1))).astype(np.float32)
    return NetworkPosterior.of(Linear().build((19,), 1, key=jax.random.key(0)), Gaussian(1.0), Normal(1.0), x, y)


def hand_sgld(posterior: NetworkPosterior, eta: float, batch: int, theta: Any, key: Any) -> Any:
    """theta + eta grad + sqrt(2 eta) eps on a batch drawn with replacement."""
    key_batch, key_noise = jax.random.split(key)
    rows = posterior.minibatch(batch, key=key_batch)
    scale = posterior.num_data / batch
    gradient = jax.grad(lambda t: posterior.log_prior(t) + scale * posterior.log_likelihood(t, rows).sum())(theta)
    return theta + eta * gradient + jnp.sqrt(2 * eta) * jax.random.normal(key_noise, theta.shape)


def hand_random_walk(posterior: NetworkPosterior, eta: float, state: Any, key: Any) -> Any:
    """Take a Metropolis step with a cached log density."""
    theta, density = state
    key_propose, key_accept = jax.random.split(key)
    proposal = theta + eta * jax.random.normal(key_propose, theta.shape)
    there = posterior.log_density(proposal)
    accepted = jnp.log(jax.random.uniform(key_accept)) < there - density
    return jnp.where(accepted, proposal, theta), jnp.where(accepted, there, density)


def hand_scan(step: Callable[..., Any], num_chains: int, draws: int, thin: int) -> Callable[..., Any]:
    """Return a jitted scan over draws of `thin` steps each, of all chains under vmap."""

    def one_chain(posterior: Any, state: Any, key: Any) -> Any:
        def draw(state: Any, i: Any) -> Any:
            keys = jax.vmap(lambda j: jax.random.fold_in(key, i * thin + j))(jnp.arange(thin))
            state = jax.lax.scan(lambda s, k: (step(posterior, s, k), None), state, keys)[0]
            return state, state[0] if isinstance(state, tuple) else state

        return jax.lax.scan(draw, state, jnp.arange(draws))

    keys = jax.random.split(jax.random.key(0), num_chains)
    compiled = jax.jit(jax.vmap(one_chain, (None, 0, 0)))
    return lambda posterior, state: compiled(posterior, state, keys)


def bnnzoo_run(
    posterior: NetworkPosterior,
    sampler: AbstractSampler,
    thetas: Any,
    draws: int,
    thin: int,
    *,
    method: Method,
    store: bool,
) -> float:
    """Return the seconds that sampling takes, after compilation."""
    from bnnzoo.sampling.seconds import Seconds

    seconds = Seconds()
    with tempfile.TemporaryDirectory() as folder:
        writer = Store(Path(folder) / "run.nc")
        if store:
            writer.claim(force=False)
            writer.create({}, {}, {})
        stream = chunks(
            posterior,
            sampler,
            thetas,
            keys=Keys.from_seed(0),
            num_warmup=0,
            num_draws=draws,
            thin=thin,
            placement=place_chains(method, len(thetas)),
            seconds=seconds,
        )
        for chunk in stream:
            if store:
                writer.append({"posterior": posterior.natural(chunk.draws), "sample_stats": chunk.stats})
    return seconds.sampling


def compare(
    name: str,
    posterior: NetworkPosterior,
    sampler: AbstractSampler,
    step: Callable[..., Any],
    *,
    num_chains: int,
    thin: int,
    repeats: int,
    seconds: float,
    method: Method,
    cached: bool,
) -> None:
    """Print one row: microseconds per chain-step by hand, and the two ratios to it."""
    posterior = jax.device_put(posterior)
    theta = 0.01 * jax.random.normal(jax.random.key(1), (num_chains, posterior.layout.dim))
    state = (theta, jax.vmap(posterior.log_density)(theta)) if cached else theta

    def by_hand(draws: int) -> float:
        scan = _scan(step, num_chains, draws, thin)
        jax.block_until_ready(scan(posterior, state))
        started = time.perf_counter()
        jax.block_until_ready(scan(posterior, state))
        return time.perf_counter() - started

    trial = by_hand(20) / 20
    draws = max(20, int(seconds / trial))
    rows = {"hand": [], "loop": [], "stored": []}
    for _ in range(repeats):
        rows["hand"].append(by_hand(draws))
        for what in ("loop", "stored"):
            took = bnnzoo_run(posterior, sampler, theta, draws, thin, method=method, store=what == "stored")
            rows[what].append(took)
    medians = {key: float(np.median(value)) for key, value in rows.items()}
    micro = 1e6 * medians["hand"] / (draws * thin * num_chains)
    ratios = {key: float(np.median(np.array(rows[key]) / np.array(rows["hand"]))) for key in ("loop", "stored")}
    print(
        f"| {name} | {num_chains} | {thin} | {micro:.4g} | {ratios['loop']:.3f} | {ratios['stored']:.3f} |",
        flush=True,
    )


@functools.cache
def _scan(step: Callable[..., Any], num_chains: int, draws: int, thin: int) -> Callable[..., Any]:
    return hand_scan(step, num_chains, draws, thin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--parallel", action="store_true")
    arguments = parser.parse_args()
    jax_settings.prepare(4 if arguments.parallel else 1)
    method = "parallel" if arguments.parallel else "vectorized"
    common: dict[str, Any] = {"repeats": arguments.repeats, "seconds": arguments.seconds, "method": method}
    print("| kernel | chains | thin | hand, us a chain-step | loop / hand | stored / hand |")
    print("|---|---|---|---|---|---|")
    with jax_settings.arithmetic("float32"):
        images = classifier()
        step = lambda posterior, theta, key: hand_sgld(posterior, 1e-6, 256, theta, key)  # noqa: E731
        for num_chains, thin in ((1, 1), (1, 10), (4, 1), (4, 10)):
            sampler = Sgld(step_size=1e-6, batch_size=256)
            compare(
                "SGLD, MLP 784-100-10, batch 256",
                images,
                sampler,
                step,
                num_chains=num_chains,
                thin=thin,
                cached=False,
                **common,
            )
        line = regression()
        walk = lambda posterior, state, key: hand_random_walk(posterior, 0.01, state, key)  # noqa: E731
        for num_chains, thin in ((1, 1), (1, 10), (4, 1), (4, 10)):
            compare(
                "random walk, 20 parameters, 1000 data",
                line,
                RandomWalk(step_size=0.01),
                walk,
                num_chains=num_chains,
                thin=thin,
                cached=True,
                **common,
            )


if __name__ == "__main__":
    main()
