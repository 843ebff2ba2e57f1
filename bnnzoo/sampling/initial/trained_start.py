"""Training of one network per chain, as the initial positions of the chains (`init` "map")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, PyTree

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.permutation import distinct_indices, permuted
from bnnzoo.samplers.variational import training
from bnnzoo.sampling.devices.placement import Placement

MAX_STEPS = 5000
_BATCH = 128
_LEARNING_RATE = 5e-3
_STEPS_PER_EVALUATION = 50
_WEIGHTING_END = 0.5
"""Fraction of the training after which the weights of the rows are equal; see `_weights`."""
_HELD_OUT = 2048
_FEW_HELD_OUT = 10
"""Smallest number of held-out rows. If there would be fewer, no rows are held out."""


class Training(NamedTuple):
    """State of one chain's training."""

    theta: Float[Array, " dim"]
    optimiser: PyTree
    best: Float[Array, " dim"]
    best_loss: Float[Array, ""]
    evaluations_since_best: Int[Array, ""]
    step: Int[Array, ""]


class Trained(NamedTuple):
    """Results of the chains' training so far."""

    steps: Int[np.ndarray, " chain"]
    positions: Float[np.ndarray, "chain dim"]
    """For each chain, the position with the smallest loss so far."""
    losses: Float[np.ndarray, " chain"]
    """Loss at the position in `positions`, in nats per held-out row; per training row if no rows are held out."""


def train(
    posterior: AbstractPosterior,
    thetas: Float[Array | np.ndarray, "chain dim"],
    *,
    placement: Placement,
    key: PRNGKeyArray,
    most_steps: int = MAX_STEPS,
    held_out: float = 0.1,
    steps_per_report: int = 500,
    stores_order: bool = True,
) -> Iterator[Trained]:
    """Train one network per chain (a deep ensemble): maximise the posterior density by Adam, with early stopping.

    Each chain holds out different random rows (at most 2048) in training. The loss of a chain is the mean
    negative log-likelihood of these rows, computed every 50 steps. If no rows are held out, the loss is computed from
    all rows and the prior. The training of a chain ends if its loss has not improved for a fifth of `most_steps` steps.
    The sampler later uses all rows.

    Args:
        posterior: the posterior of the run.
        thetas: initial positions.
        placement: the placement of the chains.
        key: random key of the mini-batches and the held-out rows.
        most_steps: largest number of steps.
        held_out: fraction of the rows to hold out.
        steps_per_report: number of steps after which a result is yielded.
        stores_order: whether each chain stores a random order of all rows in an array. Otherwise the chain computes
            another random order row by row, so that the memory does not grow with the number of rows.

    Yields:
        the result so far, every `steps_per_report` steps and at the end.
    """
    posterior = placement.put_posterior(posterior)
    keys = placement.put(jax.vmap(lambda c: jax.random.fold_in(key, c))(jnp.arange(len(thetas), dtype=jnp.uint32)), 0)
    traced_max_steps = np.int32(most_steps)
    rows = num_held_out(posterior.num_data, held_out)
    state = _begin(posterior, placement, placement.put(jnp.asarray(thetas), 0))
    steps_done = 0
    while True:
        state = _advance(
            posterior,
            placement,
            state,
            keys,
            np.int32(min(steps_per_report, most_steps - steps_done)),
            traced_max_steps,
            rows,
            stores_order,
        )
        steps = np.asarray(state.step)
        steps_done = int(np.max(steps))
        yield Trained(steps, np.asarray(state.best), np.asarray(state.best_loss))
        if steps_done >= most_steps or bool(np.all(np.asarray(state.evaluations_since_best) >= _patience(most_steps))):
            return


def evaluations(num_data: int, steps: Int[np.ndarray, " chain"], held_out: float) -> float:
    """Return the number of likelihood evaluations of the training: batches of all steps, and losses every 50 steps."""
    rows = num_held_out(num_data, held_out)
    loss_rows = rows or num_data
    return float(np.sum(steps * min(_BATCH, num_data - rows) + steps // _STEPS_PER_EVALUATION * loss_rows))


def num_held_out(num_data: int, held_out: float) -> int:
    """Return the number of rows that the training of each chain holds out; 0 if this number is below ten."""
    rows = min(_HELD_OUT, int(held_out * num_data))
    return rows if rows >= _FEW_HELD_OUT else 0


def _patience(most_steps: Any) -> Any:
    """Return the number of evaluations of the loss without improvement after which a chain's training ends."""
    return most_steps // (5 * _STEPS_PER_EVALUATION)


def _optimiser() -> optax.GradientTransformation:
    return optax.scale_by_adam()


def _learning_rate(step: Int[Array, ""], most_steps: Int[Array, ""]) -> Float[Array, ""]:
    """Return the learning rate, which falls along a cosine to a fiftieth of the first learning rate."""
    fraction = jnp.minimum(step / most_steps, 1.0)
    return _LEARNING_RATE * (0.02 + 0.98 * (1 + jnp.cos(jnp.pi * fraction)) / 2)


def _weights(
    posterior: AbstractPosterior, theta: Float[Array, " dim"], batch: Any, fraction: Float[Array, ""]
) -> Float[Array, " batch"] | None:
    """Return the weight of each row in the loss, with mean 1; None if all weights are equal.

    A network that predicts the noise of each row can treat its own errors as noise. The gradient of a predicted mean is
    divided by the predicted variance, so the network would then hardly improve its means. Therefore a row is weighted
    by its predicted variance at the beginning of the training. In the second half of training, all weights are equal
    (Seitzer et al. 2022, arXiv 2203.09168, with beta falling from 1 to 0).

    Args:
        posterior: the posterior of the run.
        theta: the current position.
        batch: the rows.
        fraction: fraction of the training steps that are done.
    """
    if (widths := posterior.noise_widths(theta, batch)) is None:
        return None
    log_weights = 2 * jnp.maximum(1 - fraction / _WEIGHTING_END, 0.0) * jnp.log(widths)
    return len(log_weights) * jax.nn.softmax(log_weights)


@eqx.filter_jit
def _begin(posterior: AbstractPosterior, placement: Placement, thetas: Float[Array, "chain dim"]) -> Training:
    def begin_chain(shared, theta):
        del shared
        zero = jnp.zeros((), jnp.int32)
        loss = jnp.full((), jnp.inf, theta.dtype)
        return Training(theta, _optimiser().init(theta), theta, loss, zero, zero)

    return placement.all_chains(begin_chain, posterior, thetas)


@eqx.filter_jit
def _advance(
    posterior: AbstractPosterior,
    placement: Placement,
    states: Training,
    keys: Key[Array, " chain"],
    count: Int[Array, ""] | np.int32,
    most_steps: Int[Array, ""] | np.int32,
    held_out: int,
    stores_order: bool,
) -> Training:
    total = posterior.num_data
    num_training_rows = total - held_out

    def advance_chain(shared, state, key):
        posterior, count, most_steps = shared
        order_key = jax.random.fold_in(key, 0)
        if stores_order:
            order = jax.random.permutation(order_key, total)
            held_out_rows, training_rows = order[:held_out], order[held_out:]
        else:
            held_out_rows, training_rows = distinct_indices(held_out, total, key=order_key), None

        def rows_at(numbers):
            if training_rows is not None:
                return training_rows[numbers]
            return permuted(numbers.astype(jnp.uint32) + jnp.uint32(held_out), total, key=order_key)

        def held_out_loss(theta):
            if not held_out:
                return training.loss(posterior, theta, posterior.all_rows())
            return -jnp.mean(posterior.log_likelihood(theta, posterior.take(held_out_rows)))

        def update(state):
            rows = jax.random.randint(
                jax.random.fold_in(key, state.step + 1), (min(_BATCH, num_training_rows),), 0, num_training_rows
            )
            batch = posterior.take(rows_at(rows))
            weights = _weights(posterior, state.theta, batch, state.step / most_steps)
            gradient = jax.grad(lambda theta: training.loss(posterior, theta, batch, weights=weights))(state.theta)
            gradient = jnp.where(jnp.isfinite(gradient), gradient, 0.0)
            change, optimiser = _optimiser().update(gradient, state.optimiser)
            theta = state.theta - _learning_rate(state.step, most_steps) * jnp.asarray(change)
            return state._replace(theta=theta, optimiser=optimiser, step=state.step + 1)

        def evaluate(state):
            loss = held_out_loss(state.theta)
            is_better = loss < state.best_loss
            return state._replace(
                best=jnp.where(is_better, state.theta, state.best),
                best_loss=jnp.where(is_better, loss, state.best_loss),
                evaluations_since_best=jnp.where(is_better, 0, state.evaluations_since_best + 1),
            )

        def round_of_steps(state):
            return evaluate(jax.lax.fori_loop(0, _STEPS_PER_EVALUATION, lambda _, s: update(s), state))

        end = state.step + count
        return jax.lax.while_loop(
            lambda s: (s.step < end) & (s.step < most_steps) & (s.evaluations_since_best < _patience(most_steps)),
            round_of_steps,
            state,
        )

    return placement.all_chains(advance_chain, (posterior, count, most_steps), states, keys)
