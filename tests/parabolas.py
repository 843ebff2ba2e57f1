"""Posteriors of parabolas with known slopes and curvatures, and posteriors that have only a size."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from gaussian_mean import NormalPrior

from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.posterior.priors import Normal


class OfSize(NormalPrior):
    """The sizes of a network's posterior, without any values."""

    has_outputs: ClassVar[bool] = True

    def fixed_prior(self) -> Normal:
        return Normal()

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        return 0.0 * batch


def of_size(dim: int, num_data: int = 10, *, power: float = 1.0, shape: tuple[int, ...] = ()) -> OfSize:
    layout = Layout((Block("weight", shape or (dim,), 0),))
    return OfSize(np.zeros(num_data, np.float32), likelihood_power=np.float32(power), layout=layout)


class Parabolas(NormalPrior):
    """l_i = -c_i |theta - m_i|^2 / 2, in as many dimensions as asked."""

    layout: Layout = eqx.field(static=True, default=Layout((Block("theta", (1,), 0),)))

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        c, m = batch
        return -c * jnp.sum((theta - m[:, None]) ** 2, 1) / 2


def parabolas(c: list[float], m: list[float], *, dim: int = 1, power: float = 1.0) -> Parabolas:
    layout = Layout((Block("theta", (dim,), 0),))
    return Parabolas((np.float32(c), np.float32(m)), likelihood_power=np.float32(power), layout=layout)


class Flat(NormalPrior):
    """No prior and no likelihood at all."""

    layout: Layout = eqx.field(static=True, default=Layout((Block("theta", (4,), 0),)))

    def log_prior(self, theta: Any) -> Any:
        return 0.0 * jnp.sum(theta)

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        return batch * 0.0 * theta[0]
