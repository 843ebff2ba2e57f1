"""Choice of the lengths of a run from its time budget: warm-up, thinning and draws, unless the recipe sets them.

The time of a gradient is measured here. The time of a step is measured later, and `measured_lengths.py` changes the
lengths: before the first step, in warm-up, and at the end of warm-up. After warm-up, the clock determines only the
number of draws. The file stores a recipe with the final lengths. This recipe gives the same draws on fast and slow
machines of the same kind.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bnnzoo.assembly import Problem
from bnnzoo.evaluation.convergence.diagnostics import is_chain
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.recipe import Recipe, duration
from bnnzoo.samplers import AbstractSampler
from bnnzoo.sampling.devices.placement import Placement
from bnnzoo.sampling.initial.trained_start import train

MIN_SHARE = 0.3
"""Smallest fraction of the budget for warm-up and draws, even if finding the initial positions took too long."""
_START_SHARE = 0.4
"""Largest fraction of the budget for training the initial positions. More training is worth less than more draws."""
MIN_START_STEPS, _PILOT_STEPS = 250, 50
WARMUP_SHARE = 0.4
MIN_WARMUP, MAX_WARMUP, _MAX_WARMUP_TRAJECTORIES = 300, 20_000, 2048
"""Limits of the number of warm-up steps. With long trajectories fewer steps suffice, because a step moves farther."""
_WANTED_TRAJECTORIES = 750
"""Target number of trajectories, in warm-up and sampling together; it determines the length of a trajectory.

The actual number is larger, because `_OVERHEAD` is cautious and lengths are rounded down. Few long trajectories are
better than many short ones: in a slow chain, the trajectories are the steps of a random walk. The effective sample size
of the walk is proportional to the total length of all trajectories times the length of one trajectory."""
WANTED_DRAWS, MAX_DRAWS, MAX_THIN = 1000, 4000, 1000
"""Target number of draws, largest number of draws, and largest thinning. Smaller thinnings are powers of two."""
STEP_SECONDS = 2e-5
"""Smallest assumed time, in seconds, of a step of all chains. This bound matters if a step uses few data."""
_OVERHEAD = 1.5
"""Assumed time of a step, relative to the time of its gradients."""
_PILOT_SECONDS, _PILOT_ROWS = 0.2, 4096
_CALL_SECONDS, _MAX_GRADIENTS_PER_CALL = 0.02, 512
"""Shortest call of the program in `seconds_per_row`, in seconds, and largest number of gradients per call.

A sampler computes many gradients per call of its program, so the time of the call itself must not count."""
OVERHEAD_TRACES = 80.0
"""Time of a run that the budget does not cover, in units of the time that JAX needs to trace one gradient.

See `benchmarks/seconds.py`."""
_ENDINGS = {"converged": "the chains have converged", "predictions": "the predictions hardly change"}


def plan_lengths(
    problem: Problem,
    placement: Placement,
    thetas: Float[Array | np.ndarray, "chain dim"],
    *,
    start_seconds: float,
    chosen_fields: Mapping[str, Any] = MappingProxyType({}),
) -> Problem:
    """Return the problem with lengths (warm-up, thinning, draws) for its budget; unchanged without a budget.

    Lengths that the recipe sets are kept.

    Args:
        problem: the problem of the run.
        placement: the placement of the run's chains.
        thetas: the initial positions.
        start_seconds: seconds that were spent on the initial positions.
        chosen_fields: values that the sampler has chosen for its `auto` fields.
    """
    recipe = problem.recipe
    if recipe.budget is None:
        return problem
    row_seconds, start_seconds = placement.processes.broadcast_first(
        (seconds_per_row(problem, placement, thetas), start_seconds)
    )
    budget = seconds_after_start(recipe.budget, start_seconds)
    sampler = _fit_trajectory(problem, placement, thetas, gradients=_affordable_gradients(problem, budget, row_seconds))
    trajectory = sampler.gradients
    means = {"n_steps": float(trajectory)}
    evaluations = dataclasses.replace(sampler, **chosen_fields).evaluations
    warmup_step_seconds, step_seconds = (
        max(STEP_SECONDS, _OVERHEAD * row_seconds * evaluations(problem.posterior, means, warmup=warmup))
        for warmup in (True, False)
    )
    max_warmup = max(_MAX_WARMUP_TRAJECTORIES, MAX_WARMUP // trajectory)
    affordable_warmup = round_down(WARMUP_SHARE * budget / warmup_step_seconds, max_warmup)
    lengths = {"warmup": max(MIN_WARMUP, affordable_warmup)}
    lengths |= {"thin": 1, "draws": WANTED_DRAWS}
    if is_chain(sampler.stated_exactness):
        draw_seconds = budget - warmup_step_seconds * (recipe.warmup if "warmup" in recipe.where else lengths["warmup"])
        steps = max(draw_seconds, (1 - WARMUP_SHARE) * budget) / step_seconds
        wanted_draws = recipe.draws if "draws" in recipe.where else WANTED_DRAWS
        lengths |= {"thin": max(1, round_down(steps / wanted_draws, MAX_THIN)), "draws": MAX_DRAWS}
    open_lengths: dict[str, Any] = {name: length for name, length in lengths.items() if name not in recipe.where}
    return problem.with_lengths(dataclasses.replace(recipe, **open_lengths), sampler)


def seconds_after_start(budget: str, start_seconds: float) -> float:
    """Return the seconds of a budget for warm-up and draws, after `start_seconds` for the initial positions."""
    seconds = duration.seconds(budget)
    return max(seconds - start_seconds, MIN_SHARE * seconds)


def round_down(length: float, largest: int) -> int:
    """Return `largest` if `length` is at least `largest`, else the largest power of two up to `length`, at least 1.

    Measured times differ by a few percent between runs. The rounded lengths of two runs, and therefore their draws, are
    usually equal.
    """
    return largest if length >= largest else int(2.0 ** np.floor(np.log2(max(length, 1.0))))


def with_start(problem: Problem, placement: Placement, *, choice_seconds: float, key: PRNGKeyArray) -> Problem:
    """Return the problem with as many training steps as the budget allows; unchanged without a budget or training.

    Args:
        problem: the problem of the run.
        placement: the placement of the run's chains.
        choice_seconds: seconds that were spent on the choice of the likelihood and of the model.
        key: random key of the short training run that measures the time of a step.
    """
    recipe = problem.recipe
    if recipe.budget is None or not recipe.trains_start:
        return problem
    choice_share = choice_seconds / duration.seconds(recipe.budget)
    share = max(0.0, min(_START_SHARE, 1 - MIN_SHARE - choice_share))
    steps = training_steps(problem, placement, most=recipe.start_steps, share=share, key=key)
    return problem.with_lengths(dataclasses.replace(recipe, start_steps=steps), problem.sampler)


def training_steps(problem: Problem, placement: Placement, *, most: int, share: float, key: PRNGKeyArray) -> int:
    """Return the number of training steps that fit into a fraction `share` of the budget.

    A short training run measures the time of a step. The result is at most `most`, but at least `MIN_START_STEPS`.
    """
    assert problem.recipe.budget is not None
    thetas = problem.initial_positions(trained=True, key=key)
    options = {"most_steps": most, "held_out": problem.recipe.start_held_out, "steps_per_report": _PILOT_STEPS}
    options["stores_order"] = not problem.has_mapped_rows
    stream = train(problem.posterior, thetas, placement=placement, key=key, **options)
    next(stream)  # compiles
    start_time, steps = time.perf_counter(), most
    if next(stream, None) is not None:
        step_seconds = (time.perf_counter() - start_time) / _PILOT_STEPS
        affordable_steps = share * duration.seconds(problem.recipe.budget) / step_seconds
        steps = int(np.clip(affordable_steps, MIN_START_STEPS, max(most, MIN_START_STEPS)))
    return placement.processes.broadcast_first(steps)


def describe_overhead(problem: Problem) -> str:
    """Return a sentence about the time that the budget does not cover, estimated from the time to trace a gradient."""
    posterior = problem.posterior
    theta, start_time = jnp.zeros(posterior.layout.dim, posterior.dtype), time.perf_counter()
    eqx.filter_jit(lambda posterior, theta: jax.grad(posterior.log_density)(theta)).lower(posterior, theta)
    seconds = OVERHEAD_TRACES * (time.perf_counter() - start_time)
    return (
        f"budget {problem.recipe.budget}: covers training, warm-up and draws; preparing, compiling, testing and "
        f"writing take about {float(f'{seconds:.1g}'):g} s more, or less if an earlier run has compiled the same "
        "programs"
    )


def sentence(problem: Problem) -> str:
    """Describe the planned lengths in a sentence."""
    recipe, sampler = problem.recipe, cast(Any, problem.sampler)
    trajectory = f" of at most {sampler.gradients} gradients each" if sampler.gradients > 1 else ""
    if not trajectory and (field := sampler.budget_field):
        trajectory = f", {field.replace('_', ' ')} {float(getattr(sampler, field)):g}"
    ending = f"at most {recipe.draws} draws, until {_ENDINGS.get(recipe.until or '', 'the budget is used up')}"
    return f"budget {recipe.budget}: {recipe.warmup} steps of warm-up{trajectory}, then {ending}"


def with_drawn_lengths(recipe: Recipe, num_draws: int) -> Recipe:
    """Return a recipe without a budget that repeats a run of `num_draws` draws on a machine of any speed."""
    return dataclasses.replace(recipe, budget=None, until=None, draws=num_draws)


def recipe_to_write(problem: Problem) -> dict[str, Any]:
    """Return the recipe without the values that its budget determines.

    If these values were written to a file, a later run would treat them as values that the user has set.
    """
    recipe, resolved = problem.recipe, problem.resolved_recipe()
    if recipe.budget is None:
        return resolved
    derived_fields = {problem.sampler.budget_field} - recipe.sampler.fields.keys()
    sampler = {name: value for name, value in resolved["sampler"].items() if name not in derived_fields}
    lengths = {"warmup", "planned_warmup", "thin", "draws"} - recipe.where.keys()
    return {**{name: value for name, value in resolved.items() if name not in lengths}, "sampler": sampler}


def seconds_per_row(problem: Problem, placement: Placement, thetas: Float[Array | np.ndarray, "chain dim"]) -> float:
    """Measure the seconds, per datum, that all chains together need for one gradient of a step.

    The result is the shortest of several times, because other work on the machine can only make a call slower. The
    gradient is that of the log-likelihood, unless the sampler defines another one (`trajectory_gradient`).
    """
    sampler, posterior = problem.sampler, problem.posterior
    own_gradient = eqx.filter_eval_shape(sampler.trajectory_gradient, posterior, jnp.asarray(thetas[0])) is not None
    rows = posterior.num_data if own_gradient else min(posterior.num_data, _PILOT_ROWS)

    @eqx.filter_jit
    def gradients(posterior: AbstractPosterior, thetas: Float[Array, "chain dim"], count: Int[Array, ""]) -> Array:
        def repeat(shared: Any, theta: Array) -> Array:
            posterior, count = shared
            batch = posterior.take(jnp.arange(rows))

            def follow(_: Any, moving: Array) -> Array:
                gradient = sampler.trajectory_gradient(posterior, moving)
                if gradient is None:
                    gradient = jax.grad(lambda t: jnp.sum(posterior.log_likelihood(t, batch)))(moving)
                # Each gradient must depend on the one before, or the compiler would compute it only once.
                return moving + jnp.finfo(moving.dtype).tiny * gradient

            return jax.lax.fori_loop(0, count, follow, theta)

        return placement.all_chains(repeat, (posterior, count), thetas)

    placed_posterior, placed_thetas = placement.put_posterior(posterior), placement.put(jnp.asarray(thetas), 0)

    def seconds_of(count: int) -> float:
        start_time = time.perf_counter()
        jax.block_until_ready(gradients(placed_posterior, placed_thetas, jnp.asarray(count)))
        return time.perf_counter() - start_time

    seconds_of(0)  # compiles
    per_call = 1
    while per_call < _MAX_GRADIENTS_PER_CALL and seconds_of(per_call) < _CALL_SECONDS:
        per_call *= 2
    durations: list[float] = []
    while len(durations) < 3 or (sum(durations) < _PILOT_SECONDS and len(durations) < 100):
        durations.append(seconds_of(per_call))
    return min(durations) / (rows * per_call)


def _affordable_gradients(problem: Problem, budget: float, row_seconds: float) -> float:
    """Return the number of full-data gradients per step if the budget is spent on `_WANTED_TRAJECTORIES` steps."""
    return budget / (_OVERHEAD * row_seconds * problem.posterior.num_data) / _WANTED_TRAJECTORIES


def _fit_trajectory(
    problem: Problem, placement: Placement, thetas: Float[Array | np.ndarray, "chain dim"], *, gradients: float
) -> AbstractSampler:
    """Return the sampler with the field `budget_field` set for the budget (such as the length of trajectories).

    The sampler is unchanged if it has no such field, or if the user has set it.
    """
    sampler, field = problem.sampler, problem.sampler.budget_field
    if not field or field in problem.recipe.sampler.fields:
        return sampler
    value = placement.processes.broadcast_first(sampler.fit_budget(problem.posterior, jnp.asarray(thetas), gradients))
    return dataclasses.replace(sampler, **{field: value})
