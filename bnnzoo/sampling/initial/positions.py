"""Initial positions of the chains, and values of the parameters that are not sampled.

The positions are trained, drawn from the prior, or given by the user.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.optimize import minimize

from bnnzoo.assembly import Problem
from bnnzoo.errors import InterruptedRunError, UsageError
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior
from bnnzoo.posterior.layout import named_leaves
from bnnzoo.progress import Observer, Progress
from bnnzoo.samplers.statistics import ACCEPTANCE_RATE
from bnnzoo.sampling.devices.placement import Placement, place_chains
from bnnzoo.sampling.devices.processes import Processes
from bnnzoo.sampling.initial import network_file, run_start, transport
from bnnzoo.sampling.initial.trained_start import Trained, evaluations, train
from bnnzoo.sampling.job import Stop

T = TypeVar("T")


@dataclasses.dataclass
class StartWork:
    """The work for the initial positions: an observer of its progress, a stop signal, and its cost so far."""

    tell: Observer
    stop: Stop | None = None
    evaluations: float = 0.0
    """Number of likelihood evaluations of training and transport (`transport_starts`), summed over chains."""
    seconds: float = 0.0
    """Seconds inside `time_block`. The budget covers these seconds, but not the preparation of the run."""

    @contextlib.contextmanager
    def time_block(self) -> Iterator[None]:
        """Add the seconds that are spent inside the block to `seconds`."""
        start_time = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start_time

    def note(self, text: str) -> None:
        """Show a message to the user."""
        self.tell(Progress("note", 0, 0, note=text))

    def last_value(self, stream: Iterator[tuple[int, T]], activity: str, total: int) -> T:
        """Return the final value of a stream, and report its progress.

        Args:
            stream: pairs of the number of steps so far and a value.
            activity: description of the work for progress messages.
            total: largest number of steps.

        Raises:
            InterruptedRunError: if `stop` returned a signal in any process.
        """
        number, latest = 0, list[T]()
        for num_steps, value in stream:
            self.tell(Progress("start", min(num_steps, total), total, note=activity))
            latest = [value]
            if number := self.stop() if self.stop else 0:
                break
        # All processes must stop together, even if each trains the same network alone.
        if number := Processes.current().largest(number):
            raise InterruptedRunError(f"stopped while {activity}: nothing was written", number)
        return latest[0]


def initial_positions(
    problem: Problem,
    placement: Placement,
    *,
    given_positions: Float[Array | np.ndarray, "chain dim"] | None,
    work: StartWork,
    key: PRNGKeyArray,
) -> Float[Array | np.ndarray, "chain dim"]:
    """Return `given_positions`; if they are None, return the positions that the recipe's `init` requests.

    Raises:
        UsageError: if the given positions have a wrong shape, if a given network does not fit the training rows, or if
            the file of `init` cannot be used.
        InterruptedRunError: if `work.stop` returned a signal.
    """
    if given_positions is not None:
        thetas = np.asarray(given_positions, problem.posterior.dtype)
        expected_shape = (problem.recipe.chains, problem.posterior.layout.dim)
        if thetas.shape != expected_shape:
            raise UsageError(f"init: must have shape {list(expected_shape)} (got {list(thetas.shape)})")
        return thetas
    is_trained, has_centre = problem.recipe.trains_start, problem.posterior.centre() is not None
    if problem.recipe.init_file is not None and not has_centre:
        if problem.recipe.init_file.suffix != network_file.SUFFIX:
            return run_start.last_draws(problem, problem.recipe.init_file)
        # If some parameters are not sampled, `fixed_values` has already checked the whole network.
        read = _network_of_file if problem.recipe.stochastic == "all" else network_file.network_position
        theta = np.asarray(read(problem, problem.recipe.init_file))
        return np.broadcast_to(theta, (problem.recipe.chains, len(theta)))
    thetas = problem.initial_positions(trained=is_trained or has_centre, key=key)
    if problem.recipe.init == "given" and problem.recipe.stochastic == "all":
        check_given_network(problem, thetas[0])
    if not is_trained or has_centre:
        return thetas
    return train_networks(problem, thetas, placement, "the initial position of each chain", work, key).positions


def fixed_values(problem: Problem, *, work: StartWork, key: PRNGKeyArray) -> dict[str, np.ndarray]:
    """Return the values of the parameters that are not sampled, by name; empty if every parameter is sampled.

    The network with all parameters is trained once (`train_whole_network`), and all chains use the same values.

    Raises:
        UsageError: as for `train_whole_network`.
        InterruptedRunError: if `work.stop` returned a signal.
    """
    if problem.description is None or not (fixed_names := named_leaves(problem.network_posterior.network)):
        return {}
    whole_network, theta = train_whole_network(problem, work=work, key=key)
    leaves = named_leaves(whole_network.network_posterior.network_at(jnp.asarray(theta)))
    # Rounding differs between machines, and the chains of all processes must have the same posterior.
    return Processes.current().broadcast_first({name: np.asarray(leaves[name]) for name in fixed_names})


def train_whole_network(
    problem: Problem, *, work: StartWork, key: PRNGKeyArray
) -> tuple[Problem, Float[np.ndarray, " dim"]]:
    """Train one network for all chains. Return the problem with all parameters sampled, and the trained position theta.

    With `init` "given" or the file of a network, the network is not trained, and theta has the values of the user's
    network. With the file of a run, theta is the run's draw with the largest log density.

    Raises:
        UsageError: if the user's network does not fit the training rows, or if the file of `init` cannot be used.
        InterruptedRunError: if `work.stop` returned a signal.
    """
    whole_network = problem.with_all_sampled()
    if (path := problem.recipe.init_file) is not None:
        is_network = path.suffix == network_file.SUFFIX
        return whole_network, (_network_of_file if is_network else run_start.best_draw)(whole_network, path)
    start = whole_network.initial_positions(trained=True, key=key)
    if problem.recipe.init == "given":
        check_given_network(whole_network, start[0])
        return whole_network, np.asarray(start[0])
    placement, trained_part = place_chains("vectorized", 1), "the parameters that are not sampled"
    return whole_network, train_networks(whole_network, start, placement, trained_part, work, key).positions[0]


def _network_of_file(problem: Problem, path: Path) -> Float[np.ndarray, " dim"]:
    """Return the position of the network in a file of Equinox, after checking that it fits the training rows."""
    theta = network_file.network_position(problem, path)
    check_given_network(problem, theta)
    return np.asarray(theta)


def check_given_network(problem: Problem, theta: Float[Array, " dim"]) -> None:
    """Check that the user's network fits the training rows better than the best constant outputs.

    Raises:
        UsageError: if the network does not fit better, in most cases because it was trained on data in other units.
    """
    posterior = problem.network_posterior
    loss, mean_outputs = (np.asarray(value, np.float64) for value in _loss_and_mean_outputs(posterior, theta))

    def loss_of_constant(constant: np.ndarray) -> list[np.ndarray]:
        outputs = jnp.asarray(constant, posterior.dtype)
        return [np.asarray(value, np.float64) for value in _loss_of_constant(outputs, posterior, theta)]

    best = minimize(loss_of_constant, mean_outputs, jac=True)
    if not loss < best.fun:
        raise UsageError(
            f"[[init={problem.recipe.init}]]: the network fits the training rows worse than constant outputs do (mean "
            f"negative log-likelihood {loss:.4g} against {best.fun:.4g}); if it was trained on data that were not "
            "standardised, use [[standardise=False]]; otherwise give the data in the units in which it was trained, or "
            "use [[init=map]]"
        )


@eqx.filter_jit
def _loss_and_mean_outputs(posterior: NetworkPosterior, theta: Float[Array, " dim"]) -> tuple[Array, Array]:
    """Return the mean negative log-likelihood of the rows, and the mean of the network's outputs at the rows."""
    outputs = posterior.over_data(lambda batch: posterior.outputs(theta, jnp.asarray(batch.x)))
    return -jnp.mean(posterior.log_likelihoods(theta)), jnp.mean(outputs, 0)


@eqx.filter_jit
@eqx.filter_value_and_grad
def _loss_of_constant(
    constant: Float[Array, " output"], posterior: NetworkPosterior, theta: Float[Array, " dim"]
) -> Float[Array, ""]:
    """Return the mean negative log-likelihood of the rows if the network's outputs are `constant` at every row."""

    def log_likelihood(batch: Any) -> Float[Array, " batch"]:
        x = jnp.asarray(batch.x)
        outputs = posterior.with_exposure(jnp.broadcast_to(constant, (x.shape[0], *constant.shape)), x)
        return posterior.log_likelihood_of_outputs(theta, outputs, batch)

    return -jnp.mean(posterior.over_data(log_likelihood))


def transport_starts(
    problem: Problem,
    placement: Placement,
    thetas: Float[Array | np.ndarray, "chain dim"],
    *,
    work: StartWork,
    key: PRNGKeyArray,
) -> Float[Array | np.ndarray, "chain dim"]:
    """Move chains from prior draws to the posterior, and return the new positions.

    The positions are unchanged if they are not prior draws, if there is no warm-up, or if the sampler does not
    accept and reject proposals.

    Raises:
        InterruptedRunError: if `work.stop` returned a signal.
    """
    recipe, posterior, num_warmup = problem.recipe, problem.posterior, problem.recipe.windowed_warmup
    if recipe.init != "prior" or not recipe.warmup or ACCEPTANCE_RATE not in problem.sampler.statistics:
        return thetas
    stream = transport.transport(posterior, thetas, placement=placement, num_warmup=num_warmup, key=key)
    final_positions = work.last_value(stream, "moving the chains to the posterior", transport.num_steps(num_warmup))
    work.evaluations += float(recipe.chains * transport.evaluations(posterior, num_warmup))
    return placement.processes.gather(final_positions)


def choose_fields(
    problem: Problem, placement: Placement, thetas: Float[Array | np.ndarray, "chain dim"]
) -> dict[str, Any]:
    """Return the sampler's choices for its `auto` fields, the same in all processes; empty without warm-up."""
    if not problem.recipe.warmup:
        return {}
    with placement.mesh_context():
        chosen_fields = problem.sampler.choose(problem.posterior, jnp.asarray(thetas))
    texts = {name: value for name, value in chosen_fields.items() if isinstance(value, str)}
    numbers = {name: value for name, value in chosen_fields.items() if name not in texts}
    return texts | placement.processes.broadcast_first(numbers)


def describe_chosen_fields(problem: Problem, chosen_fields: Mapping[str, Any]) -> str:
    """Return a sentence with the values that the sampler chose for its `auto` fields."""
    fields = ", ".join(
        f"{name.replace('_', ' ')} {value:g}" if not isinstance(value, str) else f"{name.replace('_', ' ')} {value}"
        for name, value in chosen_fields.items()
    )
    return f"sampler {problem.recipe.sampler.name}: values chosen for its auto fields: {fields}"


def check_start(posterior: AbstractPosterior, placement: Placement, thetas: Any) -> None:
    """Check that the density and its gradient are finite at the initial positions.

    Raises:
        UsageError: if the density or its gradient is not finite; the message names the training row or the parameter.
    """
    with placement.mesh_context():
        values = _density_and_gradient(placement.put_posterior(posterior), placement.put(jnp.asarray(thetas), None))
    density, gradient = (np.asarray(values) for values in values)
    if not np.isfinite(density).all():
        chain = int(np.argmin(np.isfinite(density)))
        rows = np.asarray(posterior.log_likelihoods(jnp.asarray(thetas)[chain]))
        invalid_rows = np.flatnonzero(~np.isfinite(rows))
        cause = f"training row {invalid_rows[0] + 1}" if len(invalid_rows) else "the prior"
        raise UsageError(
            f"chain {chain}: the log density at the initial position is {density[chain]} because of {cause}; check the "
            "data, or use another [[likelihood]], [[prior]] or [[init]]"
        )
    if not np.isfinite(gradient).all():
        chain, index = (int(i) for i in np.argwhere(~np.isfinite(gradient))[0])
        raise UsageError(
            f"chain {chain}: the gradient of the log density with respect to {posterior.layout.name_of(index)} is not "
            "finite at the initial position; use another [[init]] or [[likelihood]]"
        )


@eqx.filter_jit
def _density_and_gradient(posterior: AbstractPosterior, thetas: Float[Array, "chain dim"]) -> tuple[Array, Array]:
    # The posterior is an argument: in a closure, its data would become constants of the program. A batch of chains has
    # at most about a million parameters, so that this check does not determine the largest memory use of the run.
    chains_at_once = max(1, 2**20 // posterior.layout.dim)
    return jax.lax.map(jax.value_and_grad(posterior.log_density), thetas, batch_size=min(chains_at_once, len(thetas)))


def train_networks(
    problem: Problem,
    thetas: Float[Array, "chain dim"],
    placement: Placement,
    trained_part: str,
    work: StartWork,
    key: PRNGKeyArray,
) -> Trained:
    """Train one network from each position in `thetas`, for at most the recipe's `start_steps` steps.

    Args:
        problem: the problem whose posterior density is maximised.
        thetas: the positions at the start of the training.
        placement: the placement of the networks.
        trained_part: description of the networks for progress messages, such as "the initial position of each chain".
        work: observer, stop signal and cost of the work.
        key: random key.

    Raises:
        InterruptedRunError: if `work.stop` returned a signal.
    """
    recipe, rows = problem.recipe, problem.posterior.num_data
    stream = train(
        problem.posterior,
        thetas,
        placement=placement,
        key=jax.random.fold_in(key, 2**31),
        most_steps=recipe.start_steps,
        held_out=recipe.start_held_out,
        stores_order=not problem.has_mapped_rows,
    )
    progress = ((int(training.steps.max()), training) for training in stream)
    final_training = work.last_value(progress, f"training {trained_part}", recipe.start_steps)
    training_result = Trained(*placement.processes.gather(tuple(final_training)))
    work.evaluations += evaluations(rows, training_result.steps, recipe.start_held_out)
    return training_result
