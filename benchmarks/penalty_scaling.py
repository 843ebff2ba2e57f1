"""Effective draws per second of the penalty and of full-batch samplers as the number of data grows.

    python benchmarks/penalty_scaling.py logistic [--sizes 1e4 1e5 1e6] [--repeats 3]
    python benchmarks/penalty_scaling.py last-layer [--sizes 1e5 1e6]
    python benchmarks/penalty_scaling.py network [--sizes 1e5 1e6]
    python benchmarks/penalty_scaling.py identified [--sizes 1e4 1e5 1e6] [--hidden 5 16 64-64] [--repeats 1]
    python benchmarks/penalty_scaling.py linearised [--sizes 1e4 1e5 1e6] [--hidden 5 16 64-64] [--repeats 1]
    python benchmarks/penalty_scaling.py lenet --images MNIST [--sizes 1e4] [--repeats 1]
    python benchmarks/penalty_scaling.py command [--sizes 1e6]

logistic    logistic regression with 20 parameters. ESS is that of the parameters, and variances are compared with the
            inverse Hessian at the mode (Newton's method in double precision; the posterior is Gaussian to O(1/N)). If
            blackjax is installed, its random walk and MALA, whitened by that Hessian, run in the same process.
last-layer  an mlp 20-64-1 that is trained once, with its last layer sampled (`--stochastic last`). ESS is that of its
            parameters, and variances are compared with the closed form.
network     a full mlp 20-16-1 (tanh). ESS is that of its predictions at 50 inputs. Their variances within chains are
            compared with those of NUTS in the same run. Three rows move the anchor during sampling (moving_anchors.py).
            Four chains of NUTS from one trained network give the initial positions, so that all are in one mode.
identified  the directions of an mlp 20-5-1 and of a 20-16-1 that the data determine (`--stochastic identified`), with
            the rest at the mode. All methods sample the same block, whose coordinates are whitened. If blackjax is
            installed, its MALA and HMC take part. ESS is that of the coordinates. Variances over all chains are
            compared with those of NUTS up to 1e5 rows, and of full-batch hmc beyond.
linearised  the same networks, linearised at their mode (`--stochastic linearised`), for the sign of the target as its
            label. With a normal likelihood the log posterior would be quadratic, and the control variate exact.
lenet       the directions of a LeNet (`cnn`) with the largest curvature (`--stochastic identified`), for images of a
            folder of IDX files. Beyond the number of its images, copies that are shifted by up to two pixels are added.
command     the command `bnnzoo sample mlp penalty --data rows.parquet --stochastic identified` and then `bnnzoo audit`,
            with default settings, for rows with ten inputs. Each is a process of its own. The table shows the seconds
            from start to end, the sampled directions, their fraction of the variance, and both verdicts.

Every method starts at the same points, tunes itself in warm-up, and runs `--repeats` times, in turn with the others.
ESS is the smallest bulk ESS over parameters (or predictions), summed over chains. Seconds are those of sampling. The
table shows medians over the repeats. Only ratios within one run are meaningful.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import moving_anchors
import numpy as np
import pandas as pd
from arviz_stats.base.array import array_stats

from bnnzoo import assembly
from bnnzoo.data import Dataset, from_arrays, load
from bnnzoo.models import Linear, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.layout import named_leaves
from bnnzoo.posterior.likelihoods import Bernoulli, Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.posterior.subspace import SubspaceChoice
from bnnzoo.recipe import resolve
from bnnzoo.samplers import AbstractSampler, Hmc, Mala, Nuts, Penalty, RandomWalk
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.initial import positions, subspace_start
from bnnzoo.sampling.initial.trained_start import train
from bnnzoo.sampling.loop.loop import Keys, chunks
from bnnzoo.sampling.seconds import Seconds

CHAINS = 4


def _ess(draws: np.ndarray) -> float:
    ess: Any = array_stats.ess(draws)
    return float(ess)


@dataclasses.dataclass
class Outcome:
    """One run: values for the ESS [chain, draw, value], seconds of sampling, steps per chain."""

    values: np.ndarray
    seconds: float
    steps: int
    data: float
    acceptance: float
    sigma2: float

    @property
    def ess(self) -> float:
        return min(_ess(self.values[..., i]) for i in range(self.values.shape[-1]))


Method = Callable[[int], Outcome]


def ours(
    posterior: NetworkPosterior,
    sampler: AbstractSampler,
    thetas: np.ndarray,
    *,
    warmup: int,
    draws: int,
    thin: int = 1,
    values: Callable[[np.ndarray], np.ndarray] = lambda draws: draws,
) -> Method:
    """Return a method that runs a sampler of bnnzoo in the usual loop."""

    def run(seed: int) -> Outcome:
        seconds, parts, stats, last = Seconds(), [], [], None
        stream = chunks(
            posterior,
            sampler,
            thetas,
            keys=Keys.from_seed(seed),
            num_warmup=warmup,
            num_draws=draws,
            thin=thin,
            placement=place_chains("auto", CHAINS),
            seconds=seconds,
        )
        for last in stream:
            if last.phase == "sampling":
                parts.append(last.draws)
                stats.append(last.stats)
        assert last is not None
        mean = {name: float(np.mean(np.concatenate([s[name] for s in stats], 1))) for name in stats[0]}
        return Outcome(
            values(np.concatenate(parts, 1)),
            seconds.sampling,
            draws * thin,
            last.sampler.evaluations(posterior, mean),
            mean.get("acceptance_rate", np.nan),
            mean.get("sigma2", np.nan),
        )

    return run


def blackjax_method(
    kernel: Callable[..., Any],
    posterior: NetworkPosterior,
    mode: np.ndarray,
    covariance: np.ndarray,
    draws: int,
    *,
    passes: int,
) -> Method:
    """Return a method that runs a BlackJAX kernel on the whitened posterior, chains under vmap.

    A step makes `passes` passes over the data.
    """
    factor, centre = jnp.asarray(np.linalg.cholesky(covariance), jnp.float32), jnp.asarray(mode, jnp.float32)

    @jax.jit
    def compiled(posterior: Any, starts: Any, keys: Any) -> Any:
        algorithm = kernel(lambda z: posterior.log_density(centre + factor @ z))

        def chain(start: Any, key: Any) -> Any:
            def step(state: Any, key: Any) -> Any:
                state, info = algorithm.step(key, state)
                return state, (state.position, info.acceptance_rate)

            return jax.lax.scan(step, algorithm.init(start), jax.random.split(key, draws))[1]

        return jax.vmap(chain)(starts, keys)

    posterior = jax.device_put(posterior)

    def run(seed: int) -> Outcome:
        key = jax.random.key(seed)
        starts = jax.random.normal(jax.random.fold_in(key, 0), (CHAINS, len(mode)))
        keys = jax.random.split(jax.random.fold_in(key, 1), CHAINS)
        program = compiled.lower(posterior, starts, keys).compile()
        started = time.perf_counter()
        z, rate = jax.block_until_ready(program(posterior, starts, keys))
        seconds = time.perf_counter() - started
        values = mode + np.asarray(z, float) @ np.asarray(factor, float).T
        return Outcome(values, seconds, draws, passes * posterior.num_data, float(np.mean(rate)), np.nan)

    return run


def blackjax_methods(
    posterior: NetworkPosterior, mode: np.ndarray, covariance: np.ndarray, draws: dict[str, int]
) -> dict[str, Method]:
    """Return kernels of BlackJAX with step sizes that suit a Gaussian, for the given numbers of draws."""
    try:
        import blackjax
    except ImportError:
        print("blackjax is not installed: its rows are left out")
        return {}
    dim = len(mode)
    kernels = {
        "random walk": lambda f: blackjax.normal_random_walk(f, 2.38 / dim**0.5 * jnp.ones(dim)),
        "mala": lambda f: blackjax.mala(f, 0.5 * 1.65**2 / dim ** (1 / 3)),
        "hmc": lambda f: blackjax.hmc(f, 1.2 / dim**0.25, jnp.ones(dim), 5),
    }
    return {
        f"BlackJAX {n}": blackjax_method(kernels[n], posterior, mode, covariance, k, passes=5 if n == "hmc" else 1)
        for n, k in draws.items()
    }


def compare(
    size: int,
    methods: dict[str, Method],
    variances: np.ndarray | None,
    *,
    repeats: int,
    base: str,
    judge: str = "",
    pooled: bool = False,
) -> None:
    """Run all methods in turn, `repeats` times, and print one row per method.

    Variances are compared with `variances`. If it is None, variances within chains, or over all chains (`pooled`), are
    compared with those of `judge`.
    """
    outcomes: dict[str, list[Outcome]] = {name: [] for name in methods}
    for seed in range(repeats):
        for name, run in methods.items():
            started = time.perf_counter()
            outcomes[name].append(run(seed))
            took = time.perf_counter() - started
            print(f"{size:.0e}, {name}, repeat {seed + 1} of {repeats}: {took:.0f} s", file=sys.stderr, flush=True)
    axes = (0, 1) if pooled else 1
    spread = {
        n: np.mean([np.atleast_2d(o.values.astype(float).var(axes)) for o in some], (0, 1))
        for n, some in outcomes.items()
    }
    rate = {name: float(np.median([o.ess / o.seconds for o in some])) for name, some in outcomes.items()}
    for name, some in outcomes.items():
        ess = sum(o.ess for o in some)
        if variances is None:
            ratio = f"{np.mean(spread[name] / spread[judge]):.3f}"
        else:
            whole = np.concatenate([o.values for o in some], 1).astype(float)
            centred = (whole - whole.mean((0, 1))) ** 2
            variance_ratio = np.mean(whole.var((0, 1)) / variances)
            # Antithetic draws have a larger ESS for a mean than for a variance.
            number = min(_ess(centred[..., i]) for i in range(len(variances)))
            ratio = f"{variance_ratio:.3f} ± {np.sqrt(2 / number / len(variances)):.3f}"
        print(
            f"| {size:.0e} | {name} | {np.median([o.data for o in some]):.3g} "
            f"| {np.median([1e6 * o.seconds / o.steps / CHAINS for o in some]):.4g} "
            f"| {np.mean([o.acceptance for o in some]):.2f} | {np.mean([o.sigma2 for o in some]):.2g} | {ess:.0f} "
            f"| {rate[name]:.4g} | {rate[name] / rate[base]:.3g} | {ratio} |",
            flush=True,
        )


def header() -> None:
    print(
        "| N | method | data a step | us a chain-step | acceptance | sigma2 | ESS | ESS/s | of MALA | variance ratio |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")


# ---- logistic regression -------------------------------------------------------------------------


def logistic(size: int, repeats: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, 19)).astype(np.float32)
    weights = rng.normal(size=19) / 19**0.5
    y = (rng.uniform(size=size) < 1 / (1 + np.exp(-x @ weights))).astype(np.int32)
    posterior = NetworkPosterior.of(Linear().build((19,), 1, key=jax.random.key(0)), Bernoulli(), Normal(1.0), x, y)
    mode, covariance = laplace(x, y)
    starts = rng.multivariate_normal(mode, covariance, CHAINS).astype(np.float32)
    full = {10_000: 3000, 100_000: 1000}.get(size, 250)
    walk = {10_000: 10_000, 100_000: 4000}.get(size, 1500)
    methods = {
        "random-walk": ours(posterior, RandomWalk(step_size=0.5 / size**0.5), starts, warmup=200, draws=walk),
        "mala": ours(posterior, Mala(step_size=0.3 / size), starts, warmup=200, draws=full),
    }
    methods |= blackjax_methods(posterior, mode, covariance, {"random walk": walk, "mala": full})
    for proposal, order, draws, thin in (
        ("random-walk", "none", 2000, 10),
        ("random-walk", "first", 5000, 10),
        ("random-walk", "second", 5000, 10),
        ("langevin", "second", 20_000, 1),
        ("hmc", "second", 20_000, 1),
    ):
        sampler = Penalty(control_variate=order, proposal=proposal, step_size=1 / size**0.5 if order == "none" else 0.5)
        name = f"penalty, {proposal}, {order if order != 'none' else 'no'} control variate"
        methods[name] = ours(posterior, sampler, starts, warmup=1000, draws=draws, thin=thin)
    compare(size, methods, np.diag(covariance), repeats=repeats, base="mala")


def laplace(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mode and inverse Hessian of logistic regression (weights, bias) under N(0, I), by Newton's method."""
    design = np.column_stack([x, np.ones(len(x))]).astype(float)
    theta = np.zeros(design.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-design @ theta))
        precision = (design * (p * (1 - p))[:, None]).T @ design + np.eye(len(theta))
        theta = theta + np.linalg.solve(precision, design.T @ (y - p) - theta)
    return theta, np.linalg.inv(precision)


# ---- networks ------------------------------------------------------------------------------------


def teacher(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs in 20 dimensions and a smooth function of them with noise of 0.5."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(size, 20)).astype(np.float32)
    directions = rng.normal(size=(20, 5)) / 20**0.5
    y = np.tanh(x @ directions) @ rng.normal(size=(5, 1)) + 0.5 * rng.normal(size=(size, 1))
    return x, ((y - y.mean()) / y.std()).astype(np.float32)


NOISE = 0.5


def last_layer(size: int, repeats: int) -> None:
    x, y = teacher(size)
    words = {"stochastic": "last", "likelihood": "gaussian", "likelihood.scale": NOISE, "prior": "normal"}
    words |= {"model.hidden": (64,), "test_fraction": 0.0, "chains": CHAINS}
    recipe = resolve("mlp", "penalty", [], words, in_memory=True)
    problem = assembly.Problem.from_recipe(recipe, from_arrays(x, y))
    whole = problem.with_all_sampled()
    assert isinstance(whole.posterior, NetworkPosterior)
    start = whole.initial_positions(trained=True, key=jax.random.key(0))
    for _, trained, _ in train(whole.posterior, start, placement=place_chains("vectorized", 1), key=jax.random.key(1)):  # noqa: B007
        pass
    assert isinstance(problem.posterior, NetworkPosterior)
    fixed = named_leaves(whole.posterior.network_at(jnp.asarray(trained[0])))
    posterior = problem.with_fixed({k: fixed[k] for k in named_leaves(problem.posterior.network)}).posterior
    assert isinstance(posterior, NetworkPosterior)

    design = np.column_stack([posterior.data.x, np.ones(size)]).astype(float)
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(design.shape[1]))
    mode = covariance @ design.T @ np.asarray(posterior.data.y, float)[:, 0] / NOISE**2
    starts = np.random.default_rng(3).multivariate_normal(mode, covariance, CHAINS).astype(np.float32)
    few = 400 if size <= 100_000 else 100
    nuts = Nuts(max_tree_depth=5, step_size=0.3 / size**0.5)
    methods = {
        "mala": ours(posterior, Mala(step_size=0.3), starts, warmup=few, draws=few),
        "nuts": ours(posterior, nuts, starts, warmup=few // 8, draws=few // 8),
        **blackjax_methods(posterior, mode, covariance, {"mala": few}),
    }
    for proposal in ("langevin", "hmc"):
        sampler = Penalty(control_variate="second", proposal=proposal, step_size=0.3)
        name = f"penalty, {proposal}, second control variate"
        methods[name] = ours(posterior, sampler, starts, warmup=2000, draws=20_000)
    compare(size, methods, np.diag(covariance), repeats=repeats, base="mala")


def network(size: int, repeats: int) -> None:
    x, y = teacher(size)
    model = Mlp((16,), "tanh")
    built = model.build((20,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(built, Gaussian(NOISE), Normal(1.0), x, y)
    start = posterior.position(built)[None]
    for _, trained, _ in train(posterior, start, placement=place_chains("vectorized", 1), key=jax.random.key(9)):  # noqa: B007
        pass
    few, fewer, burn_in = (600, 60, 150) if size <= 100_000 else (120, 12, 20)
    nuts = Nuts(max_tree_depth=5)
    starts = ours(posterior, nuts, np.repeat(trained, CHAINS, 0), warmup=burn_in, draws=1)(99).values[:, -1]
    probes = np.random.default_rng(2).normal(size=(50, 20)).astype(np.float32)

    @jax.jit
    def predictions(draws: Any) -> Any:
        return jax.lax.map(lambda t: posterior.outputs(t, jnp.asarray(probes))[:, 0], draws, batch_size=64)

    def values(draws: np.ndarray) -> np.ndarray:
        return np.asarray(predictions(draws.reshape(-1, draws.shape[-1]))).reshape(*draws.shape[:2], -1)

    methods = {
        "mala": ours(posterior, Mala(step_size=0.1 / size), starts, warmup=few, draws=few, values=values),
        "nuts": ours(posterior, nuts, starts, warmup=fewer, draws=fewer, values=values),
    }
    tried = [("random-walk", "none"), ("langevin", "first"), ("hmc", "first"), ("langevin", "second")]
    # Second order is left out at a million data. At 1e5 its warm-up, with a Hessian per window, takes four minutes.
    for proposal, order in tried[: 4 if size <= 100_000 else 3]:
        sampler = Penalty(control_variate=order, proposal=proposal, step_size=0.05 / size, preconditioner="diagonal")
        name = f"penalty, {proposal}, {order if order != 'none' else 'no'} control variate"
        methods[name] = ours(posterior, sampler, starts, warmup=1000, draws=500, thin=10, values=values)
    gap, moves = (100, 120) if size <= 100_000 else (200, 30)
    for kind, width, number in (("diminishing", 0.0, 15), ("extended", 1.0, moves), ("extended", 0.3, moves)):

        def moving(seed: int, kind: Any = kind, width: float = width, number: int = number) -> Outcome:
            result = moving_anchors.run(
                posterior,
                jnp.asarray(starts),
                kind=kind,
                seed=seed,
                gap=gap,
                warmup=30,
                moves=number,
                thin=10,
                width=width,
            )
            return Outcome(
                values(result.draws), result.seconds, result.steps, result.data, result.acceptance, result.sigma2
            )

        methods[f"penalty, langevin, {kind} anchor{f', width {width}' if width else ''}"] = moving
    compare(size, methods, None, repeats=repeats, base="mala", judge="nuts")


def perceptron(size: int, repeats: int, hidden: tuple[int, ...], kind: str) -> None:
    x, y = teacher(size)
    words: dict[str, Any] = {}
    if kind == "identified":
        words |= {"likelihood": "gaussian", "likelihood.scale": NOISE}
    else:
        y = (y[:, 0] > 0).astype(np.int32)
        words |= {"likelihood": "bernoulli"}
    words |= {"model.hidden": hidden, "model.activation": "tanh"}
    lengths = {10_000: (400, 80, 300), 100_000: (300, 60, 300)}.get(size, (60, 15, 0))
    if len(hidden) > 1:  # each gradient takes ten times as long
        lengths = (100, 30, 0) if size <= 100_000 else (20, 6, 0)
    name = f"20-{'-'.join(map(str, hidden))}-1"
    subspace(name, "mlp", words, from_arrays(x, y), repeats=repeats, kind=kind, lengths=lengths)


def lenet(size: int, repeats: int, folder: Path) -> None:
    train = load(str(folder))
    images, labels = np.asarray(train.x), np.asarray(train.y)
    rng, parts = np.random.default_rng(4), [images]
    for _ in range(-(-size // len(images)) - 1):
        parts.append(np.roll(images, tuple(rng.integers(-2, 3, 2)), (1, 2)))
    x = np.concatenate(parts)[:size]
    y = np.tile(labels, len(parts))[:size]
    subspace("LeNet", "cnn", {}, from_arrays(x, y), repeats=repeats, kind="identified", lengths=(60, 15, 0))


def subspace(
    name: str,
    model: str,
    words: dict[str, Any],
    rows: Dataset,
    *,
    repeats: int,
    kind: str,
    lengths: tuple[int, int, int],
) -> None:
    """Compare samplers in a subspace. `lengths` are the draws of mala, of hmc and of nuts (0: without nuts)."""
    size = rows.num_data
    words = words | {"stochastic": kind, "prior": "normal", "test_fraction": 0.0, "chains": CHAINS}
    problem = assembly.Problem.from_recipe(resolve(model, "penalty", [], words, in_memory=True), rows)
    work = positions.StartWork(lambda _: None)
    started, choice = time.perf_counter(), SubspaceChoice(kind, None)
    block = subspace_start.find_subspace(problem, choice, work=work, key=jax.random.key(1))
    print(
        f"{name}, {size:.0e} rows: "
        f"{block.num_directions} of {block.num_parameters} directions, above {block.tau:.4g} x the prior's curvature, "
        f"{100 * block.variance_fraction:.0f} % of the variance; "
        f"{block.rows_needed:.3g} rows needed (predicted); {time.perf_counter() - started:.0f} s to find them",
        flush=True,
    )
    problem = problem.with_fixed(block.values)
    posterior = problem.posterior
    assert isinstance(posterior, NetworkPosterior)
    starts = np.asarray(problem.initial_positions(trained=True, key=jax.random.key(2)))
    walk, tree, nuts = lengths
    methods = {"mala": ours(posterior, Mala(step_size=0.05), starts, warmup=walk, draws=walk)}
    methods["hmc"] = ours(posterior, Hmc(step_size=0.3, num_steps=5), starts, warmup=tree, draws=tree)
    dim = posterior.layout.dim
    methods |= blackjax_methods(posterior, np.asarray(posterior.centre()), np.eye(dim), {"mala": walk, "hmc": tree})
    if nuts:
        methods["nuts"] = ours(posterior, Nuts(max_tree_depth=5), starts, warmup=tree, draws=nuts)
    sampler = Penalty(control_variate="second", proposal="hmc", step_size=0.3)
    methods["penalty, hmc, second control variate"] = ours(posterior, sampler, starts, warmup=600, draws=10_000)
    compare(size, methods, None, repeats=repeats, base="mala", judge="nuts" if nuts else "hmc", pooled=True)


def command(size: int, repeats: int) -> None:
    """Run the default command and its audit as a user does, and print their verdicts."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, 10)).astype(np.float32)
    mean = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.3 * x[:, 3]
    rows = pd.DataFrame(x, columns=[f"x{i}" for i in range(10)]).assign(y=mean + NOISE * rng.normal(size=size))
    print(
        "| N | seconds of sample | directions | fraction of the variance | R-hat | verdict | seconds of audit | audit |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            rows.astype(np.float32).to_parquet(f"{folder}/rows.parquet")
            words = "sample mlp penalty --data rows.parquet --stochastic identified -o big.nc --json"
            sample, sample_seconds = _typed(words, folder)
            audit, audit_seconds = _typed("audit big.nc --json", folder)
            print(
                f"| {size:.0e} | {sample_seconds:.0f} | {sample['directions']} "
                f"| {sample['variance_fraction']:.2f} | {float(sample['rhat']):.3f} | {sample['verdict']} "
                f"| {audit_seconds:.0f} | {audit['verdict'].partition(':')[0]} |",
                flush=True,
            )


def _typed(words: str, folder: str) -> tuple[dict[str, Any], float]:
    """Run a command of bnnzoo in a folder; return its JSON and its seconds."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "bnnzoo", *words.split()], cwd=folder, stdout=subprocess.PIPE, check=False
    )
    return json.loads(done.stdout), time.perf_counter() - started


def _widths(text: str) -> tuple[int, ...]:
    return tuple(int(width) for width in text.split("-"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices = ["logistic", "last-layer", "network", "identified", "linearised", "lenet", "command"]
    parser.add_argument("problem", choices=choices)
    parser.add_argument("--images", type=Path, help="folder of MNIST's IDX files, for lenet")
    parser.add_argument("--sizes", type=float, nargs="+")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--hidden",
        type=_widths,
        nargs="+",
        default=[(5,), (16,)],
        help="hidden units of the networks, such as 16 64-64",
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    jax_settings.prepare(CHAINS)
    sizes = arguments.sizes or ([1e4, 1e5, 1e6] if arguments.problem == "logistic" else [1e5, 1e6])
    problems: dict[str, list[Callable[[int, int], None]]] = {
        "logistic": [logistic],
        "network": [network],
        "last-layer": [last_layer],
        "lenet": [functools.partial(lenet, folder=arguments.images)],
        "command": [command],
        **{
            kind: [functools.partial(perceptron, hidden=hidden, kind=kind) for hidden in arguments.hidden]
            for kind in ("identified", "linearised")
        },
    }
    if arguments.problem != "command":
        header()
    with jax_settings.arithmetic("float32"):
        for problem in problems[arguments.problem]:
            for size in sizes:
                problem(int(size), arguments.repeats)


if __name__ == "__main__":
    main()
