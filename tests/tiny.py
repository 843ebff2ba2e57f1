"""One small problem that most tests share, so that a process compiles each sampler once."""

from __future__ import annotations

import functools
import signal
from typing import Any

import numpy as np
import pytest

from bnnzoo import assembly
from bnnzoo.plugins import registry
from bnnzoo.progress import Progress
from bnnzoo.recipe import Recipe, resolve
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.loop.loop import Chunk, Keys, chunks

CHAINS, WARMUP, DRAWS = 4, 45, 20
PRIOR = ("importance", "rejection")
"""Samplers that draw from the prior: what they ask of a posterior, few data have."""
SAMPLERS = sorted(set(registry.entries("samplers")) - set(PRIOR))
APPROXIMATE = tuple(name for name in SAMPLERS if registry.entries("samplers")[name].exactness == "approximate")
BY_DEFAULT = ("random-walk", "mala", "penalty", "sgld", "hmc", "nuts", "laplace")
EACH = pytest.mark.parametrize(
    "sampler", [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in SAMPLERS]
)
"""Every sampler of the zoo; those of a kind with another one only under `-m slow`."""
GROWING = tuple(name for name in ("minibatch-barker", "austerity", "confidence") if name in SAMPLERS)
"""Samplers of the plugin bnnzoo-minibatch-tests, where `BNNZOO_PLUGINS` names it."""
MINI_BATCH = (*GROWING, "penalty", "batched", "sgld", "sghmc", "psgld", "sms-ubu")
METROPOLIS = (*GROWING, "random-walk", "mala", "penalty", "batched", "gibbs", "mams")

SMALL: dict[str, dict[str, Any]] = {
    "penalty": {"batch_size": 20, "num_batches": 5},
    "batched": {"batch_size": 20, "num_batches": 5},
    "sgld": {"batch_size": 20},
    "sghmc": {"batch_size": 20},
    "psgld": {"batch_size": 20},
    "sms-ubu": {"batch_size": 20},
    **{name: {"batch_size": 100} for name in GROWING},
    "hmc": {"num_steps": 4},
    "mams": {"num_steps": 2},
    "nuts": {"max_tree_depth": 4},
    "bbb": {"reparameterisation": "local"},
    "swag": {"interval": 2, "rank": 3},
}
"""Fields that keep a step cheap."""


def options(sampler: str, **more: Any) -> dict[str, Any]:
    """A short run of the linear model on `diabetes`, in the words of the command line."""
    return {
        "data": "diabetes",
        "likelihood": "gaussian",
        "likelihood.scale": 0.7,
        "prior": "normal",
        "chains": CHAINS,
        "warmup": WARMUP,
        "draws": DRAWS,
        "thin": 1,
        "init": "prior",
        **{f"sampler.{name}": value for name, value in SMALL.get(sampler, {}).items()},
        **more,
    }


def recipe(sampler: str, model: str = "linear", **more: Any) -> Recipe:
    """The recipe of `options`; None takes an option out."""
    return resolve(model, sampler, [], options(sampler, **more))


def arguments(sampler: str, **more: Any) -> list[str]:
    """The arguments of `bnnzoo sample linear SAMPLER` for `options`."""
    given_options = options(sampler, **more)
    pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in given_options.items() if value is not None]
    return ["sample", "linear", sampler, "--quiet", *(word for pair in pairs for word in pair)]


@functools.cache
def problem(sampler: str, chains: int = CHAINS) -> assembly.Problem:
    """The posterior and sampler of `options`."""
    with jax_settings.arithmetic("float32"):
        return assembly.Problem.from_recipe(recipe(sampler, chains=chains))


def run(sampler: str, *, seed: int = 0, chains: int = CHAINS, method: Any = "auto", **more: Any) -> list[Chunk]:
    """All chunks of a run of the loop on the shared problem; `posterior`, `sampler_object` replace its."""
    result = problem(sampler, chains)
    posterior = more.pop("posterior", result.posterior)
    sampler_object = more.pop("sampler_object", result.sampler)
    keys = Keys.from_seed(seed)
    dim = posterior.layout.dim
    thetas = 0.3 * np.random.default_rng(seed).normal(size=(8, dim)).astype(np.float32)[:chains]
    arguments: dict[str, Any] = {"num_warmup": WARMUP, "num_draws": DRAWS, **more}
    with jax_settings.arithmetic("float32"):
        stream = chunks(
            posterior, sampler_object, thetas, keys=keys, placement=place_chains(method, chains), **arguments
        )
        return list(stream)


def joined(chunks: list[Chunk], phase: str = "sampling") -> dict[str, np.ndarray]:
    """Draws and statistics of all chunks of a phase, [chain, draw, ...]."""
    matching = [chunk for chunk in chunks if chunk.phase == phase]
    names = matching[0].stats
    stats = {name: np.concatenate([chunk.stats[name] for chunk in matching], 1) for name in names}
    return {"theta": np.concatenate([chunk.draws for chunk in matching], 1), **stats}


def stopped(chunk: int, number: int = signal.SIGINT) -> dict[str, Any]:
    """Arguments of a run that a signal reaches in this chunk, from 1, whatever its start looked at before."""
    reports: list[Progress] = []

    def watch(progress: Progress) -> None:
        if progress.phase in ("warm-up", "sampling"):
            reports.append(progress)

    return {"observer": watch, "stop": lambda: number if len(reports) >= chunk else 0}


def assert_same_bits(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    """Equal names, types, shapes and bits; NaN equals NaN."""
    assert set(first) == set(second)
    for name, array in first.items():
        assert array.dtype == second[name].dtype, name
        np.testing.assert_array_equal(array, second[name], err_msg=name)
