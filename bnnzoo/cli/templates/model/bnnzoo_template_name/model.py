"""A network with one hidden layer."""

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Ge
from bnnzoo import AbstractModel
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc


class Network(eqx.Module):
    """The network last(tanh(hidden(x))).

    Its arrays are the parameters: `hidden_weight`, `hidden_bias`, `last_weight` and `last_bias`.
    """

    hidden: eqx.nn.Linear
    last: eqx.nn.Linear

    def features(self, x: Float[Array, " feature"]) -> Float[Array, " hidden"]:
        """Return the input of the last layer."""
        return jnp.tanh(self.hidden(x))

    def __call__(self, x: Float[Array, " feature"]) -> Float[Array, " output"]:
        """Return the outputs for one input; bnnzoo applies vmap for several inputs."""
        return self.last(self.features(x))


class TemplateName(AbstractModel):
    """A network with one hidden layer and tanh activation."""

    width: Annotated[int, Ge(1), Doc("units of the hidden layer")] = 20

    def build(self, input_shape: tuple[int, ...], num_outputs: int, *, key: PRNGKeyArray) -> Callable[[Array], Array]:
        """Return an initialised network for inputs of this shape."""
        key_hidden, key_last = jax.random.split(key)
        hidden = eqx.nn.Linear(input_shape[0], self.width, key=key_hidden)
        return Network(hidden, eqx.nn.Linear(self.width, num_outputs, key=key_last))

    def split(self, network: Network) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
        """Return two functions: one that computes the input of the last layer, and the last layer."""
        return network.features, network.last
