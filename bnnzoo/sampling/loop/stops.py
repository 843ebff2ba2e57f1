"""Numbers of draws at which a run can end because it has converged."""

from __future__ import annotations

_FIRST_STOP = 100


def ladder(draws: int) -> list[int]:
    """Return the numbers of draws at which convergence is tested; they are fixed, so that a run is repeatable."""
    stops = []
    stop = _FIRST_STOP
    while stop < draws:
        stops.append(stop)
        stop *= 2
    return stops
