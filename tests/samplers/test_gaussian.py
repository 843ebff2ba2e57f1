"""The samplers' Gaussian noise: its distribution, its words, and independence of numbers, keys, steps and chains.

The false-alarm level is 1e-6 per test. `WORSE` has a flawed generator for each test, which the test must reject.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from bnnzoo.samplers import gaussian
from bnnzoo.samplers.gaussian import hash_counters, standard_normal

ENOUGH = 1e-6
KEY = jax.random.key(0)


def _noise(key: Any, count: int) -> np.ndarray:
    return np.asarray(standard_normal((count,), jnp.float32, key=key), float)


def _of_words(arguments: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    monkeypatch.setattr(gaussian, "hash_counters", lambda count, *, key: jnp.asarray(arguments, jnp.uint32))
    return _noise(KEY, len(arguments))


def _steps(count: int, dim: int, chain: int = 0) -> np.ndarray:
    """Return the noise of consecutive steps of a chain, with the keys of a run, [step, dim]."""
    chain_key = jax.random.fold_in(KEY, chain)
    keys = jax.vmap(lambda step: jax.random.split(jax.random.fold_in(chain_key, step))[0])(jnp.arange(count))
    return np.asarray(jax.vmap(lambda key: standard_normal((dim,), jnp.float32, key=key))(keys), float)


def test_a_word_is_the_quantile_of_its_probability(monkeypatch):
    words = np.concatenate([np.arange(2**16), np.linspace(2**16, 2**32 - 1, 1_000_000).astype(np.int64)])
    size = np.sqrt(2) * special.erfcinv(((words >> 1) + 0.5) / 2**31)
    expected = np.where(words & 1, -size, size)
    result = _of_words(words, monkeypatch)
    # Near 0 the probability is near 1, where float32 numbers are 6e-8 apart.
    assert np.abs(result - expected).max() < 2e-5
    assert (np.abs(result - expected) <= 3e-6 * np.abs(expected) + 4e-7).all()


def test_the_least_probability_is_finite_and_signs_are_a_bit(monkeypatch):
    result = _of_words(np.array([0, 1, 2**32 - 2, 2**32 - 1]), monkeypatch)
    assert result[:2] == pytest.approx([6.338, -6.338], abs=1e-3)
    assert np.abs(result[2:]).max() < 1e-6


def moments(draws: np.ndarray) -> float:
    """Return the smallest p-value of the first eight moments, each with its own error."""
    powers = np.arange(1, 9)
    expected = np.array([0 if p % 2 else special.factorial2(p - 1) for p in powers])
    spread = np.sqrt([special.factorial2(2 * p - 1) - w**2 for p, w in zip(powers, expected, strict=True)])
    result = np.array([np.mean(draws**p) for p in powers])
    return float(8 * 2 * stats.norm.sf(np.abs(result - expected) / spread * draws.size**0.5).min())


def law(draws: np.ndarray) -> float:
    return float(stats.kstest(draws.ravel(), "norm").pvalue)


def tails(draws: np.ndarray) -> float:
    """Test the counts beyond 1 to 5 standard deviations on either side."""
    bounds = np.arange(1, 6)
    result = np.array([[np.sum(s * draws > bound) for bound in bounds] for s in (-1, 1)])
    expected = draws.size * stats.norm.sf(bounds)
    low, high = stats.poisson.cdf(result, expected), stats.poisson.sf(result - 1, expected)
    return float(20 * np.minimum(low, high).min())


def neighbours(draws: np.ndarray) -> float:
    """Test correlations of numbers and of squares at lags 1, 2, 4, ... in place and 1, 2, 4 in step."""
    worst = 1.0
    for values in (draws, draws**2):
        centred = (values - values.mean()) / values.std()
        along = [centred[:, lag:] * centred[:, : centred.shape[1] - lag] for lag in 2 ** np.arange(10)]
        across = [centred[lag:] * centred[: len(centred) - lag] for lag in (1, 2, 4)]
        for product in (*along, *across):
            worst = min(worst, 26 * 2 * stats.norm.sf(abs(product.mean()) * product.size**0.5 / product.std()))
    return worst


def pairs(draws: np.ndarray) -> float:
    """Test a number with the next one, and with that of the next step, in cells of equal probability."""
    cell = np.minimum((special.ndtr(draws) * 16).astype(int), 15)
    least = 1.0
    for first, second in ((cell[:, :-1], cell[:, 1:]), (cell[:-1], cell[1:])):
        counts = np.bincount(16 * first.ravel() + second.ravel(), minlength=256)
        least = min(least, 2 * stats.chisquare(counts).pvalue)
    return float(least)


LOOKS: dict[str, Callable[[np.ndarray], float]] = {
    look.__name__: look for look in (moments, law, tails, neighbours, pairs)
}


@functools.cache
def _drawn() -> np.ndarray:
    return _steps(1024, 2048)


@pytest.mark.parametrize("look", LOOKS)
def test_noise_of_a_chain_passes_every_randomness_test(look):
    assert LOOKS[look](_drawn()) > ENOUGH


def test_chains_and_their_keys_are_unrelated():
    """Rows are the same step of 512 chains, so that `neighbours` and `pairs` compare chains."""
    keys = jax.vmap(lambda c: jax.random.fold_in(jax.random.fold_in(KEY, c), 7))(jnp.arange(512))
    draws = np.asarray(jax.vmap(lambda key: standard_normal((2048,), jnp.float32, key=key))(keys), float)
    assert min(look(draws) for look in LOOKS.values()) > ENOUGH


def _short(draws: np.ndarray) -> np.ndarray:
    """Round to 12 bits, which truncates the tails."""
    cells = np.floor(special.ndtr(draws) * 4096)
    return special.ndtri((cells + 0.5) / 4096)


WORSE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "moments": lambda draws: 1.003 * draws,
    "law": lambda draws: draws + 0.01,
    "tails": _short,
    "neighbours": lambda draws: (draws + 0.005 * np.roll(draws, 2, 0)) / np.sqrt(1 + 0.005**2),
    "pairs": lambda draws: np.where(np.roll(draws, 1, 1) > 1.6, np.abs(draws), draws),
}


@pytest.mark.parametrize("look", WORSE)
def test_each_randomness_test_rejects_a_worse_generator(look):
    assert LOOKS[look](WORSE[look](_drawn())) < ENOUGH


def test_words_of_a_key_are_all_different_and_each_bit_is_fair():
    words = np.asarray(hash_counters(2**20, key=KEY))
    assert len(np.unique(words)) == len(words)
    ones = np.array([np.sum((words >> bit) & 1) for bit in range(32)])
    assert 32 * stats.binomtest(int(ones[np.abs(ones - 2**19).argmax()]), 2**20).pvalue > ENOUGH


def _flips(change: Callable[[int], Any]) -> np.ndarray:
    """Return the fraction of 2^14 numbers in which input bit i flips output bit j, [i, j]."""
    words = np.asarray(hash_counters(2**14, key=KEY))
    return np.array([[np.mean(((words ^ change(i)) >> j) & 1) for j in range(32)] for i in range(14)])


def test_a_bit_of_the_number_reaches_every_bit_of_its_word():
    words = np.asarray(hash_counters(2**14, key=KEY))
    share = _flips(lambda i: words[np.arange(2**14) ^ (1 << i)])
    # Each pair is counted twice, so that half as many are independent.
    assert np.abs(share - 0.5).max() < stats.norm.isf(ENOUGH / (2 * share.size)) * 0.5 / (2**13) ** 0.5


@pytest.mark.long
def test_either_word_of_the_key_reaches_every_bit(monkeypatch):
    key = np.array([0x12345678, 0x9ABCDEF0], np.uint32)

    def hash_words(first: int, second: int) -> np.ndarray:
        monkeypatch.setattr(jax.random, "bits", lambda *args: jnp.array([first, second], jnp.uint32))
        return np.asarray(hash_counters(2**14, key=KEY))

    reference = hash_words(*key)
    bound = stats.norm.isf(ENOUGH / (2 * 32 * 32)) * 0.5 / (2**14) ** 0.5
    for place in (0, 1):
        changed = [key.copy() for _ in range(32)]
        for bit in range(32):
            changed[bit][place] ^= np.uint32(1 << bit)
        share = np.array([[np.mean(((reference ^ hash_words(*each)) >> j) & 1) for j in range(32)] for each in changed])
        assert np.abs(share - 0.5).max() < bound, place


def test_in_double_precision_it_is_jaxs_own():
    with jax.enable_x64(True):
        key = jax.random.key(3)
        assert (standard_normal((5,), jnp.float64, key=key) == jax.random.normal(key, (5,), jnp.float64)).all()
