"""Rows drawn by influence: all possible batches, the distribution of draws, and a row that uniform batches miss."""

from __future__ import annotations

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_mean import GaussianMean, NormalPrior, Z, evolve
from jaxtyping import Array
from scipy import stats

from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.samplers import Penalty
from bnnzoo.samplers.subsampled import metropolis, row_probabilities
from bnnzoo.samplers.subsampled.row_probabilities import RowProbabilities
from bnnzoo.sampling.devices import jax_settings

N, SIZE, BATCHES = 5, 2, 2
ASYMMETRIC = np.array([0.0, 0.1, 0.4, 1.0, 6.0])
SHARES = np.array([0.1, 0.3, 0.05, 0.15, 0.4])


def _every_batch() -> tuple[np.ndarray, np.ndarray]:
    """Return all index tuples of a step [tuple, K], and the probability of each."""
    every = np.array(list(itertools.product(range(N), repeat=SIZE * BATCHES)))
    return every, SHARES[every].prod(1)


def _check_unbiased(delta: np.ndarray, sigma2: np.ndarray, chance: np.ndarray, exact: float) -> None:
    mean = chance @ delta
    np.testing.assert_allclose(mean, exact, rtol=1e-11)
    np.testing.assert_allclose(chance @ sigma2, chance @ (delta - mean) ** 2, rtol=1e-11)


# ---- every batch ---------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", ["pooled", "batch-means"])
@pytest.mark.parametrize("power", [1.0, 0.25])
def test_delta_and_its_variance_are_unbiased_over_all_batches(variance, power):
    every, chance = _every_batch()
    with jax_settings.arithmetic("float64"):
        posterior = eqx.tree_at(lambda p: p.likelihood_power, GaussianMean.of(N, ASYMMETRIC), np.float64(power))
        sampler = _sampler(variance=variance)
        theta, proposal = jnp.asarray([0.4]), jnp.asarray([0.9])
        each = posterior.log_likelihoods(proposal) - posterior.log_likelihoods(theta)
        prior = posterior.log_prior(proposal) - posterior.log_prior(theta)
        exact = float(posterior.log_density(theta) - posterior.log_density(proposal))
        weights = jnp.asarray(1 / (N * SHARES))
        estimate = jax.vmap(lambda batch, w: sampler.difference(posterior, each[batch] * w[batch], prior), (0, None))
        result = estimate(jnp.asarray(every), weights)
        forgotten = estimate(jnp.asarray(every), jnp.ones(N))
    _check_unbiased(np.asarray(result.delta), np.asarray(result.sigma2), chance, exact)
    # Positive control: the same batches without weights.
    assert abs(chance @ np.asarray(forgotten.delta) - exact) > 0.1 * abs(exact)


class Given(RowProbabilities):
    """A posterior that draws given rows."""

    indices: Array

    def minibatch(self, posterior: Any, size: int, *, key: Any) -> tuple[Any, Array]:
        del key
        assert self.indices.shape == (size,)
        return posterior.take(self.indices), jnp.asarray(1 / (N * SHARES))[self.indices]


@pytest.mark.parametrize("control_variate", ["none", "first"])
def test_a_step_is_unbiased_over_all_batches(control_variate):
    """The same for a complete step with fixed proposal and uniform number."""
    every, chance = _every_batch()
    with jax_settings.arithmetic("float64"):
        posterior, sampler = GaussianMean.of(N, ASYMMETRIC), _sampler(control_variate=control_variate)
        state = sampler.init(posterior, jnp.asarray([0.9]), num_warmup=0, key=jax.random.key(0))
        proposal = sampler._propose(posterior, state, key=jax.random.split(jax.random.key(3), 3)[0])[0]

        def step(indices):
            plain = state.rows
            fixed_state = eqx.tree_at(lambda s: s.rows, state, Given(plain.starts, plain.counts, plain.looks, indices))
            return sampler.step(posterior, fixed_state, key=jax.random.key(3))[1]

        result = jax.jit(jax.vmap(step))(jnp.asarray(every))
        exact = float(posterior.log_density(state.position) - posterior.log_density(proposal))
    _check_unbiased(np.asarray(result["delta"]), np.asarray(result["sigma2"]), chance, exact)


@pytest.mark.parametrize("control_variate", ["none", "first"])
def test_the_gradient_of_a_proposal_weighs_rows_by_how_often_they_come(control_variate, monkeypatch):
    """The slope of a Langevin step without noise, computed by hand, is correct on average over batches."""
    monkeypatch.setattr(metropolis, "standard_normal", lambda like, *, key: 0 * like)
    posterior, sampler = GaussianMean.of(N, ASYMMETRIC), _sampler(proposal="langevin", control_variate=control_variate)
    state = sampler.init(posterior, jnp.asarray([0.9]), num_warmup=0, key=jax.random.key(0))
    indices, plain = np.array([4, 4, 0, 1]), state.rows
    rows = Given(plain.starts, plain.counts, plain.looks, jnp.asarray(indices))
    state = eqx.tree_at(lambda s: (s.position, s.rows), state, (jnp.asarray([0.4]), rows))
    x, weights = np.asarray(posterior.data), 1 / (N * SHARES[indices])
    of_batch = lambda theta: N * np.mean(weights * (x[indices] - theta))  # noqa: E731
    slope = of_batch(0.4) + (control_variate == "first") * (np.sum(x - 0.9) - of_batch(0.9))
    result = sampler._propose(posterior, state, key=jax.random.key(1))[0]
    assert float(result[0]) == pytest.approx(0.4 + 0.6 * (slope - 0.4), rel=1e-4)


def _sampler(**more: Any) -> Penalty:
    fields = {"step_size": 0.6, "batch_size": SIZE, "num_batches": BATCHES, "preconditioner": "identity"}
    return Penalty(**fields, sampling="importance", **more)


# ---- the draws -----------------------------------------------------------------------------------


def _rows(square: np.ndarray) -> RowProbabilities:
    return row_probabilities.update_probabilities(row_probabilities.uniform(len(square)), jnp.asarray(square))


def test_rows_are_drawn_with_their_probabilities():
    square = np.array([0.0, 1.0, 0.0, 5.0, 2.0, 0.0, 0.0])
    rows, draws = _rows(square), 20_000
    expected = 0.5 * square / square.sum() + 0.5 / len(square)
    np.testing.assert_allclose(rows.probabilities, expected, rtol=1e-6)
    indices, weights = jax.jit(lambda key: rows.draw(draws, key=key))(jax.random.key(0))
    np.testing.assert_allclose(weights, (1 / len(square) / expected)[np.asarray(indices)], rtol=1e-5)
    counts = np.bincount(np.asarray(indices), minlength=len(square))
    assert stats.chisquare(counts, draws * expected).pvalue > 1e-6
    # Positive control: the same draws compared with uniform probabilities.
    assert stats.chisquare(counts).pvalue < 1e-6


def test_a_million_rows_keep_their_probabilities():
    """With integer counts every row can be drawn, and its weight matches its actual probability."""
    square = np.zeros(1_000_000, np.float32)
    square[-1] = 1.0
    rows = _rows(square)
    counts = np.asarray(rows.counts, np.int64)
    assert counts.min() > 1000
    np.testing.assert_array_equal(np.asarray(rows.starts, np.int64), np.cumsum(counts) - counts)
    assert counts.sum() < 2**32
    indices, weights = rows.draw(1000, key=jax.random.key(1))
    last = np.asarray(indices) == len(square) - 1
    assert 0.4 < last.mean() < 0.6
    np.testing.assert_allclose(np.asarray(weights)[last], 2e-6, rtol=1e-3)
    np.testing.assert_allclose(np.asarray(weights)[~last], 2.0, rtol=1e-3)
    assert np.abs(np.asarray(indices)[~last].mean() / 5e5 - 1) < 0.15


def test_looks_are_averaged_and_chains_share_them():
    first, second = np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0])
    rows = row_probabilities.update_probabilities(_rows(first), jnp.asarray(second))
    np.testing.assert_allclose(rows.probabilities, [1 / 6 + 1 / 6, 1 / 6 + 1 / 3, 1 / 6], rtol=1e-5)
    each = jax.tree.map(lambda *leaves: jnp.stack(leaves), _rows(first), _rows(second))
    pooled = row_probabilities.pool_chains(each)
    np.testing.assert_allclose(jax.vmap(lambda r: r.probabilities)(pooled), [[5 / 12, 5 / 12, 1 / 6]] * 2, rtol=1e-5)


def test_probabilities_are_frozen_with_the_end_of_warm_up():
    posterior, sampler = GaussianMean.of(50), _sampler()
    state = sampler.init(posterior, jnp.asarray([0.2]), num_warmup=9, key=jax.random.key(0))
    learned = sampler.settle(posterior, state, final=False, key=jax.random.key(1))
    assert not np.array_equal(learned.rows.counts, state.rows.counts)
    moved, _ = sampler.step(posterior, learned, key=jax.random.key(2))
    for later in (moved, sampler.settle(posterior, learned, final=True, key=jax.random.key(3))):
        np.testing.assert_array_equal(later.rows.counts, learned.rows.counts)


# ---- a row that uniform batches lose -------------------------------------------------------------

ROWS, CHAINS, STEPS = 2000, 10_000, 40


class OneRow(NormalPrior):
    """y_i ~ N(x_i'theta, 1): an ordinary feature, and one that is 1 in a single row."""

    layout: Layout = eqx.field(static=True, default=Layout((Block("theta", (2,), 0),)))

    @classmethod
    def of(cls, num_data: int = ROWS) -> OneRow:
        rng = np.random.default_rng(4)
        x = np.column_stack([rng.normal(size=num_data), np.zeros(num_data)]).astype(np.float32)
        x[17, 1] = 1.0
        return cls((x, (x @ [0.5, 1.0] + rng.normal(size=num_data)).astype(np.float32)))

    @property
    def exact(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and covariance."""
        x, y = (np.asarray(a, float) for a in self.data)
        covariance = np.linalg.inv(np.eye(2) + x.T @ x)
        return covariance @ x.T @ y, covariance

    def log_likelihood(self, theta, batch):
        x, y = batch
        return -((y - x @ theta) ** 2) / 2


def settle_chains(sampling: str, posterior: OneRow) -> tuple[Penalty, Any, Any]:
    """Return a sampler with the posterior's covariance and one evaluation of its rows, and its state."""
    mean, covariance = posterior.exact
    sampler = Penalty(step_size=0.13, batch_size=5, num_batches=10, sampling=sampling)
    state = sampler.init(posterior, jnp.asarray(mean, jnp.float32), num_warmup=1, key=jax.random.key(0))
    factor = jnp.asarray(np.linalg.cholesky(covariance), jnp.float32)
    state = eqx.tree_at(lambda s: s.preconditioner.factor, state, factor)
    if sampling == "importance":
        state = eqx.tree_at(lambda s: s.rows, state, _looked(sampler, posterior, state))
    return sampler, state, factor


def _looked(sampler: Penalty, posterior: OneRow, state: Any) -> RowProbabilities:
    from bnnzoo.samplers.subsampled import influence as _influence

    # As in a run every chain looks, and all share the mean of what they saw: one alone may be where the row's
    # residual happens to be small.
    mean, covariance = posterior.exact
    places = np.random.default_rng(5).multivariate_normal(mean, covariance, size=16).astype(np.float32)

    def look_at(place: Array, key: Any) -> RowProbabilities:
        at = eqx.tree_at(lambda s: s.position, state, place)
        influence = _influence.row_influence(sampler, posterior, at, steps_between=0, key=key)
        return row_probabilities.update_probabilities(state.rows, influence.square)

    each = jax.vmap(look_at)(jnp.asarray(places), jax.random.split(jax.random.key(1), len(places)))
    return jax.tree.map(lambda leaf: leaf[0], row_probabilities.pool_chains(each))


class Known(eqx.Module):
    """The sampler, started from a state that is known except for its position."""

    sampler: Penalty
    state: Any

    def init(self, posterior: Any, theta: Array, *, num_warmup: int, key: Any) -> Any:
        del posterior, num_warmup, key
        return eqx.tree_at(lambda s: s.position, self.state, theta)

    def step(self, posterior: Any, state: Any, *, key: Any) -> Any:
        return self.sampler.step(posterior, state, key=key)


def _variance(sampling: str) -> tuple[np.ndarray, dict[str, float]]:
    """Return the variance of chains that start at exact draws, divided by the posterior's."""
    posterior = OneRow.of()
    mean, covariance = posterior.exact
    sampler, state, _ = settle_chains(sampling, posterior)
    starts = np.random.default_rng(0).multivariate_normal(mean, covariance, size=CHAINS)
    final, means = evolve(Known(sampler, state), posterior, starts, steps=STEPS, seed=2)  # type: ignore[arg-type]
    ratio = ((final - mean) ** 2).mean(0) / np.diag(covariance)
    return ratio, {name: float(value.mean()) for name, value in means.items()}


@pytest.mark.long
def test_a_row_that_decides_a_weight_is_kept():
    """The variance is within 3 % and Monte Carlo error; uniform batches miss the row (the positive control)."""
    error = (2 / CHAINS) ** 0.5
    ratio, means = _variance("importance")
    assert np.abs(ratio - 1).max() < 0.03 + Z * error
    assert means["sigma2"] < 2
    lost, _ = _variance("replacement")
    assert lost[1] - 1 > 0.03 + 2 * Z * error
