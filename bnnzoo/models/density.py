"""A density of the targets, without inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from annotated_types import Ge
from jaxtyping import Array, Float, PRNGKeyArray, Shaped
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.models._base import AbstractModel, Task
from bnnzoo.posterior.likelihoods import AbstractLikelihood, Mixture


class Constant(eqx.Module):
    """A network that returns the same outputs for every input."""

    outputs: Float[Array, " output"]

    def __call__(self, x: Float[Array, " nothing"]) -> Float[Array, " output"]:
        del x
        return self.outputs


class Density(AbstractModel):
    """A mixture of Gaussians p(x | theta) for data {x_i} without inputs (`--task density`).

    If the data have inputs, the model ignores the inputs. The only parameter, `outputs`, contains the logits of the
    weights, the means, and the scales before softplus. The mixture is the model's own likelihood.
    """

    brings_likelihood: ClassVar[bool] = True

    components: Annotated[int, Ge(1), Doc("number of Gaussians")] = 2

    def build(self, input_shape: tuple[int, ...], num_outputs: int, *, key: PRNGKeyArray) -> Callable[[Array], Array]:
        """Return a network with constant random outputs."""
        del input_shape
        # The components have different initial values, because equal components would have equal gradients.
        return Constant(jax.random.normal(key, (num_outputs,)))

    def arrange(self, x: Shaped[Any, "batch ..."]) -> Float[np.ndarray, "batch nothing"]:
        """Return inputs without features, because the outputs do not depend on the inputs."""
        return np.zeros((len(x), 0), np.float32)

    @classmethod
    def default_likelihood(cls, task: Task) -> str:
        """Return `mixture`. Raise a `UsageError` for class labels."""
        if task == "classification":
            raise UsageError(
                "model density: a mixture of Gaussians needs numbers, but the targets are class labels; use "
                "another model, such as mlp"
            )
        return "mixture"

    def own_likelihood(self) -> AbstractLikelihood:
        """Return a mixture of Gaussians."""
        return Mixture(self.components)
