"""A multilayer perceptron."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from jaxtyping import Array, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.models._base import AbstractModel, Activation, Perceptron, activation_function


class Mlp(AbstractModel):
    """Dense layers with an activation between them. Parameters `layers_0_weight`, `layers_0_bias`, ..."""

    hidden: Annotated[tuple[int, ...], Doc("widths of the hidden layers")] = (50,)
    activation: Annotated[Activation, Doc("activation function between the layers")] = "tanh"

    def __check_init__(self) -> None:
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"hidden: every width must be >= 1 (got {self.hidden})")

    def build(self, input_shape: tuple[int, ...], num_outputs: int, *, key: PRNGKeyArray) -> Callable[[Array], Array]:
        """Return a perceptron with the hidden widths of this model."""
        widths = (input_shape[0], *self.hidden, num_outputs)
        return Perceptron(widths, activation_function(self.activation), key=key)

    def split(self, network: Perceptron) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
        """Return the hidden layers as features, and the last layer."""
        return network.features, network.layers[-1]
