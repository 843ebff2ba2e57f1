"""A mixture density network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar

from annotated_types import Ge
from jaxtyping import Array, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.models._base import NO_INPUTS, AbstractModel, Activation, Perceptron, Task, activation_function
from bnnzoo.posterior.likelihoods import AbstractLikelihood, Mixture


class Mdn(AbstractModel):
    """A perceptron whose outputs are the weights, means and scales of a mixture of Gaussians (Bishop 1994).

    With one component it is a Gaussian whose mean and variance are outputs. The mixture is the model's own likelihood.
    """

    brings_likelihood: ClassVar[bool] = True

    hidden: Annotated[tuple[int, ...], Doc("widths of the hidden layers")] = (50,)
    activation: Annotated[Activation, Doc("activation function between the layers")] = "tanh"
    components: Annotated[int, Ge(1), Doc("number of Gaussians")] = 2

    def __check_init__(self) -> None:
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"hidden: every width must be >= 1 (got {self.hidden})")

    def build(self, input_shape: tuple[int, ...], num_outputs: int, *, key: PRNGKeyArray) -> Callable[[Array], Array]:
        """Return a perceptron whose outputs are the mixture's parameters."""
        widths = (input_shape[0], *self.hidden, num_outputs)
        return Perceptron(widths, activation_function(self.activation), key=key)

    def split(self, network: Perceptron) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
        """Return the hidden layers as features, and the last layer."""
        return network.features, network.layers[-1]

    @classmethod
    def default_likelihood(cls, task: Task) -> str:
        """Return `mixture`; reject class labels and data without inputs."""
        if task == "classification":
            raise UsageError(
                "model mdn: a mixture of Gaussians needs numbers, but the targets are class labels; use model mlp"
            )
        if task == "density":
            raise UsageError(NO_INPUTS)
        return "mixture"

    def own_likelihood(self) -> AbstractLikelihood | None:
        """Return a mixture of Gaussians."""
        return Mixture(self.components)
