"""A multilayer perceptron."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Array, PRNGKeyArray

from bnnzoo.models._base import AbstractPerceptron, Perceptron, activation_function


class Mlp(AbstractPerceptron):
    """Dense layers with an activation function between them. Parameters `layers_0_weight`, `layers_0_bias`, ..."""

    def build(self, input_shape: tuple[int, ...], num_outputs: int, *, key: PRNGKeyArray) -> Callable[[Array], Array]:
        """Return a perceptron with the hidden widths of this model."""
        widths = (input_shape[0], *self.widths, num_outputs)
        return Perceptron(widths, activation_function(self.activation), key=key)
