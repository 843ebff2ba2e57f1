"""Use of an accelerator by chains: chain-steps per second against the number of chains and the device's limits.

    python benchmarks/gpu.py [--chains 1 4 16 64 256 1024 4096] [--models mdn mlp lenet] [--seconds 2] [--repeats 5]
    python benchmarks/gpu.py --profile [--chains 1 1024] [--models mlp]

There are three kernels. Each runs in bnnzoo's loop with all statistics (`vectorized`) and stores every hundredth
position:

    mdn    HMC of ten leapfrog steps, a mixture density network with 34 parameters, 600 rows
    mlp    SGLD on batches of 256, 784-100-10, 60 000 rows
    lenet  SGLD on batches of 256, the `cnn` model, 60 000 images

`flops` and `bytes` are fractions of what the device reaches in this process, in a matrix product of 4096 x 4096 and in
a copy of 256 MB. The work of a step is given by XLA's cost analysis of the step compiled alone, which ignores caches.
If blackjax is installed, the last column is its chain-steps per second for the same kernel in a scan under `vmap`, as
a ratio to bnnzoo's. Both copy the stored positions to the host. Repeats are interleaved, and numbers are medians over
the repeats. Matrix products are in JAX's default precision, which is printed.

`--profile` counts the kernels of a step instead, and the microseconds in which the device is busy with them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bnnzoo.models import Cnn, Mdn, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Categorical
from bnnzoo.posterior.priors import Normal
from bnnzoo.samplers import Hmc, Sgld
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.keys import Keys, keys_by_chain
from bnnzoo.sampling.loop.loop import chunks
from bnnzoo.sampling.seconds import Seconds

LEAPFROGS, BATCH, THIN = 10, 256, 100


def mdn() -> tuple[NetworkPosterior, Hmc | Sgld]:
    """Return y = sin 3x with noise that grows with |x|, under one Gaussian."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (600, 1)).astype(np.float32)
    y = np.sin(3 * x) + (0.1 + 0.3 * np.abs(x)) * rng.normal(size=x.shape).astype(np.float32)
    model = Mdn(hidden=(8,), components=1)
    likelihood: Any = model.own_likelihood()
    network = model.build((1,), likelihood.num_outputs(1), key=jax.random.key(0))
    return NetworkPosterior.of(network, likelihood, Normal(1.0), x, y), Hmc(step_size=1e-3, num_steps=LEAPFROGS)


def images(model: Any, shape: tuple[int, ...]) -> tuple[NetworkPosterior, Hmc | Sgld]:
    """Return random inputs of ten classes."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (60_000, *shape)).astype(np.uint8)
    network = model.build(shape, 10, key=jax.random.key(0))
    y = rng.integers(0, 10, len(x)).astype(np.int32)
    posterior = NetworkPosterior.of(network, Categorical(), Normal(1.0), x, y, input_mean=128.0, input_sd=74.0)
    return posterior, Sgld(step_size=1e-7, batch_size=BATCH)


MODELS: dict[str, Callable[[], tuple[NetworkPosterior, Hmc | Sgld]]] = {
    "mdn": mdn,
    "mlp": lambda: images(Mlp((100,), "relu"), (784,)),
    "lenet": lambda: images(Cnn(), (1, 28, 28)),
}


def limits() -> tuple[float, float]:
    """Return the floating-point operations and bytes per second that this device reaches."""
    a = jnp.ones((4096, 4096), jnp.float32)
    long = jnp.ones(2**26, jnp.float32)
    product, copy = jax.jit(lambda a: a @ a), jax.jit(lambda v: v + 1)
    return 2 * 4096**3 / quickest(lambda: product(a)), 2 * long.nbytes / quickest(lambda: copy(long))


def quickest(call: Callable[[], Any]) -> float:
    """Return the seconds of a call, the smallest of ten."""
    took = []
    for _ in range(11):
        started = time.perf_counter()
        jax.block_until_ready(call())
        took.append(time.perf_counter() - started)
    return min(took[1:])


def work(posterior: NetworkPosterior, sampler: Hmc | Sgld, thetas: Any) -> tuple[float, float]:
    """Return the operations and bytes of one step of one of these chains, by XLA's cost analysis."""
    keys, (arrays, static) = keys_by_chain(jax.random.key(1), len(thetas)), eqx.partition(posterior, eqx.is_array)

    def steps(arrays: Any, thetas: Any, keys: Any) -> Any:
        posterior = eqx.combine(arrays, static)

        def one_chain(theta: Any, key: Any) -> Any:
            state = sampler.init(posterior, theta, num_warmup=0, key=key)
            return sampler.step(posterior, state, key=key)[0].position

        return jax.vmap(one_chain)(thetas, keys)

    cost: Any = jax.jit(steps).lower(arrays, thetas, keys).compile().cost_analysis()
    return cost.get("flops", np.nan) / len(thetas), cost.get("bytes accessed", np.nan) / len(thetas)


def by_loop(posterior: NetworkPosterior, sampler: Hmc | Sgld, thetas: Any, draws: int) -> float:
    """Return the chain-steps per second of sampling, after compilation."""
    seconds = Seconds()
    placement = place_chains("vectorized", len(thetas))
    how = {"keys": Keys.from_seed(0), "num_warmup": 0, "num_draws": draws, "thin": THIN, "placement": placement}
    for _ in chunks(posterior, sampler, thetas, seconds=seconds, **how):
        pass
    return len(thetas) * draws * THIN / seconds.sampling


def by_blackjax(posterior: NetworkPosterior, sampler: Hmc | Sgld, thetas: Any) -> Callable[[int], float]:
    """Return a timer of BlackJAX's same kernel, in a scan under `vmap` that stores what bnnzoo stores."""
    import blackjax

    arrays, static = eqx.partition(posterior, eqx.is_array)

    def one_chain(arrays: Any, theta: Any, key: Any, draws: int) -> Any:
        posterior = eqx.combine(arrays, static)
        if isinstance(sampler, Hmc):
            ones = jnp.ones(posterior.layout.dim)
            kernel: Any = blackjax.hmc(posterior.log_density, float(sampler.step_size), ones, LEAPFROGS)
            state, step = kernel.init(theta), lambda state, key: kernel.step(key, state)[0]
        else:
            scale = posterior.num_data / BATCH

            def gradient(theta: Any, batch: Any) -> Any:
                seen = lambda t: posterior.log_prior(t) + scale * jnp.sum(posterior.log_likelihood(t, batch))  # noqa: E731
                return jax.grad(seen)(theta)

            kernel, state = blackjax.sgld(gradient), theta

            def step(state: Any, key: Any) -> Any:
                key_batch, key_noise = jax.random.split(key)
                batch = posterior.minibatch(BATCH, key=key_batch)
                return kernel.step(key_noise, state, batch, float(sampler.step_size))

        def draw(state: Any, i: Any) -> Any:
            keys = jax.vmap(lambda j: jax.random.fold_in(key, i * THIN + j))(jnp.arange(THIN))
            state = jax.lax.scan(lambda s, k: (step(s, k), None), state, keys)[0]
            return state, state if isinstance(sampler, Sgld) else state.position

        return jax.lax.scan(draw, state, jnp.arange(draws))[1]

    scan = jax.jit(jax.vmap(one_chain, (None, 0, 0, None)), static_argnums=3)
    keys = keys_by_chain(jax.random.key(2), len(thetas))

    def timed(draws: int) -> float:
        jax.block_until_ready(scan(arrays, thetas, keys, draws))
        started = time.perf_counter()
        jax.device_get(scan(arrays, thetas, keys, draws))
        return len(thetas) * draws * THIN / (time.perf_counter() - started)

    return timed


def profile(call: Callable[[], Any], steps: int) -> tuple[float, float]:
    """Return the number of kernels per step, and the microseconds per step in which the device is busy."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            call()
        (file,) = Path(folder).glob("plugins/profile/*/*.trace.json.gz")
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    names = {
        (e["pid"], e.get("tid")): e["args"]["name"] for e in events if e.get("ph") == "M" and e["name"] == "thread_name"
    }
    kernels = [e for e in events if e.get("ph") == "X" and names.get((e["pid"], e["tid"]), "").startswith("Stream")]
    return len(kernels) / steps, sum(e["dur"] for e in kernels) / steps


def print_profiles(posterior: NetworkPosterior, sampler: Hmc | Sgld, thetas: Any, label: str) -> None:
    """Print a line per library."""
    peer, draws = by_blackjax(posterior, sampler, thetas), max(1, 20 // len(thetas))
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "bnnzoo": (lambda: by_loop(posterior, sampler, thetas, draws), 1),
        "BlackJAX": (lambda: peer(draws), 2),  # it runs the scan twice, the first time to compile it
    }
    for library, (call, runs) in calls.items():
        call()
        count, busy = profile(call, draws * THIN * runs)
        print(f"| {label} | {library} | {count:.1f} | {busy:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, nargs="+", default=[1, 4, 16, 64, 256, 1024, 4096])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="count the kernels of a step instead")
    arguments = parser.parse_args()
    jax_settings.prepare()
    most_flops, most_bytes = limits()
    precision = jax.config.jax_default_matmul_precision or "default"  # type: ignore[attr-defined]
    print(f"{jax.local_devices()[0].device_kind}, jax {jax.__version__}, matrix products in {precision} precision,")
    print(f"{most_flops / 1e12:.3g} TFLOP/s and {most_bytes / 1e9:.3g} GB/s reached\n")
    if arguments.profile:
        print("| model | chains | library | kernels per step | busy us per step |\n|---|---|---|---|---|")
    else:
        print(
            "| model | chains | chain-steps per second | flops | bytes | BlackJAX / bnnzoo |\n|---|---|---|---|---|---|"
        )
    for name in arguments.models:
        posterior, sampler = MODELS[name]()
        posterior = jax.tree.map(lambda a: jnp.asarray(a) if isinstance(a, np.ndarray) else a, posterior)
        for chains in arguments.chains:
            thetas = 0.01 * jax.random.normal(jax.random.key(3), (chains, posterior.layout.dim))
            if arguments.profile:
                print_profiles(posterior, sampler, thetas, f"{name} | {chains}")
                continue
            flops, read = work(posterior, sampler, thetas)
            draws = max(1, int(arguments.seconds * by_loop(posterior, sampler, thetas, 1) / (THIN * chains)))
            peer = by_blackjax(posterior, sampler, thetas) if find_spec("blackjax") else None
            ours, theirs = [], []
            for _ in range(arguments.repeats):
                ours.append(by_loop(posterior, sampler, thetas, draws))
                theirs.append(peer(draws) if peer else np.nan)
            rate, ratio = np.median(ours), np.median(np.array(theirs) / np.array(ours))
            shares = f"{flops * rate / most_flops:.2g} | {read * rate / most_bytes:.2g}"
            print(f"| {name} | {chains} | {rate:.4g} | {shares} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
