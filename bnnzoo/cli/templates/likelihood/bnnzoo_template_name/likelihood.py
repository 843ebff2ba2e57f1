"""A likelihood with Laplace noise."""

from typing import Annotated, ClassVar, Literal

import numpyro.distributions as dist
from annotated_types import Gt
from bnnzoo import AbstractLikelihood, TargetUnits, number
from jaxtyping import Array, Float
from typing_extensions import Doc


class TemplateName(AbstractLikelihood):
    """Laplace noise around the output. Errors count linearly, not squared, so outliers have less influence."""

    task: ClassVar[Literal["regression", "classification"]] = "regression"
    scales_targets: ClassVar[bool] = True

    # TargetUnits: with --units data, bnnzoo divides the value by the standard deviation of the target.
    scale: Annotated[float, Gt(0), TargetUnits(), Doc("scale of the noise")] = number(0.3)

    def num_outputs(self, num_targets: int) -> int:
        """Return the number of network outputs: one per target."""
        return num_targets

    def distribution(self, output: Float[Array, " output"]) -> dist.Distribution:
        """Return the joint distribution of all targets of one row."""
        return dist.Laplace(output, self.scale).to_event(1)
