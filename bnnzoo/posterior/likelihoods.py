"""Likelihoods: the distribution of one datum's target given the network's output, by `numpyro.distributions`.

A likelihood can have sampled parameters of its own, such as a learned noise scale. These parameters are blocks of the
parameter vector `theta`, like the network's weights. `theta` contains unconstrained values, such as the logarithm of a
scale. The result file contains natural values, such as the scale. Targets are standardised if the run does so.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from annotated_types import Ge, Gt
from jaxtyping import Array, Float, PRNGKeyArray, Shaped
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.posterior import poisson
from bnnzoo.posterior.count_targets import check_counts
from bnnzoo.posterior.hyperparameter import Number, as_number, number
from bnnzoo.recipe import TargetUnits

_MIN_SCALE = 1e-4
"""Lower limit of a scale that a network output determines. It bounds the density of a target that equals its mean."""


class Parameter(NamedTuple):
    """A sampled parameter of a likelihood or prior. Its value is `natural(u)`, where `u` is a block of `theta`."""

    name: str
    shape: tuple[int, ...]
    start: float
    natural: Callable[[Any], Any]
    log_prior: Callable[[Array], Array]
    draw: Callable[[PRNGKeyArray], Array]
    """Function that draws `u` from its prior."""
    unconstrained: Callable[[Any], Any] = np.log
    """Inverse of `natural`."""


class AbstractLikelihood(eqx.Module):
    """The distribution p(target | output) of one datum."""

    task: ClassVar[Literal["regression", "classification"]]
    scales_targets: ClassVar[bool] = False
    """Whether the targets may be standardised. Counts and labels must not be standardised."""
    noise_by_row: ClassVar[bool] = False
    """Whether the network's outputs determine the noise scale. The network can then explain a poor fit as noise."""

    @abc.abstractmethod
    def num_outputs(self, num_targets: int) -> int:
        """Return the number of outputs needed for `num_targets` targets (regression) or classes (classification)."""

    @abc.abstractmethod
    def distribution(self, output: Float[Array, " output"]) -> dist.Distribution:
        """Return the distribution of one datum's target: event shape `[target]`, or `[]` for a label."""

    def log_prob(self, output: Float[Array, " output"], target: Shaped[Array, "*target"]) -> Float[Array, ""]:
        """Return log p(target | output) of one datum."""
        return jnp.asarray(self.distribution(output).log_prob(target))

    def sample(self, output: Float[Array, " output"], *, key: PRNGKeyArray) -> Shaped[Array, "*target"]:
        """Draw one datum's target."""
        return jnp.asarray(self.distribution(output).sample(key))

    def class_probabilities(self, output: Float[Array, " output"]) -> Float[Array, " classes"]:
        """Return the probability of each class given the output. Only likelihoods of class labels support this."""
        raise NotImplementedError(f"{type(self).__name__} is not a likelihood of class labels")

    def with_exposure(self, output: Float[Array, " output"], log_exposure: Float[Array, ""]) -> Float[Array, " output"]:
        """Return the outputs with the log exposure added to the log rates. Only likelihoods of counts support this."""
        raise NotImplementedError(f"{type(self).__name__} has no log rates, so an exposure is not possible")

    def upper_bound(self, target: Shaped[Array, "*target"]) -> Float[Array, ""]:
        """Return an upper bound of log p(target | output) over all outputs and parameters; infinite if unbounded."""
        del target
        return jnp.asarray(jnp.inf)

    def parameters(self) -> tuple[Parameter, ...]:
        """Return the sampled parameters of the likelihood, such as a learned noise scale."""
        return ()

    def with_parameters(self, values: Mapping[str, Array]) -> AbstractLikelihood:
        """Return the same likelihood with the sampled parameters set to `values`, which are on their natural scale."""
        return dataclasses.replace(self, **values) if values else self

    def of_targets(self, count: int) -> AbstractLikelihood:
        """Return the same likelihood for `count` targets or classes. Each target has its own learned parameters."""
        del count
        return self

    def check(self, targets: np.ndarray, num_targets: int) -> None:
        """Check that this likelihood can produce the targets.

        Args:
            targets: the targets, one row for each datum.
            num_targets: number of targets (regression) or classes (classification), as for `num_outputs`.

        Raises:
            UsageError: if a target is invalid; the message names the first such row.
        """
        del targets, num_targets


def half_normal_of_log(u: Array) -> Array:
    """Return the log density of u = log(scale) for scale ~ HalfNormal(1), including the Jacobian."""
    return jnp.sum(dist.HalfNormal(1.0).log_prob(jnp.exp(u)) + u)


def _log_of_half_normal(key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Array:
    """Draw u = log(scale) with scale ~ HalfNormal(1)."""
    return jnp.log(jnp.abs(jax.random.normal(key, shape)))


def exp(u: Any) -> Any:
    """Return e^u for an array of NumPy or JAX."""
    return np.exp(u) if isinstance(u, np.ndarray) else jnp.exp(u)


def half_normal(name: str, targets: int) -> tuple[Parameter, ...]:
    """Return a positive parameter: one value per target with prior HalfNormal(1). The logarithms are sampled."""
    shape = () if targets == 1 else (targets,)
    draw = functools.partial(_log_of_half_normal, shape=shape)
    return (Parameter(name, shape, float(np.log(0.5)), exp, half_normal_of_log, draw),)


class AbstractNoise(AbstractLikelihood):
    """A distribution centred at the outputs, with a scale that is fixed or learned for each target."""

    task: ClassVar[Literal["regression", "classification"]] = "regression"
    scales_targets: ClassVar[bool] = True

    def num_outputs(self, num_targets: int) -> int:
        return num_targets

    def upper_bound(self, target: Float[Array, " target"]) -> Float[Array, ""]:
        return jnp.asarray(jnp.inf) if self.parameters() else self.log_prob(target, target)

    def parameters(self) -> tuple[Parameter, ...]:
        noise: Any = self  # a declaration of the fields here would set their order in the classes below
        return half_normal("scale", noise._targets) if isinstance(noise.scale, str) else ()

    def of_targets(self, count: int) -> AbstractLikelihood:
        return dataclasses.replace(self, _targets=count)


class Gaussian(AbstractNoise):
    """N(output, scale^2), with the same noise for all inputs."""

    scale: Annotated[
        Number | Literal["learned"],
        Gt(0),
        TargetUnits(),
        Doc("noise standard deviation; `learned`: one value per target, with a HalfNormal(1) prior"),
    ] = eqx.field(converter=as_number, default="learned")
    _targets: int = eqx.field(static=True, default=1)

    def distribution(self, output: Float[Array, " output"]) -> dist.Distribution:
        return dist.Normal(output, self.scale).to_event(1)


class StudentT(AbstractNoise):
    """Student's t with `df` degrees of freedom, centred at the output: noise with outliers (Lange et al. 1989)."""

    df: Annotated[Number, Gt(2), Doc("degrees of freedom; must exceed 2, because predictions need a variance")] = (
        number(4.0)
    )
    scale: Annotated[
        Number | Literal["learned"],
        Gt(0),
        TargetUnits(),
        Doc("noise sd is scale * sqrt(df / (df - 2)); `learned`: one value per target, with a HalfNormal(1) prior"),
    ] = eqx.field(converter=as_number, default="learned")
    _targets: int = eqx.field(static=True, default=1)

    def distribution(self, output: Float[Array, " output"]) -> dist.Distribution:
        # Cast to the output's precision; otherwise a float32 df would fix the precision of the normalising constant.
        df, scale = (jnp.asarray(value, output.dtype) for value in (self.df, self.scale))
        return dist.StudentT(df, output, scale).to_event(1)


class Mixture(AbstractLikelihood):
    """A mixture of Gaussians whose weights, means and scales are network outputs (Bishop 1994).

    Outputs: `components` logits (none for one component), then means, then scales before softplus.
    """

    task: ClassVar[Literal["regression", "classification"]] = "regression"
    scales_targets: ClassVar[bool] = True
    noise_by_row: ClassVar[bool] = True

    components: Annotated[int, Ge(1), Doc("number of Gaussians; 1 gives the heteroscedastic Gaussian")] = 2

    def num_outputs(self, num_targets: int) -> int:
        return self.components * 2 * num_targets + (self.components if self.components > 1 else 0)

    def distribution(self, output: Float[Array, " output"]) -> dist.Distribution:
        k = self.components
        logits, moments_output = (output[:k], output[k:]) if k > 1 else (None, output)
        means, raw_scales = jnp.split(moments_output.reshape(2, k, -1), 2)
        mean, scale = means[0], jax.nn.softplus(raw_scales[0]) + _MIN_SCALE
        if logits is None:
            return dist.Normal(mean[0], scale[0]).to_event(1)
        return dist.MixtureSameFamily(dist.Categorical(logits=logits), dist.Normal(mean, scale).to_event(1))


class MixturePerTarget(AbstractLikelihood):
    """A mixture of Gaussians for each target. Given the outputs, the targets are independent.

    Outputs, for each target in turn: `components` logits (none for one component), means, and scales before softplus.
    """

    task: ClassVar[Literal["regression", "classification"]] = "regression"
    scales_targets: ClassVar[bool] = True
    noise_by_row: ClassVar[bool] = True

    components: Annotated[int, Ge(1), Doc("number of Gaussians per target")] = 2

    def num_outputs(self, num_targets: int) -> int:
        return num_targets * Mixture(self.components).num_outputs(1)

    def distribution(self, output: Float[Array, " output"]) -> dist.Distribution:
        k = self.components
        target_outputs = output.reshape(-1, Mixture(k).num_outputs(1))
        means, scales = target_outputs[:, -2 * k : -k], jax.nn.softplus(target_outputs[:, -k:]) + _MIN_SCALE
        if k == 1:
            return dist.Normal(means[:, 0], scales[:, 0]).to_event(1)
        return dist.MixtureSameFamily(
            dist.Categorical(logits=target_outputs[:, :k]), dist.Normal(means, scales)
        ).to_event(1)


class Heteroscedastic(AbstractLikelihood):
    """N(mean, scale^2), with both mean and scale determined by the network, so that the noise depends on the input.

    If `df` is finite, the distribution is Student's t with this location and scale, for noise that also has outliers.
    """

    task: ClassVar[Literal["regression", "classification"]] = "regression"
    scales_targets: ClassVar[bool] = True
    noise_by_row: ClassVar[bool] = True

    df: Annotated[
        Number | Literal["infinite"],
        Gt(2),
        Doc("degrees of freedom of Student's t, such as 4 for data with outliers; infinite: the normal distribution"),
    ] = eqx.field(converter=as_number, default="infinite")

    def num_outputs(self, num_targets: int) -> int:
        return 2 * num_targets

    def distribution(self, output: Float[Array, " output"]) -> dist.Distribution:
        num_targets = len(output) // 2
        location, scale = output[:num_targets], jax.nn.softplus(output[num_targets:]) + _MIN_SCALE
        if isinstance(self.df, str):
            return dist.Normal(location, scale).to_event(1)
        return dist.StudentT(jnp.asarray(self.df, output.dtype), location, scale).to_event(1)


class Categorical(AbstractLikelihood):
    """One of C classes, with logits as outputs."""

    task: ClassVar[Literal["regression", "classification"]] = "classification"

    def num_outputs(self, num_targets: int) -> int:
        return num_targets

    def distribution(self, output: Float[Array, " output"]) -> dist.Distribution:
        return dist.CategoricalLogits(output)

    def class_probabilities(self, output: Float[Array, " output"]) -> Float[Array, " classes"]:
        return jax.nn.softmax(output)

    def upper_bound(self, target: Shaped[Array, ""]) -> Float[Array, ""]:
        del target
        return jnp.zeros(())


class Bernoulli(AbstractLikelihood):
    """Labels 0 and 1, with the logit of label 1 as the only output."""

    task: ClassVar[Literal["regression", "classification"]] = "classification"

    def num_outputs(self, num_targets: int) -> int:
        del num_targets
        return 1

    def distribution(self, output: Float[Array, " output"]) -> dist.Distribution:
        return dist.BernoulliLogits(output[0])

    def class_probabilities(self, output: Float[Array, " output"]) -> Float[Array, " classes"]:
        return jnp.stack([jax.nn.sigmoid(-output[0]), jax.nn.sigmoid(output[0])])

    def upper_bound(self, target: Shaped[Array, ""]) -> Float[Array, ""]:
        del target
        return jnp.zeros(())

    def check(self, targets: np.ndarray, num_targets: int) -> None:
        del targets
        if num_targets != 2:
            raise UsageError(
                f"likelihood bernoulli: needs 2 classes (got {num_targets}); use [[likelihood=categorical]]"
            )


class Poisson(AbstractLikelihood):
    """Counts, with log rates as outputs."""

    task: ClassVar[Literal["regression", "classification"]] = "regression"

    def num_outputs(self, num_targets: int) -> int:
        return num_targets

    def distribution(self, output: Float[Array, " output"]) -> dist.Distribution:
        return dist.Poisson(jnp.exp(output)).to_event(1)

    def log_prob(self, output: Float[Array, " output"], target: Shaped[Array, "*target"]) -> Float[Array, ""]:
        return jnp.sum(poisson.log_probability(output, target))

    def upper_bound(self, target: Shaped[Array, "*target"]) -> Float[Array, ""]:
        return jnp.sum(jnp.where(target > 0, poisson.peak(target), 0))

    def with_exposure(self, output: Float[Array, " output"], log_exposure: Float[Array, ""]) -> Float[Array, " output"]:
        return output + log_exposure

    def check(self, targets: np.ndarray, num_targets: int) -> None:
        del num_targets
        check_counts(targets, "poisson")
