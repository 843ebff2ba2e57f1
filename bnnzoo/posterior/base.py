"""The posterior: a prior, a likelihood per datum, and the data, with the mini-batches drawn inside."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Shaped

from bnnzoo.errors import UsageError
from bnnzoo.posterior import passes
from bnnzoo.posterior.hyperparameter import Number
from bnnzoo.posterior.layout import Layout
from bnnzoo.posterior.likelihoods import AbstractLikelihood
from bnnzoo.posterior.permutation import distinct_indices, uniform_indices
from bnnzoo.posterior.priors import AbstractPrior


class Data(NamedTuple):
    """Rows of inputs and targets, as the device sees them. Integer images stay integers."""

    x: Shaped[Array | np.ndarray, "num_data ..."]
    y: Shaped[Array | np.ndarray, "num_data ..."]


class AbstractPosterior(eqx.Module):
    """log p(theta) + likelihood_power * sum_i log p(y_i | x_i, theta).

    The data are leaves: new data of the same shape compile nothing new.
    """

    has_outputs: ClassVar[bool] = False
    """Whether the likelihood sees theta through the outputs of a network: `outputs` and `likelihood_at` are there."""

    data: eqx.AbstractVar[Any]
    likelihood_power: eqx.AbstractVar[Number]
    layout: eqx.AbstractVar[Layout]

    @abc.abstractmethod
    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        """The log prior density; never scaled, never noisy."""

    @abc.abstractmethod
    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        """log p(y_i | x_i, theta) of each datum of a batch, a tree shaped like `data`."""

    @property
    def num_data(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]

    def take(self, indices: Int[Array, " batch"]) -> Any:
        """The rows of the data at `indices`."""
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[indices], self.data)

    def all_rows(self) -> Any:
        """All rows of the data, in their order."""
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[: self.num_data], self.data)

    def padded(self, multiple: int) -> AbstractPosterior:
        """The same posterior with data that so many devices can share evenly.

        Raises:
            UsageError: where the rows do not divide, and this posterior cannot leave some out of account.
        """
        if self.num_data % multiple:
            raise UsageError(f"mesh: {self.num_data} rows do not divide by data={multiple}; use a number that does")
        return self

    def minibatch(self, size: int, *, replace: bool = True, key: PRNGKeyArray) -> Any:
        """`size` uniformly drawn rows, with replacement or all different."""
        if not replace and size == self.num_data:
            return self.all_rows()  # in their own order: it means nothing to a sum
        draw = uniform_indices if replace else distinct_indices
        # Without the barrier XLA would draw the batch anew wherever it is used.
        return jax.lax.optimization_barrier(self.take(draw(size, self.num_data, key=key)))

    def log_likelihoods(self, theta: Float[Array, " dim"]) -> Float[Array, " num_data"]:
        """log p(y_i | x_i, theta) of every datum, in bounded memory also under `jax.grad`."""
        # Without the barrier XLA would compute the network again wherever the values are used.
        return jax.lax.optimization_barrier(self.over_data(lambda batch: self.log_likelihood(theta, batch)))

    def log_likelihoods_and_gradient(
        self, theta: Float[Array, " dim"]
    ) -> tuple[Float[Array, " num_data"], Float[Array, " dim"]]:
        """log p(y_i | x_i, theta) of every datum, and the gradient of their sum, of one sweep in bounded memory."""
        # As above.
        return jax.lax.optimization_barrier(
            passes.each_and_gradient(self.data, self.num_data, self.log_likelihood, theta)
        )

    def log_density(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        """The log posterior density up to a constant, over all data."""
        return self.log_prior(theta) + self.likelihood_power * jnp.sum(self.log_likelihoods(theta))

    def natural(self, draws: Float[np.ndarray, "*lead dim"]) -> dict[str, np.ndarray]:
        """Draws by block on their natural scale: what the file holds."""
        return self.layout.unflatten(draws)

    def start(self, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Where a chain starts when nothing better is known: N(0, I), or a draw of the prior where there is one."""
        return jax.random.normal(key, (self.layout.dim,), self.dtype)

    def sample_prior(self, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """A draw of the prior.

        Raises:
            UsageError: if this posterior does not say how.
        """
        del key
        raise UsageError(
            f"{type(self).__name__}: has no draws of its prior (sample_prior); use another sampler, such as nuts"
        )

    def outputs(self, theta: Float[Array, " dim"], x: Shaped[Array, "batch ..."]) -> Float[Array, "batch output"]:
        """The outputs for a batch of inputs, of a posterior that has them."""
        raise NotImplementedError(f"{type(self).__name__} has no outputs")

    def likelihood_at(self, theta: Float[Array, " dim"]) -> AbstractLikelihood:
        """What outputs say of a target, with `theta`'s own parameters, of a posterior that has them."""
        raise NotImplementedError(f"{type(self).__name__} has no outputs")

    def noise_widths(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"] | None:
        """The standard deviation of each row's noise, up to a factor; None where it is not a row's own."""
        del theta, batch
        return None

    def fixed_prior(self) -> AbstractPrior | None:
        """The prior of the network's blocks in closed form; None where it is not known, or its scales are sampled."""
        return None

    def log_likelihood_bounds(self, batch: Any) -> Float[Array, " batch"]:
        """The most that each datum's log-likelihood can be at any theta; infinite where no bound is known."""
        return jnp.full(jax.tree.leaves(batch)[0].shape[0], jnp.inf, self.dtype)

    @property
    def dtype(self) -> Any:
        """The floating type of `theta`: float64 only where JAX runs in it."""
        return jnp.zeros(()).dtype

    def over_data(self, function: Callable[[Any], Float[Array, "batch *value"]]) -> Float[Array, "num_data *value"]:
        """A per-datum function of a batch over all data, block after block."""
        return passes.each(self.data, self.num_data, function)

    def sum_over_data(
        self,
        function: Callable[[Any, Float[Array, " batch"]], PyTree[Array]],
        *,
        rows: int,
        add: Callable[[PyTree[Array], PyTree[Array]], PyTree[Array]] = passes.plus,
    ) -> PyTree[Array]:
        """The sum over blocks of `rows` data of `function(batch, weights)`.

        A datum that another block has seen already has weight 0, the others 1.

        Args:
            add: how two blocks' values make one, where not by addition; zeros change nothing.
        """
        return passes.summed(self.data, self.num_data, function, size=rows, add=add)
