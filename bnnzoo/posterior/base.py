"""The interface of posteriors: a prior, a likelihood of each datum, the data, and mini-batches of the data."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Shaped

from bnnzoo.errors import UsageError
from bnnzoo.posterior import passes
from bnnzoo.posterior.hyperparameter import Number
from bnnzoo.posterior.layout import Layout
from bnnzoo.posterior.likelihoods import AbstractLikelihood
from bnnzoo.posterior.permutation import distinct_indices, uniform_indices
from bnnzoo.posterior.priors import AbstractPrior


class Data(NamedTuple):
    """Rows of inputs and targets in the form that is sent to the device. Integer images stay integers."""

    x: Shaped[Array | np.ndarray, "num_data ..."]
    y: Shaped[Array | np.ndarray, "num_data ..."]


class CountedData(NamedTuple):
    """Rows of data and rows of padding. For padding, `counts` is false, and the log-likelihood is 0 at every theta."""

    x: Shaped[Array | np.ndarray, "num_data ..."]
    y: Shaped[Array | np.ndarray, "num_data ..."]
    counts: Bool[Array | np.ndarray, " num_data"]


class WeightedData(NamedTuple):
    """Rows of data and the weight of each row in a Gauss-Newton matrix. The log-likelihood ignores the weights."""

    x: Shaped[Array | np.ndarray, "num_data ..."]
    y: Shaped[Array | np.ndarray, "num_data ..."]
    weight: Float[Array, " num_data"]


AnyData = Data | CountedData | WeightedData


class AbstractPosterior(eqx.Module):
    """A posterior with log density log p(theta) + likelihood_power * sum_i log p(y_i | x_i, theta), up to a constant.

    Here `theta` is the vector of all sampled parameters, and (x_i, y_i) is row i of the data.

    The data are leaves of the module, so that new data of the same shape need no new compilation.
    """

    has_outputs: ClassVar[bool] = False
    """Whether the likelihood depends on a network's outputs. Only then `outputs` and `likelihood_at` can be called."""

    data: eqx.AbstractVar[Any]
    likelihood_power: eqx.AbstractVar[Number]
    layout: eqx.AbstractVar[Layout]

    @abc.abstractmethod
    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        """Return the log prior density, up to a constant, without the factor `likelihood_power`."""

    @abc.abstractmethod
    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        """Return log p(y_i | x_i, theta) of each datum of a batch. The batch has the same structure as `data`."""

    @property
    def num_data(self) -> int:
        """Number of rows of the data."""
        return jax.tree.leaves(self.data)[0].shape[0]

    def take(self, indices: Int[Array, " batch"]) -> Any:
        """Return the rows of the data at `indices`."""
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[indices], self.data)

    def all_rows(self) -> Any:
        """Return all rows of the data, in their order."""
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[: self.num_data], self.data)

    def padded(self, multiple: int) -> AbstractPosterior:
        """Return the same posterior with data that can be split evenly over `multiple` devices.

        Raises:
            UsageError: if the rows cannot be split evenly, and this posterior cannot have rows of padding.
        """
        if self.num_data % multiple:
            raise UsageError(
                f"[[mesh]]: data={multiple} must be a divisor of the number of rows, {self.num_data}, because "
                f"{type(self).__name__} does not support padding rows; use another number of devices for data"
            )
        return self

    def minibatch(self, size: int, *, replace: bool = True, key: PRNGKeyArray) -> Any:
        """Draw `size` rows uniformly, with or without replacement."""
        if not replace and size == self.num_data:
            return self.all_rows()  # not shuffled, because the order does not change a sum over the rows
        draw = uniform_indices if replace else distinct_indices
        # Without the barrier XLA would draw the batch again at every use.
        return jax.lax.optimization_barrier(self.take(draw(size, self.num_data, key=key)))

    def log_likelihoods(self, theta: Float[Array, " dim"]) -> Float[Array, " num_data"]:
        """Return log p(y_i | x_i, theta) of every datum.

        The data are processed block by block. The blocks bound the memory, also inside `jax.grad`.
        """
        # Without the barrier XLA would evaluate the network again at every use of the values.
        return jax.lax.optimization_barrier(self.over_data(lambda batch: self.log_likelihood(theta, batch)))

    def log_likelihoods_and_gradient(
        self, theta: Float[Array, " dim"]
    ) -> tuple[Float[Array, " num_data"], Float[Array, " dim"]]:
        """Return log p(y_i | x_i, theta) of every datum and the gradient of their sum, from one pass over the data."""
        # Without the barrier XLA would evaluate the network again at every use of the values.
        return jax.lax.optimization_barrier(
            passes.values_and_gradient(self.data, self.num_data, self.log_likelihood, theta)
        )

    def log_density(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        """Return the log posterior density given all data, up to a constant."""
        return self.log_prior(theta) + self.likelihood_power * self.total_log_likelihood(theta)

    def total_log_likelihood(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        """Return the sum of log p(y_i | x_i, theta) over all data."""
        return jnp.sum(self.log_likelihoods(theta))

    def natural(self, draws: Float[np.ndarray, "*lead dim"]) -> dict[str, np.ndarray]:
        """Return draws by block name on the natural scale, as in the result file.

        For example, a positive parameter that is sampled as its logarithm is returned as its value.
        """
        return self.layout.unflatten(draws)

    def start(self, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Return a random initial position. The default is a draw from N(0, I)."""
        return jax.random.normal(key, (self.layout.dim,), self.dtype)

    def sample_prior(self, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Draw from the prior.

        Raises:
            UsageError: if this posterior cannot draw from its prior.
        """
        del key
        raise UsageError(
            f"{type(self).__name__}: cannot draw from its prior (sample_prior is missing); use another sampler, "
            "such as nuts"
        )

    def outputs(self, theta: Float[Array, " dim"], x: Shaped[Array, "batch ..."]) -> Float[Array, "batch output"]:
        """Return the network's outputs for a batch of inputs, if `has_outputs` is true."""
        raise NotImplementedError(f"{type(self).__name__} has no outputs of a network")

    def likelihood_at(self, theta: Float[Array, " dim"]) -> AbstractLikelihood:
        """Return the likelihood with its sampled parameters taken from `theta`, if `has_outputs` is true."""
        raise NotImplementedError(f"{type(self).__name__} has no outputs of a network")

    def noise_widths(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"] | None:
        """Return the noise standard deviation of each row, up to a factor that is the same for all rows.

        Return None if all rows have the same noise.
        """
        del theta, batch
        return None

    def fixed_prior(self) -> AbstractPrior | None:
        """Return the prior of the network's parameters; None if it is unknown, or if its scales are sampled."""
        return None

    def centre(self) -> Float[Array, " dim"] | None:
        """Return the mode of the posterior for control variates; None if the mode is not known before the run."""
        return None

    def log_likelihood_bounds(self, batch: Any) -> Float[Array, " batch"]:
        """Return an upper bound of each datum's log-likelihood over all theta; infinite if no bound is known."""
        return jnp.full(jax.tree.leaves(batch)[0].shape[0], jnp.inf, self.dtype)

    @property
    def dtype(self) -> Any:
        """Floating-point type of `theta`: float64 if JAX runs in double precision, else float32."""
        return jnp.zeros(()).dtype

    def over_data(self, function: Callable[[Any], Float[Array, "batch *value"]]) -> Float[Array, "num_data *value"]:
        """Apply a function of a batch to all rows, block by block, and return its values for every row."""
        return passes.over_blocks(self.data, self.num_data, function)

    def sum_over_data(
        self,
        function: Callable[[Any, Float[Array, " batch"]], PyTree[Array]],
        *,
        rows: int,
        add: Callable[[PyTree[Array], PyTree[Array]], PyTree[Array]] = passes.add_trees,
    ) -> PyTree[Array]:
        """Split the data into blocks of `rows` rows, and return the sum of `function(batch, weights)` over the blocks.

        The blocks may overlap. A row has weight 1 in one block, and weight 0 in a block that repeats the row. Rows of
        padding (`padded`) have weight 0.

        Args:
            function: function that returns the summary of a block, given the rows of the block and their weights.
            rows: number of rows in a block.
            add: function that combines the summaries of two blocks, by default their sum. A summary of zeros must not
                change the other summary.
        """
        return passes.sum_over_blocks(self.data, self.num_data, function, size=rows, add=add)
