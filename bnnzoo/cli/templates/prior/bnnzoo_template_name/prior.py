"""A prior with heavy tails."""

from typing import Annotated

import numpyro.distributions as dist
from annotated_types import Gt
from bnnzoo import AbstractPrior, Layout, number
from typing_extensions import Doc


class TemplateName(AbstractPrior):
    """Student's t distribution for every parameter. It allows a few large weights among many small ones."""

    df: Annotated[float, Gt(0), Doc("degrees of freedom; smaller values give heavier tails")] = number(4.0)
    scale: Annotated[float, Gt(0), Doc("scale of every parameter")] = number(1.0)

    def distribution(self, layout: Layout) -> dist.Distribution:
        """Return the prior distribution of one parameter. All parameters have this distribution."""
        # A prior can differ between parameters: see `layout.fan_in()` and `layout.layer_index()`.
        del layout
        return dist.StudentT(self.df, 0.0, self.scale)
