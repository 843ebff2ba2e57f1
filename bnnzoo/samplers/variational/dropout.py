"""Monte Carlo dropout."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Ge, Gt, Lt
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.variational import training


class DropoutState(eqx.Module):
    """State of a chain: its latest draw, and the state of the training."""

    position: Float[Array, " dim"]
    point: Float[Array, " dim"]
    """Trained parameters of the network without dropped units."""
    adam: training.Adam


class Dropout(training.AbstractTrainedSampler[DropoutState]):
    """Draws of networks with randomly dropped units: theta = point * mask / (1 - p), with a new mask for every draw.

    Gal and Ghahramani 2016, Dropout as a Bayesian Approximation. A mask drops each input of a layer with probability p:
    it sets a column of the layer's weight matrix to 0. The dropped inputs are units in dense layers, and channels in
    convolutions. Biases are never dropped. The first sampled weight matrix has no mask, unless it is the only one. Only
    the point is fitted: warm-up trains it by Adam. A batch of n rows has `masks` equal parts, and each part has its own
    mask. With N rows in the data and beta the likelihood power, a step subtracts from the point

        rate_t Adam( -grad [ log p(point) + beta (N/n) sum_batch log p(y_i | x_i, point * mask / (1 - p)) ] / N )
    """

    rate: Annotated[Number, Gt(0), Lt(1), Doc("p: probability that a unit is dropped")] = number(0.1)
    learning_rate: Annotated[Number, Gt(0), Doc("learning rate of Adam; it falls to 0 over warm-up")] = number(5e-3)
    batch_size: Annotated[int, Ge(1), Doc("n: number of rows per warm-up step")] = 128
    masks: Annotated[int, Ge(1), Doc("number of masks per warm-up step, each for an equal part of the batch")] = 8

    def __check_init__(self) -> None:
        if self.batch_size % self.masks:
            raise ValueError(
                f"masks: must be a divisor of batch_size (got masks={self.masks}, batch_size={self.batch_size})"
            )

    def check(self, posterior: AbstractPosterior) -> None:
        """Refuse a network in which no sampled parameter is a weight matrix, because no unit can then be dropped.

        Raises:
            UsageError: if there is no sampled weight matrix.
        """
        if not _droppable_weights(posterior.layout):
            raise UsageError(
                "sampler dropout: no sampled parameter is a weight matrix, so there are no units to drop; use "
                "[[stochastic=all]], or another sampler"
            )

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float], *, warmup: bool = False) -> float:
        """Return the number of evaluations of a step.

        A warm-up step evaluates each row of the batch once, with one of `masks` masks. A step after warm-up evaluates
        no row.
        """
        del means
        return float(self.masks * min(self.batch_size // self.masks, posterior.num_data)) if warmup else 0.0

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> DropoutState:
        """Return the state of a chain whose training begins at `theta`."""
        del posterior, key
        return DropoutState(theta, theta, training.Adam.start(theta, num_warmup))

    def warmup_step(
        self, posterior: AbstractPosterior, state: DropoutState, *, key: PRNGKeyArray
    ) -> tuple[DropoutState, Stats]:
        """Make one Adam step. The loss is the mean over several random masks."""

        def masked_loss(point: Float[Array, " dim"], key: PRNGKeyArray) -> Float[Array, ""]:
            key_mask, key_batch = jax.random.split(key)
            rows = training.batch(posterior, self.batch_size // self.masks, key=key_batch)
            return training.loss(posterior, point, rows, evaluated_at=self._drop(posterior.layout, point, key=key_mask))

        keys = jax.random.split(key, self.masks)
        mean_loss = lambda t: jnp.mean(jax.vmap(lambda k: masked_loss(t, k))(keys))  # noqa: E731
        adam, point, stats = training.step(posterior, state.adam, state.point, mean_loss, self.learning_rate)
        return DropoutState(point, point, adam), stats

    def step(
        self, posterior: AbstractPosterior, state: DropoutState, *, key: PRNGKeyArray
    ) -> tuple[DropoutState, Stats]:
        """Draw a mask and apply it to the trained network."""
        position = self._drop(posterior.layout, state.point, key=key)
        return DropoutState(position, state.point, state.adam), training.draw_statistics(position)

    def _drop(self, layout: Layout, point: Float[Array, " dim"], *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Apply a random mask: set the weights of dropped inputs to 0, divide those of kept inputs by 1 - p."""
        droppable, scales = _droppable_weights(layout), []
        for i, block in enumerate(layout.blocks):
            scale = jnp.ones(block.shape, point.dtype)
            if block in droppable:
                kept_inputs = jax.random.bernoulli(jax.random.fold_in(key, i), 1 - self.rate, block.shape[1:2])
                scale = scale * jnp.expand_dims(kept_inputs / (1 - self.rate), range(1, len(block.shape) - 1))
            scales.append(jnp.ravel(scale))
        return point * jnp.concatenate(scales)


def _droppable_weights(layout: Layout) -> list[Block]:
    """Return the weight matrices that have a mask."""
    # A convolution's bias has the shape (channel, 1, 1), and the scale of a normalisation layer has the shape of its
    # bias. So the number of axes does not identify a weight matrix.
    biases = {(b.layer, b.shape) for b in layout.network.blocks if b.name.endswith("bias")}
    candidates = [b for b in layout.network.blocks if (b.layer, b.shape) not in biases]
    weights = [b for b in candidates if len(b.shape) == 2 or prod(b.shape[1:2]) > 1 or prod(b.shape[2:]) > 1]
    return weights[1:] or weights
