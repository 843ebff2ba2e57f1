"""A neural density in which each column depends on the columns before it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.models._base import AbstractPerceptron, Task, activation_function
from bnnzoo.posterior.likelihoods import AbstractLikelihood, MixturePerTarget


class Masked(eqx.Module):
    """A dense layer in which some weights are masked, that is, replaced by 0.

    Every input unit and every output unit has a degree. A weight is used only if the degree of its output unit is at
    least the degree of its input unit.

    Attributes:
        weight: the weights, including the masked weights.
        bias: the biases.
        degrees: the degrees of the input units, and the degrees of the output units.
    """

    weight: Float[Array, "output input"]
    bias: Float[Array, " output"]
    degrees: tuple[tuple[int, ...], tuple[int, ...]] = eqx.field(static=True)

    def __init__(self, before: tuple[int, ...], after: tuple[int, ...], *, key: PRNGKeyArray):
        key_weight, key_bias = jax.random.split(key)
        limit = len(before) ** -0.5
        self.weight = jax.random.uniform(key_weight, (len(after), len(before)), minval=-limit, maxval=limit)
        self.bias = jax.random.uniform(key_bias, (len(after),), minval=-limit, maxval=limit)
        self.degrees = before, after

    @property
    def mask(self) -> Bool[np.ndarray, "output input"]:
        """Boolean mask of the weights that are used."""
        before, after = self.degrees
        return np.array(after)[:, None] >= np.array(before)

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " output"]:
        return jnp.where(self.mask, self.weight, 0) @ x + self.bias


class MaskedPerceptron(eqx.Module):
    """Masked layers with an activation function between them.

    The outputs that belong to column d depend only on the columns before d.
    """

    layers: tuple[Masked, ...]
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def features(self, x: Float[Array, " column"]) -> Float[Array, " hidden"]:
        """Return the input of the last layer."""
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return x

    def __call__(self, x: Float[Array, " column"]) -> Float[Array, " output"]:
        return self.layers[-1](self.features(x))


class Autoregressive(AbstractPerceptron):
    """A density of rows, p(x) = prod_d p(x_d | x_1, ..., x_(d-1)), with a mixture of Gaussians for each factor.

    One network computes the parameters of the mixtures of all factors. Because some of its weights are masked, the
    parameters of column d do not depend on column d or on later columns. This architecture is MADE (Germain, Gregor,
    Murray and Larochelle 2015). The mixtures are those of Uria, Murray and Larochelle (2013). The order of the factors
    is the order of the columns in the data. Masked weights do not affect the likelihood, so their posterior equals
    their prior. If there is only one column, the network has no hidden layers.
    """

    brings_likelihood: ClassVar[bool] = True

    components: Annotated[int, Ge(1), Doc("number of Gaussians per column")] = 3

    def build(self, input_shape: tuple[int, ...], num_outputs: int, *, key: PRNGKeyArray) -> Callable[[Array], Array]:
        """Return a masked perceptron for `input_shape[0]` columns. Each column has the same number of outputs.

        Raises:
            UsageError: if `num_outputs` is not a multiple of the number of columns.
        """
        columns = input_shape[0]
        if num_outputs % columns:
            raise UsageError(
                f"model autoregressive: the number of outputs must be a multiple of the number of columns, {columns} "
                f"(got {num_outputs}); use the likelihood mixture-per-target"
            )
        # A hidden unit of degree d depends on the columns 1..d. The outputs of column d have the degree d - 1, so they
        # depend on the columns 1..d-1.
        hidden = [tuple(1 + i % (columns - 1) for i in range(width)) for width in self.widths if columns > 1]
        last = tuple(np.repeat(np.arange(columns), num_outputs // columns).tolist())
        degrees = [tuple(range(1, columns + 1)), *hidden, last]
        keys = jax.random.split(key, len(degrees) - 1)
        layers = [Masked(a, b, key=k) for (a, b), k in zip(itertools.pairwise(degrees), keys, strict=True)]
        return MaskedPerceptron(tuple(layers), activation_function(self.activation))

    @classmethod
    def default_likelihood(cls, task: Task) -> str:
        """Return `mixture-per-target`. Raise a `UsageError` for every task except density."""
        if task != "density":
            raise UsageError(
                f"model autoregressive: supports only densities (got task {task}); use [[task=density]], or model mlp"
            )
        return "mixture-per-target"

    def own_likelihood(self) -> AbstractLikelihood:
        """Return a mixture of Gaussians for each column."""
        return MixturePerTarget(self.components)
