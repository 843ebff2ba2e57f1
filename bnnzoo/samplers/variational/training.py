"""Training in warm-up, for methods that first fit a network, or a distribution of networks, and then make draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number
from bnnzoo.samplers.base import AbstractSampler, Exactness, Stats
from bnnzoo.samplers.kernel import choose
from bnnzoo.samplers.statistics import DIVERGING, LOG_DENSITY_ESTIMATE, Statistic

S = TypeVar("S")
P = TypeVar("P")
_ADAM = optax.scale_by_adam()


class AbstractTrainedSampler(AbstractSampler[S]):
    """A method that trains on mini-batches in warm-up. Its draws after warm-up do not use the data."""

    exactness: ClassVar[Exactness] = "approximate"
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY_ESTIMATE, DIVERGING)

    batch_size: eqx.AbstractVar[int]

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float], *, warmup: bool = False) -> float:
        """Return the number of rows of a mini-batch in warm-up, and 0 for a draw, which does not use the data."""
        del means
        return float(min(self.batch_size, posterior.num_data)) if warmup else 0.0


class Adam(eqx.Module):
    """State of the optimiser Adam (Kingma and Ba 2015).

    The learning rate falls to 0 over warm-up, as half a period of a cosine, unless `start` has `constant=True`.
    """

    moments: PyTree
    done: Float[Array, ""]
    total: Float[Array, ""]

    @classmethod
    def start(cls, parameters: PyTree, num_warmup: int, *, constant: bool = False) -> Adam:
        """Return the initial state for a training of `num_warmup` steps."""
        zero = jnp.zeros(())
        return cls(_ADAM.init(parameters), zero, zero + (jnp.inf if constant else max(1, num_warmup)))

    def descend(
        self, parameters: PyTree, gradient: PyTree, learning_rate: Number
    ) -> tuple[Adam, PyTree, Bool[Array, ""]]:
        """Make a step if the gradient is finite. Return Adam's state, the parameters, and whether a step was made."""
        finite = jnp.isfinite(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(gradient)))
        direction, moments = _ADAM.update(gradient, self.moments)
        rate = learning_rate * (1 + jnp.cos(jnp.pi * self.done / self.total)) / 2
        new_parameters = jax.tree.map(lambda p, d: p - rate * d, parameters, direction)
        moments, new_parameters = choose(finite, (moments, new_parameters), (self.moments, parameters))
        return Adam(moments, jnp.minimum(self.done + 1, self.total), self.total), new_parameters, finite


def step(
    posterior: AbstractPosterior, adam: Adam, parameters: P, loss: Callable[[P], Float[Array, ""]], rate: Number
) -> tuple[Adam, P, Stats]:
    """Make a step of Adam on `loss`, a loss per datum. Return Adam's state, the new parameters, and the statistics."""
    value, gradient = jax.value_and_grad(loss)(parameters)
    adam, parameters, finite = adam.descend(parameters, gradient, rate)
    return adam, parameters, {"lp_estimate": -posterior.num_data * value, "diverging": ~finite}


def draw_statistics(position: Float[Array, " dim"]) -> Stats:
    """Return the statistics of a draw whose density is not computed: only whether the draw is finite."""
    return {"diverging": ~jnp.isfinite(jnp.sum(position))}


def batch(posterior: AbstractPosterior, size: int, *, key: PRNGKeyArray) -> Any:
    """Draw a mini-batch of `size` rows. If the data have at most `size` rows, return all rows."""
    if size >= posterior.num_data:
        return posterior.all_rows()
    return posterior.minibatch(size, key=key)


def loss(
    posterior: AbstractPosterior,
    theta: Float[Array, " dim"],
    rows: Any,
    *,
    evaluated_at: Float[Array, " dim"] | None = None,
    weights: Float[Array, " batch"] | None = None,
) -> Float[Array, ""]:
    """Return the mini-batch estimate of minus the log posterior density per datum.

    Args:
        posterior: the target distribution.
        theta: the parameters at which the prior is evaluated.
        rows: the mini-batch.
        evaluated_at: the parameters at which the likelihood is evaluated, if they differ from `theta`.
        weights: weight of each row; 1 by default.
    """
    log_likelihoods = posterior.log_likelihood(theta if evaluated_at is None else evaluated_at, rows)
    mean = jnp.mean(log_likelihoods if weights is None else weights * log_likelihoods)
    return -posterior.likelihood_power * mean - posterior.log_prior(theta) / posterior.num_data
