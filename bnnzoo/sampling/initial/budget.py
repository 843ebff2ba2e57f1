"""Choice of the lengths of a run from its time budget: warm-up, thinning and draws, unless the recipe sets them.

The time of a gradient is measured before warm-up. The time of a step is measured in warm-up: a slow warm-up ends early,
and the second half of warm-up determines the thinning. After warm-up, the clock determines only the number of draws.
The file stores a recipe with fixed lengths, which gives the same draws on fast and slow machines of the same kind.
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
from bnnzoo.finding import setting, spell_settings, spelling
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.recipe import Recipe, duration
from bnnzoo.samplers import AbstractSampler
from bnnzoo.sampling.devices.placement import Placement
from bnnzoo.sampling.initial.trained_start import train
from bnnzoo.sampling.loop.warmup import windows

_LEAST_SHARE = 0.3
"""Smallest fraction of the budget for warm-up and draws, even if finding the initial positions took too long."""
_START_SHARE = 0.4
"""Largest fraction of the budget for training the initial positions. Beyond it, time for draws is worth more."""
FEWEST_START_STEPS, _PILOT_STEPS = 250, 50
_WARMUP_SHARE = 0.4
_WARMUP_TOLERANCE = 1.25
"""Warm-up ends early only if it would take longer than this multiple of the fraction `_WARMUP_SHARE` of the budget.

Small differences between the planned and the measured time do not change the number of steps, so the draws of two runs
are usually equal."""
_FEWEST_WINDOWS = 3
"""Smallest number of windows before the final window in a warm-up that ends early."""
_FEWEST_WARMUP, _MOST_WARMUP, _MOST_WARMUP_TRAJECTORIES = 300, 20_000, 2048
"""Limits of the number of warm-up steps. With long trajectories fewer steps suffice, because a step moves farther."""
_WANTED_TRAJECTORIES = 750
"""Number of trajectories, in warm-up and sampling together, for which the length of a trajectory is chosen.

The real number is larger, because `_OVERHEAD` is cautious and lengths are rounded down. Few long trajectories are
better than many short ones: the trajectories of a slow chain are the steps of a random walk, whose effective draws are
proportional to the total length times the length of a trajectory."""
_WANTED_DRAWS, MOST_DRAWS, _MOST_THIN = 1000, 4000, 1000
"""Target number of draws, largest number of draws, and largest thinning. Smaller thinnings are powers of two."""
_STEP_SECONDS = 2e-5
"""Smallest assumed time, in seconds, of a step of all chains. It matters if a step uses few data."""
_OVERHEAD = 1.5
"""Assumed time of a step, relative to the time of its gradients."""
_PILOT_SECONDS, _PILOT_ROWS = 0.2, 4096
_CALL_SECONDS, _MOST_GRADIENTS_PER_CALL = 0.02, 512
"""Shortest call of the program in `seconds_per_row`, in seconds, and largest number of gradients per call.

A sampler computes many gradients per call of its program, so the time of the call itself must not count."""
OVERHEAD_TRACES = 80.0
"""Time of a run that the budget does not cover, in units of the time that JAX needs to trace one gradient.

See `benchmarks/seconds.py`."""
FEWEST_DRAWS = 20
"""Smallest number of draws per chain. A run makes them even if its budget is exhausted."""
_ENDINGS = {"converged": "the chains have converged", "predictions": "the predictions hardly change"}


def plan_lengths(
    problem: Problem,
    placement: Placement,
    thetas: Float[Array | np.ndarray, "chain dim"],
    *,
    start_seconds: float,
    chosen_fields: Mapping[str, Any] = MappingProxyType({}),
) -> Problem:
    """Choose warm-up, thinning and draws if the recipe does not, and return the problem; unchanged without a budget.

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
    budget_seconds = duration.seconds(recipe.budget)
    budget = max(budget_seconds - start_seconds, _LEAST_SHARE * budget_seconds)
    sampler = _fit_trajectory(problem, placement, thetas, gradients=_affordable_gradients(problem, budget, row_seconds))
    trajectory = sampler.gradients
    means = {"n_steps": float(trajectory)}
    evaluations = dataclasses.replace(sampler, **chosen_fields).evaluations
    warmup_step_seconds, step_seconds = (
        max(_STEP_SECONDS, _OVERHEAD * row_seconds * evaluations(problem.posterior, means, warmup=warmup))
        for warmup in (True, False)
    )
    max_warmup = max(_MOST_WARMUP_TRAJECTORIES, _MOST_WARMUP // trajectory)
    affordable_warmup = _round_down(_WARMUP_SHARE * budget / warmup_step_seconds, max_warmup)
    lengths = {"warmup": max(_FEWEST_WARMUP, affordable_warmup)}
    lengths |= {"thin": 1, "draws": _WANTED_DRAWS}
    if is_chain(sampler.stated_exactness):
        draw_seconds = budget - warmup_step_seconds * (recipe.warmup if "warmup" in recipe.where else lengths["warmup"])
        steps = max(draw_seconds, (1 - _WARMUP_SHARE) * budget) / step_seconds
        wanted_draws = recipe.draws if "draws" in recipe.where else _WANTED_DRAWS
        lengths |= {"thin": max(1, _round_down(steps / wanted_draws, _MOST_THIN)), "draws": MOST_DRAWS}
    open_lengths: dict[str, Any] = {name: length for name, length in lengths.items() if name not in recipe.where}
    return problem.with_lengths(dataclasses.replace(recipe, **open_lengths), sampler)


def with_shorter_warmup(
    problem: Problem,
    sampler: AbstractSampler,
    *,
    step: int,
    warmup_seconds: float,
    start_seconds: float,
    step_seconds: float,
) -> Problem:
    """Return the problem with a shorter warm-up if the planned one takes too much of the budget.

    The shorter warm-up has the windows so far and a final window that is as long as all of them together. The function
    is called at the end of a window. It shortens warm-up if one more window, and the longer final window that belongs
    to it, would take too long, and if the sampler supports it (`can_end_warmup`).

    Args:
        problem: the problem of the run.
        sampler: the sampler that is being tuned.
        step: number of warm-up steps so far.
        warmup_seconds: seconds of the budget that have been used.
        start_seconds: seconds that were spent on the initial positions; a part of `warmup_seconds`.
        step_seconds: mean seconds of a step of all chains in the last window.
    """
    recipe = problem.recipe
    if recipe.budget is None or "warmup" in recipe.where:
        return problem
    planned = recipe.windowed_warmup
    ends = windows(planned)
    if recipe.warmup < planned or step not in ends[_FEWEST_WINDOWS - 1 : -2]:
        return problem
    budget_seconds = duration.seconds(recipe.budget)
    budget = max(budget_seconds - start_seconds, _LEAST_SHARE * budget_seconds)
    next_end = ends[ends.index(step) + 1]
    expected_seconds = warmup_seconds - start_seconds + (2 * next_end - step) * step_seconds
    if expected_seconds <= _WARMUP_TOLERANCE * _WARMUP_SHARE * budget:
        return problem
    if not sampler.can_end_warmup:
        return problem
    return problem.with_lengths(dataclasses.replace(recipe, warmup=2 * step, planned_warmup=planned), problem.sampler)


def with_thinning(
    problem: Problem,
    sampler: AbstractSampler,
    *,
    warmup_step_seconds: float,
    seconds_left: float,
    means: Mapping[str, float],
) -> Problem:
    """Return the problem with a new thinning, computed from the measured time of a warm-up step.

    The thinning of `plan_lengths` is only an estimate: it assumes that every trajectory has the largest allowed length,
    but most trajectories are shorter.

    Args:
        problem: the problem of the run.
        sampler: the tuned sampler.
        warmup_step_seconds: seconds of a warm-up step of all chains.
        seconds_left: seconds of the budget that are not yet used.
        means: mean of each statistic in the last chunk of warm-up.
    """
    recipe = problem.recipe
    if recipe.budget is None or "thin" in recipe.where or not is_chain(sampler.stated_exactness):
        return problem
    evaluations, warmup_evaluations = (
        sampler.evaluations(problem.posterior, means, warmup=warmup) for warmup in (False, True)
    )
    step_seconds = warmup_step_seconds * (evaluations / warmup_evaluations if warmup_evaluations > 0 else 1.0)
    steps = seconds_left / max(step_seconds, _STEP_SECONDS)
    wanted_draws = recipe.draws if "draws" in recipe.where else _WANTED_DRAWS
    thin = max(1, _round_down(steps / wanted_draws, _MOST_THIN))
    return problem.with_lengths(dataclasses.replace(recipe, thin=thin), problem.sampler)


def _round_down(length: float, largest: int) -> int:
    """Return `largest` if `length` is at least `largest`, else the largest power of two up to `length`, at least 1.

    Measured times differ by a few percent between runs. The rounded lengths are usually equal, and so are the draws.
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
    share = max(0.0, min(_START_SHARE, 1 - _LEAST_SHARE - choice_share))
    steps = training_steps(problem, placement, most=recipe.start_steps, share=share, key=key)
    return problem.with_lengths(dataclasses.replace(recipe, start_steps=steps), problem.sampler)


def training_steps(problem: Problem, placement: Placement, *, most: int, share: float, key: PRNGKeyArray) -> int:
    """Return the number of training steps that fit into a fraction `share` of the budget.

    A short training run measures the time of a step. The result is at most `most`, but at least `FEWEST_START_STEPS`.
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
        steps = int(np.clip(affordable_steps, FEWEST_START_STEPS, max(most, FEWEST_START_STEPS)))
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


def describe_shorter_warmup(problem: Problem) -> str:
    """Return the sentence about a warm-up that `with_shorter_warmup` has shortened."""
    recipe = problem.recipe
    return spell_settings(
        f"budget {recipe.budget}: warm-up ends after {recipe.warmup} of {recipe.planned_warmup} steps, because it is "
        f"slower than expected and must leave time for draws; use a longer {setting('budget')} for a longer warm-up",
        spelling(),
    )


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
    while per_call < _MOST_GRADIENTS_PER_CALL and seconds_of(per_call) < _CALL_SECONDS:
        per_call *= 2
    durations: list[float] = []
    while len(durations) < 3 or (sum(durations) < _PILOT_SECONDS and len(durations) < 100):
        durations.append(seconds_of(per_call))
    return min(durations) / (rows * per_call)


def _affordable_gradients(problem: Problem, budget: float, row_seconds: float) -> float:
    """Return the number of full-data gradients per step with which the budget allows `_WANTED_TRAJECTORIES` steps."""
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
