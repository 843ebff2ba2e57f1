"""Cost of a step on all rows: random walk and MALA on a linear regression with four chains.

    python benchmarks/full_batch.py [--rows 100000] [--repeats 5] [--seconds 4] [--devices 4]

The default is 100 000 rows of 20 columns. The script measures the time that a step of all chains takes

    hand        in a hand-written `jax.lax.scan` under `jax.vmap`, which stores every position and nothing else
    vectorized  in bnnzoo's loop with all statistics, chains under one `vmap`
    parallel    in bnnzoo's loop with one device per chain

Repeats are interleaved. The table shows medians over the repeats of the ratios to `hand`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bnnzoo.models import Linear
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.samplers import AbstractSampler, Mala, RandomWalk
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.keys import Keys
from bnnzoo.sampling.loop.loop import chunks
from bnnzoo.sampling.seconds import Seconds

CHAINS, COLUMNS, ETA = 4, 20, 1e-3


def regression(rows: int) -> NetworkPosterior:
    """Return a regression with standard normal inputs, weights of one and noise of one."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, COLUMNS)).astype(np.float32)
    y = (x.sum(1, keepdims=True) + rng.normal(size=(rows, 1))).astype(np.float32)
    network = Linear().build((COLUMNS,), 1, key=jax.random.key(0))
    return NetworkPosterior.of(network, Gaussian(1.0), Normal(1.0), x, y)


def density(theta: Any, x: Any, y: Any) -> Any:
    """Return the log density of weights and a bias, up to a constant."""
    return -0.5 * jnp.sum((y - x @ theta[:COLUMNS] - theta[COLUMNS]) ** 2) - 0.5 * jnp.sum(theta**2)


def hand_random_walk(state: Any, key: Any, x: Any, y: Any) -> Any:
    """Take a Metropolis step with a cached log density."""
    theta, here, slope = state
    key_propose, key_accept = jax.random.split(key)
    proposal = theta + ETA * jax.random.normal(key_propose, theta.shape)
    there = density(proposal, x, y)
    accepted = jnp.log(jax.random.uniform(key_accept)) < there - here
    return jnp.where(accepted, proposal, theta), jnp.where(accepted, there, here), slope


def hand_mala(state: Any, key: Any, x: Any, y: Any) -> Any:
    """Take a Langevin step with a cached log density and gradient; the step size is eta."""
    theta, here, slope = state
    eta = ETA**2 / 2
    key_propose, key_accept = jax.random.split(key)
    proposal = theta + eta * slope + jnp.sqrt(2 * eta) * jax.random.normal(key_propose, theta.shape)
    there, slope_there = jax.value_and_grad(density)(proposal, x, y)
    back, forth = theta - proposal - eta * slope_there, proposal - theta - eta * slope
    ratio = there - here + (jnp.sum(forth**2) - jnp.sum(back**2)) / (4 * eta)
    accepted = jnp.log(jax.random.uniform(key_accept)) < ratio
    choose = lambda a, b: jnp.where(accepted, a, b)  # noqa: E731
    return choose(proposal, theta), choose(there, here), choose(slope_there, slope)


def by_hand(step: Any, steps: int, thetas: Any, x: Any, y: Any) -> Any:
    """Return a function that times a compiled scan of all chains, in seconds."""

    @jax.jit
    def scan(thetas: Any, x: Any, y: Any) -> Any:
        def one_chain(theta: Any, key: Any) -> Any:
            state = theta, *jax.value_and_grad(density)(theta, x, y)

            def draw(state: Any, i: Any) -> Any:
                state = step(state, jax.random.fold_in(key, i), x, y)
                return state, state[0]

            return jax.lax.scan(draw, state, jnp.arange(steps))[1]

        return jax.vmap(one_chain)(thetas, jax.random.split(jax.random.key(0), CHAINS))

    jax.block_until_ready(scan(thetas, x, y))

    def timed() -> float:
        started = time.perf_counter()
        jax.block_until_ready(scan(thetas, x, y))
        return time.perf_counter() - started

    return timed


def by_loop(posterior: NetworkPosterior, sampler: AbstractSampler, steps: int, thetas: Any, method: Any) -> float:
    """Return the seconds that sampling takes, after compilation."""
    seconds, placement = Seconds(), place_chains(method, CHAINS)
    how = {"keys": Keys.from_seed(0), "num_warmup": 0, "num_draws": steps, "placement": placement, "seconds": seconds}
    for _ in chunks(posterior, sampler, thetas, **how):
        pass
    return seconds.sampling


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--devices", type=int, default=CHAINS)
    arguments = parser.parse_args()
    jax_settings.prepare(arguments.devices)
    posterior = regression(arguments.rows)
    thetas = posterior.position(posterior.network_at(jnp.ones(posterior.layout.dim)))[None].repeat(CHAINS, 0)
    x, y = jnp.asarray(posterior.data.x), jnp.asarray(posterior.data.y)[:, 0]
    print("| kernel | hand, us a step of all chains | vectorized / hand | parallel / hand |\n|---|---|---|---|")
    kernels = {
        "random walk": (hand_random_walk, RandomWalk(step_size=ETA)),
        "MALA": (hand_mala, Mala(step_size=ETA**2 / 2)),
    }
    for name, (step, sampler) in kernels.items():
        steps = max(20, int(arguments.seconds / (by_hand(step, 20, thetas, x, y)() / 20)))
        hand, took = by_hand(step, steps, thetas, x, y), {"hand": [], "vectorized": [], "parallel": []}
        for _ in range(arguments.repeats):
            took["hand"].append(hand())
            for method in ("vectorized", "parallel"):
                took[method].append(by_loop(posterior, sampler, steps, thetas, method))
        ratios = [np.median(np.array(took[m]) / np.array(took["hand"])) for m in ("vectorized", "parallel")]
        print(
            f"| {name} | {1e6 * np.median(took['hand']) / steps:.4g} | {ratios[0]:.2f} | {ratios[1]:.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
