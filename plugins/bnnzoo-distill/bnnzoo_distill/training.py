"""Training of the student network with Adam, on the answers of the teacher."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import optimize

from bnnzoo.progress import Observer, Progress, ignore
from bnnzoo_distill.student import Layer, log_t, tail_of
from bnnzoo_distill.teacher import Answers, Kind

_DEPTH = 3
"""Number of hidden layers."""
_BATCH = 256
_LEARNING_RATE = 2e-3
_CHUNK = 250
"""Number of steps in one call of the compiled program."""
_MIN_SD = 1e-6
"""Lower limit of the teacher's standard deviations in the loss, in standard deviations of the target."""
_MAX_TAIL_ROWS = 8000


class Settings(NamedTuple):
    """Settings of the training: units of each hidden layer, optimisation steps, and the seed."""

    width: int
    steps: int
    seed: int


def targets_of(kind: Kind, answers: Answers, y_mean: float, y_sd: float) -> tuple[np.ndarray, ...]:
    """Return the answers of the teacher as arrays that the loss compares with the network's outputs.

    Regression: the standardised mean, and the logarithms of the aleatoric and epistemic standard deviations.
    Classification: the class probabilities, and the square root of the mutual information.
    """
    if kind == "classification":
        return answers.mean.astype(np.float32), np.sqrt(answers.epistemic).astype(np.float32)
    sds = np.maximum(np.stack([answers.aleatoric, answers.epistemic], 1) / y_sd, _MIN_SD)
    mean = (answers.mean - y_mean) / y_sd
    return mean.astype(np.float32), np.log(sds).astype(np.float32)


def train(
    kind: Kind,
    x: Float[np.ndarray, "row feature"],
    targets: tuple[np.ndarray, ...],
    settings: Settings,
    observer: Observer | None = None,
) -> tuple[Layer, ...]:
    """Train a network and return its weights and biases.

    Args:
        kind: regression or classification.
        x: standardised inputs.
        targets: the result of `targets_of`.
        settings: units of the layers, number of steps and seed.
        observer: a function that receives the progress.
    """
    key_network, key_batches = jax.random.split(jax.random.key(settings.seed))
    num_outputs = 3 if kind == "regression" else targets[0].shape[1] + 1
    network = eqx.nn.MLP(x.shape[1], num_outputs, settings.width, _DEPTH, jax.nn.silu, key=key_network)
    schedule = optax.cosine_onecycle_schedule(settings.steps, _LEARNING_RATE, pct_start=0.1)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    state = optimiser.init(eqx.filter(network, eqx.is_array))
    loss = _regression_loss if kind == "regression" else _classification_loss
    data, tell = jax.tree.map(jnp.asarray, (x, *targets)), observer or ignore
    for start in range(0, settings.steps, _CHUNK):
        tell(Progress("training", start, settings.steps))
        key, count = jax.random.fold_in(key_batches, start), min(_CHUNK, settings.steps - start)
        network, state = _steps(network, state, data, optimiser, loss, count, key)
    tell(Progress("training", settings.steps, settings.steps))
    return tuple((np.asarray(layer.weight), np.asarray(layer.bias)) for layer in network.layers)


@eqx.filter_jit
def _steps(
    network: eqx.nn.MLP,
    state: optax.OptState,
    data: tuple[Array, ...],
    optimiser: optax.GradientTransformation,
    loss: Callable[..., Float[Array, ""]],
    count: int,
    key: PRNGKeyArray,
) -> tuple[eqx.nn.MLP, optax.OptState]:
    """Take `count` steps of the optimiser, each on a random batch of rows."""
    arrays, static = eqx.partition(network, eqx.is_array)

    def step(carry: tuple, key: PRNGKeyArray) -> tuple[tuple, None]:
        arrays, state = carry
        rows = jax.random.randint(key, (_BATCH,), 0, len(data[0]))
        x, *targets = (values[rows] for values in data)
        gradient = jax.grad(lambda arrays: loss(jax.vmap(eqx.combine(arrays, static))(x), *targets))(arrays)
        updates, state = optimiser.update(gradient, state)
        return (eqx.apply_updates(arrays, updates), state), None

    (arrays, state), _ = jax.lax.scan(step, (arrays, state), jax.random.split(key, count))
    return eqx.combine(arrays, static), state


def _regression_loss(
    outputs: Float[Array, "row 3"], mean: Float[Array, " row"], log_sds: Float[Array, "row 2"]
) -> Float[Array, ""]:
    """Return the loss of the mean plus the squared errors of both log standard deviations, averaged over the rows.

    The error of the mean is measured in predictive standard deviations of the row. The loss of the mean is the Huber
    loss: half of the squared error up to one standard deviation, and linear beyond. For a normal density, half of the
    squared error is the decrease of the log density. Because of the linear part, rows with small noise do not dominate
    at the start.
    """
    log_sd = 0.5 * jnp.logaddexp(2 * log_sds[:, 0], 2 * log_sds[:, 1])
    errors = (outputs[:, 0] - mean) / jnp.exp(log_sd)
    return optax.losses.huber_loss(errors).mean() + ((outputs[:, 1:] - log_sds) ** 2).sum(1).mean()


def _classification_loss(
    outputs: Float[Array, "row output"], probabilities: Float[Array, "row class"], epistemic: Float[Array, " row"]
) -> Float[Array, ""]:
    """Return the cross-entropy plus 10 times the squared error of the square root of the mutual information.

    `epistemic` is the square root of the teacher's mutual information.
    """
    logs = jax.nn.log_softmax(outputs[:, :-1])
    cross_entropy = -(probabilities * logs).sum(1).mean()
    return cross_entropy + 10 * ((jax.nn.softplus(outputs[:, -1]) - epistemic) ** 2).mean()


def fit_tail(answers: Answers) -> Float[np.ndarray, " 2"]:
    """Return the coefficients of `student.tail_of` with the largest likelihood for samples from the teacher.

    In `tail_of`, the tail depends only on the epistemic fraction of a row's standard deviation. The network has no
    output for the tail, because such an output would fit the noise of the samples.
    """
    rows = slice(_MAX_TAIL_ROWS)
    fraction = answers.epistemic[rows] / np.hypot(answers.aleatoric[rows], answers.epistemic[rows])
    samples = answers.residuals[rows].astype(np.float64)

    def loss(tail: Float[np.ndarray, " 2"]) -> float:
        return -float(log_t(samples, tail_of(tail, fraction)[:, None]).mean())

    return optimize.minimize(loss, np.zeros(2)).x
