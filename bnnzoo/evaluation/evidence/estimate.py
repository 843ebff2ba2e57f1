"""An estimate of the evidence log p(D), with its standard error and an explanation."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special


@dataclass(frozen=True)
class Evidence:
    """Estimate of log p(D) in nats, where p(D) is a density of the targets in original units.

    Attributes:
        log_evidence: the estimate.
        se: Monte Carlo standard error; NaN if it is unknown.
        method: name of the method.
        meaning: explanation of the estimate in one line.
        trusted: whether the standard error is reliable; for a lower bound, whether its gap is known.
        discretisation: for an integral over likelihood powers, an estimate of the error due to the finite number of
            powers; otherwise None.
        gap: for a lower bound, the KL divergence by which the bound is too low; None if the draws cannot estimate it.
    """

    log_evidence: float
    se: float
    method: str
    meaning: str
    discretisation: float | None = None
    gap: float | None = None
    trusted: bool = True

    def record(self) -> dict[str, Any]:
        """Return a flat dictionary of the attributes that are not None."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def log_mean_exp(values: Float[np.ndarray, " draw"]) -> tuple[float, float]:
    """Return the log of the mean of exp(v) over all values v, and its standard error by the delta method.

    The standard error is NaN if the log is not finite or if there is only one value.
    """
    value = float(np.asarray(special.logsumexp(values))) - math.log(values.size)
    if not math.isfinite(value) or values.size < 2:
        return value, math.nan
    return value, float(np.std(np.exp(values - value), ddof=1) / math.sqrt(values.size))
