"""Cost of a step of a convolutional network on this device: `bnnzoo.models.convolution` against XLA's convolution.

    python benchmarks/convolutions.py [--batch 64] [--steps 10] [--repeats 5]

The script measures the time of one step of gradient descent per chain on a batch of images of 28 x 28 pixels, in a
`jax.lax.scan` under a `jax.vmap` over chains. Repeats are interleaved. The table shows medians over the repeats of the
times and of their ratios.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bnnzoo.models import Cnn, Resnet, cnn, resnet
from bnnzoo.models.convolution import convolve

ROWS = 2000
WAYS: dict[str, Callable] = {"xla": lambda layer, image: layer(image), "bnnzoo": convolve}


def compiled(model: Any, chains: int, batch: int, steps: int) -> Callable[[], Any]:
    """Return a call that takes the given number of steps of all chains and waits for them."""
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.normal(size=(ROWS, 1, 28, 28)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 10, ROWS))
    arrays, static = eqx.partition(model.build((1, 28, 28), 10, key=jax.random.key(0)), eqx.is_array)

    def loss(arrays: Any, rows: Any) -> Any:
        logits = jax.vmap(eqx.combine(arrays, static))(images[rows])
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(batch), labels[rows]])

    def chain(arrays: Any, key: Any) -> Any:
        def step(arrays: Any, key: Any) -> tuple[Any, None]:
            slopes = jax.grad(loss)(arrays, jax.random.randint(key, (batch,), 0, ROWS))
            return jax.tree.map(lambda a, g: a - 1e-3 * g, arrays, slopes), None

        return jax.lax.scan(step, arrays, jax.random.split(key, steps))[0]

    starts = jax.tree.map(lambda a: jnp.stack([a] * chains), arrays)
    program = jax.jit(jax.vmap(chain)).lower(starts, jax.random.split(jax.random.key(1), chains)).compile()
    return lambda: jax.block_until_ready(program(starts, jax.random.split(jax.random.key(1), chains)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("batch", 64), ("steps", 10), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}; ms a chain's step")
    print("| model | chains | xla | bnnzoo | ratio |\n|---|---|---|---|---|")
    for model in (Cnn(), Resnet()):
        for chains in (1, 4):
            calls = {}
            for name, way in WAYS.items():
                cnn.convolve = resnet.convolve = way
                calls[name] = compiled(model, chains, given.batch, given.steps)
                calls[name]()
            spent: dict[str, list[float]] = {name: [] for name in WAYS}
            for _ in range(given.repeats):
                for name, call in calls.items():
                    started = time.perf_counter()
                    call()
                    spent[name].append(1e3 * (time.perf_counter() - started) / given.steps / chains)
            each = {name: f"{np.median(times):.1f}" for name, times in spent.items()}
            ratio = np.median(np.array(spent["bnnzoo"]) / np.array(spent["xla"]))
            name = type(model).__name__.lower()
            print(f"| {name} | {chains} | {each['xla']} | {each['bnnzoo']} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
