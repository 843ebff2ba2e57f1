"""Automatic relevance determination: a prior under which irrelevant inputs have small weights."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from annotated_types import Gt
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.posterior.layout import Layout
from bnnzoo.posterior.priors import AbstractPrior


class _Split(NamedTuple):
    """All parameters of a network in two arrays: the weights of the inputs, and the other parameters."""

    inputs: Float[Array, "unit input"]
    others: Float[Array, " rest"]


class Ard(AbstractPrior):
    """N(0, s_i^2) for the weights of input i, with s_i integrated out; other parameters have the prior `fan-in`.

    Automatic relevance determination with an inverse gamma hyperprior, s_i^2 = input_scale^2 * df / chi2(df). Neal
    1996, Bayesian Learning for Neural Networks, section 4.3. The weights of one input have a multivariate Student-t
    distribution. The weights of most inputs are about as large as `input_scale`, and the weights of a relevant input
    can be many times as large. The scales s_i are not sampled, so the posterior has no narrow funnel. The first
    sampled matrix of the network contains the weights of the inputs. In a convolutional network, this matrix belongs to
    the first dense layer. Other weights have the prior N(0, scale^2 / fan_in), and biases have the prior N(0, scale^2).
    """

    scale: Annotated[Number, Gt(0), Doc("standard deviation of a unit's summed input, except in the first layer")] = (
        number(2.0)
    )
    input_scale: Annotated[Number, Gt(0), Doc("typical scale of an input's weights")] = number(0.1)
    df: Annotated[Number, Gt(0), Doc("degrees of freedom of an input's weights")] = number(1.0)

    def distribution(self, layout: Layout) -> dist.Distribution:
        """Raise a UsageError, because the weights of an input are not independent.

        Raises:
            UsageError: always.
        """
        del layout
        raise UsageError(
            "prior ard: the weights of an input are dependent, but this sampler, or [[stochastic]] with a subspace, "
            "requires independent parameters; use another [[prior]], such as fan-in"
        )

    def log_prob(self, theta: Float[Array, " dim"], layout: Layout) -> Float[Array, ""]:
        """Return the log density: a multivariate Student-t for each input, and normals for all other parameters."""
        inputs, others = _split(theta, layout)
        size = inputs.shape[0]
        squares = jnp.sum(jnp.square(inputs / self.input_scale), 0)
        constant = gammaln((self.df + size) / 2) - gammaln(self.df / 2)
        constant -= size / 2 * jnp.log(self.df * jnp.pi) + size * jnp.log(self.input_scale)
        log_densities = constant - (self.df + size) / 2 * jnp.log1p(squares / self.df)
        return jnp.sum(log_densities) + jnp.sum(dist.Normal(0.0, self._other_scales(layout)).log_prob(others))

    def sample(self, layout: Layout, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Return one draw of all parameters of the network from the prior."""
        scale_key, weight_key = jax.random.split(key)
        standard = jax.random.normal(weight_key, (layout.dim,))
        inputs, others = _split(standard, layout)
        chi_squares = 2 * jax.random.gamma(scale_key, self.df / 2, inputs.shape[1:])
        inputs = inputs * self.input_scale * jnp.sqrt(self.df / chi_squares)
        return _join(_Split(inputs, others * self._other_scales(layout)), layout)

    def _other_scales(self, layout: Layout) -> Float[Array, " rest"]:
        place, _ = input_columns(layout)
        fan_in = layout.fan_in()
        others = np.concatenate([fan_in[: place.start], fan_in[place.stop :]])
        return jnp.asarray(self.scale / np.sqrt(others))


def input_columns(layout: Layout) -> tuple[slice, tuple[int, ...]]:
    """Return the slice of `theta` with the weights of the inputs, and the shape (unit, input) of this matrix.

    If no sampled array is a matrix, return an empty slice and the shape (0, 0).
    """
    matrix = next((block for block in layout.blocks if len(block.shape) == 2), None)
    return (slice(matrix.start, matrix.stop), matrix.shape) if matrix else (slice(0, 0), (0, 0))


def _split(theta: Float[Array, " dim"], layout: Layout) -> _Split:
    place, shape = input_columns(layout)
    return _Split(theta[place].reshape(shape), jnp.concatenate([theta[: place.start], theta[place.stop :]]))


def _join(split: _Split, layout: Layout) -> Float[Array, " dim"]:
    start = input_columns(layout)[0].start
    return jnp.concatenate([split.others[:start], split.inputs.ravel(), split.others[start:]])
