"""A mixture density network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar

from annotated_types import Ge
from jaxtyping import Array, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.models._base import NO_INPUTS, AbstractPerceptron, Perceptron, Task, activation_function
from bnnzoo.posterior.likelihoods import AbstractLikelihood, Mixture


class Mdn(AbstractPerceptron):
    """A perceptron whose outputs are the weights, means and scales of a mixture of Gaussians (Bishop 1994).

    The mixture is the model's own likelihood. A mixture with one component is a Gaussian whose mean and scale are
    outputs of the network.
    """

    brings_likelihood: ClassVar[bool] = True

    components: Annotated[int, Ge(1), Doc("number of Gaussians")] = 2

    def build(self, input_shape: tuple[int, ...], num_outputs: int, *, key: PRNGKeyArray) -> Callable[[Array], Array]:
        """Return a perceptron whose outputs are the parameters of the mixture."""
        widths = (input_shape[0], *self.widths, num_outputs)
        return Perceptron(widths, activation_function(self.activation), key=key)

    @classmethod
    def default_likelihood(cls, task: Task) -> str:
        """Return `mixture`. Raise a `UsageError` for class labels and for data without inputs."""
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
