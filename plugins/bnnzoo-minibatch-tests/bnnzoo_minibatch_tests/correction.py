"""Barker's acceptance for a noisy log acceptance ratio. The noise replaces a part of the test's logistic variable."""

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
"""Distribution of the correction variable X_corr, computed by `benchmarks/barker_correction.py`.

For each point a with weight w, X_corr is -a with probability w / 2 and a with probability w / 2.
"""

ERROR = 2e-7
"""Largest error of P(N(0, 1) + X_corr <= x) as an approximation of 1 / (1 + e^-x)."""

LOG_ODDS_ERROR = 8e-7
"""Largest error of the log odds of P(N(0, 1) + X_corr <= x) for |x| <= 12, which is the error of detailed balance."""


def barker_rate(log_ratio: Float[Array, ""], sigma2: Float[Array, ""]) -> Float[Array, ""]:
    """Return the acceptance probability P(log_ratio + X_nc + X_corr > 0).

    X_nc is N(0, 1 - sigma2), and X_corr is the correction variable, a discrete variable that makes N(0, 1) + X_corr
    nearly logistic.

    If `log_ratio` is normal with mean D and variance sigma2 < 1, the mean of the result is P(D + N(0, 1) + X_corr > 0).
    Because N(0, 1) + X_corr is nearly logistic, this mean is nearly Barker's probability 1 / (1 + e^-D).
    """
    points = jnp.asarray(np.concatenate([_TABLE[:, 0], -_TABLE[:, 0]]), log_ratio.dtype)
    weights = jnp.asarray(np.concatenate([_TABLE[:, 1], _TABLE[:, 1]]) / 2, log_ratio.dtype)
    sd = jnp.sqrt(jnp.maximum(1 - sigma2, jnp.finfo(log_ratio.dtype).tiny))
    return jnp.sum(weights * ndtr((log_ratio + points) / sd))
