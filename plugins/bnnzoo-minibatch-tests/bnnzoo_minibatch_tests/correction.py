"""Barker's acceptance of a log ratio with noise: the noise is made a part of the logistic variable of the test."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

_TABLE = np.array(
    [
        (0, 0.4152920551),
        (1, 0.1008453183),
        (1.2, 0.2901318892),
        (2.2, 0.04132938029),
        (2.4, 0.09297472532),
        (3.4, 0.01054009453),
        (3.6, 0.03120920861),
        (4.6, 0.001686269392),
        (4.8, 0.01079524547),
        (6, 0.003634233324),
        (6.2, 3.255098344e-05),
        (7.2, 0.00089875054),
        (7.4, 0.0001944091423),
        (8.4, 0.0001558876982),
        (8.6, 0.0001608543698),
        (9.8, 8.150772551e-05),
        (10, 6.265958886e-06),
        (11, 1.109122481e-06),
        (11.2, 2.298266975e-05),
        (12.6, 1.111530591e-06),
        (12.8, 5.050545627e-06),
        (17, 1.100202937e-06),
    ]
)
"""a and w: the correction X_corr is -a or a, w / 2 each. Made by `benchmarks/barker_correction.py` of this package."""

ERROR = 2e-7
"""The most that P(N(0, 1) + X_corr <= x) is off from 1 / (1 + e^-x)."""

LOG_ODDS_ERROR = 8e-7
"""The same of its log odds, up to |x| = 12: what detailed balance is off by."""


def barker_rate(log_ratio: Float[Array, ""], sigma2: Float[Array, ""]) -> Float[Array, ""]:
    """P(log_ratio + X_nc + X_corr > 0), X_nc ~ N(0, 1 - sigma2): Barker's acceptance probability, in the mean.

    Its mean over a normal `log_ratio` of variance sigma2 < 1 is that of N(0, 1) + X_corr, which is logistic.
    """
    points = jnp.asarray(np.concatenate([_TABLE[:, 0], -_TABLE[:, 0]]), log_ratio.dtype)
    weights = jnp.asarray(np.concatenate([_TABLE[:, 1], _TABLE[:, 1]]) / 2, log_ratio.dtype)
    sd = jnp.sqrt(jnp.maximum(1 - sigma2, jnp.finfo(log_ratio.dtype).tiny))
    return jnp.sum(weights * ndtr((log_ratio + points) / sd))
