"""Initial positions of a run's chains, and values of unsampled parameters: trained, drawn from the prior, or given."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.optimize import minimize

from bnnzoo.assembly import Problem
from bnnzoo.errors import InterruptedRunError, UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.layout import named_leaves
from bnnzoo.progress import Observer, Progress
from bnnzoo.samplers.statistics import ACCEPTANCE_RATE
from bnnzoo.sampling.devices.placement import Placement, place_chains
from bnnzoo.sampling.devices.processes import Processes
from bnnzoo.sampling.initial import transport
from bnnzoo.sampling.initial.trained_start import Trained, evaluations, train
from bnnzoo.sampling.job import Stop

T = TypeVar("T")


@dataclasses.dataclass
class StartCost:
    """Likelihood evaluations and seconds that finding the initial positions took."""

    evaluations: float = 0.0
    """Likelihood evaluations of training and transport, over all chains."""
    seconds: float = 0.0
    """Seconds without the compilation before, because the budget covers work only."""

    @contextlib.contextmanager
    def time_block(self) -> Iterator[None]:
        """Count the seconds of the block."""
        start_time = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start_time


def initial_positions(
    problem: Problem,
    placement: Placement,
    *,
    given_positions: Float[Array | np.ndarray, "chain dim"] | None,
    tell: Observer,
    stop: Stop | None,
    spent: StartCost,
    key: PRNGKeyArray,
) -> Float[Array | np.ndarray, "chain dim"]:
    """Return the initial positions, as given or by the recipe's `init`.

    Raises:
        UsageError: if the given positions have the wrong shape.
        InterruptedRunError: if `stop` asked for it.
    """
    if given_positions is not None:
        thetas, expected_shape = np.asarray(given_positions), (problem.recipe.chains, problem.posterior.layout.dim)
        if thetas.shape != expected_shape:
            raise UsageError(f"init: must have shape {list(expected_shape)} (got {list(thetas.shape)})")
        return thetas
    is_trained, has_centre = problem.recipe.trains_start, problem.posterior.centre() is not None
    thetas = problem.initial_positions(trained=is_trained or has_centre, key=key)
    if problem.recipe.init == "given" and problem.recipe.stochastic == "all":
        check_given(problem, thetas[0])
    if not is_trained or has_centre:
        return thetas
    return train_networks(problem, thetas, placement, "the start of each chain", tell, stop, spent, key).positions


def fixed_values(
    problem: Problem, *, tell: Observer, stop: Stop | None, spent: StartCost, key: PRNGKeyArray
) -> dict[str, np.ndarray]:
    """Return the values of the unsampled parameters by name, from one training of the whole network for all chains.

    The result is empty if every parameter is sampled.

    Raises:
        InterruptedRunError: if `stop` asked for it.
    """
    if problem.description is None or not (fixed_names := named_leaves(problem.network_posterior.network)):
        return {}
    whole_network, theta = train_whole_network(problem, tell=tell, stop=stop, spent=spent, key=key)
    leaves = named_leaves(whole_network.network_posterior.network_at(jnp.asarray(theta)))
    # Rounding differs between machines, and the chains of all processes must have the same posterior.
    return Processes.current().broadcast_first({name: np.asarray(leaves[name]) for name in fixed_names})


def train_whole_network(
    problem: Problem, *, tell: Observer, stop: Stop | None, spent: StartCost, key: PRNGKeyArray
) -> tuple[Problem, Float[np.ndarray, " dim"]]:
    """Train one network for all chains and return the problem of all its parameters and their trained values.

    With `init` "given" the values are those of the user's network, without training.

    Raises:
        UsageError: if the user's network does not fit the training rows.
        InterruptedRunError: if `stop` asked for it.
    """
    whole_network = problem.with_all_sampled()
    start = whole_network.initial_positions(trained=True, key=key)
    if problem.recipe.init == "given":
        check_given(whole_network, start[0])
        return whole_network, np.asarray(start[0])
    placement, trained_part = place_chains("vectorized", 1), "the parameters that are not sampled"
    return whole_network, train_networks(
        whole_network, start, placement, trained_part, tell, stop, spent, key
    ).positions[0]


def check_given(problem: Problem, theta: Float[Array, " dim"]) -> None:
    """Refuse a given network that fits the training rows worse than the best constant outputs do.

    Raises:
        UsageError: if it does; most such networks were trained on data in other units.
    """
    posterior = problem.network_posterior
    x, y = (jnp.asarray(values) for values in (posterior.data.x, posterior.data.y))
    likelihood, outputs = posterior.likelihood_at(theta), posterior.outputs(theta, x)

    @jax.jit
    @jax.value_and_grad
    def loss_of_constant(constant: Float[Array, " output"]) -> Float[Array, ""]:
        constants = posterior.with_exposure(jnp.broadcast_to(constant, outputs.shape), x)
        return -jnp.mean(jax.vmap(likelihood.log_prob)(constants, y))

    loss = -float(jnp.mean(jax.vmap(likelihood.log_prob)(outputs, y)))
    start = np.asarray(jnp.mean(outputs, 0), np.float64)
    best = minimize(lambda c: [np.asarray(v, np.float64) for v in loss_of_constant(c)], start, jac=True)
    if not loss < best.fun:
        raise UsageError(
            "[[init=given]]: the network fits the training rows worse than constant outputs do (mean negative "
            f"log-likelihood {loss:.4g} against {best.fun:.4g}); if it was trained on data in their own units, use "
            "[[standardise=False]]; otherwise give the data in the units of the training, or use [[init=map]]"
        )


def transport_starts(
    problem: Problem,
    placement: Placement,
    thetas: Float[Array | np.ndarray, "chain dim"],
    *,
    tell: Observer,
    stop: Stop | None,
    spent: StartCost,
    key: PRNGKeyArray,
) -> Float[Array | np.ndarray, "chain dim"]:
    """Move chains from prior draws towards the posterior if the run has a warm-up and its sampler an accept step.

    Raises:
        InterruptedRunError: if `stop` asked for it.
    """
    recipe, posterior = problem.recipe, problem.posterior
    if recipe.init != "prior" or not recipe.warmup or ACCEPTANCE_RATE not in problem.sampler.statistics:
        return thetas
    stream = transport.transport(posterior, thetas, placement=placement, num_warmup=recipe.warmup, key=key)
    final_positions = _last_value(
        stream, "moving the chains to the posterior", transport.num_steps(recipe.warmup), tell, stop
    )
    spent.evaluations += float(recipe.chains * transport.evaluations(posterior, recipe.warmup))
    return placement.processes.gather(final_positions)


def choose_fields(
    problem: Problem, placement: Placement, thetas: Float[Array | np.ndarray, "chain dim"]
) -> dict[str, Any]:
    """Return the fields that the sampler chooses for this problem, equal in all processes; empty without a warm-up."""
    if not problem.recipe.warmup:
        return {}
    with placement.mesh_context():
        chosen_fields = problem.sampler.choose(problem.posterior, jnp.asarray(thetas))
    texts = {name: value for name, value in chosen_fields.items() if isinstance(value, str)}
    numbers = {name: value for name, value in chosen_fields.items() if name not in texts}
    return texts | placement.processes.broadcast_first(numbers)


def describe_chosen_fields(problem: Problem, chosen_fields: Mapping[str, Any]) -> str:
    """Describe the sampler's chosen fields in a sentence."""
    fields = ", ".join(
        f"{name.replace('_', ' ')} {value:g}" if not isinstance(value, str) else f"{name.replace('_', ' ')} {value}"
        for name, value in chosen_fields.items()
    )
    return f"{problem.recipe.sampler.name}: chosen for this problem: {fields}"


def check_start(posterior: AbstractPosterior, placement: Placement, thetas: Any) -> None:
    """Refuse initial positions at which the density or its gradient is not finite.

    Raises:
        UsageError: naming the training row or the parameter.
    """
    with placement.mesh_context():
        values = _density_and_gradient(placement.put_posterior(posterior), placement.put(jnp.asarray(thetas), None))
    density, gradient = (np.asarray(values) for values in values)
    if not np.isfinite(density).all():
        chain = int(np.argmin(np.isfinite(density)))
        rows = np.asarray(posterior.log_likelihoods(jnp.asarray(thetas)[chain]))
        invalid_rows = np.flatnonzero(~np.isfinite(rows))
        place = f"at training row {invalid_rows[0] + 1}" if len(invalid_rows) else "in the prior"
        raise UsageError(
            f"chain {chain}: the log density is {density[chain]} at the start, {place}; check the data, or use "
            "another [[likelihood]], [[prior]] or [[init]]"
        )
    if not np.isfinite(gradient).all():
        chain, index = (int(i) for i in np.argwhere(~np.isfinite(gradient))[0])
        raise UsageError(
            f"chain {chain}: the gradient by {posterior.layout.name_of(index)} is not finite at the start; use "
            "another [[init]] or [[likelihood]]"
        )


@eqx.filter_jit
def _density_and_gradient(posterior: AbstractPosterior, thetas: Float[Array, "chain dim"]) -> tuple[Array, Array]:
    # The posterior is an argument, because a closure would compile its data into the program as constants. Chains are
    # batched to about a million parameters at once, so that this single check does not set the run's peak memory.
    chains_at_once = max(1, 2**20 // posterior.layout.dim)
    return jax.lax.map(jax.value_and_grad(posterior.log_density), thetas, batch_size=min(chains_at_once, len(thetas)))


def train_networks(
    problem: Problem,
    thetas: Float[Array, "chain dim"],
    placement: Placement,
    trained_part: str,
    tell: Observer,
    stop: Stop | None,
    spent: StartCost,
    key: PRNGKeyArray,
) -> Trained:
    """Train networks from `thetas` for the recipe's `start_steps`; the progress names them by `trained_part`.

    Raises:
        InterruptedRunError: if `stop` asked for it.
    """
    recipe, rows = problem.recipe, problem.posterior.num_data
    stream = train(
        problem.posterior,
        thetas,
        placement=placement,
        key=jax.random.fold_in(key, 2**31),
        most_steps=recipe.start_steps,
        held_out=recipe.start_held_out,
    )
    progress = ((int(training.steps.max()), training) for training in stream)
    final_training = _last_value(progress, f"training {trained_part}", recipe.start_steps, tell, stop)
    training_result = Trained(*placement.processes.gather(tuple(final_training)))
    spent.evaluations += evaluations(rows, training_result.steps, recipe.start_held_out)
    return training_result


def _last_value(stream: Iterator[tuple[int, T]], activity: str, total: int, tell: Observer, stop: Stop | None) -> T:
    """Return the last value of a stream, and report its progress; a stop ends the stream early.

    Raises:
        InterruptedRunError: if `stop` asked for it in any process.
    """
    number, latest = 0, list[T]()
    for num_steps, value in stream:
        tell(Progress("start", num_steps, total, note=activity))
        latest = [value]
        if number := stop() if stop else 0:
            break
    # All processes agree on stopping, even if each trains the same network alone.
    if number := Processes.current().largest(number):
        raise InterruptedRunError(f"stopped while {activity}: nothing was written", number)
    return latest[0]
