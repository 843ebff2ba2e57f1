"""Efficiency of the Hamiltonian samplers on a small network, against the programs of NumPyro and BlackJAX.

    python benchmarks/hamiltonian.py [--warmup 150] [--draws 100] [--repeats 5] [--only nuts hmc] [--gradients] [--line]

The network is a perceptron 10-50-1 (tanh, a learned noise scale: 602 parameters) with 400 rows. Four chains start at
the same four untrained networks for all programs, with one device per chain. All programs have the same log density.
ESS is the smallest bulk ESS of the predictive means at 100 other inputs. Seconds are those of warm-up and sampling
together, after a first run of each that compiled. Repeats are interleaved, each with a different seed. If `blackjax` is
not installed, its rows are left out. `--line` replaces the network by a linear regression with 30 strongly correlated
inputs, whose posterior is Gaussian with a large condition number. `--gradients` instead counts the gradients that
`nuts` uses per chain, by the largest depth of its trees in warm-up.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from bnnzoo.evaluation.formulas.rhat import convergence
from bnnzoo.models import Linear, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.samplers import AbstractSampler, Hmc, Mala, Mclmc, Nuts
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.keys import Keys
from bnnzoo.sampling.loop.loop import chunks
from bnnzoo.sampling.seconds import Seconds

CHAINS, COLUMNS, ROWS = 4, 10, 400


class Outcome(NamedTuple):
    """One run: positions (chain, draw, dim), and the seconds of the whole run."""

    draws: np.ndarray
    seconds: float


Method = Callable[[int], Outcome]


def problem() -> tuple[NetworkPosterior, np.ndarray]:
    """Return ten inputs, of which three matter, with equal noise and signal, and the inputs of predictions."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS + 100, COLUMNS)).astype(np.float32)
    y = np.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3] / 2 + 0.8 * rng.normal(size=(len(x), 1))
    y = ((y - y.mean()) / y.std()).astype(np.float32)
    network = Mlp().build((COLUMNS,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Gaussian("learned").of_targets(1), Normal(1.0), x[:ROWS], y[:ROWS])
    return posterior, x[ROWS:]


def correlated_line() -> tuple[NetworkPosterior, np.ndarray]:
    """Return a linear regression on 30 inputs that are three factors plus a little noise, and inputs of predictions."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS + 100, 3)) @ rng.normal(size=(3, 30)) + 0.05 * rng.normal(size=(ROWS + 100, 30))
    y = (x @ rng.normal(size=(30, 1)) / 10 + 0.5 * rng.normal(size=(len(x), 1))).astype(np.float32)
    x = x.astype(np.float32)
    network = Linear().build((30,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Gaussian(0.5).of_targets(1), Normal(1.0), x[:ROWS], y[:ROWS])
    return posterior, x[ROWS:]


def by_loop(
    posterior: NetworkPosterior, sampler: AbstractSampler, starts: np.ndarray, given: Any, thin: int = 1
) -> Method:
    """Return a method that runs a sampler of bnnzoo in the usual loop."""

    def run(seed: int) -> Outcome:
        parts, began = [], time.perf_counter()
        stream = chunks(
            posterior,
            sampler,
            starts,
            keys=Keys.from_seed(seed),
            num_warmup=given.warmup * thin,
            num_draws=given.draws,
            thin=thin,
            placement=place_chains("parallel", CHAINS),
            seconds=Seconds(),
        )
        for chunk in stream:
            if chunk.phase == "sampling":
                parts.append(chunk.draws)
        return Outcome(np.concatenate(parts, 1), time.perf_counter() - began)

    return run


def gradients(posterior: NetworkPosterior, starts: np.ndarray, given: Any) -> None:
    """Print the gradients that warm-up and sampling of `nuts` take, by the depth of trees in warm-up."""
    print("| warmup_tree_depth | warm-up | sampling | a draw |\n|---|---|---|---|")
    for depth in (4, 5, 6, 7, 10):
        spent = {"warm-up": 0.0, "sampling": 0.0}
        for seed in range(given.repeats):
            for chunk in chunks(
                posterior,
                Nuts(warmup_tree_depth=depth),
                starts,
                keys=Keys.from_seed(seed),
                num_warmup=given.warmup,
                num_draws=given.draws,
                keep_warmup=True,
                placement=place_chains("parallel", CHAINS),
                seconds=Seconds(),
            ):
                spent[chunk.phase] += float(np.sum(chunk.stats["n_steps"])) / CHAINS / given.repeats
        per_draw = spent["sampling"] / given.draws
        print(f"| {depth} | {spent['warm-up']:.0f} | {spent['sampling']:.0f} | {per_draw:.0f} |", flush=True)


def by_numpyro(posterior: NetworkPosterior, starts: np.ndarray, given: Any) -> Method:
    """Run NumPyro's NUTS by its own MCMC, with `chain_method="parallel"`."""
    from numpyro.infer import MCMC, NUTS

    kernel = NUTS(potential_fn=lambda theta: -posterior.log_density(theta))
    mcmc = MCMC(
        kernel,
        num_warmup=given.warmup,
        num_samples=given.draws,
        num_chains=CHAINS,
        chain_method="parallel",
        progress_bar=False,
    )

    def run(seed: int) -> Outcome:
        began = time.perf_counter()
        mcmc.run(jax.random.key(seed), init_params=jnp.asarray(starts))
        draws = np.asarray(mcmc.get_samples(group_by_chain=True))
        return Outcome(draws, time.perf_counter() - began)

    return run


def by_blackjax(name: str, posterior: NetworkPosterior, starts: np.ndarray, given: Any) -> Method:
    """Run BlackJAX's window adaptation, then its kernel in a scan, with one device per chain."""
    import blackjax

    adapt = blackjax.window_adaptation_low_rank if name.endswith("low rank") else blackjax.window_adaptation
    algorithm = blackjax.hmc if name.startswith("hmc") else blackjax.nuts
    more: dict[str, Any] = {"num_integration_steps": 32} if name.startswith("hmc") else {}
    chains = Mesh(np.array(jax.local_devices()[:CHAINS]), ("chain",))

    def chain(theta: Any, key: Any) -> Any:
        key_warmup, key_draw = jax.random.split(key[0])
        warmup = adapt(algorithm, posterior.log_density, **more)
        (state, parameters), _ = warmup.run(key_warmup, theta[0], num_steps=given.warmup)  # type: ignore[call-arg]
        step = algorithm(posterior.log_density, **parameters).step

        def draw(state: Any, key: Any) -> Any:
            state, _ = step(key, state)
            return state, state.position

        return jax.lax.scan(draw, state, jax.random.split(key_draw, given.draws))[1][None]

    spread = PartitionSpec("chain")
    mapped = jax.shard_map(chain, mesh=chains, in_specs=(spread, spread), out_specs=spread, check_vma=False)
    program = jax.jit(mapped)

    def run(seed: int) -> Outcome:
        began = time.perf_counter()
        draws = np.asarray(program(jnp.asarray(starts), jax.random.split(jax.random.key(seed), CHAINS)))
        return Outcome(draws, time.perf_counter() - began)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warmup", type=int, default=150)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", metavar="METHOD")
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--line", action="store_true")
    given = parser.parse_args()
    jax_settings.prepare(CHAINS)
    posterior, others = correlated_line() if given.line else problem()
    starts = np.stack([np.asarray(posterior.start(key=key)) for key in jax.random.split(jax.random.key(1), CHAINS)])
    if given.gradients:
        gradients(posterior, starts, given)
        return
    methods: dict[str, Method] = {
        "NumPyro nuts": by_numpyro(posterior, starts, given),
        "nuts": by_loop(posterior, Nuts(), starts, given),
        "hmc": by_loop(posterior, Hmc(), starts, given),
        "mclmc, every 16th": by_loop(posterior, Mclmc(), starts, given, thin=16),
        "mala, every 16th": by_loop(posterior, Mala(), starts, given, thin=16),
    }
    if importlib.util.find_spec("blackjax"):
        methods |= {
            f"BlackJAX {name}": by_blackjax(name, posterior, starts, given)
            for name in ("nuts", "hmc", "nuts, low rank", "hmc, low rank")
        }
    predict = jax.jit(lambda theta: jax.vmap(posterior.network_at(theta))(others)[:, 0])
    results: dict[str, list[list[float]]] = {name: [] for name in given.only or methods}
    for seed in range(given.repeats + 1):
        for name, rows in results.items():
            draws, seconds = methods[name](seed)
            if seed:
                predictions = np.asarray(jax.lax.map(lambda chain: jax.lax.map(predict, chain), jnp.asarray(draws)))
                stats = convergence(predictions)
                rows.append([stats["ess_bulk"], stats["rhat"], seconds, stats["ess_bulk"] / seconds])
    print("| method | ESS | R-hat | seconds | ESS/s | of NumPyro nuts |\n|---|---|---|---|---|---|")
    for name, rows in results.items():
        columns = np.array(rows)
        ratio = (
            np.median(columns[:, 3] / np.array(results["NumPyro nuts"])[:, 3]) if "NumPyro nuts" in results else np.nan
        )
        cells = " | ".join(f"{cell:.3g}" for cell in np.median(columns, 0))
        print(f"| {name} | {cells} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
