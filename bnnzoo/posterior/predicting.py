"""The interface that predictions need from a model: the distribution of a target, given its inputs and a draw."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from bnnzoo.posterior.layout import Layout

Task = Literal["regression", "classification"]


@runtime_checkable
class OutputDistribution(Protocol):
    """The distribution of a target given the outputs of a network, for one draw. Every likelihood implements it."""

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
        """Blocks of a draw, in their order."""
        ...

    def predictive(
        self, natural: Float[Array, " dim"], x: Shaped[Array, "batch ..."]
    ) -> tuple[OutputDistribution, Shaped[Array, "batch output"]]:
        """Return the target's distribution and the outputs for inputs `x`.

        Args:
            natural: one flattened draw on its natural scale, [dim].
            x: a batch of inputs.
        """
        ...
