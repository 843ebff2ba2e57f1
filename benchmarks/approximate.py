"""Predictive sd of the approximate methods on a small network, against its exact posterior.

    python benchmarks/approximate.py [--chains 32] [--seed 0]

The network is that of `bnnzoo.testing.targets.SmallNetwork`: 16 hidden units, five data on [-1, 1], noise 0.2. The
script prints for each method the mean and the sd of f(1.5), just outside the data, and the sd of f(0.25), between the
data. The sd is given for one chain (from the mean of its variance over chains) and for all chains together. The exact
values are averages of closed forms and not results of a sampler.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import bnnzoo
from bnnzoo.evaluation.predictions import per_draw
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.store.schema import LINEARISED_AT
from bnnzoo.testing.targets import HIDDEN, NETWORK_AT, NETWORK_MEAN, NETWORK_SD, NOISE, small_network


class Network(eqx.Module):
    """The target's network with its parameters in units of their prior, as dense layers."""

    first: eqx.nn.Linear
    last: eqx.nn.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(jnp.tanh(2 * self.first(x)) / HIDDEN**0.5)


def posterior() -> NetworkPosterior:
    """Return the posterior of the target as that of a network with outputs."""
    keys = jax.random.split(jax.random.key(0))
    network = Network(eqx.nn.Linear(1, HIDDEN, key=keys[0]), eqx.nn.Linear(HIDDEN, 1, key=keys[1]))
    x, y = small_network().posterior.data
    return NetworkPosterior.of(network, Gaussian(scale=NOISE), Normal(), x[:, None], y[:, None])


LONG = {"warmup": 5000, "draws": 2000}
METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "nuts (control)": (bnnzoo.Nuts(), {"warmup": 2000, "draws": 2000, "thin": 2}),
    "ensemble": (bnnzoo.Ensemble(), {"warmup": 0, "draws": 1}),
    "bbb, local": (bnnzoo.Bbb(reparameterisation="local"), LONG),
    "bbb, weights": (bnnzoo.Bbb(), LONG),
    "laplace, full": (bnnzoo.Laplace(covariance="full"), {**LONG, "warmup": 3000}),
    "laplace, kronecker": (bnnzoo.Laplace(covariance="kronecker"), {**LONG, "warmup": 3000}),
    "laplace, diagonal": (bnnzoo.Laplace(covariance="diagonal"), {**LONG, "warmup": 3000}),
    "laplace, full, network": (bnnzoo.Laplace(covariance="full", predictive="network"), {**LONG, "warmup": 3000}),
    "laplace, last layer": (bnnzoo.Laplace(covariance="full"), {**LONG, "warmup": 3000}),
    "swag, rate 0.005": (bnnzoo.Swag(batch_size=2, learning_rate=5e-3), LONG),
    "swag, rate 0.01": (bnnzoo.Swag(batch_size=2, learning_rate=1e-2), LONG),
    "dropout, p = 0.05": (bnnzoo.Dropout(rate=0.05), LONG),
    "dropout, p = 0.1": (bnnzoo.Dropout(rate=0.1), LONG),
    "dropout, p = 0.3": (bnnzoo.Dropout(rate=0.3), LONG),
}


def functions(method: str, chains: int, seed: int) -> np.ndarray:
    """Return f at `NETWORK_AT` for every draw, [chain, draw, point]."""
    sampler, options = METHODS[method]
    whole = posterior()
    of = _last_layer(whole, seed) if method == "laplace, last layer" else whole
    return _values(of, bnnzoo.sample(of, sampler, chains=chains, seed=seed, **options))


def _last_layer(whole: NetworkPosterior, seed: int) -> NetworkPosterior:
    """Return the posterior of the last layer alone; the first layer is that of sampled_leaf trained network."""
    trained = bnnzoo.sample(whole, bnnzoo.Ensemble(), chains=1, seed=seed, warmup=0, draws=1)
    network = whole.network_at(jnp.asarray(_draws(whole, trained.posterior["posterior"])[0]))
    last = (network.last.weight, network.last.bias)
    return NetworkPosterior.of(
        network, whole.likelihood, whole.prior, *whole.data, sampled=lambda leaf: any(leaf is array for array in last)
    )


def _draws(of: NetworkPosterior, group: Any, prefix: str = "") -> np.ndarray:
    arrays = [np.asarray(group[prefix + block.name].values) for block in of.layout.blocks]
    lead = 1 if prefix else 2
    return np.concatenate([a.reshape(int(np.prod(a.shape[:lead])), -1) for a in arrays], 1)


def _values(of: NetworkPosterior, run: Any) -> np.ndarray:
    draws, chains = _draws(of, run.posterior["posterior"]), run.posterior["posterior"].sizes["chain"]
    if "constant_data" in run.posterior.children:
        modes = _draws(of, run.posterior["constant_data"], LINEARISED_AT)
        draws = np.concatenate([draws, np.repeat(modes, len(draws) // chains, 0)], 1)
    return per_draw.functions(of, draws, NETWORK_AT[:, None]).reshape(chains, -1, len(NETWORK_AT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=list(METHODS), help=", ".join(METHODS))
    parser.add_argument("--chains", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("always")
    middle, far = (int(np.argmax(np.isclose(NETWORK_AT, at))) for at in (0.25, 1.5))
    print(
        "| method | mean f(1.5) | sd f(1.5), one chain | sd f(1.5), all | sd f(0.25), one chain | sd f(0.25), all | s |"
    )
    print("|---|---|---|---|---|---|---|")
    exact = f"{NETWORK_MEAN[far]:.3f} | | {NETWORK_SD[far]:.3f} | | {NETWORK_SD[middle]:.3f}"
    print(f"| exact | {exact} | |", flush=True)
    for method in arguments.methods:
        started = time.perf_counter()
        values = functions(method, arguments.chains, arguments.seed).astype(float)
        seconds = time.perf_counter() - started
        own = np.sqrt(values.var(1).mean(0))
        pooled = values.reshape(-1, values.shape[2])
        together = pooled.std(0)
        cells = [f"{pooled[:, far].mean():.3f}"]
        cells += [f"{sd[point]:.3f}" for point in (far, middle) for sd in (own, together)]
        print(f"| {method} | {' | '.join(cells)} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
