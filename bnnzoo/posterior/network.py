"""The posterior of any Equinox module's parameters, the whole network's or a part's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree, Shaped

from bnnzoo.errors import UsageError
from bnnzoo.posterior.base import AbstractPosterior, Data
from bnnzoo.posterior.hyperparameter import Number
from bnnzoo.posterior.layout import Block, Layout, named_leaves, network_layout
from bnnzoo.posterior.likelihoods import AbstractLikelihood, Parameter
from bnnzoo.posterior.predicting import Task
from bnnzoo.posterior.priors import AbstractPrior

_LEAST_BUCKET = 16
"""Rows by which `in_bucket` rounds, at least."""


class CountedData(NamedTuple):
    """Rows as in `Data`, some of which do not count: the likelihood of these is one, whatever theta."""

    x: Shaped[Array | np.ndarray, "num_data ..."]
    y: Shaped[Array | np.ndarray, "num_data ..."]
    counts: Bool[Array | np.ndarray, " num_data"]


class NetworkPosterior(AbstractPosterior):
    """The posterior of a network's weights, and of its likelihood's own parameters.

    Make one with `NetworkPosterior.of(network, likelihood, prior, x, y)`, for any `eqx.Module` whose call maps one
    input to `likelihood.num_outputs(...)` outputs.
    """

    has_outputs: ClassVar[bool] = True

    data: Data | CountedData
    network: PyTree
    likelihood: AbstractLikelihood
    prior: AbstractPrior
    likelihood_power: Number
    input_mean: Number
    input_sd: Number
    layout: Layout = eqx.field(static=True)
    _tree: Any = eqx.field(static=True)
    _rows: int | None = eqx.field(static=True, default=None)
    """How many of the data's rows are the posterior's, where there are more than those."""
    has_exposure: bool = eqx.field(static=True, default=False)
    """Whether the last input is an exposure: not the network's, its logarithm is added to the log rates."""

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
        has_exposure: bool = False,
    ) -> NetworkPosterior:
        """Put a posterior together.

        Args:
            x: inputs, one row a datum; integers (images) are turned into `(x - input_mean) / input_sd` on the device.
            y: targets `[num_data, target]` for regression, labels `[num_data]` for classification.
            sampled: which leaves of the network are sampled; the others stay as they are.
            has_exposure: whether the last column of x is an exposure, a positive number that rates are multiplied by.

        Raises:
            UsageError: where two parameters have one name, or one is not of real numbers.
        """
        layout = network_layout(network, sampled)
        blocks, start = list(layout.blocks), layout.dim
        for parameter in likelihood.parameters():
            blocks.append(Block(f"likelihood_{parameter.name}", parameter.shape, start, "likelihood"))
            start = blocks[-1].stop
        for parameter in prior.parameters(layout):
            blocks.append(Block(f"prior_{parameter.name}", parameter.shape, start, "prior"))
            start = blocks[-1].stop
        if taken := {block.name for block in layout.blocks} & {b.name for b in blocks if b.owner != "network"}:
            raise UsageError(
                f"{min(taken)} is a parameter of the network and one beside it; rename the network's field"
            )
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
            has_exposure=has_exposure,
        )

    @property
    def num_data(self) -> int:
        return len(self.data.x) if self._rows is None else self._rows

    def padded(self, multiple: int) -> NetworkPosterior:
        missing = -len(self.data.x) % multiple
        if not missing:
            return self
        # Copies of the last row: whatever is computed of them and thrown away is finite.
        longer = jax.tree.map(lambda a: np.concatenate([a, np.repeat(np.asarray(a)[-1:], missing, 0)]), self.data)
        return dataclasses.replace(self, data=longer, _rows=self.num_data)

    def in_bucket(self) -> NetworkPosterior:
        """The same posterior, with rows that do not count up to a round number, by an eighth more at most.

        The data are leaves, so that posteriors of nearly as many rows, such as those of a cross-validation, share their
        programs. The density is the same but for rounding; what is drawn of `num_data` rows finds those among them.
        """
        count = self.num_data
        step = max(_LEAST_BUCKET, 1 << max(0, count.bit_length() - 4))
        missing = -count % step
        held = map(np.asarray, (self.data.x, self.data.y))
        # Copies of the last row: whatever is computed of them and thrown away is finite.
        x, y = (np.concatenate([rows, np.repeat(rows[-1:], missing, 0)]) for rows in held)
        return dataclasses.replace(self, data=CountedData(x, y, np.arange(count + missing) < count))

    @property
    def task(self) -> Task:
        """What its targets are."""
        return self.likelihood.task

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
        """The network's outputs for a batch of inputs, with the exposure in their log rates where there is one."""
        return self.with_exposure(jax.vmap(self.network_at(theta))(self.inputs(x)), x)

    def with_exposure(
        self, outputs: Float[Array, "batch output"], x: Shaped[Array, "batch ..."]
    ) -> Float[Array, "batch output"]:
        """A network's outputs for a batch of inputs, with the logarithm of the exposure added to their log rates."""
        if not self.has_exposure:
            return outputs
        return jax.vmap(self.likelihood.exposed)(outputs, jnp.log(x[:, -1]))

    @eqx.filter_jit
    def features(self, function: Callable[[Array], Array]) -> Float[Array, "num_data feature"]:
        """A function of one input, such as a network without its last layer, at every datum; then the exposure."""

        def of(batch: Data) -> Float[Array, "batch feature"]:
            x = jnp.asarray(batch.x)
            values = jax.vmap(function)(self.inputs(x))
            return jnp.concatenate([values, x[:, -1:]], 1) if self.has_exposure else values

        return self.over_data(of)

    def noise_widths(self, theta: Float[Array, " dim"], batch: Data | CountedData) -> Float[Array, " batch"] | None:
        if not self.likelihood.noise_by_row:
            return None
        outputs = self.outputs(theta, jnp.asarray(batch.x))
        variances = jax.vmap(lambda output: self.likelihood.distribution(output).variance)(outputs)
        return jnp.exp(jnp.mean(jnp.log(variances), axis=1) / 2)  # of several targets the geometric mean

    def fixed_prior(self) -> AbstractPrior | None:
        return None if self.prior.parameters(self.layout.network) else self.prior

    def inputs(self, x: Shaped[Array, "batch ..."]) -> Float[Array, "batch ..."]:
        """A batch of inputs as the network takes them, without the exposure."""
        if self.has_exposure:
            x = x[:, :-1]
        if jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return (x.astype(self.dtype) - self.input_mean) / self.input_sd

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        network, values = self.layout.network, self.layout.unflatten(theta)
        own = {p.name: p.natural(values[f"prior_{p.name}"]) for p in self.prior.parameters(network)}
        total = self.prior.with_parameters(own).log_prob(theta[: network.dim], network)
        for name, parameter in self.own_parameters().items():
            total = total + parameter.log_prior(values[name])
        return total

    def own_parameters(self) -> dict[str, Parameter]:
        """The likelihood's and the prior's own parameters, by the names of their blocks and in that order."""
        likelihood = {f"likelihood_{p.name}": p for p in self.likelihood.parameters()}
        return likelihood | {f"prior_{p.name}": p for p in self.prior.parameters(self.layout.network)}

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Data | CountedData) -> Float[Array, " batch"]:
        outputs = self.outputs(theta, jnp.asarray(batch.x))
        values = jax.vmap(self.likelihood_at(theta).log_prob)(outputs, jnp.asarray(batch.y))
        return jnp.where(batch.counts, values, 0) if isinstance(batch, CountedData) else values

    def position(self, network: PyTree) -> Float[Array, " dim"]:
        """The `theta` of a network of the same architecture, the likelihood's parameters at their usual start."""
        values: dict[str, Array] = named_leaves(network)
        values |= {name: jnp.full(p.shape, p.start) for name, p in self.own_parameters().items()}
        return self.layout.flatten(values).astype(self.dtype)

    def start(self, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        return self.sample_prior(key=key)

    def log_likelihood_bounds(self, batch: Data | CountedData) -> Float[Array, " batch"]:
        return jax.vmap(self.likelihood.upper_bound)(jnp.asarray(batch.y)).astype(self.dtype)

    def sample_prior(self, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """A draw of the prior, of the network's parameters and the likelihood's."""
        network, drawn = self.layout.network, {}
        for i, (name, parameter) in enumerate(self.own_parameters().items(), 1):
            drawn[name] = parameter.draw(jax.random.fold_in(key, i))
        natural = {p.name: p.natural(drawn[f"prior_{p.name}"]) for p in self.prior.parameters(network)}
        weights = self.prior.with_parameters(natural).sample(network, key=jax.random.fold_in(key, 0))
        return jnp.concatenate([weights, *(jnp.ravel(v) for v in drawn.values())]).astype(self.dtype)

    def natural(self, draws: Float[np.ndarray, "*lead dim"]) -> dict[str, np.ndarray]:
        values = self.layout.unflatten(draws)
        return values | {name: p.natural(values[name]) for name, p in self.own_parameters().items()}

    def unconstrained(self, natural: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " dim"]:
        """The `theta` of a draw on its natural scale, flattened, as the file holds it."""
        theta = np.array(natural)
        for name, parameter in self.own_parameters().items():
            block = next(b for b in self.layout.blocks if b.name == name)
            theta[block.start : block.stop] = parameter.unconstrained(natural[block.start : block.stop])
        return theta

    def predictive(
        self, natural: Float[Array, " dim"] | Float[Array, " both"], x: Shaped[Array, "batch ..."]
    ) -> tuple[AbstractLikelihood, Float[Array, "batch output"]]:
        """Likelihood and outputs of one draw on its natural scale, as the file holds it, flattened.

        A draw that is followed by the mode it belongs to, `[2 * dim]`, predicts with the network's first-order Taylor
        polynomial there, f(x, mode) + J(x, mode) (theta - mode): what a Laplace approximation is the posterior of.
        """
        theta, mode = natural[: self.layout.dim], natural[self.layout.dim :]
        values = self.layout.unflatten(theta)
        own = {p.name: values[f"likelihood_{p.name}"] for p in self.likelihood.parameters()}
        likelihood = self.likelihood.with_parameters(own)
        if not mode.size:
            return likelihood, self.outputs(theta, x)
        outputs, change = jax.jvp(lambda t: self.outputs(t, x), (mode,), (theta - mode,))
        return likelihood, outputs + change
