"""A small residual network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import numpy as np
from annotated_types import Ge
from jaxtyping import Array, Float, PRNGKeyArray, Shaped
from typing_extensions import Doc

from bnnzoo.models._base import AbstractModel, Activation, activation_function, as_images, pool
from bnnzoo.models.convolution import convolve


class Residual(eqx.Module):
    """A residual block, x + conv(act(norm(conv(act(norm(x)))))).

    Here `act` is the activation function. If the number of channels changes, a 1 x 1 convolution is applied to the
    first term x.
    """

    norms: tuple[eqx.nn.GroupNorm, eqx.nn.GroupNorm]
    convolutions: tuple[eqx.nn.Conv2d, eqx.nn.Conv2d]
    skip: eqx.nn.Conv2d | None
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __call__(self, x: Float[Array, "channel height width"]) -> Float[Array, "out height width"]:
        inner = x
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            inner = convolve(convolution, self.activation(norm(inner)))
        return inner + (x if self.skip is None else convolve(self.skip, x))


class ResidualNetwork(eqx.Module):
    """A convolution, stages of residual blocks, the mean over all pixels, and a dense layer.

    Between two stages there is 2 x 2 mean pooling.
    """

    stem: eqx.nn.Conv2d
    stages: tuple[tuple[Residual, ...], ...]
    norm: eqx.nn.GroupNorm
    last: eqx.nn.Linear
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def features(self, image: Float[Array, "channel height width"]) -> Float[Array, " hidden"]:
        """Return the input of the last layer."""
        x = convolve(self.stem, image)
        for number, stage in enumerate(self.stages):
            x = pool(x) if number else x
            for block in stage:
                x = block(x)
        return self.activation(self.norm(x)).mean((1, 2))

    def __call__(self, image: Float[Array, "channel height width"]) -> Float[Array, " output"]:
        return self.last(self.features(image))


class Resnet(AbstractModel):
    """A residual network for images of any size, with normalisation before each activation (He et al. 2016).

    Groups of channels of a single image are normalised together (Wu and He 2018). The normalisation has no learned
    scales and shifts. It uses no statistics of a batch, so the likelihood of a datum depends on this datum alone.
    """

    channels: Annotated[
        tuple[int, ...], Doc("channels of the stages; the image is halved before each stage except the first")
    ] = (8, 16)
    blocks: Annotated[int, Ge(1), Doc("residual blocks per stage")] = 1
    groups: Annotated[int, Ge(1), Doc("groups of channels that are normalised together")] = 4
    activation: Annotated[Activation, Doc("activation function after every norm")] = "silu"

    def __check_init__(self) -> None:
        if not self.channels or any(width < 1 or width % self.groups for width in self.channels):
            raise ValueError(
                f"channels: must be one or more numbers, each a multiple of groups={self.groups} (got {self.channels})"
            )

    def build(self, input_shape: tuple[int, ...], num_outputs: int, *, key: PRNGKeyArray) -> Callable[[Array], Array]:
        """Return a residual network for images of shape [channel, height, width]."""
        activation = activation_function(self.activation)
        keys = iter(jax.random.split(key, 2 + 3 * self.blocks * len(self.channels)))

        def convolution(in_channels: int, out_channels: int, kernel: int = 3) -> eqx.nn.Conv2d:
            return eqx.nn.Conv2d(in_channels, out_channels, kernel, padding="SAME", key=next(keys))

        def norm(width: int) -> eqx.nn.GroupNorm:
            return eqx.nn.GroupNorm(self.groups, width, channelwise_affine=False)

        width, stages = self.channels[0], []
        stem = convolution(input_shape[0], width)
        for wider in self.channels:
            stage = []
            for _ in range(self.blocks):
                pair = convolution(width, wider), convolution(wider, wider)
                skip = convolution(width, wider, 1) if width != wider else None
                stage.append(Residual((norm(width), norm(wider)), pair, skip, activation))
                width = wider
            stages.append(tuple(stage))
        last = eqx.nn.Linear(width, num_outputs, key=next(keys))
        return ResidualNetwork(stem, tuple(stages), norm(width), last, activation)

    def split(self, network: ResidualNetwork) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
        """Return the function `features`, which computes the input of the last layer, and the last dense layer."""
        return network.features, network.last

    def arrange(self, x: Shaped[np.ndarray, "batch ..."]) -> Shaped[np.ndarray, "batch ..."]:
        """Return images with a channel axis."""
        return as_images(x, "resnet")
