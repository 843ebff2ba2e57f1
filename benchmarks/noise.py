"""Time of the parts of a step of SGLD, and cost of Gaussian noise that is generated in other ways.

    python benchmarks/noise.py [--repeats 5] [--steps 400]

The first table is for an MLP 784-100-10 (79 510 parameters), 60 000 images, batch 256 and one chain, in a scan written
by hand. The second table is for the noise alone, in a scan of two steps per iteration, generated in three ways:

- by `jax.random.normal`, which uses one pass of Threefry per number and keeps the exclusive or of its two words;
- from both words of a pass, for two consecutive steps or for the two halves of one step, by the inverse distribution
  function or by Box and Muller;
- by the samplers' method, from hashed counters.

The step by hand uses `jax.random.normal`, and once the samplers' noise. Numbers are medians of interleaved repeats.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p
from jaxtyping import Array, Float, PRNGKeyArray, UInt32
from overhead import classifier

from bnnzoo.posterior import NetworkPosterior
from bnnzoo.samplers import standard_normal
from bnnzoo.sampling.devices import jax_settings

BATCH, ETA, DIM = 256, 1e-6, 79_510
Vector = Float[Array, " dim"]
Pair = Callable[[PRNGKeyArray, int], tuple[Vector, Vector]]


def normal(key: PRNGKeyArray) -> Vector:
    return jax.random.normal(key, (DIM,))


def hashed(key: PRNGKeyArray) -> Vector:
    return standard_normal(jnp.zeros(DIM), key=key)


def parts(posterior: NetworkPosterior) -> dict[str, Callable[[Vector, PRNGKeyArray], Vector]]:
    """Return the step, and the step without some of its parts."""

    def step(
        theta: Vector, key: PRNGKeyArray, *, gather: bool = True, gradient: bool = True, noise: Any = normal
    ) -> Any:
        key_batch, key_noise = jax.random.split(key)
        moved = theta
        if gradient:
            # Without the gather the rows are contiguous, but they still change at each step.
            start = jax.random.randint(key_batch, (), 0, posterior.num_data - BATCH)
            slice_of = lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, BATCH)  # noqa: E731
            rows = posterior.minibatch(BATCH, key=key_batch) if gather else jax.tree.map(slice_of, posterior.data)
            scale = posterior.num_data / BATCH
            cost = lambda t: posterior.log_prior(t) + scale * posterior.log_likelihood(t, rows).sum()  # noqa: E731
            moved = moved + ETA * jax.grad(cost)(theta)
        if noise:
            moved = moved + (2 * ETA) ** 0.5 * noise(key_noise)
        return moved

    return {
        "the step": step,
        "with noise from hashed counters": lambda theta, key: step(theta, key, noise=hashed),
        "without noise": lambda theta, key: step(theta, key, noise=None),
        "without noise, rows side by side": lambda theta, key: step(theta, key, noise=None, gather=False),
        "noise alone": lambda theta, key: step(theta, key, gradient=False),
    }


def words(key: PRNGKeyArray, count: int) -> tuple[UInt32[Array, " count"], UInt32[Array, " count"]]:
    """Return both words of `count` passes of Threefry."""
    high, low = (jnp.broadcast_to(word, (count,)) for word in jax.random.key_data(key))
    first, second = threefry2x32_p.bind(high, low, jnp.zeros(count, jnp.uint32), jnp.arange(count, dtype=jnp.uint32))
    return first, second


def uniform(bits: UInt32[Array, " count"]) -> Float[Array, " count"]:
    """Return uniform numbers on [0, 1) with 23 bits."""
    return jax.lax.bitcast_convert_type((bits >> 9) | np.uint32(0x3F800000), jnp.float32) - 1


def inverse(key: PRNGKeyArray, count: int) -> tuple[Vector, Vector]:
    def of(bits: UInt32[Array, " count"]) -> Vector:
        low = np.nextafter(np.float32(-1), np.float32(0))
        return np.sqrt(np.float32(2)) * jax.lax.erf_inv(jnp.maximum(low, uniform(bits) * (1 - low) + low))

    first, second = words(key, count)
    return of(first), of(second)


def box_muller(key: PRNGKeyArray, count: int) -> tuple[Vector, Vector]:
    first, second = words(key, count)
    radius, angle = jnp.sqrt(-2 * jnp.log1p(-uniform(first))), 2 * np.pi * uniform(second)
    return radius * jnp.cos(angle), radius * jnp.sin(angle)


def noises() -> dict[str, Callable[[Vector, PRNGKeyArray], Vector]]:
    """Return functions that take two steps of noise alone."""

    def two_steps(theta: Vector, pair: tuple[Vector, Vector]) -> Vector:
        return 0.999 * (0.999 * theta + pair[0]) + pair[1]

    def apart(way: Callable[[PRNGKeyArray], Vector]) -> Pair:
        def two(key: PRNGKeyArray, count: int) -> tuple[Vector, Vector]:
            del count
            now, then = jax.random.split(key)
            return way(now), way(then)

        return two

    def halves(pair: Pair) -> Pair:
        def joined(key: PRNGKeyArray, count: int) -> tuple[Vector, Vector]:
            now, then = jax.random.split(key)
            return jnp.concatenate(pair(now, count // 2)), jnp.concatenate(pair(then, count // 2))

        return joined

    ways: dict[str, Pair] = {
        "jax.random.normal": apart(normal),
        "hashed counters": apart(hashed),
        "both words, two steps, inverse": inverse,
        "both words, two steps, Box-Muller": box_muller,
        "both words, two halves, inverse": halves(inverse),
        "both words, two halves, Box-Muller": halves(box_muller),
    }
    return {name: lambda theta, key, way=way: two_steps(theta, way(key, DIM)) for name, way in ways.items()}


def compare(steps: dict[str, Callable[[Vector, PRNGKeyArray], Vector]], per: int, num_steps: int, repeats: int) -> None:
    """Print one row per function: microseconds per step, and the ratio to the first function."""
    keys = jax.random.split(jax.random.key(0), num_steps // per)
    theta = 0.01 * jax.random.normal(jax.random.key(1), (DIM,))
    scans = {
        name: jax.jit(lambda theta, keys, step=step: jax.lax.scan(lambda t, k: (step(t, k), None), theta, keys)[0])
        for name, step in steps.items()
    }
    took: dict[str, list[float]] = {name: [] for name in scans}
    for repeat in range(1 + repeats):
        for name, scan in scans.items():
            began = time.perf_counter()
            jax.block_until_ready(scan(theta, keys))
            if repeat:
                took[name].append(time.perf_counter() - began)
    first = np.array(next(iter(took.values())))
    print(f"| {'of a step' if per == 1 else 'noise'} | us a step | ratio |\n|---|---|---|")
    for name, seconds in took.items():
        ratio = np.median(np.array(seconds) / first)
        print(f"| {name} | {1e6 * np.median(seconds) / num_steps:.4g} | {ratio:.2f} |", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    jax_settings.prepare()
    with jax_settings.arithmetic("float32"):
        compare(parts(jax.device_put(classifier())), 1, arguments.steps, arguments.repeats)
        compare(noises(), 2, arguments.steps, arguments.repeats)


if __name__ == "__main__":
    main()
