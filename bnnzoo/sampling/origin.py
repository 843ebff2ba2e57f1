"""Where a run's chains begin, and the values of what is not sampled: trained, drawn from the prior, or given."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo.assembly import Problem
from bnnzoo.errors import InterruptedRunError, UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.layout import named_leaves
from bnnzoo.progress import Observer, Progress
from bnnzoo.sampling.job import Stop
from bnnzoo.sampling.placement import Placement, place
from bnnzoo.sampling.processes import Processes
from bnnzoo.sampling.start import evaluations, train


@dataclasses.dataclass
class Spent:
    """What the start took beside time."""

    evaluations: float = 0.0
    """Rows that training looked at, of all chains."""


def positions(
    problem: Problem,
    placement: Placement,
    *,
    given: Float[Array | np.ndarray, "chain dim"] | None,
    tell: Observer,
    stop: Stop | None,
    spent: Spent,
    key: PRNGKeyArray,
) -> Float[Array | np.ndarray, "chain dim"]:
    """Where the chains start: as given, or by the recipe's `init`.

    Raises:
        UsageError: for given positions of another shape.
        InterruptedRunError: when `stop` said so.
    """
    if given is not None:
        thetas, wanted = np.asarray(given), (problem.recipe.chains, problem.posterior.layout.dim)
        if thetas.shape != wanted:
            raise UsageError(f"init: has shape {list(thetas.shape)}, not {list(wanted)}")
        return thetas
    trained = problem.recipe.init != "prior"
    thetas = problem.initial_positions(trained=trained, key=key)
    return _train(problem, thetas, placement, "each chain's start", tell, stop, spent, key) if trained else thetas


def fixed_values(
    problem: Problem, *, tell: Observer, stop: Stop | None, spent: Spent, key: PRNGKeyArray
) -> dict[str, np.ndarray]:
    """What is not sampled, by name: of the whole network, trained once and whatever the number of chains.

    Empty where everything is sampled.
    """
    if problem.description is None or not (wanted := named_leaves(problem.network_posterior.network)):
        return {}
    whole = problem.whole()
    start = whole.initial_positions(trained=True, key=key)
    thetas = _train(whole, start, place("vectorized", 1), "the part that is not sampled", tell, stop, spent, key)
    trained = named_leaves(whole.network_posterior.network_at(jnp.asarray(thetas[0])))
    # Machines round differently, and the chains of all processes are of one posterior.
    return Processes.here().firsts({name: np.asarray(trained[name]) for name in wanted})


def check_start(posterior: AbstractPosterior, placement: Placement, thetas: Any) -> None:
    """Refuse a start where the density or its gradient is not finite.

    Raises:
        UsageError: naming the training row, or the parameter.
    """
    with placement.within():
        found = _density_and_gradient(placement.put_posterior(posterior), placement.put(jnp.asarray(thetas), None))
    density, gradient = (np.asarray(values) for values in found)
    if not np.isfinite(density).all():
        chain = int(np.argmin(np.isfinite(density)))
        rows = np.asarray(posterior.log_likelihoods(jnp.asarray(thetas)[chain]))
        bad = np.flatnonzero(~np.isfinite(rows))
        where = f"at training row {bad[0] + 1}" if len(bad) else "in the prior"
        raise UsageError(
            f"chain {chain}: the log density is {density[chain]} at the start, {where}; check the data, "
            "or use another --likelihood, --prior or --init"
        )
    if not np.isfinite(gradient).all():
        chain, index = (int(i) for i in np.argwhere(~np.isfinite(gradient))[0])
        raise UsageError(
            f"chain {chain}: the gradient by {posterior.layout.name_of(index)} is not finite at the start; "
            "use another --init or --likelihood"
        )


@eqx.filter_jit
def _density_and_gradient(posterior: AbstractPosterior, thetas: Float[Array, "chain dim"]) -> tuple[Array, Array]:
    # The posterior is an argument: closed over, its data would be compiled into the program as constants.
    # As many chains at once as a million parameters hold: one look, not worth the most memory of a run.
    at_once = max(1, 2**20 // posterior.layout.dim)
    return jax.lax.map(jax.value_and_grad(posterior.log_density), thetas, batch_size=min(at_once, len(thetas)))


def _train(
    problem: Problem,
    thetas: Float[Array, "chain dim"],
    placement: Placement,
    what: str,
    tell: Observer,
    stop: Stop | None,
    spent: Spent,
    key: PRNGKeyArray,
) -> Float[np.ndarray, "chain dim"]:
    recipe, positions = problem.recipe, np.asarray(thetas)
    stream = train(
        problem.posterior,
        thetas,
        placement=placement,
        key=jax.random.fold_in(key, 2**31),
        most_steps=recipe.start_steps,
        held_out=recipe.start_held_out,
    )
    steps = np.zeros(len(positions), np.int32)
    number = 0
    for steps, positions in stream:  # noqa: B007 (the last ones are used)
        tell(Progress("start", int(steps.max()), recipe.start_steps, note=f"training {what}"))
        if number := stop() if stop else 0:
            break
    if number := placement.processes.largest(number):
        raise InterruptedRunError(f"stopped while training {what}: nothing was written", number)
    steps, positions = placement.processes.everyones((steps, positions))
    spent.evaluations += evaluations(problem.posterior.num_data, steps, recipe.start_held_out)
    return positions
