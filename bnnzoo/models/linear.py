"""A linear model. For some likelihoods and priors its posterior has a closed form."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array, PRNGKeyArray

from bnnzoo.models._base import AbstractModel


class Linear(AbstractModel):
    """One layer with bias: linear, logistic or Poisson regression. Parameters `weight` and `bias`."""

    def build(self, input_shape: tuple[int, ...], num_outputs: int, *, key: PRNGKeyArray) -> Callable[[Array], Array]:
        """Return a single dense layer."""
        return eqx.nn.Linear(input_shape[0], num_outputs, key=key)
