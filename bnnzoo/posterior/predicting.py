"""The interface of models for predictions: the distribution of a target, given the inputs of its row and a draw."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from bnnzoo.posterior.layout import Layout

Task = Literal["regression", "classification"]


@runtime_checkable
class OutputDistribution(Protocol):
    """The distribution of a target given a network's outputs, for one draw. All likelihoods have this interface."""

    def distribution(self, output: Shaped[Array, " output"]) -> dist.Distribution:
        """Return the distribution of one datum's target: event shape `[target]`, or `[]` for a label."""
        ...

    def log_prob(self, output: Shaped[Array, " output"], target: Shaped[Array, "*target"]) -> Float[Array, ""]: ...

    def sample(self, output: Shaped[Array, " output"], *, key: PRNGKeyArray) -> Shaped[Array, "*target"]: ...

    def class_probabilities(self, output: Shaped[Array, " output"]) -> Float[Array, " classes"]: ...


@runtime_checkable
class Predicting(Protocol):
    """A model that can predict: a network's posterior, or the observed site of a NumPyro model."""

    @property
    def task(self) -> Task: ...

    @property
    def layout(self) -> Layout:
        """Names and places of the values in a flattened draw."""
        ...

    def predictive(
        self, natural: Float[Array, " dim"], x: Shaped[Array, "batch ..."]
    ) -> tuple[OutputDistribution, Shaped[Array, "batch output"]]:
        """Return two values: the distribution of a target given its outputs, and the outputs for the inputs `x`.

        Args:
            natural: a flattened draw on its natural scale, [dim].
            x: a batch of inputs.
        """
        ...
