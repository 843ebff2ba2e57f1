"""The diagonal plus low-rank metric: its estimate, its map, and what it keeps of warm-up."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bnnzoo.samplers.mcmc import low_rank
from bnnzoo.samplers.mcmc.low_rank import LowRankMetric


class State(NamedTuple):
    """The attributes of a sampler's state that `share_metric` uses."""

    metric: LowRankMetric
    step_size: Any


def covariance(dim: int, variances: tuple[float, ...]) -> np.ndarray:
    """Return a covariance with very different scales, and with a few directions of the given variances."""
    random = np.random.default_rng(0)
    directions = np.linalg.qr(random.normal(size=(dim, len(variances))))[0]
    scales = np.exp(random.normal(size=dim))
    return (
        np.diag(scales)
        @ (np.eye(dim) + directions @ np.diag(np.asarray(variances) - 1) @ directions.T)
        @ np.diag(scales)
    )


def draws(matrix: np.ndarray, rows: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return draws of N(0, matrix), and the gradients of the log density there."""
    normal = np.random.default_rng(seed).normal(size=(rows, len(matrix)))
    positions = normal @ np.linalg.cholesky(matrix).T
    return positions, -positions @ np.linalg.inv(matrix)


def whitened_variances(estimate: low_rank.Estimate, matrix: np.ndarray) -> np.ndarray:
    """Return the variances of z along the principal axes of its covariance, for theta ~ N(0, matrix)."""
    scale, directions, stretches = estimate
    square = np.diag(scale) @ (np.eye(len(scale)) + directions.T @ np.diag(stretches - 1) @ directions)
    inverse = np.linalg.inv(square)
    return np.linalg.eigvalsh(inverse @ matrix @ inverse.T)


def test_a_gaussian_is_white_with_as_many_positions_as_parameters():
    matrix = covariance(12, (100.0, 30.0, 0.01))
    positions, gradients = draws(matrix, rows=16)
    estimate = low_rank.estimate_metric(positions, gradients, old_scale=np.ones(12), max_directions=12, rank=12)
    variances = whitened_variances(estimate, matrix)
    # Stretches below the square root of 2 are left out.
    assert 0.5 / 1.05 < variances.min() <= variances.max() < 2 * 1.05
    diagonal = low_rank.estimate_metric(positions, gradients, old_scale=np.ones(12), max_directions=12, rank=0)
    assert np.ptp(np.log(whitened_variances(diagonal, matrix))) > np.log(100)


def test_a_few_wide_directions_are_found_among_many_parameters():
    matrix = covariance(150, (400.0, 100.0, 50.0))
    positions, gradients = draws(matrix, rows=80)
    estimate = low_rank.estimate_metric(positions, gradients, old_scale=np.ones(150), max_directions=10, rank=20)
    np.testing.assert_allclose(estimate.directions @ estimate.directions.T, np.eye(10), atol=1e-10)
    diagonal = low_rank.estimate_metric(positions, gradients, old_scale=np.ones(150), max_directions=10, rank=0)
    spread = [np.ptp(np.log(whitened_variances(e, matrix))) for e in (estimate, diagonal)]
    assert spread[0] < 0.6 * spread[1]
    assert whitened_variances(diagonal, matrix).max() > 10 * whitened_variances(estimate, matrix).max()


def test_cautious_limits_use_fewer_and_stronger_directions():
    positions, gradients = draws(covariance(150, (400.0, 100.0, 50.0)), rows=80)
    states = State(jax.tree.map(lambda a: a[None], filled(positions, gradients)), jnp.asarray([0.5]))
    stretches = {
        caution: np.asarray(low_rank.share_metric(states, final=False, caution=caution).metric.stretches[0])
        for caution in (low_rank.MICROCANONICAL, low_rank.HAMILTONIAN)
    }
    used = {caution: np.exp(np.abs(np.log(values[values != 1]))) for caution, values in stretches.items()}
    for caution, factors in used.items():
        assert factors.min() >= caution.least_stretch * (1 - 1e-6)
    assert 0 < len(used[low_rank.HAMILTONIAN]) < len(used[low_rank.MICROCANONICAL])


def test_a_parameter_that_has_not_moved_keeps_its_scale():
    positions, gradients = draws(np.eye(4), rows=30)
    positions[:, 2] = 0.5
    estimate = low_rank.estimate_metric(
        positions - positions.mean(0), gradients, old_scale=np.asarray([1.0, 1.0, 7.0, 1.0]), max_directions=4, rank=3
    )
    assert estimate.scale[2] == 7
    assert np.isfinite(estimate.directions).all()


def filled(positions: np.ndarray, gradients: np.ndarray, num_warmup: int = 100) -> LowRankMetric:
    metric = LowRankMetric.identity(jnp.zeros(positions.shape[1]), num_warmup)
    add = jax.jit(lambda m, theta, gradient: m.with_position(theta, gradient))
    for theta, gradient in zip(positions, gradients, strict=True):
        metric = add(metric, jnp.asarray(theta, jnp.float32), jnp.asarray(gradient, jnp.float32))
    return metric


def test_whitening_inverts_the_map_and_gradients_transform_with_it():
    matrix = covariance(6, (30.0, 8.0))
    x, g = draws(matrix, rows=60)
    states = State(jax.tree.map(lambda a: a[None], filled(x, g)), jnp.asarray([0.5]))
    metric = jax.tree.map(lambda a: a[0], low_rank.share_metric(states, final=False).metric)
    assert int(jnp.sum(metric.stretches != 1)) > 0
    z, gradient = jnp.asarray(np.random.default_rng(3).normal(size=(2, 6)), jnp.float32)
    np.testing.assert_allclose(metric.whiten(metric.correlate(z)), z, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metric.project(metric.unproject(gradient)), gradient, rtol=1e-4, atol=1e-5)
    # A change of z along any direction changes the density by the same amount in both coordinates.
    np.testing.assert_allclose(
        metric.project(gradient) @ z, gradient @ metric.correlate(z), rtol=1e-4, err_msg="A' is the adjoint of A"
    )


def test_chains_in_different_modes_do_not_widen_the_metric():
    matrix = covariance(3, (20.0,))
    chains = [draws(matrix, rows=60, seed=seed) for seed in (1, 2)]
    metrics = [filled(x + offset, g) for (x, g), offset in zip(chains, (0.0, 500.0), strict=True)]
    states = State(jax.tree.map(lambda *a: jnp.stack(a), *metrics), jnp.asarray([0.5, 0.7]))
    shared = low_rank.share_metric(states, final=False)
    estimate = low_rank.Estimate(
        *(np.asarray(getattr(shared.metric, name)[1], np.float64) for name in low_rank.Estimate._fields)
    )
    variances = whitened_variances(estimate, matrix)
    assert 0.4 < variances.min() <= variances.max() < 2.2
    # A step is as long as before on average over all directions: the product of step size and the volume of A is kept.
    size = np.mean(np.log(estimate.scale)) + np.sum(np.log(estimate.stretches)) / 3
    np.testing.assert_allclose(np.log(shared.step_size), np.log(0.6) - size, rtol=1e-4)
    last = low_rank.share_metric(shared, final=True)
    np.testing.assert_array_equal(last.metric.scale, shared.metric.scale)


def test_too_few_or_infinite_positions_leave_the_metric_as_it_is():
    positions, gradients = draws(np.eye(3), rows=9)
    few = jax.tree.map(lambda a: a[None], filled(positions, gradients))
    states = State(jax.tree.map(lambda a: jnp.concatenate([a, a]), few), jnp.ones(2))
    np.testing.assert_array_equal(low_rank.share_metric(states, final=False).metric.scale, 1.0)
    positions, gradients = draws(4 * np.eye(3), rows=40)
    gradients[7, 1] = np.inf
    states = State(jax.tree.map(lambda a: a[None], filled(positions, gradients)), jnp.ones(1))
    np.testing.assert_array_equal(low_rank.share_metric(states, final=False).metric.scale, 1.0)


@pytest.mark.parametrize(("num_warmup", "stride"), [(10, 1), (640, 1), (1280, 2), (64_000, 100)])
def test_the_newest_positions_of_two_windows_are_kept(num_warmup, stride):
    metric, theta = LowRankMetric.identity(jnp.zeros(1), num_warmup), jnp.zeros(1)
    assert metric.stride == stride

    def add(number, metric):
        return metric.with_position(theta + number, theta)

    steps = 70 * stride
    metric = jax.jit(lambda m: jax.lax.fori_loop(0, steps, add, m))(metric)
    np.testing.assert_array_equal(np.sort(metric.positions[:, 0]), stride * np.arange(6, 70))


def test_strongly_correlated_positions_give_only_few_directions():
    matrix = covariance(40, (50.0,) * 10)
    independent, gradients = draws(matrix, rows=60)
    repeated = np.repeat(independent[:6], 10, 0), np.repeat(gradients[:6], 10, 0)

    def num_directions(positions, gradients):
        states = State(jax.tree.map(lambda a: a[None], filled(positions, gradients)), jnp.ones(1))
        return int(np.sum(np.asarray(low_rank.share_metric(states, final=False).metric.stretches[0]) != 1))

    assert num_directions(independent, gradients) >= 10
    assert 0 < num_directions(*repeated) <= 6


def test_a_restarted_chain_and_an_infinite_chain_do_not_count():
    matrix = covariance(5, (30.0,))
    metrics = [filled(*draws(matrix, rows=30, seed=seed)) for seed in (1, 2)]
    infinite = filled(draws(matrix, 30, 3)[0], np.full((30, 5), np.nan))

    def scale(*chains):
        states = State(jax.tree.map(lambda *a: jnp.stack(a), *chains), jnp.ones(len(chains)))
        return np.asarray(low_rank.share_metric(states, final=False).metric.scale[0])

    np.testing.assert_array_equal(scale(*metrics, metrics[0], infinite), scale(*metrics))
    assert not np.allclose(scale(*metrics), scale(metrics[0]))


def test_a_large_network_keeps_fewer_positions_and_directions():
    sizes = {}
    for dim in (100, 40_000, 2**21):
        metric = jax.eval_shape(lambda dim=dim: LowRankMetric.identity(jnp.zeros(dim), 1000))
        sizes[dim] = metric.positions.shape[0], metric.directions.shape[0]
    assert sizes == {100: (64, 64), 40_000: (26, 26), 2**21: (16, 0)}


def test_without_directions_the_map_is_diagonal(monkeypatch):
    monkeypatch.setattr(low_rank, "_MAX_DIRECTIONS", 0)
    matrix = covariance(6, (50.0,))
    positions, gradients = draws(matrix, rows=40)
    states = State(jax.tree.map(lambda a: a[None], filled(positions, gradients)), jnp.asarray([0.5]))
    shared = low_rank.share_metric(states, final=False)
    scale = shared.metric.scale[0]
    expected = np.sqrt(positions.std(0) / gradients.std(0))
    np.testing.assert_allclose(scale, expected, rtol=1e-4)
    metric, vector = jax.tree.map(lambda a: a[0], shared.metric), jnp.arange(6.0)
    np.testing.assert_array_equal(metric.correlate(vector), scale * vector)
    np.testing.assert_array_equal(metric.project(vector), scale * vector)
