"""A small convolutional network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge
from jaxtyping import Array, Float, PRNGKeyArray, Shaped
from typing_extensions import Doc

from bnnzoo.models._base import AbstractModel, Activation, Perceptron, activation_function, as_images, pool
from bnnzoo.models.convolution import convolve


class LeNet(eqx.Module):
    """Convolutions that preserve the size of the image, and then dense layers.

    Each convolution is followed by the activation function and by 2 x 2 mean pooling.
    """

    convolutions: tuple[eqx.nn.Conv2d, ...]
    dense: Perceptron
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def features(self, image: Float[Array, "channel height width"]) -> Float[Array, " hidden"]:
        """Return the input of the last layer."""
        for convolution in self.convolutions:
            image = pool(self.activation(convolve(convolution, image)))
        return self.dense.features(jnp.ravel(image))

    def __call__(self, image: Float[Array, "channel height width"]) -> Float[Array, " output"]:
        return self.dense.layers[-1](self.features(image))


class Cnn(AbstractModel):
    """A LeNet for images of any size (LeCun et al. 1998)."""

    channels: Annotated[
        tuple[int, ...], Doc("channels of the convolutions; each is followed by pooling that halves the image")
    ] = (
        6,
        16,
    )
    kernel: Annotated[int, Ge(1), Doc("side length of the convolution kernels; odd")] = 3
    hidden: Annotated[tuple[int, ...], Doc("widths of the dense layers after the convolutions")] = (32,)
    activation: Annotated[Activation, Doc("activation function between the layers")] = "tanh"

    def __check_init__(self) -> None:
        if not self.channels or any(width < 1 for width in (*self.channels, *self.hidden)):
            raise ValueError(
                "channels, hidden: every width must be >= 1, and channels must not be empty (got "
                f"{self.channels}, {self.hidden})"
            )
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel: must be odd (got {self.kernel})")

    def build(self, input_shape: tuple[int, ...], num_outputs: int, *, key: PRNGKeyArray) -> Callable[[Array], Array]:
        """Return a LeNet for images of shape [channel, height, width]."""
        key_dense, *keys = jax.random.split(key, len(self.channels) + 1)
        activation = activation_function(self.activation)
        channels, height, width = input_shape
        convolutions = []
        for out, k in zip(self.channels, keys, strict=True):
            convolutions.append(eqx.nn.Conv2d(channels, out, self.kernel, padding="SAME", key=k))
            channels, height, width = out, max(1, height // 2), max(1, width // 2)
        widths = (channels * height * width, *self.hidden, num_outputs)
        return LeNet(tuple(convolutions), Perceptron(widths, activation, key=key_dense), activation)

    def split(self, network: LeNet) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
        """Return the function `features`, which computes the input of the last layer, and the last dense layer."""
        return network.features, network.dense.layers[-1]

    def arrange(self, x: Shaped[np.ndarray, "batch ..."]) -> Shaped[np.ndarray, "batch ..."]:
        """Return images with a channel axis."""
        return as_images(x, "cnn")
