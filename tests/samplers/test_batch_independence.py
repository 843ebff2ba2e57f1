"""Mini-batches are new in every step of every chain, and chains make independent decisions."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from gaussian_mean import LEVEL, GaussianMean, Z
from scipy import stats

from bnnzoo.samplers import AbstractSampler, Penalty
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.loop.loop import Keys, chunks

N, SIZE, CHAINS, STEPS = 97, 20, 8, 600


class _State(eqx.Module):
    position: Any


class Recorder(AbstractSampler[_State]):
    """A sampler that does not move and reports the rows of its mini-batch."""

    exactness = "biased"
    replace: bool = eqx.field(static=True, default=True)
    shared: bool = eqx.field(static=True, default=False)
    """Return the mistake: one batch for all chains and all steps with equal numbers modulo 3."""

    def init(self, posterior: Any, theta: Any, *, num_warmup: int, key: Any) -> _State:
        return _State(theta)

    def step(self, posterior: Any, state: _State, *, key: Any) -> tuple[_State, dict[str, Any]]:
        if self.shared:
            key = jax.random.key(jax.random.key_data(key)[0] % 3)
        rows = posterior.minibatch(SIZE, replace=self.replace, key=key)
        return state, {f"row_{i}": rows[i] for i in range(SIZE)}  # a statistic is one number per step


class Rows(GaussianMean):
    """A posterior whose data are the row numbers."""

    @classmethod
    def numbered(cls) -> Rows:
        return cls(np.arange(N))


def _run(sampler: Any, posterior: Any, starts: np.ndarray, draws: int = STEPS) -> dict[str, np.ndarray]:
    stream = chunks(
        posterior,
        sampler,
        starts.astype(np.float32),
        keys=Keys.from_seed(4),
        num_warmup=0,
        num_draws=draws,
        placement=place_chains("vectorized", len(starts)),
    )
    run_chunks = list(stream)
    return {name: np.concatenate([chunk.stats[name] for chunk in run_chunks], 1) for name in run_chunks[0].stats}


def _batches(recorder: Recorder, starts: np.ndarray, draws: int = STEPS) -> np.ndarray:
    """Return the rows of the batches [chain, step, row]."""
    values = _run(recorder, Rows.numbered(), starts, draws)
    return np.stack([values[f"row_{i}"] for i in range(SIZE)], -1).astype(int)


def _shared_rows(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the number of rows of a batch [pair, row] without repeats that are also in the other batch."""
    return (first[:, :, None] == second[:, None, :]).sum((1, 2))


def _pairs(rows: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pairs of batches, each batch in one pair: consecutive steps, steps two apart, and chains at the same step."""
    flat = lambda a: a.reshape(-1, SIZE)  # noqa: E731
    return {
        "consecutive steps": (flat(rows[:, ::2]), flat(rows[:, 1::2])),
        "steps two apart": (flat(rows[:, 0::4]), flat(rows[:, 2::4])),
        "chains": (flat(rows[::2]), flat(rows[1::2])),
    }


def _overlap_p(first: np.ndarray, second: np.ndarray) -> float:
    """Return the p value of the hypothesis that the number of shared rows is hypergeometric."""
    counts = np.bincount(_shared_rows(first, second), minlength=SIZE + 1).astype(float)
    expected = len(first) * stats.hypergeom(N, SIZE, SIZE).pmf(np.arange(SIZE + 1))
    tail = np.flatnonzero(expected[::-1].cumsum()[::-1] >= 8)[-1]
    fold = lambda values: np.append(values[:tail], values[tail:].sum())  # noqa: E731
    return float(stats.chisquare(fold(counts), fold(expected)).pvalue)


def _coincidences_z(first: np.ndarray, second: np.ndarray) -> float:
    """z of the equal pairs of rows of two batches drawn with replacement: mean SIZE^2/N a pair of batches.

    Pairs of places are pairwise independent, so that the variance is that of SIZE^2 independent ones.
    """
    equal = _shared_rows(first, second)
    variance = SIZE**2 / N * (1 - 1 / N)
    return float((equal.mean() - SIZE**2 / N) / (variance / len(equal)) ** 0.5)


@pytest.fixture(scope="module")
def starts():
    return np.zeros((CHAINS, 1))


def test_batches_without_repeats_overlap_like_independent_ones(starts):
    rows = _batches(Recorder(replace=False), starts)
    assert all(len(set(batch)) == SIZE for batch in rows.reshape(-1, SIZE))
    for name, (first, other) in _pairs(rows).items():
        assert _overlap_p(first, other) > LEVEL, name
    # Each row is in a batch with probability SIZE / N: the counts vary less than a multinomial's by 1 - SIZE / N.
    counts = np.bincount(rows.ravel(), minlength=N)
    mean = rows.size / N
    spread = ((counts - mean) ** 2).sum() / mean / (1 - SIZE / N) * (1 - 1 / N)
    assert stats.chi2(N - 1).sf(spread) > LEVEL
    assert stats.chi2(N - 1).cdf(spread) > LEVEL


def test_batches_with_replacement_coincide_like_independent_ones(starts):
    rows = _batches(Recorder(), starts)
    assert stats.chisquare(np.bincount(rows.ravel(), minlength=N)).pvalue > LEVEL
    for name, (first, other) in _pairs(rows).items():
        assert abs(_coincidences_z(first, other)) < Z, name


def test_reused_batches_are_seen(starts):
    """Positive control: one of three batches for all chains and steps."""
    for replace in (True, False):
        rows = _batches(Recorder(replace=replace, shared=True), starts, 100)
        for first, other in _pairs(rows).values():
            assert _coincidences_z(first, other) > Z if replace else _overlap_p(first, other) < LEVEL


def _dependence(accepted: np.ndarray) -> float:
    """z of the sum over pairs of chains of the correlations of their accept flags [chain, step].

    Every third step, which makes the flags of one chain nearly independent; the correlations are pairwise uncorrelated.
    """
    flags = accepted[:, ::3].astype(float)
    pairs = np.corrcoef(flags)[np.triu_indices(len(flags), 1)]
    return float(pairs.sum() * (flags.shape[1] / len(pairs)) ** 0.5)


def test_chains_accept_independently_of_each_other():
    posterior = GaussianMean.of(100)
    sampler = Penalty(step_size=1.5 * posterior.sd, batch_size=5, num_batches=16, preconditioner="identity")
    accepted = _run(sampler, posterior, posterior.draws(CHAINS, seed=1), 3000)["accepted"]
    assert 0.2 < accepted.mean() < 0.8
    assert abs(_dependence(accepted)) < Z
    # Positive control: a tenth of the decisions are shared.
    common = np.random.default_rng(0).random(accepted.shape[1]) < 0.1
    assert _dependence(np.where(common, accepted[:1], accepted)) > 2 * Z
