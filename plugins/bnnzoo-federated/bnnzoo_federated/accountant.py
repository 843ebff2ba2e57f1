"""The accountant of differential privacy: exact (epsilon, delta) of Gaussian mechanisms and their compositions.

A release is a number with normal noise. Let s be the largest change of the number if a row is replaced, and sd the
standard deviation of the noise. The release has mu-Gaussian differential privacy with mu = s / sd. Releases with
mu_1, mu_2, ... together have mu = sqrt(mu_1^2 + mu_2^2 + ...), even if each question depends on the earlier answers
(Dong, Roth and Su 2022, J. R. Statist. Soc. B 84, 3). A party may also stop answering when a fixed budget for the
sum of the squares is spent (Smith and Thakurta 2022, arXiv 2210.17520). The conversion from mu to (epsilon, delta) is
exact (Balle and Wang 2018, ICML):

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import log_ndtr

_SMALLEST, _LARGEST = 1e-12, 1e6
"""Range in which `mu_within` searches for mu."""


def delta_at(epsilon: float, mu: float) -> float:
    """Return the smallest delta with which all releases together are (epsilon, delta)-differentially private.

    Args:
        epsilon: at least 0.
        mu: parameter of Gaussian differential privacy of all releases together, at least 0.
    """
    if mu == 0:
        return 0.0
    log_first = float(log_ndtr(mu / 2 - epsilon / mu))
    log_second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    # Rounding can make the difference of two tiny numbers negative; it is never negative.
    return math.exp(log_first) * max(0.0, -math.expm1(min(0.0, log_second - log_first)))


def epsilon_at(mu: float, delta: float) -> float:
    """Return the smallest epsilon with which all releases together are (epsilon, delta)-differentially private.

    Args:
        mu: parameter of Gaussian differential privacy of all releases together, at least 0.
        delta: between 0 and 1, both excluded.
    """
    if delta_at(0.0, mu) <= delta:
        return 0.0
    upper = 1.0
    while delta_at(upper, mu) > delta:
        upper *= 2
    return _bracket(lambda epsilon: delta_at(epsilon, mu) <= delta, 0.0, upper)[1]


def mu_within(epsilon: float, delta: float) -> float:
    """Return the largest mu with which all releases together are (epsilon, delta)-differentially private.

    Args:
        epsilon: above 0.
        delta: between 0 and 1, both excluded.
    """
    exceeds = lambda log_mu: delta_at(epsilon, math.exp(log_mu)) > delta  # noqa: E731
    log_mu = _bracket(exceeds, math.log(_SMALLEST), math.log(_LARGEST))[0]
    # One part in 10^9 less, so that the rounding of sums of mu^2 never exceeds (epsilon, delta).
    return math.exp(log_mu) * (1 - 1e-9)


def _bracket(is_above: Callable[[float], bool], lower: float, upper: float) -> tuple[float, float]:
    """Return two nearly equal numbers between which `is_above` changes from false to true, by bisection.

    If `is_above` is false everywhere, both numbers are close to `upper`; if true everywhere, close to `lower`.
    """
    for _ in range(100):
        middle = (lower + upper) / 2
        lower, upper = (lower, middle) if is_above(middle) else (middle, upper)
    return lower, upper
