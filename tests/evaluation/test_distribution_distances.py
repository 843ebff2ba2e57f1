"""Distances between distributions, against their closed forms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from bnnzoo.evaluation.formulas import distribution_distances as formulas

PAIRS = [((0.0, 1.0), (0.5, 1.0)), ((0.0, 1.0), (0.0, 2.0)), ((1.0, 0.5), (-1.0, 3.0)), ((2.0, 1.0), (2.0, 1.0))]


def grids(first, second):
    """Points in both ranges, as `reference_distances` takes them, and the distribution functions there."""
    points = np.sort(np.concatenate([mean + sd * np.linspace(-6, 6, 129) for mean, sd in (first, second)]))[:, None]
    return points, *(stats.norm(*parameters).cdf(points) for parameters in (first, second))


def expected_absolute(mean: float, sd: float) -> float:
    """Return E|Z| for Z ~ N(mean, sd^2), a folded normal distribution."""
    return sd * np.sqrt(2 / np.pi) * np.exp(-(mean**2) / (2 * sd**2)) + mean * (1 - 2 * stats.norm.cdf(-mean / sd))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_total_variation_of_two_normals(first, second):
    if first[1] == second[1]:
        exact = 2 * stats.norm.cdf(abs(first[0] - second[0]) / (2 * first[1])) - 1
    else:
        y = np.linspace(-40, 40, 400_001)
        exact = np.abs(stats.norm(*first).pdf(y) - stats.norm(*second).pdf(y)).sum() * (y[1] - y[0]) / 2
    _, f, g = grids(first, second)
    assert formulas.total_variation(f, g)[0] == pytest.approx(exact, abs=1e-3)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_wasserstein_distance_of_two_normals(first, second):
    # The difference of the quantile functions is (m1 - m2) + (s1 - s2) z with z ~ N(0, 1).
    mean, sd = first[0] - second[0], abs(first[1] - second[1])
    exact = abs(mean) if sd == 0 else expected_absolute(mean, sd)
    points, f, g = grids(first, second)
    assert formulas.wasserstein(points, f, g)[0] == pytest.approx(exact, abs=2e-3)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_energy_distance_of_two_normals(first, second):
    between = expected_absolute(first[0] - second[0], np.hypot(first[1], second[1]))
    within = [expected_absolute(0.0, np.sqrt(2) * sd) for _, sd in (first, second)]
    points, f, g = grids(first, second)
    assert formulas.energy_distance(points, f, g)[0] == pytest.approx(2 * between - sum(within), abs=2e-3)


def test_distances_of_two_poisson_distributions_are_sums():
    points = np.arange(-1.0, 60.0)[:, None]
    first, second = stats.poisson(3.0), stats.poisson(4.5)
    f, g = first.cdf(points), second.cdf(points)
    p, q = (law.pmf(np.arange(60)) for law in (first, second))
    assert formulas.total_variation(f, g)[0] == pytest.approx(np.abs(p - q).sum() / 2, abs=1e-12)
    # For stochastically ordered distributions it is the difference of the means.
    assert formulas.wasserstein(points, f, g, is_discrete=True)[0] == pytest.approx(1.5, abs=1e-9)
    distances = np.abs(np.subtract.outer(np.arange(60), np.arange(60)))
    exact = 2 * p @ distances @ q - p @ distances @ p - q @ distances @ q
    assert formulas.energy_distance(points, f, g, is_discrete=True)[0] == pytest.approx(exact, abs=1e-9)


def test_distances_of_class_probabilities():
    p, q = np.array([[0.7, 0.2, 0.1]]), np.array([[0.5, 0.1, 0.4]])
    events = itertools.chain.from_iterable(itertools.combinations(range(3), size) for size in range(4))
    exact = max(abs(p[0, list(event)].sum() - q[0, list(event)].sum()) for event in events)
    assert formulas.class_total_variation(p, q)[0] == pytest.approx(exact)
    differs = 1 - np.eye(3)
    energy = 2 * p @ differs @ q.T - p @ differs @ p.T - q @ differs @ q.T
    assert formulas.class_energy_distance(p, q)[0] == pytest.approx(energy.item())


@pytest.mark.parametrize(
    ("chains", "count"), [(2, 1), (4, 3), (8, 35), (16, formulas.MAX_SPLITS), (64, formulas.MAX_SPLITS)]
)
def test_halves_are_different_divisions_of_all_chains(chains, count):
    divisions = formulas.halves(chains)
    assert len(divisions) == count
    assert len({tuple(first) for first, _ in divisions}) == count
    for first, second in divisions:
        assert sorted([*first, *second]) == list(range(chains))
        assert len(first) == chains // 2
