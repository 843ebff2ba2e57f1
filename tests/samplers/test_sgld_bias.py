"""SGLD has a bias of known size; a change that moves SGLD closer to the posterior must fail here."""

from __future__ import annotations

from typing import Any

import pytest
from gaussian_mean import GaussianMean, Z, agrees, evolve, scores

from bnnzoo.samplers import Sgld

N, CHAINS, STEPS = 1000, 20_000, 50
LENGTH = 0.1
"""eta times the posterior's precision: in Welling and Teh's units epsilon is twice eta."""


def _predicted(posterior: GaussianMean, size: int, sampling: Any) -> float:
    """Return the stationary variance divided by the posterior's, (1 + eta V / 2) / (1 - eta a / 2)."""
    precision = posterior.num_data + 1
    noise = posterior.num_data**2 / size
    if sampling == "disjoint":
        noise *= posterior.num_data / (posterior.num_data - 1) * (1 - size / posterior.num_data)
    return (1 + LENGTH / precision * noise / 2) / (1 - LENGTH / 2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "sampling"),
    [
        (10, "replacement"),
        pytest.param(10, "disjoint", marks=pytest.mark.slow),
        pytest.param(100, "replacement", marks=pytest.mark.slow),
        (100, "disjoint"),
    ],
)
def test_the_stationary_variance_is_the_formula(size, sampling):
    posterior = GaussianMean.of(N)
    sampler = Sgld(step_size=LENGTH * posterior.sd**2, batch_size=size, sampling=sampling)
    ratio = _predicted(posterior, size, sampling)
    starts = posterior.mean + ratio**0.5 * (posterior.draws(CHAINS, seed=1) - posterior.mean)
    final, means = evolve(sampler, posterior, starts, steps=STEPS, seed=2)
    values = posterior.standardised(final)
    assert agrees(scores(values, variance=ratio))
    assert means["diverging"].max() == 0
    # Positive control: the posterior's own variance is rejected.
    assert scores(values)["variance"] > 2 * Z


def test_the_formula_has_its_known_values():
    posterior = GaussianMean.of(N)
    assert _predicted(posterior, 10, "replacement") == pytest.approx(6.31, abs=0.01)
    assert _predicted(posterior, 100, "replacement") == pytest.approx(1.578, abs=0.001)
