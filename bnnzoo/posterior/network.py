"""The posterior of all or some parameters of an Equinox module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

from bnnzoo.errors import UsageError
from bnnzoo.posterior import passes
from bnnzoo.posterior.base import AbstractPosterior, AnyData, CountedData, Data
from bnnzoo.posterior.hyperparameter import Number
from bnnzoo.posterior.layout import Block, Layout, named_leaves, network_layout
from bnnzoo.posterior.likelihoods import AbstractLikelihood, Parameter
from bnnzoo.posterior.predicting import Task
from bnnzoo.posterior.priors import AbstractPrior
from bnnzoo.posterior.subspace import SubspaceNetwork

_MIN_BUCKET = 16
"""Smallest step of `in_bucket`. The method rounds the number of rows up to a multiple of a step."""


class NetworkPosterior(AbstractPosterior):
    """The posterior of a network's weights and of the sampled parameters of its likelihood and its prior.

    Construct it with `NetworkPosterior.of(network, likelihood, prior, x, y)`. The network is any `eqx.Module` whose
    call maps one input to `likelihood.num_outputs(...)` outputs.
    """

    has_outputs: ClassVar[bool] = True

    data: AnyData
    network: PyTree
    likelihood: AbstractLikelihood
    prior: AbstractPrior
    likelihood_power: Number
    input_mean: Number
    input_sd: Number
    layout: Layout = eqx.field(static=True)
    _tree: Any = eqx.field(static=True)
    _rows: int | None = eqx.field(static=True, default=None)
    """Number of rows without padding if `padded` has added rows of padding; otherwise None."""
    has_exposure: bool = eqx.field(static=True, default=False)
    """Whether the last column of the inputs is an exposure.

    The exposure is not passed to the network. Its logarithm is added to the log rates.
    """
    expansion: PyTree = None
    """Derivatives of the log-likelihood at `centre()`, computed once for all chains; None if not computed."""
    adds_by_block: bool = eqx.field(static=True, default=False)
    """Whether `total_log_likelihood` sums block by block, without an array of the log-likelihoods of all rows.

    The order of summation changes the rounding. The value is true if the rows are stored in temporary files.
    """
    adds_unsampled: bool = eqx.field(static=True, default=False)
    """Whether predictions also include variation along unsampled directions (`SubspaceNetwork.change_by_others`)."""

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
        """Construct a posterior.

        Args:
            network: the network. A leaf that is not sampled keeps its value.
            likelihood: the distribution of a target given the network's outputs.
            prior: the prior of the sampled leaves.
            x: inputs, one row for each datum. Integer inputs (images) are converted to `(x - input_mean) / input_sd`
                on the device.
            y: targets `[num_data, target]` for regression, labels `[num_data]` for classification.
            likelihood_power: exponent of the likelihood.
            input_mean: mean of integer inputs.
            input_sd: standard deviation of integer inputs.
            sampled: function that returns whether a leaf of the network is sampled.
            has_exposure: whether the last column of x is an exposure: a positive number that multiplies the rates.

        Raises:
            UsageError: if two parameters have the same name, if a parameter is complex, or if the name of a parameter
                is not allowed in the result file.
        """
        layout = network_layout(network, sampled)
        own_blocks, start = list[Block](), layout.dim
        owners: Any = (("likelihood", likelihood.parameters()), ("prior", prior.parameters(layout)))
        for owner, parameters in owners:
            for parameter in parameters:
                own_blocks.append(Block(f"{owner}_{parameter.name}", parameter.shape, start, owner))
                start = own_blocks[-1].stop
        if clashes := {block.name for block in layout.blocks} & {block.name for block in own_blocks}:
            raise UsageError(
                f"{min(clashes)} is the name of a parameter of the network and of the likelihood or prior; rename the "
                "network's field"
            )
        sampled_part, fixed_part = eqx.partition(network, sampled)
        return cls(
            data=Data(x, y),
            network=fixed_part,
            likelihood=likelihood,
            prior=prior,
            likelihood_power=np.float32(likelihood_power),
            input_mean=np.float32(input_mean),
            input_sd=np.float32(input_sd),
            layout=Layout((*layout.blocks, *own_blocks)),
            _tree=jax.tree.structure(sampled_part),
            has_exposure=has_exposure,
        )

    @property
    def num_data(self) -> int:
        """Number of rows that belong to the posterior, without the padding of `padded`."""
        return len(self.data.x) if self._rows is None else self._rows

    def padded(self, multiple: int) -> NetworkPosterior:
        """Return the same posterior with rows of padding, so that `multiple` devices get the same number of rows."""
        missing = -len(self.data.x) % multiple
        if not missing:
            return self
        return dataclasses.replace(self, data=_with_last_repeated(self.data, missing), _rows=self.num_data)

    def in_bucket(self) -> NetworkPosterior:
        """Return the same posterior with padding up to a round number of rows. Padding has log-likelihood 0.

        The number of added rows is below an eighth of the number of rows, or below 16 for few rows. Posteriors with
        nearly the same number of rows then share their compiled programs, for example in cross-validation. The
        posterior density does not change, except by rounding. In the returned posterior, `num_data` includes the
        padding, and mini-batches can contain rows of padding.
        """
        count = self.num_data
        step = max(_MIN_BUCKET, 1 << max(0, count.bit_length() - 4))
        missing = -count % step
        x, y = _with_last_repeated((self.data.x, self.data.y), missing)
        return dataclasses.replace(self, data=CountedData(x, y, np.arange(count + missing) < count))

    @property
    def task(self) -> Task:
        """Kind of the targets: regression or classification."""
        return self.likelihood.task

    def network_at(self, theta: Float[Array, " dim"]) -> PyTree:
        """Return the network with the weights of `theta`."""
        values = self.layout.unflatten(theta)
        leaves = [values[b.name] for b in self.layout.network.blocks]
        return eqx.combine(jax.tree.unflatten(self._tree, leaves), self.network)

    def likelihood_at(self, theta: Float[Array, " dim"]) -> AbstractLikelihood:
        """Return the likelihood with its sampled parameters taken from `theta`."""
        values = self.layout.unflatten(theta)
        return self.likelihood.with_parameters(
            {p.name: p.natural(values[f"likelihood_{p.name}"]) for p in self.likelihood.parameters()}
        )

    def prior_at(self, values: Mapping[str, Array]) -> AbstractPrior:
        """Return the prior of the weights with its sampled parameters, such as scales, set to `values`.

        Args:
            values: unconstrained values of the sampled parameters, by block name.
        """
        parameters = self.prior.parameters(self.layout.network)
        return self.prior.with_parameters({p.name: p.natural(values[f"prior_{p.name}"]) for p in parameters})

    def outputs(self, theta: Float[Array, " dim"], x: Shaped[Array, "batch ..."]) -> Float[Array, "batch output"]:
        """Return the network's outputs for a batch of inputs. The log of an exposure is added to the log rates."""
        network, inputs = self.network_at(theta), self.inputs(x)
        if hasattr(network, "outputs_of_rows"):
            outputs = network.outputs_of_rows(inputs).T
        else:
            outputs = jax.vmap(network)(inputs)
        return self.with_exposure(outputs, x)

    def with_exposure(
        self, outputs: Float[Array, "batch output"], x: Shaped[Array, "batch ..."]
    ) -> Float[Array, "batch output"]:
        """Return the outputs with the log of the exposure in `x` added to the log rates; unchanged without exposure."""
        if not self.has_exposure:
            return outputs
        return jax.vmap(self.likelihood.with_exposure)(outputs, jnp.log(x[:, -1]))

    @eqx.filter_jit
    def features(self, function: Callable[[Array], Array]) -> Float[Array, "num_data feature"]:
        """Return the values of a function at the inputs of every datum. An exposure is appended as the last column.

        Args:
            function: a function of one input, for example a network without its last layer.
        """

        def batch_features(batch: Data) -> Float[Array, "batch feature"]:
            x = jnp.asarray(batch.x)
            values = jax.vmap(function)(self.inputs(x))
            return jnp.concatenate([values, x[:, -1:]], 1) if self.has_exposure else values

        return self.over_data(batch_features)

    def noise_widths(self, theta: Float[Array, " dim"], batch: AnyData) -> Float[Array, " batch"] | None:
        """Return each row's noise sd (geometric mean over targets); None if the outputs do not determine the noise."""
        if not self.likelihood.noise_by_row:
            return None
        outputs = self.outputs(theta, jnp.asarray(batch.x))
        variances = jax.vmap(lambda output: self.likelihood.distribution(output).variance)(outputs)
        return jnp.exp(jnp.mean(jnp.log(variances), axis=1) / 2)  # the geometric mean over the targets

    def fixed_prior(self) -> AbstractPrior | None:
        """Return the prior of the network's blocks; None if its scales are sampled."""
        return None if self.prior.parameters(self.layout.network) else self.prior

    def centre(self) -> Float[Array, " dim"] | None:
        """Return the mode if a subspace is sampled (`SubspaceNetwork`); otherwise None."""
        return self.network.centre if isinstance(self.network, SubspaceNetwork) else None

    def inputs(self, x: Shaped[Array, "batch ..."]) -> Float[Array, "batch ..."]:
        """Return the network's inputs for a batch: without the exposure; integer inputs are standardised."""
        if self.has_exposure:
            x = x[:, :-1]
        if jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return (x.astype(self.dtype) - self.input_mean) / self.input_sd

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        """Return the log prior of the weights and of the sampled parameters of the likelihood and the prior."""
        network, values = self.layout.network, self.layout.unflatten(theta)
        total = self.prior_at(values).log_prob(theta[: network.dim], network)
        for name, parameter in self.own_parameters().items():
            total = total + parameter.log_prior(values[name])
        return total

    def own_parameters(self) -> dict[str, Parameter]:
        """Return the sampled parameters of the likelihood and the prior by block name, in the order of the blocks."""
        likelihood = {
            (name := f"likelihood_{p.name}"): self.prior.of_likelihood(name, p) for p in self.likelihood.parameters()
        }
        return likelihood | {f"prior_{p.name}": p for p in self.prior.parameters(self.layout.network)}

    def log_likelihood(self, theta: Float[Array, " dim"], batch: AnyData) -> Float[Array, " batch"]:
        """Return log p(y_i | x_i, theta) of each datum; 0 for padding."""
        return self.log_likelihood_of_outputs(theta, self.outputs(theta, jnp.asarray(batch.x)), batch)

    def total_log_likelihood(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        """Return the sum of log p(y_i | x_i, theta) over all data."""
        if self.adds_by_block:
            return passes.total(self.data, self.num_data, lambda batch: self.log_likelihood(theta, batch))
        return jnp.sum(self.log_likelihoods(theta))

    def log_likelihood_of_outputs(
        self, theta: Float[Array, " dim"], outputs: Float[Array, "batch output"], batch: AnyData
    ) -> Float[Array, " batch"]:
        """Return log p(y_i | x_i, theta) of each datum, given the network's outputs; 0 for padding."""
        # With the rows as the last axis, the gradient of a perceptron is up to 1.5 times as fast.
        targets = jnp.moveaxis(jnp.asarray(batch.y), 0, -1)
        values = jax.vmap(self.likelihood_at(theta).log_prob, in_axes=-1)(outputs.T, targets)
        return jnp.where(batch.counts, values, 0) if isinstance(batch, CountedData) else values

    def position(self, network: PyTree) -> Float[Array, " dim"]:
        """Return the position `theta` with the parameters of `network`, which has the same architecture.

        The sampled parameters of the likelihood and the prior have their default initial values.
        """
        values: dict[str, Array] = named_leaves(network)
        values |= {name: jnp.full(p.shape, p.start) for name, p in self.own_parameters().items()}
        return self.layout.flatten(values).astype(self.dtype)

    def start(self, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Return a draw from the prior as the initial position."""
        return self.sample_prior(key=key)

    def log_likelihood_bounds(self, batch: AnyData) -> Float[Array, " batch"]:
        """Return an upper bound of each datum's log-likelihood over all theta; infinite if there is no bound."""
        return jax.vmap(self.likelihood.upper_bound)(jnp.asarray(batch.y)).astype(self.dtype)

    def sample_prior(self, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Draw from the prior: the network's weights and the sampled parameters of the likelihood and the prior."""
        network, unconstrained_draws = self.layout.network, {}
        for i, (name, parameter) in enumerate(self.own_parameters().items(), 1):
            unconstrained_draws[name] = parameter.draw(jax.random.fold_in(key, i))
        weights = self.prior_at(unconstrained_draws).sample(network, key=jax.random.fold_in(key, 0))
        return jnp.concatenate([weights, *(jnp.ravel(v) for v in unconstrained_draws.values())]).astype(self.dtype)

    def natural(self, draws: Float[np.ndarray, "*lead dim"]) -> dict[str, np.ndarray]:
        """Return draws by block name, with the parameters of the likelihood and the prior on their natural scale."""
        values = self.layout.unflatten(draws)
        return values | {name: p.natural(values[name]) for name, p in self.own_parameters().items()}

    def unconstrained(self, natural: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " dim"]:
        """Return the position `theta` of a flattened draw that is on the natural scale, as in the result file."""
        theta = np.array(natural)
        for name, parameter in self.own_parameters().items():
            block = next(b for b in self.layout.blocks if b.name == name)
            theta[block.start : block.stop] = parameter.unconstrained(natural[block.start : block.stop])
        return theta

    def predictive(
        self, natural: Float[Array, " dim"] | Float[Array, " both"], x: Shaped[Array, "batch ..."]
    ) -> tuple[AbstractLikelihood, Float[Array, "batch output"]]:
        """Return the likelihood and the outputs for one flattened draw on its natural scale.

        Args:
            natural: a draw, [dim], or a draw followed by a mode, [2 dim]. With a mode, the network is linearised at
                the mode: the outputs are f(x, mode) + J(x, mode) (theta - mode), where J is the Jacobian. A Laplace
                approximation is the posterior of this linearised model.
            x: a batch of inputs.
        """
        theta, mode = natural[: self.layout.dim], natural[self.layout.dim :]
        values = self.layout.unflatten(theta)
        likelihood_parameters = {p.name: values[f"likelihood_{p.name}"] for p in self.likelihood.parameters()}
        likelihood = self.likelihood.with_parameters(likelihood_parameters)
        if not mode.size:
            outputs = self.outputs(theta, x)
            return likelihood, outputs + self._change_by_others(theta, x) if self.adds_unsampled else outputs
        outputs, change = jax.jvp(lambda t: self.outputs(t, x), (mode,), (theta - mode,))
        return likelihood, outputs + change

    def _change_by_others(
        self, theta: Float[Array, " dim"], x: Shaped[Array, "batch ..."]
    ) -> Float[Array, "batch output"]:
        network = self.network_at(theta)
        assert isinstance(network, SubspaceNetwork)
        return network.change_by_others(self.inputs(x))


def _with_last_repeated(data: PyTree, count: int) -> PyTree:
    """Return arrays with `count` copies of the last row appended.

    A copy of a row gives finite values. A row of zeros could give NaN, even though its values are discarded.
    """
    return jax.tree.map(lambda a: np.concatenate([np.asarray(a), np.repeat(np.asarray(a)[-1:], count, 0)]), data)
