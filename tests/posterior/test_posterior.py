"""The posterior: blocks, powers, images, mini-batches."""

from __future__ import annotations

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_posteriors import linear_posterior
from scipy import stats

from bnnzoo import assembly
from bnnzoo.data import from_arrays, split
from bnnzoo.models import Cnn, Mlp
from bnnzoo.posterior import Data, NetworkPosterior, passes
from bnnzoo.posterior.layout import Layout
from bnnzoo.posterior.likelihoods import Categorical, Gaussian
from bnnzoo.posterior.priors import Hierarchical, Normal
from bnnzoo.recipe import Part, resolve
from bnnzoo.samplers.variational.training import batch, loss

THETA = jnp.asarray([0.3, -0.8, 0.1], jnp.float32)


def test_a_problem_has_the_requested_rows_units_and_precision():
    """The split has its own seed, another likelihood changes nothing else, and counts stay counts."""
    rng = np.random.default_rng(0)
    x, counts = rng.normal(size=(30, 2)) * [1, 50] + [3, -100], rng.poisson(6, 30)
    requested = {"split_seed": 3, "seed": 1, "test_fraction": 0.2, "likelihood_power": 0.5, "keep": "predictions"}

    def problem(y: Any, **more: Any) -> assembly.Problem:
        data = from_arrays(x, y, task="regression")
        return assembly.Problem.from_recipe(resolve("linear", "mala", [], {**requested, **more}, in_memory=True), data)

    first = problem(20 * rng.normal(size=30) + 7, precision="float64")
    rows = np.arange(30.0)
    train, test = (part.x[:, 0].astype(int) for part in split(from_arrays(rows, rows), test_fraction=0.2, seed=3))
    assert first.train is not None
    assert first.test is not None
    np.testing.assert_array_equal(first.train.x, x[train].astype(np.float32))
    np.testing.assert_array_equal(first.test.x, x[test].astype(np.float32))
    for scaled, original in ((first.posterior.data.x, first.train.x), (first.posterior.data.y, first.train.y)):
        assert scaled.dtype == np.float64
        np.testing.assert_allclose(scaled, (original - original.mean(0)) / original.std(0), atol=1e-5)
    assert (first.posterior.likelihood_power, first.num_kept) == (0.5, 7)  # six rows and the noise
    other = first.with_part("likelihood", Part("heteroscedastic"))
    assert other.train is first.train
    assert other.test is first.test
    assert other.kept_rows is first.kept_rows
    np.testing.assert_array_equal(first.kept_rows, first.test.x)
    assert (other.posterior.likelihood_power, other.num_kept) == (0.5, 12)
    assert (other.recipe.seed, other.recipe.likelihood) == (1, Part("heteroscedastic"))
    for likelihood, are_counts in (("poisson", True), ("gaussian", False)):
        result = problem(counts, likelihood=likelihood, keep="draws")
        assert np.array_equal(np.asarray(result.posterior.data.y)[:, 0], counts[train]) == are_counts
        assert np.asarray(result.posterior.data.x).dtype == np.float32
        assert result.kept_rows is None


def test_log_density_is_prior_plus_power_times_likelihood():
    for power in (1.0, 0.25):
        posterior = linear_posterior(likelihood_power=power)
        x, y = posterior.data.x, posterior.data.y
        rows = stats.norm.logpdf(y[:, 0], x @ THETA[:2] + THETA[2], 0.5)
        np.testing.assert_allclose(posterior.log_likelihoods(THETA), rows, rtol=1e-5)
        expected = stats.norm.logpdf(THETA, 0, 2).sum() + power * rows.sum()
        np.testing.assert_allclose(posterior.log_density(THETA), expected, rtol=1e-5)


def test_a_learned_scale_is_a_block_of_theta():
    posterior = linear_posterior(likelihood=Gaussian())
    assert [block.name for block in posterior.layout.blocks] == ["weight", "bias", "likelihood_scale"]
    theta = jnp.append(THETA, jnp.log(0.5))
    np.testing.assert_allclose(posterior.log_likelihoods(theta), linear_posterior().log_likelihoods(THETA), rtol=1e-5)
    prior = stats.norm.logpdf(THETA, 0, 2).sum() + stats.halfnorm.logpdf(0.5) + np.log(0.5)
    np.testing.assert_allclose(posterior.log_prior(theta), prior, rtol=1e-5)
    natural = posterior.natural(np.asarray(theta)[None])
    np.testing.assert_allclose(natural["likelihood_scale"], [0.5], rtol=1e-6)
    np.testing.assert_allclose(natural["weight"], np.asarray(THETA[:2])[None, None], rtol=1e-6)
    flat = jnp.append(THETA, 0.5)
    likelihood, outputs = posterior.predictive(flat, jnp.asarray(posterior.data.x))
    result = jax.vmap(likelihood.log_prob)(outputs, jnp.asarray(posterior.data.y))
    np.testing.assert_allclose(result, posterior.log_likelihoods(theta), rtol=1e-5)


@pytest.mark.parametrize("rows", [64, 150])
def test_sums_in_blocks_agree_with_one_pass(rows, monkeypatch):
    posterior = linear_posterior(rows)
    value, gradient = jax.jit(jax.value_and_grad(posterior.log_density))(THETA)
    each = posterior.log_likelihoods(THETA)
    monkeypatch.setattr(passes, "_BLOCK_ELEMENTS", 1)
    np.testing.assert_allclose(posterior.log_likelihoods(THETA), each, rtol=1e-6)
    blocked, blocked_gradient = jax.jit(jax.value_and_grad(posterior.log_density))(THETA)
    np.testing.assert_allclose(blocked, value, rtol=1e-5)
    np.testing.assert_allclose(blocked_gradient, gradient, rtol=1e-4)
    if rows > 64:
        assert "scan" in str(jax.make_jaxpr(posterior.log_likelihoods)(THETA))


@pytest.mark.long
def test_images_stay_bytes_and_are_scaled_on_the_device():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 1, 6, 6), dtype=np.uint8)
    labels = rng.integers(0, 3, 20).astype(np.int32)
    network = Cnn((2,), hidden=(4,)).build((1, 6, 6), 3, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Categorical(), Normal(), images, labels, input_mean=80.0, input_sd=60.0)
    scaled = ((images.astype(np.float32) - 80) / 60).astype(np.float32)
    other = NetworkPosterior.of(network, Categorical(), Normal(), scaled, labels)
    assert posterior.data.x.dtype == np.uint8
    assert posterior.take(jnp.arange(3)).x.dtype == jnp.uint8
    theta = posterior.position(network)
    result, expected = (p.log_likelihoods(theta) for p in (posterior, other))
    np.testing.assert_allclose(result, expected, rtol=1e-4)


def test_a_position_is_the_network():
    network = Mlp((3,)).build((2,), 1, key=jax.random.key(5))
    posterior = NetworkPosterior.of(
        Mlp((3,)).build((2,), 1, key=jax.random.key(0)),
        Gaussian(),
        Normal(),
        np.ones((4, 2)),
        np.ones((4, 1)),
    )
    theta = posterior.position(network)
    x = jnp.asarray([[0.5, -0.5]])
    np.testing.assert_allclose(posterior.outputs(theta, x)[0], network(x[0]), rtol=1e-6)
    assert float(theta[-1]) == pytest.approx(np.log(0.5))


def test_only_sampled_leaves_move():
    network = Mlp((3,)).build((2,), 1, key=jax.random.key(0))
    last = network.layers[-1].weight
    posterior = NetworkPosterior.of(
        network, Gaussian(0.5), Normal(), np.ones((4, 2)), np.ones((4, 1)), sampled=lambda leaf: leaf is last
    )
    assert [block.name for block in posterior.layout.blocks] == ["layers_1_weight"]
    moved = posterior.network_at(jnp.zeros(3))
    np.testing.assert_array_equal(moved.layers[0].weight, network.layers[0].weight)
    np.testing.assert_array_equal(moved.layers[1].weight, 0)


def test_a_start_is_a_draw_of_the_prior():
    keys = jax.random.split(jax.random.key(0), 4000)
    draws = jax.vmap(lambda key: linear_posterior(likelihood=Gaussian()).start(key=key))(keys)
    assert stats.kstest(np.asarray(draws[:, :3]).ravel(), stats.norm(0, 2).cdf).pvalue > 1e-6
    assert stats.kstest(np.exp(np.asarray(draws[:, 3])), stats.halfnorm.cdf).pvalue > 1e-6


@pytest.mark.parametrize("replace", [True, False])
def test_a_minibatch_is_a_sample_of_the_rows(replace):
    """Every ordered pair of five rows is equally likely, so that N/n sums are unbiased."""
    posterior = eqx.tree_at(lambda p: p.data, linear_posterior(5), Data(np.arange(5.0)[:, None], np.zeros((5, 1))))
    keys = jax.random.split(jax.random.key(1), 20_000)
    draw = jax.jit(jax.vmap(lambda key: posterior.minibatch(2, replace=replace, key=key).x[:, 0]))
    draws = np.asarray(draw(keys)).astype(int)
    counts = np.zeros((5, 5))
    np.add.at(counts, (draws[:, 0], draws[:, 1]), 1)
    possible = np.ones((5, 5), bool) if replace else ~np.eye(5, dtype=bool)
    assert (counts[~possible] == 0).all()
    assert stats.chisquare(counts[possible]).pvalue > 1e-6


@pytest.mark.parametrize("replace", [True, False])
def test_the_scaled_minibatch_sum_is_unbiased_by_enumeration(replace):
    """The mean over all equally likely pairs of rows of N/n times the sum is the sum over the data."""
    with jax.enable_x64(True):
        posterior = linear_posterior(5)
        theta = jnp.asarray([0.3, -0.8, 0.1])
        pairs = itertools.product(range(5), repeat=2) if replace else itertools.permutations(range(5), 2)
        sums = [
            5 / 2 * float(jnp.sum(posterior.log_likelihood(theta, posterior.take(jnp.asarray(pair))))) for pair in pairs
        ]
        exact = float(jnp.sum(posterior.log_likelihoods(theta)))
    np.testing.assert_allclose(np.mean(sums), exact, rtol=1e-12)
    assert np.std(sums) > 0.01


def test_double_precision_is_double():
    with jax.enable_x64(True):
        posterior = linear_posterior()
        assert posterior.dtype == np.float64
        assert posterior.start(key=jax.random.key(0)).dtype == np.float64
        assert posterior.log_density(jnp.asarray([0.1, 0.2, 0.3])).dtype == np.float64
    assert linear_posterior().dtype == np.float32


def test_rows_that_fill_a_mesh_do_not_count():
    posterior = linear_posterior(10)
    assert posterior.padded(5) is posterior
    longer = posterior.padded(3)
    assert (len(longer.data.x), longer.num_data) == (12, 10)
    np.testing.assert_array_equal(longer.data.x[10:], np.repeat(posterior.data.x[9:], 2, 0))
    theta = jnp.asarray([0.3, -0.8, 0.1])
    np.testing.assert_allclose(longer.log_density(theta), posterior.log_density(theta), rtol=1e-6)
    wholes = longer.all_rows(), longer.minibatch(10, replace=False, key=jax.random.key(0))
    for rows in (*wholes, batch(longer, 12, key=jax.random.key(0))):
        np.testing.assert_array_equal(rows.x, posterior.data.x)
    draws = longer.minibatch(400, key=jax.random.key(0)).x
    assert len(np.unique(draws, axis=0)) == 10
    assert np.sum(draws == posterior.data.x[9]) / 2 < 80  # out of 400, with 40 expected
    np.testing.assert_allclose(loss(longer, theta, longer.all_rows()), -posterior.log_density(theta) / 10, rtol=1e-5)


def test_natural_values_of_the_file_return_to_theta():
    posterior = linear_posterior(likelihood=Gaussian())
    theta = np.array([0.3, -0.8, 0.1, -1.5], np.float32)
    natural = posterior.natural(theta[None])
    flat = np.concatenate([np.ravel(natural[block.name]) for block in posterior.layout.blocks])
    np.testing.assert_allclose(posterior.unconstrained(flat), theta, rtol=1e-6)
    assert flat[-1] == pytest.approx(np.exp(-1.5))
    layered = NetworkPosterior.of(posterior.network_at(jnp.asarray(theta)), Gaussian(), Hierarchical(), *posterior.data)
    theta = np.append(theta, np.float32(0.4))
    natural = layered.natural(theta[None])
    flat = np.concatenate([np.ravel(natural[block.name]) for block in layered.layout.blocks])
    assert flat[-1] == pytest.approx(np.exp(0.4))
    np.testing.assert_allclose(layered.unconstrained(flat), theta, rtol=1e-6)


def test_a_draw_of_the_prior_is_of_independent_parameters():
    """The first weight and the scale are drawn with different keys."""
    posterior = linear_posterior(likelihood=Gaussian())
    keys = jax.random.split(jax.random.key(0), 2000)
    draws = np.asarray(jax.jit(jax.vmap(lambda key: posterior.sample_prior(key=key)))(keys), float)
    correlation = stats.spearmanr(np.abs(draws)).statistic - np.eye(4)
    correlation_of_logs = stats.spearmanr(np.c_[np.abs(draws[:, :3]), draws[:, 3]]).statistic - np.eye(4)
    assert max(np.abs(correlation).max(), np.abs(correlation_of_logs).max()) < 5 / 2000**0.5


def test_a_draw_and_its_mode_predict_by_the_tangent():
    network = Mlp((3,)).build((2,), 1, key=jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    posterior = NetworkPosterior.of(network, Gaussian(0.5), Normal(), x, x[:, :1])
    mode, away = (jnp.asarray(np.random.default_rng(i).normal(size=13), jnp.float32) for i in (1, 2))
    at_mode = posterior.outputs(mode, jnp.asarray(x))
    for step in (1e-2, 1.0):
        _, result = posterior.predictive(jnp.concatenate([mode + step * away, mode]), jnp.asarray(x))
        _, slope = jax.jvp(lambda theta: posterior.outputs(theta, jnp.asarray(x)), (mode,), (away,))
        np.testing.assert_allclose(result, at_mode + step * slope, rtol=1e-4, atol=1e-5)


def test_a_draw_with_its_mode_predicts_with_the_noise_of_the_draw():
    posterior = linear_posterior(likelihood=Gaussian())
    draw, mode = jnp.append(THETA, 0.3), jnp.append(-THETA, 2.0)
    likelihood, outputs = posterior.predictive(jnp.concatenate([draw, mode]), jnp.asarray(posterior.data.x))
    assert isinstance(likelihood, Gaussian)
    assert float(likelihood.scale) == pytest.approx(0.3)
    np.testing.assert_allclose(outputs, posterior.outputs(draw, jnp.asarray(posterior.data.x)), rtol=1e-5, atol=1e-6)


def test_a_learned_scale_starts_at_a_half():
    for (parameter,) in (Gaussian().parameters(), Hierarchical().parameters(linear_posterior().layout)):
        assert parameter.start == pytest.approx(np.log(0.5))
    assert Hierarchical().parameters(Layout(()))[0].shape == (0,)
