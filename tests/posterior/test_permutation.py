"""The distribution of distinct indices."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from scipy import stats

from bnnzoo.posterior import permutation
from bnnzoo.posterior.permutation import distinct_indices

ENOUGH = 1e-6


def _draw(size: int, total: int, count: int, seed: int = 0) -> np.ndarray:
    keys = jax.random.split(jax.random.key(seed), count)
    draw = functools.partial(distinct_indices, size, total)
    return np.asarray(jax.jit(jax.vmap(lambda key: draw(key=key)))(keys))


@pytest.fixture(params=["sort", "feistel"])
def path(request, monkeypatch):
    if request.param == "feistel":
        monkeypatch.setattr(permutation, "_SORT_BELOW", 0)
    return request.param


@pytest.mark.parametrize(("size", "total"), [(2, 2), (5, 5), (1, 7), (64, 64), (65, 65)])
def test_indices_are_distinct_and_in_range(path, size, total):
    draws = _draw(size, total, 200)
    assert draws.dtype == np.int32
    assert draws.min() >= 0
    assert draws.max() < total
    assert all(len(np.unique(row)) == size for row in draws)


@pytest.mark.parametrize("total", [3, 16, 37, 129])
def test_every_index_is_equally_likely(path, total):
    draws = _draw(3, total, 6000)
    for place in range(3):
        counts = np.bincount(draws[:, place], minlength=total)
        assert stats.chisquare(counts).pvalue > ENOUGH, place


# With 3 bits a Feistel network shuffles poorly; totals below 64 use a sort.
@pytest.mark.parametrize("total", [12, 16])
def test_every_ordered_pair_is_equally_likely(path, total):
    draws = _draw(2, total, 20_000)
    counts = np.bincount(draws[:, 0] * total + draws[:, 1], minlength=total**2).reshape(total, total)
    assert (np.diag(counts) == 0).all()
    assert stats.chisquare(counts[~np.eye(total, dtype=bool)]).pvalue > ENOUGH


def test_pairs_of_a_large_total_are_independent():
    total, bins = 5003, 16
    draws = _draw(2, total, 40_000, seed=1) * bins // total
    counts = np.bincount(draws[:, 0] * bins + draws[:, 1], minlength=bins**2)
    sizes = np.bincount(np.arange(total) * bins // total)
    expected = np.outer(sizes, sizes) - np.diag(sizes)
    assert stats.chisquare(counts, 40_000 * (expected / expected.sum()).ravel()).pvalue > ENOUGH


def test_a_skewed_distribution_is_detected():
    """Positive control: remainders of a power of two."""
    draws = np.random.default_rng(0).integers(0, 128, 6000) % 100
    assert stats.chisquare(np.bincount(draws, minlength=100)).pvalue < ENOUGH


def test_large_totals_use_the_feistel_network():
    total = 100_003
    draws = _draw(50, total, 400)
    assert all(len(np.unique(row)) == 50 for row in draws)
    assert draws.max() < total
    assert stats.kstest(draws.ravel() / total, "uniform").pvalue > ENOUGH
    assert stats.kstest(draws[:, 0] / total, "uniform").pvalue > ENOUGH
    # Two batches share 50 * 50 / total indices on average.
    shared = sum(len(np.intersect1d(a, b)) for a, b in zip(draws[::2], draws[1::2], strict=True))
    mean = 200 * 2500 / total
    assert stats.poisson.cdf(shared, mean) > 1e-6
    assert stats.poisson.sf(shared - 1, mean) > 1e-6


def test_more_indices_than_the_total_are_refused():
    with pytest.raises(ValueError, match="6 distinct indices out of 5"):
        distinct_indices(6, 5, key=jax.random.key(0))


@pytest.mark.parametrize("total", [40, 1000])
def test_a_slice_beyond_the_end_of_the_permutation_is_refused(total):
    assert distinct_indices(2, total, start=total - 2, key=jax.random.key(0)).shape == (2,)
    with pytest.raises(ValueError, match=f"2 distinct indices out of {total}, beginning at position {total - 1}"):
        distinct_indices(2, total, start=total - 1, key=jax.random.key(0))


@pytest.mark.parametrize("total", [40, 1000])
def test_double_precision_draws_the_same_indices(total):
    """Random bits have 32 bits also where JAX's default would be 64."""
    key = jax.random.key(0)
    single = distinct_indices(20, total, key=key)
    with jax.enable_x64(True):
        double = distinct_indices(20, total, key=key)
    np.testing.assert_array_equal(single, double)
