"""A prior with heavy tails."""

from typing import Annotated

import numpyro.distributions as dist
from annotated_types import Gt
from bnnzoo import AbstractPrior, Layout, number
from typing_extensions import Doc


class TemplateName(AbstractPrior):
    """Student's t with `df` degrees of freedom on every parameter: most weights are small, a few large."""

    df: Annotated[float, Gt(0), Doc("degrees of freedom; fewer have heavier tails")] = number(4.0)
    scale: Annotated[float, Gt(0), Doc("scale of every parameter")] = number(1.0)

    def distribution(self, layout: Layout) -> dist.Distribution:
        # `layout` has the names of the parameters, their fan-in (`layout.fan_in()`) and their layer
        # (`layout.layer_index()`).
        # `layout` names the parameters: `layout.fan_in()` and `layout.layer_index()` say what each belongs to.
        del layout
        return dist.StudentT(self.df, 0.0, self.scale)
