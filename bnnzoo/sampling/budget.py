"""Lengths of a run from the time it may take: what a recipe leaves open of warm-up, thinning and draws.

A pilot measures a gradient on this machine. What follows from it is a recipe in counts, and a run of those counts gives
the same draws on every machine: the clock only says how many of them there are.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from math import ceil
from types import MappingProxyType
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo.assembly import Problem
from bnnzoo.evaluation.diagnostics import is_chain
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.recipe import Recipe, duration
from bnnzoo.samplers import AbstractSampler
from bnnzoo.sampling.placement import Placement
from bnnzoo.sampling.start import train

_LEAST_SHARE = 0.3
"""Of the budget, whatever the start took."""
_START_SHARE = 0.4
"""Of the budget, the training of starts at most: chains that begin a little worse than they could still sample."""
FEWEST_START_STEPS, _PILOT_STEPS = 250, 50
_WARMUP_SHARE = 0.4
_FEWEST_WARMUP, _MOST_WARMUP, _MOST_WARMUP_TRAJECTORIES = 300, 20_000, 1000
"""A trajectory of many gradients tells more of the step size, and goes farther, than a step of one or two."""
_WANTED_DRAWS, MOST_DRAWS, _MOST_THIN = 1000, 2000, 1000
"""The pilot's error is given a factor of two: the clock ends a run that is slower, `MOST_DRAWS` one that is faster."""
_STEP_SECONDS = 2e-5
"""What a step of all chains takes where it looks at almost nothing."""
_OVERHEAD = 1.5
"""A step of a chain to the gradients in it."""
_PILOT_SECONDS, _PILOT_ROWS = 0.2, 4096
_FIRST_STOP = 100
ON_TOP = 80.0
"""What a run takes beside its budget, over tracing one gradient; `benchmarks/seconds.py` prints it."""
FEWEST_DRAWS = 20
"""A run of fewer is none: it goes on after its time."""


def planned(
    problem: Problem,
    placement: Placement,
    thetas: Float[Array | np.ndarray, "chain dim"],
    *,
    started: float,
    chosen: Mapping[str, Any] = MappingProxyType({}),
) -> Problem:
    """The problem with every length that its recipe leaves open, for the recipe's budget; itself where it has none.

    Args:
        started: seconds that the start took.
        chosen: fields of the sampler that it chose itself.
    """
    recipe = problem.recipe
    if recipe.budget is None:
        return problem
    row, started = placement.processes.firsts((seconds_a_row(problem.posterior, placement, thetas), started))
    whole = duration.seconds(recipe.budget)
    budget = max(whole - started, _LEAST_SHARE * whole)
    sampler = _fitted(problem, placement, thetas, gradients=_affordable(problem, budget, row))
    trajectory = sampler.gradients
    means = {"n_steps": float(trajectory)}
    used: AbstractSampler = dataclasses.replace(sampler, **chosen)
    warm, cold = (
        max(_STEP_SECONDS, _OVERHEAD * row * evaluations(problem.posterior, means))
        for evaluations in (used.warmup_evaluations, used.evaluations)
    )
    most = max(_MOST_WARMUP_TRAJECTORIES, _MOST_WARMUP // trajectory)
    lengths = {"warmup": int(np.clip(_WARMUP_SHARE * budget / warm, _FEWEST_WARMUP, most))}
    lengths |= {"thin": 1, "draws": _WANTED_DRAWS}
    if is_chain(sampler.stated_exactness):
        left = budget - warm * (recipe.warmup if "warmup" in recipe.where else lengths["warmup"])
        steps = max(left, (1 - _WARMUP_SHARE) * budget) / cold
        wanted = recipe.draws if "draws" in recipe.where else _WANTED_DRAWS
        lengths |= {"thin": int(np.clip(ceil(steps / wanted), 1, _MOST_THIN)), "draws": MOST_DRAWS}
    open_lengths: dict[str, Any] = {name: n for name, n in lengths.items() if name not in recipe.where}
    return problem.with_lengths(dataclasses.replace(recipe, **open_lengths), sampler)


def with_start(problem: Problem, placement: Placement, *, key: PRNGKeyArray) -> Problem:
    """The problem with as many steps of training as its recipe's budget leaves time for; itself where it has none."""
    recipe = problem.recipe
    if recipe.budget is None or recipe.init == "prior":
        return problem
    steps = training_steps(problem, placement, most=recipe.start_steps, share=_START_SHARE, key=key)
    return problem.with_lengths(dataclasses.replace(recipe, start_steps=steps), problem.sampler)


def training_steps(problem: Problem, placement: Placement, *, most: int, share: float, key: PRNGKeyArray) -> int:
    """Steps of training from a start that fit into a share of the recipe's budget, by a pilot's."""
    assert problem.recipe.budget is not None
    thetas = problem.initial_positions(trained=True, key=key)
    how = {"most_steps": most, "held_out": problem.recipe.start_held_out, "steps_a_look": _PILOT_STEPS}
    stream = train(problem.posterior, thetas, placement=placement, key=key, **how)
    next(stream)  # compiles
    started, steps = time.perf_counter(), most
    if next(stream, None) is not None:
        a_step = (time.perf_counter() - started) / _PILOT_STEPS
        affordable = share * duration.seconds(problem.recipe.budget) / a_step
        steps = int(np.clip(affordable, FEWEST_START_STEPS, max(most, FEWEST_START_STEPS)))
    return placement.processes.firsts(steps)


def on_top(problem: Problem) -> str:
    """A sentence on the time that a run takes beside its budget, by how long this machine traces one gradient."""
    posterior = problem.posterior
    theta, started = jnp.zeros(posterior.layout.dim, posterior.dtype), time.perf_counter()
    eqx.filter_jit(lambda posterior, theta: jax.grad(posterior.log_density)(theta)).lower(posterior, theta)
    seconds = ON_TOP * (time.perf_counter() - started)
    return (
        f"budget {problem.recipe.budget}: for training, warm-up and draws; preparing, compiling, testing and writing "
        f"come on top, about {float(f'{seconds:.1g}'):g} s here, less where these programs were compiled before"
    )


def ladder(draws: int) -> list[int]:
    """The numbers of draws at which a run is asked whether it has converged: fixed, so that a run is repeatable."""
    stops = []
    stop = _FIRST_STOP
    while stop < draws:
        stops.append(stop)
        stop *= 2
    return stops


def sentence(problem: Problem) -> str:
    """What a plan has chosen, in words."""
    recipe, sampler = problem.recipe, cast(Any, problem.sampler)
    trajectory = f" of at most {sampler.gradients} gradients" if sampler.gradients > 1 else ""
    given = sampler.given_step
    trajectory += f", {given.replace('_', ' ')} {float(getattr(sampler, given)):g}" if given else ""
    how = "until it has converged" if recipe.until == "converged" else "until then"
    return (
        f"budget {recipe.budget}: {recipe.warmup} steps of warm-up{trajectory}, then draws, {recipe.thin} "
        f"step{'s' if recipe.thin > 1 else ''} each, at most {recipe.draws}, {how}"
    )


def in_counts(recipe: Recipe, done: int) -> Recipe:
    """The recipe that repeats a run of so many draws, whatever the machine."""
    return dataclasses.replace(recipe, budget=None, until=None, draws=done)


def words(problem: Problem) -> dict[str, Any]:
    """The problem's recipe written out, but for what its budget is to choose: read again, that would be asked for."""
    recipe, written = problem.recipe, problem.resolved()
    if recipe.budget is None:
        return written
    shortest: Any = problem.sampler.within(1.0)
    names = [field.name for field in dataclasses.fields(shortest)]
    fitted = {name for name in names if getattr(shortest, name) != getattr(problem.sampler, name)}
    void = (fitted | {problem.sampler.given_step}) - recipe.sampler.fields.keys()
    sampler = {name: value for name, value in written["sampler"].items() if name not in void}
    lengths = {"warmup", "thin", "draws"} - recipe.where.keys()
    return {**{name: value for name, value in written.items() if name not in lengths}, "sampler": sampler}


def seconds_a_row(
    posterior: AbstractPosterior, placement: Placement, thetas: Float[Array | np.ndarray, "chain dim"]
) -> float:
    """What the gradient of one datum's log likelihood takes, all chains side by side: the median of a few."""
    rows = min(posterior.num_data, _PILOT_ROWS)

    @eqx.filter_jit
    def gradients(posterior: AbstractPosterior, thetas: Float[Array, "chain dim"]) -> Array:
        def one(posterior: Any, theta: Array) -> Array:
            batch = posterior.take(jnp.arange(rows))
            return jax.grad(lambda t: jnp.sum(posterior.log_likelihood(t, batch)))(theta)

        return placement.all_chains(one, posterior, thetas)

    shared, own = placement.put_posterior(posterior), placement.put(jnp.asarray(thetas), 0)
    jax.block_until_ready(gradients(shared, own))
    took: list[float] = []
    while len(took) < 3 or (sum(took) < _PILOT_SECONDS and len(took) < 100):
        started = time.perf_counter()
        jax.block_until_ready(gradients(shared, own))
        took.append(time.perf_counter() - started)
    return float(np.median(took)) / rows


def _affordable(problem: Problem, budget: float, row: float) -> float:
    """Gradients a step that leave room for warm-up and as many draws."""
    steps = _MOST_WARMUP_TRAJECTORIES / 2 + _WANTED_DRAWS / 2
    return budget / (_OVERHEAD * row * problem.posterior.num_data) / steps


def _fitted(
    problem: Problem, placement: Placement, thetas: Float[Array | np.ndarray, "chain dim"], *, gradients: float
) -> AbstractSampler:
    """The sampler with trajectories short enough, and a stable step where it finds none, but for what was asked for."""
    sampler: Any = problem.sampler.within(gradients)
    if given := sampler.given_step:
        longest = placement.processes.firsts(sampler.longest_step(problem.posterior, jnp.asarray(thetas)))
        sampler = dataclasses.replace(sampler, **{given: longest}) if longest < getattr(sampler, given) else sampler
    asked: Mapping[str, Any] = problem.recipe.sampler.fields
    return dataclasses.replace(sampler, **{name: getattr(problem.sampler, name) for name in asked})
