"""Estimate of what more draws of the same chains would add to the predictions.

The mean log predictive density of training rows is computed from all draws and from the first half of each chain. The
difference is the gain of the second half. The Monte Carlo error of a predictive density lowers its mean logarithm by an
amount that is inversely proportional to the number of draws. The gain from n / 2 to n draws is therefore as large as
the gain from n to infinitely many draws. So the gain of the second half is an estimate of the remaining gain. The gain
is also positive if a chain still moves to better predictions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from bnnzoo.evaluation.predictions import thinning
from bnnzoo.evaluation.predictions.predictor import Predictor

LIMIT = 0.005
"""Largest estimate of the remaining gain, in nats per row, at which a run may end early."""


class Gain(NamedTuple):
    """Gain of the second half of the draws in the mean log predictive density of a row, in nats.

    Attributes:
        value: the estimate.
        se: its standard error over the rows.
    """

    value: float
    se: float

    @property
    def is_negligible(self) -> bool:
        """Whether the absolute value of the estimate plus two standard errors is below `LIMIT`."""
        return abs(self.value) + 2 * self.se < LIMIT


def of_run(predictor: Predictor) -> Gain | None:
    """Return the gain of the second half of a run's draws.

    The result is None for an unknown model, or with fewer than two draws per chain or two training rows in the file.
    """
    if not predictor.predicts or not predictor.record.has_training_rows:
        return None
    thinned = thinning.for_diagnosis(predictor)
    x, y = thinned.record.training_rows(thinning.density_rows(thinned, thinning.PROBES))
    return of_densities(thinned.log_likelihoods(x, y, np.arange(thinned.record.shape[1])))


def of_densities(log_densities: Float[np.ndarray, "chain draw row"]) -> Gain | None:
    """Return the gain of the second half of all chains; None with fewer than two draws per chain or two rows.

    Args:
        log_densities: log density of each row under each draw.
    """
    _, count, num_rows = log_densities.shape
    if count < 2 or num_rows < 2:
        return None
    everything, first_half = (_log_mean(log_densities[:, :number]) for number in (count, count // 2))
    gains = everything - first_half
    return Gain(float(np.mean(gains)), float(np.std(gains, ddof=1) / np.sqrt(num_rows)))


def _log_mean(log_densities: Float[np.ndarray, "chain draw row"]) -> Float[np.ndarray, " row"]:
    """Return the log of the mean density of each row over all draws."""
    chains, count, _ = log_densities.shape
    return logsumexp(log_densities.astype(np.float64), axis=(0, 1)) - np.log(chains * count)
