"""The prior of the problem known-network, whose posterior is sampled by rejection."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpyro.distributions as dist
from annotated_types import Gt
from typing_extensions import Doc

from bnnzoo import AbstractPrior, Layout, number


class TwoScales(AbstractPrior):
    """Prior N(0, inner^2) in the first layer; N(0, outer^2) for weights and N(0, 1) for biases in the last layer."""

    inner: Annotated[float, Gt(0), Doc("standard deviation of weights and biases of the first layer")] = number(2.0)
    outer: Annotated[float, Gt(0), Doc("standard deviation of weights of the last layer")] = number(0.25)

    def distribution(self, layout: Layout) -> dist.Distribution:
        """Return the normal distributions of all parameters, with the batch shape `[dim]`."""
        first = layout.blocks[0].layer
        is_inner = np.concatenate([np.full(block.size, block.layer == first) for block in layout.blocks])
        is_bias = np.concatenate([np.full(block.size, block.name.endswith("bias")) for block in layout.blocks])
        outer_scales = np.where(is_bias, 1.0, 0.0) + np.where(is_bias, 0.0, 1.0) * self.outer
        return dist.Normal(0.0, is_inner * self.inner + ~is_inner * outer_scales)
