"""The posterior: a prior, a likelihood per datum, and the data, with the mini-batches drawn inside."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Shaped

from bnnzoo.errors import UsageError
from bnnzoo.layout import Block, Layout, named_leaves, network_layout
from bnnzoo.likelihoods import AbstractLikelihood, Parameter
from bnnzoo.number import Number
from bnnzoo.permutation import distinct_indices, uniform_indices
from bnnzoo.priors import AbstractPrior

_BLOCK_ELEMENTS = 2**20
"""Input values in one block of a full-data pass: what bounds its memory."""


class Data(NamedTuple):
    """Rows of inputs and targets, as the device sees them. Integer images stay integers."""

    x: Shaped[Array | np.ndarray, "num_data ..."]
    y: Shaped[Array | np.ndarray, "num_data ..."]


class AbstractPosterior(eqx.Module):
    """log p(theta) + likelihood_power * sum_i log p(y_i | x_i, theta).

    The data are leaves: new data of the same shape compile nothing new.
    """

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

    def minibatch(self, size: int, *, replace: bool = True, key: PRNGKeyArray) -> Any:
        """`size` uniformly drawn rows, with replacement or all different."""
        draw = uniform_indices if replace else distinct_indices
        # Without the barrier XLA would draw the batch anew wherever it is used.
        return jax.lax.optimization_barrier(self.take(draw(size, self.num_data, key=key)))

    def log_likelihoods(self, theta: Float[Array, " dim"]) -> Float[Array, " num_data"]:
        """log p(y_i | x_i, theta) of every datum, in bounded memory also under `jax.grad`."""
        # Without the barrier XLA would compute the network again wherever the values are used.
        return jax.lax.optimization_barrier(self.over_data(lambda batch: self.log_likelihood(theta, batch)))

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

    def log_likelihood_bounds(self, batch: Any) -> Float[Array, " batch"]:
        """The most that each datum's log-likelihood can be at any theta; infinite where no bound is known."""
        return jnp.full(jax.tree.leaves(batch)[0].shape[0], jnp.inf, self.dtype)

    @property
    def dtype(self) -> Any:
        """The floating type of `theta`: float64 only where JAX runs in it."""
        return jnp.zeros(()).dtype

    def over_data(self, function: Callable[[Any], Float[Array, "batch *value"]]) -> Float[Array, "num_data *value"]:
        """A per-datum function of a batch over all data, block after block."""
        total = self.num_data
        leaves = jax.tree.leaves(self.data)
        rows = max(64, _BLOCK_ELEMENTS // max(1, sum(prod(leaf.shape[1:]) for leaf in leaves)))
        if total <= rows:
            return function(jax.tree.map(jnp.asarray, self.data))

        @jax.checkpoint
        def block(start: Int[Array, ""]) -> Float[Array, "batch *value"]:
            return function(
                jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(jnp.asarray(a), start, rows), self.data)
            )

        whole = total // rows
        head = jax.lax.map(block, rows * jnp.arange(whole, dtype=jnp.int32))
        head = head.reshape(whole * rows, *head.shape[2:])
        if whole * rows == total:
            return head
        rest = function(jax.tree.map(lambda a: jnp.asarray(a)[whole * rows :], self.data))
        return jnp.concatenate([head, rest])

    def sum_over_data(
        self, function: Callable[[Any, Float[Array, " batch"]], PyTree[Array]], *, rows: int
    ) -> PyTree[Array]:
        """The sum over blocks of `rows` data of `function(batch, weights)`.

        The last block overlaps the one before it: a datum that was seen already has weight 0, the others 1.
        """
        total, data = self.num_data, jax.tree.map(jnp.asarray, self.data)
        rows = min(total, max(1, rows))

        def block(i: Int[Array, ""] | int) -> PyTree[Array]:
            start = jnp.minimum(i * rows, total - rows)
            batch = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, rows), data)
            return function(batch, (start + jnp.arange(rows) >= i * rows).astype(self.dtype))

        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(block, 0))
        add = lambda i, sums: jax.tree.map(jnp.add, sums, block(i))  # noqa: E731
        return jax.lax.fori_loop(0, -(-total // rows), add, zero)


class NetworkPosterior(AbstractPosterior):
    """The posterior of a network's weights, and of its likelihood's own parameters.

    Make one with `NetworkPosterior.of(network, likelihood, prior, x, y)`, for any `eqx.Module` whose call maps one
    input to `likelihood.num_outputs(...)` outputs.
    """

    data: Data
    network: PyTree
    likelihood: AbstractLikelihood
    prior: AbstractPrior
    likelihood_power: Number
    input_mean: Number
    input_sd: Number
    layout: Layout = eqx.field(static=True)
    _tree: Any = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        network: PyTree,
        likelihood: AbstractLikelihood,
        prior: AbstractPrior,
        x: Shaped[Array | np.ndarray, "num_data ..."],
        y: Shaped[Array | np.ndarray, "num_data ..."],
        *,
        likelihood_power: float = 1.0,
        input_mean: float = 0.0,
        input_sd: float = 1.0,
        sampled: Callable[[Any], bool] = eqx.is_inexact_array,
    ) -> NetworkPosterior:
        """Put a posterior together.

        Args:
            x: inputs, one row a datum; integers (images) are turned into `(x - input_mean) / input_sd` on the device.
            y: targets `[num_data, target]` for regression, labels `[num_data]` for classification.
            sampled: which leaves of the network are sampled; the others stay as they are.
        """
        layout = network_layout(network, sampled)
        blocks, start = list(layout.blocks), layout.dim
        for parameter in likelihood.parameters():
            blocks.append(Block(f"likelihood_{parameter.name}", parameter.shape, start, "likelihood"))
            start = blocks[-1].stop
        for parameter in prior.parameters(layout):
            blocks.append(Block(f"prior_{parameter.name}", parameter.shape, start, "prior"))
            start = blocks[-1].stop
        chosen, rest = eqx.partition(network, sampled)
        return cls(
            data=Data(x, y),
            network=rest,
            likelihood=likelihood,
            prior=prior,
            likelihood_power=np.float32(likelihood_power),
            input_mean=np.float32(input_mean),
            input_sd=np.float32(input_sd),
            layout=Layout(tuple(blocks)),
            _tree=jax.tree.structure(chosen),
        )

    def network_at(self, theta: Float[Array, " dim"]) -> PyTree:
        """The network with `theta`'s weights."""
        values = self.layout.unflatten(theta)
        leaves = [values[b.name] for b in self.layout.network.blocks]
        return eqx.combine(jax.tree.unflatten(self._tree, leaves), self.network)

    def likelihood_at(self, theta: Float[Array, " dim"]) -> AbstractLikelihood:
        """The likelihood with `theta`'s own parameters."""
        values = self.layout.unflatten(theta)
        return self.likelihood.with_parameters(
            {p.name: p.natural(values[f"likelihood_{p.name}"]) for p in self.likelihood.parameters()}
        )

    def outputs(self, theta: Float[Array, " dim"], x: Shaped[Array, "batch ..."]) -> Float[Array, "batch output"]:
        """The network's outputs for a batch of inputs."""
        return jax.vmap(self.network_at(theta))(self.inputs(x))

    @eqx.filter_jit
    def features(self, function: Callable[[Array], Array]) -> Float[Array, "num_data feature"]:
        """A function of one input, such as a network without its last layer, at every datum."""
        return self.over_data(lambda batch: jax.vmap(function)(self.inputs(jnp.asarray(batch.x))))

    def inputs(self, x: Shaped[Array, "batch ..."]) -> Float[Array, "batch ..."]:
        """A batch of inputs as the network takes them."""
        if jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return (x.astype(self.dtype) - self.input_mean) / self.input_sd

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        network, values = self.layout.network, self.layout.unflatten(theta)
        own = {p.name: p.natural(values[f"prior_{p.name}"]) for p in self.prior.parameters(network)}
        total = self.prior.with_parameters(own).log_prob(theta[: network.dim], network)
        for name, parameter in self._own().items():
            total = total + parameter.log_prior(values[name])
        return total

    def _own(self) -> dict[str, Parameter]:
        """The likelihood's and the prior's own parameters, by the names of their blocks and in that order."""
        likelihood = {f"likelihood_{p.name}": p for p in self.likelihood.parameters()}
        return likelihood | {f"prior_{p.name}": p for p in self.prior.parameters(self.layout.network)}

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Data) -> Float[Array, " batch"]:
        outputs = self.outputs(theta, jnp.asarray(batch.x))
        return jax.vmap(self.likelihood_at(theta).log_prob)(outputs, jnp.asarray(batch.y))

    def position(self, network: PyTree) -> Float[Array, " dim"]:
        """The `theta` of a network of the same architecture, the likelihood's parameters at their usual start."""
        values: dict[str, Array] = named_leaves(network)
        values |= {name: jnp.full(p.shape, p.start) for name, p in self._own().items()}
        return self.layout.flatten(values).astype(self.dtype)

    def start(self, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        return self.sample_prior(key=key)

    def log_likelihood_bounds(self, batch: Data) -> Float[Array, " batch"]:
        return jax.vmap(self.likelihood.upper_bound)(jnp.asarray(batch.y)).astype(self.dtype)

    def sample_prior(self, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """A draw of the prior, of the network's parameters and the likelihood's."""
        network, drawn = self.layout.network, {}
        for i, (name, parameter) in enumerate(self._own().items(), 1):
            drawn[name] = parameter.draw(jax.random.fold_in(key, i))
        natural = {p.name: p.natural(drawn[f"prior_{p.name}"]) for p in self.prior.parameters(network)}
        weights = self.prior.with_parameters(natural).sample(network, key=jax.random.fold_in(key, 0))
        return jnp.concatenate([weights, *(jnp.ravel(v) for v in drawn.values())]).astype(self.dtype)

    def natural(self, draws: Float[np.ndarray, "*lead dim"]) -> dict[str, np.ndarray]:
        values = self.layout.unflatten(draws)
        return values | {name: p.natural(values[name]) for name, p in self._own().items()}

    def predictive(
        self, natural: Float[Array, " dim"], x: Shaped[Array, "batch ..."]
    ) -> tuple[AbstractLikelihood, Float[Array, "batch output"]]:
        """Likelihood and outputs of one draw on its natural scale, as the file holds it, flattened."""
        values = self.layout.unflatten(natural)
        own = {p.name: values[f"likelihood_{p.name}"] for p in self.likelihood.parameters()}
        return self.likelihood.with_parameters(own), self.outputs(natural, x)


class LinearisedPosterior(NetworkPosterior):
    """A posterior that predicts with the network's first-order Taylor polynomial in theta at a point, its `mode`.

    A draw as `predictive` takes it is followed by its mode, both on their natural scale: `[2 * dim]`.
    """

    @classmethod
    def like(cls, posterior: NetworkPosterior) -> LinearisedPosterior:
        """The same posterior, predicting linearly."""
        return cls(**{field.name: getattr(posterior, field.name) for field in dataclasses.fields(posterior)})

    def predictive(
        self, natural: Float[Array, " both"], x: Shaped[Array, "batch ..."]
    ) -> tuple[AbstractLikelihood, Float[Array, "batch output"]]:
        """Likelihood, and f(x, mode) + J(x, mode) (theta - mode)."""
        theta, mode = natural[: self.layout.dim], natural[self.layout.dim :]
        values = self.layout.unflatten(theta)
        own = {p.name: values[f"likelihood_{p.name}"] for p in self.likelihood.parameters()}
        outputs, change = jax.jvp(lambda t: self.outputs(t, x), (mode,), (theta - mode,))
        return self.likelihood.with_parameters(own), outputs + change
