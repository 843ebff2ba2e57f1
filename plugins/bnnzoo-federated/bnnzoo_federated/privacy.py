"""A party's promise of differential privacy: epsilon, delta, and the clip that makes the promise possible."""

from __future__ import annotations

import math
from typing import NamedTuple

from bnnzoo.errors import UsageError
from bnnzoo_federated.accountant import mu_within
from bnnzoo_federated.messages import Terms

NEIGHBOURS = "one row replaced"
"""Neighbouring relation of the differential privacy: tables with equal numbers of rows that differ in one row."""


class Privacy(NamedTuple):
    """The (epsilon, delta)-differential privacy of all answers of a party together, and the clip.

    Neighbouring tables have equal numbers of rows and differ in one row.

    Each difference d_i of a row's log-likelihood is clipped to [-clip, clip]. Replacing a row then changes the sum of
    the differences by at most 2 clip. Each sum that a party sends is one *release*, with noise of standard deviation
    noise_sd, so a release has mu = 2 clip / noise_sd (see `accountant`).
    """

    epsilon: float
    delta: float
    clip: float

    def check(self, place: str, noise_sd: float) -> None:
        """Check the limits and the noise.

        Args:
            place: start of the error message.
            noise_sd: standard deviation of the noise of a release.

        Raises:
            UsageError: if a number is out of its range, or if the limits do not allow a single release.
        """
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise UsageError(f"{place}: [[epsilon]]: must be > 0 (got {self.epsilon})")
        if not 0 < self.delta < 1:
            raise UsageError(f"{place}: [[delta]]: must be between 0 and 1 (got {self.delta})")
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise UsageError(f"{place}: [[clip]]: must be > 0 (got {self.clip})")
        if not (math.isfinite(noise_sd) and noise_sd > 0):
            raise UsageError(
                f"{place}: [[noise_sd]]: must be > 0 for differential privacy (got {noise_sd}); "
                "use 2 / sqrt(number of parties)"
            )
        if not self.releases(noise_sd):
            raise UsageError(
                f"{place}: [[clip]]: too large: epsilon {self.epsilon:g} and delta {self.delta:g} allow no answer "
                f"(got {self.clip:g}); use a smaller [[clip]], or a larger [[noise_sd]]"
            )

    def mu(self, noise_sd: float) -> float:
        """Return the parameter mu of Gaussian differential privacy of one release."""
        return 2 * self.clip / noise_sd

    def releases(self, noise_sd: float) -> int:
        """Return the number of releases that the limits allow. Each step of each chain needs one release.

        Args:
            noise_sd: standard deviation of the noise of a release, in units of the log-likelihood.
        """
        return math.floor(mu_within(self.epsilon, self.delta) ** 2 / self.mu(noise_sd) ** 2)


def clipped_sd(terms: Terms) -> float:
    """Return the standard deviation of the noise of a private party's fraction of clipped differences.

    Replacing a row changes the fraction by at most 1 / (number of rows). With this noise, sending the fraction costs as
    much as sending one sum.
    """
    assert terms.clip is not None
    return terms.noise_sd / (2 * terms.clip * terms.rows)
