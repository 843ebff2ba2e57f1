"""An estimate of the evidence log p(D), with its error and its meaning."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special


@dataclass(frozen=True)
class Evidence:
    """Estimate of log p(D) in nats, as a density of the targets in their original units.

    Attributes:
        log_evidence: the estimate.
        se: Monte Carlo standard error; NaN if there is none.
        method, meaning: the method, and its interpretation in one line.
        trusted: whether the error estimate is reliable; for a lower bound, whether its gap is known.
        discretisation: for a path, the error due to the finite number of powers.
        gap: for a lower bound, the KL divergence by which it is too low, if the draws suffice to estimate it.
    """

    log_evidence: float
    se: float
    method: str
    meaning: str
    discretisation: float | None = None
    gap: float | None = None
    trusted: bool = True

    def record(self) -> dict[str, Any]:
        """Return a flat dictionary without the fields that this method does not have."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def log_mean_exp(values: Float[np.ndarray, " draw"]) -> tuple[float, float]:
    """Return the log of the mean of e^v, and its standard error by the delta method."""
    value = float(np.asarray(special.logsumexp(values))) - math.log(values.size)
    if not math.isfinite(value) or values.size < 2:
        return value, math.nan
    return value, float(np.std(np.exp(values - value), ddof=1) / math.sqrt(values.size))
