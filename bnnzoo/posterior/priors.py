"""Priors of the sampled parameters of a network, including biases.

The scale of a prior refers to the units of the inputs that the network receives, such as standardised inputs.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from annotated_types import Gt, Lt
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.posterior.layout import Layout
from bnnzoo.posterior.likelihoods import Parameter, exp


class AbstractPrior(eqx.Module):
    """A prior of a network's parameters. The parameters are independent unless a subclass overrides `log_prob`."""

    @abc.abstractmethod
    def distribution(self, layout: Layout) -> dist.Distribution:
        """Return the univariate distribution of each parameter: batch shape `[]` (the same for all) or `[dim]`."""

    def parameters(self, layout: Layout) -> tuple[Parameter, ...]:
        """Return the sampled parameters of the prior itself, such as scales, for a network with the given layout."""
        del layout
        return ()

    def with_parameters(self, values: Mapping[str, Array]) -> AbstractPrior:
        """Return the same prior with its sampled parameters set to `values`, which are on their natural scale."""
        del values
        return self

    def of_likelihood(self, name: str, parameter: Parameter) -> Parameter:
        """Return a parameter of the likelihood. A subclass may return the parameter with another prior.

        Args:
            name: name of the parameter's block.
            parameter: the parameter with the prior that the likelihood defines.
        """
        del name
        return parameter

    def log_prob(self, theta: Float[Array, " dim"], layout: Layout) -> Float[Array, ""]:
        """Return the log prior density of the network's parameters, whose blocks `layout` describes."""
        return jnp.sum(self.distribution(layout).log_prob(theta))

    def sample(self, layout: Layout, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Return one draw of all parameters of the network from the prior."""
        return jnp.asarray(self.distribution(layout).expand((layout.dim,)).sample(key))


class Normal(AbstractPrior):
    """N(0, scale^2), equivalent to L2 regularisation (weight decay)."""

    scale: Annotated[Number, Gt(0), Doc("standard deviation of every parameter")] = number(1.0)

    def distribution(self, layout: Layout) -> dist.Distribution:
        """Return N(0, scale^2)."""
        del layout
        return dist.Normal(0.0, self.scale)


class Laplace(AbstractPrior):
    """Laplace(0, scale), equivalent to L1 regularisation. Its standard deviation is scale * sqrt(2)."""

    scale: Annotated[Number, Gt(0), Doc("scale of every parameter")] = number(1.0)

    def distribution(self, layout: Layout) -> dist.Distribution:
        """Return Laplace(0, scale)."""
        del layout
        return dist.Laplace(0.0, self.scale)


class ScaleMixture(AbstractPrior):
    """weight * N(0, wide^2) + (1 - weight) * N(0, narrow^2): many parameters are small and few are large.

    Blundell et al. 2015, Weight Uncertainty in Neural Networks, section 3.3.
    """

    wide: Annotated[Number, Gt(0), Doc("standard deviation of the wide component")] = number(1.5)
    narrow: Annotated[Number, Gt(0), Doc("standard deviation of the narrow component")] = number(0.1)
    weight: Annotated[Number, Gt(0), Lt(1), Doc("weight of the wide component")] = number(0.5)

    def distribution(self, layout: Layout) -> dist.Distribution:
        """Return the mixture of the wide and the narrow normal."""
        del layout
        mixing = dist.Categorical(probs=jnp.stack([self.weight, 1 - self.weight]))
        return dist.MixtureSameFamily(mixing, dist.Normal(0.0, jnp.stack([self.wide, self.narrow])))


class FanIn(AbstractPrior):
    """N(0, scale^2 / fan_in) for weights and N(0, scale^2) for biases.

    Here fan_in is the number of inputs of the weight's unit. The variance of a unit's summed input then does not depend
    on the width of the layer before it. Neal 1996, Bayesian Learning for Neural Networks, section 2.1.
    """

    scale: Annotated[Number, Gt(0), Doc("standard deviation of a unit's summed input")] = number(1.0)

    def distribution(self, layout: Layout) -> dist.Distribution:
        """Return N(0, scale^2 / fan_in) of each parameter, batch shape `[dim]`."""
        return dist.Normal(0.0, self.scale / np.sqrt(layout.fan_in()))


class Hierarchical(AbstractPrior):
    """N(0, s_l^2) for the parameters of layer l, with a sampled scale s_l ~ HalfNormal(scale) or HalfCauchy(scale).

    Neal 1996, Bayesian Learning for Neural Networks, section 2.2; Gelman 2006, Bayesian Analysis 1, on the hyperprior.
    The logarithms of the scales are sampled. The result file stores the scales as `prior_scale`.
    """

    scale: Annotated[Number, Gt(0), Doc("scale of the hyperprior: the typical scale of a layer's parameters")] = number(
        1.0
    )
    hyperprior: Annotated[Literal["half-normal", "half-cauchy"], Doc("distribution of the scales")] = "half-normal"

    def distribution(self, layout: Layout) -> dist.Distribution:
        """Raise a `UsageError`, because the scales are unknown until `with_parameters` sets them."""
        del layout
        raise UsageError(
            "prior hierarchical: its scales are sampled with the weights, but this sampler needs fixed scales; use "
            "another [[prior]], such as fan-in"
        )

    def parameters(self, layout: Layout) -> tuple[Parameter, ...]:
        """Return the parameter `scale`, one value for each layer, sampled as its logarithm."""
        count = (int(layout.layer_index()[-1]) + 1,) if layout.blocks else (0,)
        kind = dist.HalfNormal if self.hyperprior == "half-normal" else dist.HalfCauchy

        def log_prior(u: Array) -> Array:
            return jnp.sum(kind(self.scale).log_prob(jnp.exp(u)) + u)

        def draw(key: PRNGKeyArray) -> Array:
            return jnp.log(jnp.asarray(kind(self.scale).sample(key, count)))

        return (Parameter("scale", count, float(np.log(0.5)), exp, log_prior, draw),)

    def with_parameters(self, values: Mapping[str, Array]) -> AbstractPrior:
        """Return the prior with the scales of all layers set."""
        return _Layered(values["scale"])


class _Layered(AbstractPrior):
    """N(0, s_l^2) for the parameters of layer l, with given scales s_l."""

    scales: Float[Array, " layer"]

    def distribution(self, layout: Layout) -> dist.Distribution:
        scales: Any = self.scales[layout.layer_index()]
        return dist.Normal(0.0, scales)
