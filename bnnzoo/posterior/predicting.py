"""What predictions ask of a model: the distribution of a target, given its inputs and a draw."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from bnnzoo.posterior.layout import Layout

Task = Literal["regression", "classification"]


@runtime_checkable
class Says(Protocol):
    """What outputs say of a target, by one draw; every likelihood does."""

    def distribution(self, output: Shaped[Array, " output"]) -> dist.Distribution:
        """Of one datum's target: event shape `[target]`, or `[]` for a label."""
        ...

    def log_prob(self, output: Shaped[Array, " output"], target: Shaped[Array, "*target"]) -> Float[Array, ""]: ...

    def sample(self, output: Shaped[Array, " output"], *, key: PRNGKeyArray) -> Shaped[Array, "*target"]: ...

    def class_probabilities(self, output: Shaped[Array, " output"]) -> Float[Array, " classes"]: ...


@runtime_checkable
class Predicting(Protocol):
    """A model that predicts: a network's posterior, or the observed site of a NumPyro model."""

    @property
    def task(self) -> Task: ...

    @property
    def layout(self) -> Layout:
        """The blocks of a draw, in their order."""
        ...

    def predictive(
        self, natural: Float[Array, " dim"], x: Shaped[Array, "batch ..."]
    ) -> tuple[Says, Shaped[Array, "batch output"]]:
        """What is said by one draw on its natural scale, flattened, and of which outputs for these inputs."""
        ...
