"""The interface of models: hyperparameters, and a method that builds a network from them."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.posterior.likelihoods import AbstractLikelihood

Activation = Literal["tanh", "relu", "gelu", "silu", "softplus"]
Task = Literal["regression", "classification", "density"]
NO_INPUTS = (
    "the data have no inputs, because every column is a target (task density); use model density or "
    "autoregressive, or name only the columns to predict with [[target]]"
)
"""Error message for data without inputs, of models that predict targets from inputs."""


def activation_function(name: Activation) -> Callable[[Array], Array]:
    """Return the activation function with this name."""
    return {
        "tanh": jax.numpy.tanh,
        "relu": jax.nn.relu,
        "gelu": jax.nn.gelu,
        "silu": jax.nn.silu,
        "softplus": jax.nn.softplus,
    }[name]


def as_images(x: Shaped[np.ndarray, "batch ..."], model: str) -> Shaped[np.ndarray, "batch channel height width"]:
    """Return images with a channel axis.

    Raises:
        UsageError: if a row does not have the axes [height, width] or [channel, height, width].
    """
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4:
        return x
    shape: Any = x.shape[1:]
    raise UsageError(
        f"model {model}: needs images, as rows of shape [height, width] or [channel, height, width] (got rows of shape "
        f"{list(shape)}); use model mlp, or give images: an .npz file, an IDX folder, or [[data=digits]]"
    )


def pool(image: Float[Array, "channel height width"]) -> Float[Array, "channel half_height half_width"]:
    """Return the mean of each 2 x 2 square of every channel.

    An axis of size 1 is not pooled. On an axis of another odd size, the last row or column is not used.
    """
    channel, height, width = image.shape
    h, w = min(2, height), min(2, width)
    image = image[:, : height - height % h, : width - width % w]
    return image.reshape(channel, height // h, h, width // w, w).mean((2, 4))


class AbstractModel(eqx.Module):
    """An architecture. Its fields are hyperparameters. `build` returns a network: a function of one input."""

    brings_likelihood: ClassVar[bool] = False
    """Whether the model has its own likelihood (`own_likelihood`). The user cannot choose another likelihood."""

    @abc.abstractmethod
    def build(self, input_shape: tuple[int, ...], num_outputs: int, *, key: PRNGKeyArray) -> Callable[[Array], Array]:
        """Return a network, an `eqx.Module` with random initial weights.

        Args:
            input_shape: shape of one input after `arrange`.
            num_outputs: number of outputs that the likelihood requires.
            key: random key of the initial weights.
        """

    def arrange(self, x: Shaped[Any, "batch ..."]) -> Shaped[Any, "batch ..."]:
        """Return inputs in the shape that the network requires.

        By default each input is flattened to a vector. A model for images overrides this method.

        Args:
            x: the inputs, a NumPy array. For a density without inputs, x can also be a JAX array.

        Raises:
            UsageError: if the model does not support inputs of this shape.
        """
        if 0 in x.shape[1:]:
            raise UsageError(NO_INPUTS)
        return x.reshape(len(x), -1)

    def split(self, network: Any) -> tuple[Callable[[Array], Array], Callable[[Array], Array]] | None:
        """Return two functions `features` and `last` with `network(x) = last(features(x))`, or None.

        `last` is the last layer. It must be a module inside `network`. If only the parameters of `last` are sampled,
        the features of all rows are computed only once. If the result is None, the last layer is the module that
        contains the last parameter, and each step computes the features again.
        """
        del network
        return None

    @classmethod
    def default_likelihood(cls, task: Task) -> str:
        """Return the name of this model's default likelihood for a task.

        Raises:
            UsageError: if the model does not support the task.
        """
        if task == "density":
            raise UsageError(NO_INPUTS)
        return {"regression": "gaussian", "classification": "categorical"}[task]

    def own_likelihood(self) -> AbstractLikelihood | None:
        """Return the model's own likelihood; None if the user chooses the likelihood."""
        return None


class Perceptron(eqx.Module):
    """Dense layers with an activation function between them.

    For a batch of rows, `outputs_of_rows` is about twice as fast as `jax.vmap` of the network, because `jax.vmap`
    transposes the values of each layer to add the bias. In `outputs_of_rows` the rows are the last axis, because XLA
    multiplies matrices in this layout faster.
    """

    ends_with_linear_layer: ClassVar[bool] = True
    """Whether the outputs are `layers[-1](features(x))`. Samplers can then use `LastLayerCoordinates`."""

    layers: tuple[eqx.nn.Linear, ...]
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(self, widths: tuple[int, ...], activation: Callable[[Array], Array], *, key: PRNGKeyArray):
        keys = jax.random.split(key, len(widths) - 1)
        pairs: Any = zip(widths[:-1], widths[1:], keys, strict=True)
        self.layers = tuple(eqx.nn.Linear(a, b, key=k) for a, b, k in pairs)
        self.activation = activation

    def features(self, x: Float[Array, " feature"]) -> Float[Array, " hidden"]:
        """Return the input of the last layer."""
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return x

    def __call__(self, x: Float[Array, " feature"]) -> Float[Array, " output"]:
        return self.layers[-1](self.features(x))

    def features_of_rows(self, x: Float[Array, "row feature"]) -> Float[Array, "hidden row"]:
        """Return the inputs of the last layer for a batch of rows."""
        values = x.T
        for layer in self.layers[:-1]:
            values = self.activation(_of_rows(layer, values))
        return values

    def outputs_of_rows(self, x: Float[Array, "row feature"]) -> Float[Array, "output row"]:
        """Return the outputs for a batch of rows."""
        return _of_rows(self.layers[-1], self.features_of_rows(x))


def _of_rows(layer: eqx.nn.Linear, values: Float[Array, "feature row"]) -> Float[Array, "output row"]:
    assert layer.bias is not None
    return layer.weight @ values + layer.bias[:, None]


_AUTO_WIDTHS = (16,)
"""Widths of the hidden layers for `hidden: auto`, unless a run with a time budget selects other widths."""


class AbstractPerceptron(AbstractModel):
    """A model whose networks have a method `features` and a tuple `layers` of dense layers."""

    hidden: Annotated[
        tuple[int, ...] | Literal["auto"],
        Doc("widths of the hidden layers; auto: selected in a run with a time budget, otherwise 16"),
    ] = (50,)
    activation: Annotated[Activation, Doc("activation function between the layers")] = "tanh"

    def __check_init__(self) -> None:
        if isinstance(self.hidden, str) and self.hidden != "auto":
            raise ValueError(f"hidden: must be auto, or a list of widths (got {self.hidden!r})")
        if any(width < 1 for width in self.widths):
            raise ValueError(f"hidden: every width must be >= 1 (got {self.hidden})")

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        return _AUTO_WIDTHS if self.hidden == "auto" else tuple(self.hidden)

    def split(self, network: Any) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
        """Return the function `features`, which computes the input of the last layer, and the last layer."""
        return network.features, network.layers[-1]
