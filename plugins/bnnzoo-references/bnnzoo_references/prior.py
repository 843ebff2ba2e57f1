"""The prior of the problem known-network, whose posterior is sampled by rejection."""

from __future__ import annotations

import re
from typing import Annotated

import numpy as np
import numpyro.distributions as dist
from annotated_types import Gt
from typing_extensions import Doc

from bnnzoo import AbstractPrior, Layout, UsageError, number


class TwoScales(AbstractPrior):
    """Prior N(0, inner^2) in the first layer; N(0, outer^2) for weights and N(0, 1) for biases in other layers.

    The layers are those of `mlp`. If only some layers are sampled, `inner` still belongs to the first layer of the
    whole network.
    """

    inner: Annotated[float, Gt(0), Doc("standard deviation of weights and biases of the first layer")] = number(2.0)
    outer: Annotated[float, Gt(0), Doc("standard deviation of weights of the other layers")] = number(0.25)

    def distribution(self, layout: Layout) -> dist.Distribution:
        """Return the normal distributions of all parameters, with the batch shape `[dim]`.

        Raises:
            UsageError: if the layers of the network have no numbers, so that the first layer is unknown.
        """
        if unknown := [block.name for block in layout.blocks if not re.fullmatch(r"layers_\d+", block.layer)]:
            raise UsageError(
                f"prior two-scales: requires the parameters of an mlp, such as layers_0_weight (got {unknown[0]}); use "
                "the model mlp, or another [[prior]]"
            )
        is_inner = np.concatenate([np.full(block.size, block.layer == "layers_0") for block in layout.blocks])
        is_bias = np.concatenate([np.full(block.size, block.name.endswith("bias")) for block in layout.blocks])
        outer_scales = np.where(is_bias, 1.0, 0.0) + np.where(is_bias, 0.0, 1.0) * self.outer
        return dist.Normal(0.0, is_inner * self.inner + ~is_inner * outer_scales)
