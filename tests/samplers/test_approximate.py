"""The approximate methods: each draws from its approximation, which has a closed form in these examples."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import tiny
from scipy import stats

import bnnzoo
from bnnzoo.api import entrances, resuming
from bnnzoo.errors import BnnzooWarning, InterruptedRunError, UsageError
from bnnzoo.models import Cnn, Linear, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.layout import network_layout
from bnnzoo.posterior.likelihoods import Categorical, Gaussian
from bnnzoo.posterior.numpyro import NumpyroPosterior
from bnnzoo.posterior.priors import FanIn, Hierarchical, Normal, ScaleMixture
from bnnzoo.posterior.priors import Laplace as LaplacePrior
from bnnzoo.progress import Progress
from bnnzoo.recipe import Recipe
from bnnzoo.samplers import Bbb, Dropout, Ensemble, Laplace, Swag
from bnnzoo.samplers.common import curvature as _curvature
from bnnzoo.samplers.variational import pre_activations, training
from bnnzoo.samplers.variational.bbb import blundell_weight, kl
from bnnzoo.samplers.variational.dropout import _droppable_weights
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.testing.targets import gaussian, regression

Z = 4.89
"""Limit of |z| with one false alarm in a million."""


def _trained(sampler: Any, posterior: Any, *, chains: int, steps: int, seed: int = 0) -> Any:
    """Return the states of independent chains after warm-up, from initial positions near 0."""
    starts = 0.3 * jax.random.normal(jax.random.key(seed), (chains, posterior.layout.dim))

    @jax.jit
    @jax.vmap
    def run(start, key):
        key_init, key_settle, key = jax.random.split(key, 3)
        state = sampler.init(posterior, start, num_warmup=steps, key=key_init)
        state = jax.lax.fori_loop(
            0, steps, lambda i, s: sampler.warmup_step(posterior, s, key=jax.random.fold_in(key, i))[0], state
        )
        return sampler.settle(posterior, state, final=True, key=key_settle)

    return run(starts, jax.random.split(jax.random.key(seed + 1), chains))


def _draws(posterior: Any, sampler: Any, state: Any, number: int) -> np.ndarray:
    """Return the draws of one chain, [draw, dim]."""
    keys = jax.random.split(jax.random.key(3), number)
    return np.asarray(jax.jit(jax.vmap(lambda k: sampler.step(posterior, state, key=k)[0].position))(keys))


def _network(outputs: int = 3, rows: int = 40, hidden: tuple[int, ...] = (5,), prior: Any = None) -> NetworkPosterior:
    """Return a classifier of two features."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(rows, 2)).astype(np.float32), rng.integers(0, outputs, rows)
    network = Mlp(hidden).build((2,), outputs, key=jax.random.key(5))
    return NetworkPosterior.of(network, Categorical(), prior or Normal(), x, y)


# ---- Bayes by Backprop ---------------------------------------------------------------------------


@pytest.mark.parametrize(("constant", "last"), [(True, 0.08), (False, 0.08 * (1 + np.cos(np.pi * 9 / 10)) / 2)])
def test_the_learning_rate_falls_to_zero_or_stays(constant, last):
    """With a constant gradient, Adam's steps equal the learning rate."""
    point, moves = jnp.zeros(1), []
    adam = training.Adam.start(point, 10, constant=constant)
    for _ in range(10):
        adam, moved, _ = adam.descend(point, jnp.ones(1), 0.08)
        moves.append(float(point[0] - moved[0]))
        point = moved
    np.testing.assert_allclose([moves[0], moves[-1]], [0.08, last], rtol=1e-4)


@pytest.mark.parametrize(
    ("fields", "prior"),
    [
        ({"reparameterisation": "local", "batch_size": 50, "kl_weights": "blundell"}, Normal()),
        ({"reparameterisation": "local", "batch_size": 64}, ScaleMixture(wide=1.0, narrow=1.0)),
        pytest.param({}, Normal(), marks=pytest.mark.slow),
        pytest.param({"kl_weights": "blundell", "batch_size": 50}, Normal(), marks=pytest.mark.slow),
    ],
)
def test_bbb_finds_the_best_mean_field(fields, prior):
    """For a Gaussian posterior with precision P, the best mean field has the same mean and variances 1 / P_ii."""
    target = regression()
    posterior = dataclasses.replace(target.posterior, prior=prior)
    trained = _trained(Bbb(learning_rate=0.03, **fields), posterior, chains=24, steps=2500)
    scale = np.asarray(jax.nn.softplus(trained.rho), float)
    expected = np.diag(np.linalg.inv(target.covariance)) ** -0.5
    ratio = scale.mean(0) / expected
    np.testing.assert_allclose(ratio, 1, atol=0.04)
    np.testing.assert_allclose(trained.mean.mean(0), target.mean, atol=0.1 * expected.min())
    # Positive control: the posterior's own, larger standard deviations are rejected.
    assert np.abs(scale.mean(0) / np.sqrt(np.diag(target.covariance)) - 1).max() > 0.12


def test_bbb_draws_from_the_average_of_its_path():
    """With a constant rate and batches of two rows only the mean of Adam's second half is near the optimum."""
    target = regression()
    sampler = Bbb(learning_rate=0.02, schedule="constant", batch_size=2, reparameterisation="local")
    state = sampler.init(target.posterior, jnp.asarray(target.mean, jnp.float32), num_warmup=600, key=jax.random.key(0))

    @jax.jit
    @jax.vmap
    def trained(key):
        keys = jax.random.split(key, 600)
        return jax.lax.scan(lambda s, k: (sampler.warmup_step(target.posterior, s, key=k)[0], s.mean), state, keys)

    ends, path = trained(jax.random.split(jax.random.key(1), 16))
    final_states = jax.vmap(lambda s: sampler.settle(target.posterior, s, final=True, key=jax.random.key(0)))(ends)
    last = np.concatenate([np.asarray(path)[:, 301:], np.asarray(ends.mean)[:, None]], 1)
    np.testing.assert_allclose(final_states.mean, last.mean(1), atol=1e-4)
    off = [np.mean((np.asarray(states.mean) - target.mean) ** 2) for states in (final_states, ends)]
    assert off[0] < off[1] / 2


def test_the_average_under_a_falling_rate_is_over_the_end():
    """Earlier, q still moves, and an average would lag behind."""
    posterior = _network(rows=40)
    sampler = Bbb(batch_size=40, learning_rate=0.05)
    state = sampler.init(posterior, jnp.ones(posterior.layout.dim), num_warmup=161, key=jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 161)

    @jax.jit
    def trained(state):
        return jax.lax.scan(lambda s, k: ((new := sampler.warmup_step(posterior, s, key=k)[0]), new.mean), state, keys)

    end, path = trained(state)
    final_state = sampler.settle(posterior, end, final=True, key=jax.random.key(0))
    np.testing.assert_allclose(final_state.mean, path[-21:].mean(0), atol=1e-4)
    assert np.abs(final_state.mean - path[-80:].mean(0)).max() > 1e-2


def test_bbb_measures_how_far_its_mean_is_from_the_best():
    """For a Gaussian with precision P, an error e of the mean gives scale P e in units of q's scale, without noise."""
    target = regression()
    precision = np.linalg.inv(target.covariance)
    error, scale = np.array([0.5, -1.0, 2.0]) / np.diag(precision) ** 0.5, np.diag(precision) ** -0.5
    sampler = Bbb()
    start = jnp.asarray(target.mean + error, jnp.float32)
    state = sampler.init(target.posterior, start, num_warmup=0, key=jax.random.key(0))
    state = dataclasses.replace(state, rho=jnp.asarray(np.log(np.expm1(scale)), jnp.float32))
    inspection = jax.jit(lambda s: sampler.inspect(target.posterior, s, key=jax.random.key(1)))(state)
    expected = float(np.sum((scale * (precision @ error)) ** 2))
    assert float(inspection["mean_distance"]) == pytest.approx(expected, rel=1e-2)
    (finding,) = sampler.findings(target.posterior, {"mean_distance": expected})
    assert finding.kind == "mean"
    assert sampler.findings(target.posterior, {"mean_distance": 0.1}) == ()


def test_a_pass_of_parts_is_all_of_the_data():
    """90 rows in parts of 40: a pass uses every row once, in a new order, and the mean over its parts is exact."""
    posterior = _network(rows=90)
    sampler, full = Bbb(batch_size=40, sampling="partition"), Bbb(batch_size=90)
    state = sampler.init(posterior, jnp.ones(posterior.layout.dim), num_warmup=100, key=jax.random.key(0))
    rows_of = eqx.filter_jit(lambda *arguments, key: sampler._rows(*arguments, key=key))
    fit = eqx.filter_jit(lambda sampler, *arguments: sampler._fit(*arguments, key=jax.random.key(9))[1])
    row_sets, weights, fits = [], [], []
    for steps_done in range(6):
        at = eqx.tree_at(lambda s: s.adam.done, state, jnp.asarray(float(steps_done)))
        rows, weight = rows_of(posterior, at, key=jax.random.key(steps_done))
        assert weight is not None
        row_sets.append(np.asarray(rows.x)[np.asarray(weight) > 0])
        weights.append(float(weight.sum()))
        fits.append(fit(sampler, posterior, state.mean, state.mean, rows, weight))
    for first in (0, 3):
        assert len(np.unique(np.concatenate(row_sets[first : first + 3]), axis=0)) == 90
        assert sum(map(len, row_sets[first : first + 3])) == 90
    assert not np.array_equal(row_sets[0], row_sets[3])
    assert np.mean(weights[:3]) == pytest.approx(40)
    rows, weight = full._rows(posterior, state, key=jax.random.key(0))
    assert weight is None
    expected = fit(full, posterior, state.mean, state.mean, rows, None)
    np.testing.assert_allclose(np.mean(fits[:3]), expected, rtol=1e-5)
    assert abs(fits[0] - expected) > 1e-3  # control: a single part gives a different value


def test_more_draws_a_step_are_less_noise():
    """With n draws the variance of the bound's estimate is 1 / n of that with one draw, which is rejected."""
    posterior = regression().posterior
    keys = jax.random.split(jax.random.key(2), 2000)

    def log_variance(samples: int) -> tuple[float, float]:
        """Return the log variance and its own variance, from the fourth moment."""
        sampler = Bbb(samples=samples, batch_size=200)
        state = sampler.init(posterior, jnp.zeros(posterior.layout.dim), num_warmup=10, key=jax.random.key(0))
        first = jax.jit(jax.vmap(lambda key: sampler.warmup_step(posterior, state, key=key)[1]["elbo_estimate"]))
        values = np.asarray(first(keys), float)
        squares = (values - values.mean()) ** 2
        return float(np.log(squares.mean())), float(squares.var() / squares.mean() ** 2 / len(squares))

    (first, error_one), (four, error_four) = log_variance(1), log_variance(4)
    error = (error_one + error_four) ** 0.5
    assert abs(first - four - np.log(4)) < Z * error
    assert abs(first - four) > 2 * Z * error


def test_the_kl_is_its_closed_form_or_has_it_as_its_mean():
    posterior = _network()
    dim = posterior.layout.dim
    mean, scale = 0.5 * jax.random.normal(jax.random.key(0), (dim,)), jnp.linspace(0.1, 2.0, dim)
    keys = jax.random.split(jax.random.key(1), 2000)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, None, 0))
    def costs(posterior, scale, key):
        return kl(posterior, mean, scale, key=key)

    expected = np.sum(np.log(1 / np.asarray(scale)) + (np.asarray(scale) ** 2 + np.asarray(mean) ** 2) / 2 - 1 / 2)
    np.testing.assert_allclose(costs(posterior, scale, keys[:3]), expected, rtol=1e-5)
    sd = np.asarray(FanIn(0.7).distribution(posterior.layout).scale, float)
    by_layer = np.sum(np.log(sd / scale) + (np.asarray(scale) ** 2 + np.asarray(mean) ** 2) / sd**2 / 2 - 1 / 2)
    narrow = dataclasses.replace(posterior, prior=FanIn(0.7))
    np.testing.assert_allclose(costs(narrow, scale, keys[:3]), by_layer, rtol=1e-5)
    same = dataclasses.replace(posterior, prior=ScaleMixture(wide=1.0, narrow=1.0))
    sampled = np.asarray(costs(same, scale, keys), float)
    error = sampled.std() / len(sampled) ** 0.5
    assert abs(sampled.mean() - expected) < Z * error
    assert abs(np.mean(costs(same, 1.1 * scale, keys)) - expected) > Z * error


def test_the_kl_of_a_learned_scale_is_sampled():
    x = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
    network = Mlp((2,)).build((1,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Gaussian(), Normal(), x, x)
    dim = posterior.layout.dim
    keys = jax.random.split(jax.random.key(1), 20_000)
    mean, scale = jnp.zeros(dim), jnp.full(dim, 0.5)
    values = np.asarray(jax.jit(jax.vmap(lambda k: kl(posterior, mean, scale, key=k)))(keys), float)
    inner = (dim - 1) * (np.log(2) + 0.125 - 0.5)
    # u ~ N(0, 0.5^2): E log p(u) = log sqrt(2 / pi) - E e^2u / 2 + E u
    own = -np.log(0.5 * np.sqrt(2 * np.pi * np.e)) - np.log(np.sqrt(2 / np.pi)) + np.exp(2 * 0.5**2) / 2
    error = values.std() / len(values) ** 0.5
    assert abs(values.mean() - inner - own) < Z * error
    assert abs(values.mean() - inner) > Z * error


def test_the_kl_of_a_prior_with_scales_of_its_own_is_sampled():
    posterior = _network(prior=Hierarchical())
    mean, scale = jnp.zeros(posterior.layout.dim), jnp.full(posterior.layout.dim, 0.5)
    keys = jax.random.split(jax.random.key(1), 4000)
    sampled = np.asarray(jax.jit(jax.vmap(lambda k: kl(posterior, mean, scale, key=k)))(keys), float)
    thetas = 0.5 * np.random.default_rng(0).normal(size=(4000, posterior.layout.dim)).astype(np.float32)
    densities = np.asarray(jax.jit(jax.vmap(posterior.log_prior))(thetas), float)
    expected = -posterior.layout.dim * np.log(0.5 * np.sqrt(2 * np.pi * np.e)) - densities.mean()
    error = np.hypot(sampled.std(), densities.std()) / 4000**0.5
    assert abs(sampled.mean() - expected) < Z * error
    assert abs(sampled.mean() - expected - posterior.layout.dim * np.log(2)) > Z * error  # another scale's entropy


@pytest.mark.parametrize("batches", [1, 4, 128, 2000])
def test_blundells_weights_are_shares(batches):
    weights = jax.vmap(lambda i: blundell_weight(i, batches))(jnp.arange(2.0 * batches))
    assert np.isfinite(weights).all()
    np.testing.assert_allclose(weights[:batches].sum(), 1, rtol=1e-6)
    np.testing.assert_array_equal(weights[:batches], weights[batches:])
    if batches == 4:
        np.testing.assert_allclose(weights[:4], np.array([8, 4, 2, 1]) / 15, rtol=1e-6)


def test_local_noise_has_the_law_of_weight_noise():
    posterior = _network()
    mean = posterior.position(Mlp((5,)).build((2,), 3, key=jax.random.key(1)))
    scale = jnp.linspace(0.1, 1.0, posterior.layout.dim)
    x = jnp.asarray([[0.7, -1.3]])
    keys = jax.random.split(jax.random.key(2), 20_000)

    def by_weights(key, scale):
        return posterior.outputs(mean + scale * jax.random.normal(key, mean.shape), x)[0]

    def by_layers(key):
        return pre_activations.outputs(posterior, mean, scale, mean, x, key=key)[0]

    local = jax.jit(jax.vmap(by_layers))(keys)
    plain, wrong = (jax.jit(jax.vmap(lambda k, s=s: by_weights(k, s)))(keys) for s in (scale, scale**2))
    # Sums and differences show the common part of the outputs, the noise of the hidden layer.
    for direction in (jnp.ones(3), jnp.asarray([1.0, -1.0, 0.0]), jnp.asarray([0.0, 0.0, 1.0])):
        assert stats.ks_2samp(local @ direction, plain @ direction).pvalue > 1e-6
        assert stats.ks_2samp(local @ direction, wrong @ direction).pvalue < 1e-6


def test_local_noise_differs_between_rows_and_skips_fixed_parameters():
    full_network = _network()
    last = full_network.network_at(jnp.zeros(full_network.layout.dim)).layers[-1]
    network = eqx.tree_at(lambda n: n.layers[-1], Mlp((5,)).build((2,), 3, key=jax.random.key(1)), last)
    part = NetworkPosterior.of(
        network,
        full_network.likelihood,
        full_network.prior,
        *full_network.data,
        sampled=lambda leaf: leaf is network.layers[-1].bias,
    )
    x = jnp.zeros((2, 2))
    mean, scale = jnp.zeros(3), jnp.ones(3)
    two = pre_activations.outputs(part, mean, scale, mean, x, key=jax.random.key(0))
    assert np.unique(two).size == 6
    none = pre_activations.outputs(part, mean, 0 * scale, mean, x, key=jax.random.key(0))
    np.testing.assert_allclose(none, part.outputs(mean, x), atol=1e-6)


# ---- Laplace -------------------------------------------------------------------------------------


def _covariance(make: Any, posterior: Any, theta: Any, kind: Any = "ggn") -> np.ndarray:
    """Return the covariance of the Gaussian that `make` computes at `theta`."""

    @jax.jit
    def columns(theta):
        return jax.vmap(make(posterior, theta, kind).correlate)(jnp.eye(len(theta)))

    factor = np.asarray(columns(theta), float)
    return factor.T @ factor


def test_laplace_is_exact_where_the_posterior_is_gaussian():
    target = regression()
    mode = jnp.asarray(target.mean, jnp.float32)

    def at_once(**fields: Any) -> np.ndarray:
        def make(posterior, theta, kind):
            return Laplace(**fields).init(posterior, theta, num_warmup=0, key=jax.random.key(0)).factor

        return _covariance(make, target.posterior, mode)

    precision = np.linalg.inv(target.covariance)
    np.testing.assert_allclose(at_once(covariance="full"), target.covariance, rtol=1e-3)
    np.testing.assert_allclose(at_once(covariance="diagonal"), np.diag(1 / np.diag(precision)), rtol=1e-3)
    # With one output, the factors of the weights are a number and the whole matrix. The bias is a separate block.
    blocks = np.zeros((3, 3))
    blocks[:2, :2], blocks[2, 2] = np.linalg.inv(precision[:2, :2]), 1 / precision[2, 2]
    np.testing.assert_allclose(at_once(covariance="kronecker"), blocks, rtol=1e-3, atol=1e-9)
    # Outer products of gradients contain the residuals.
    assert not np.allclose(at_once(covariance="full", curvature="fisher"), target.covariance, rtol=0.03)


@pytest.mark.parametrize("covariance", ["full", "kronecker"])
def test_the_prior_counts_beside_many_data_in_float32(covariance):
    """Precisions from 1 to 1e7: rounding errors of a sum of squares are as large as the prior.

    Compared with float64.
    """
    rng = np.random.default_rng(0)
    weights, shifts = rng.normal(size=(2, 50)), rng.normal(size=50)
    x = np.tanh(rng.normal(size=(10_000, 2)) @ weights + shifts).astype(np.float32)
    y = (x[:, :1] + 0.1 * rng.normal(size=(10_000, 1))).astype(np.float32)
    network = Linear().build((50,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Gaussian(scale=0.1), Normal(), x, y)
    design, noise = np.column_stack([x.astype(float), np.ones(len(x))]), float(np.float32(0.1))
    precision = design.T @ design / noise**2 + np.eye(51)
    mean = np.linalg.solve(precision, design.T @ y[:, 0] / noise**2)
    if covariance == "kronecker":
        precision[-1, :-1] = precision[:-1, -1] = 0
    sampler = Laplace(covariance=covariance)

    @jax.jit
    def look(mean):
        state = sampler.init(posterior, mean, num_warmup=0, key=jax.random.key(0))
        evidence = sampler.inspect(posterior, state, key=jax.random.key(0))["log_evidence"]
        return jax.vmap(state.factor.correlate)(jnp.eye(51)), evidence, posterior.log_density(state.mode)

    factor, evidence, density = (np.asarray(value, float) for value in look(jnp.asarray(mean, jnp.float32)))
    values, vectors = np.linalg.eigh(precision)
    assert values[-1] > 1e6
    np.testing.assert_allclose(np.sum((factor @ vectors) ** 2, 0) * values, 1, rtol=0.02)
    volume = 51 / 2 * np.log(2 * np.pi) - np.sum(np.log(values)) / 2
    assert abs(evidence - density - volume) < 0.1


def test_warm_up_goes_to_the_mode():
    target = regression()
    trained = _trained(Laplace(learning_rate=0.02, batch_size=200), target.posterior, chains=2, steps=800)
    sd = np.sqrt(np.diag(target.covariance))
    np.testing.assert_allclose((trained.mode - target.mean) / sd, 0, atol=0.1)


@pytest.mark.long
@pytest.mark.parametrize("curvature", ["ggn", "fisher", "hessian"])
@pytest.mark.parametrize("covariance", ["full", "kronecker", "diagonal"])
def test_laplace_climbs_to_the_mode_from_where_training_ended(covariance, curvature):
    if (covariance, curvature) == ("kronecker", "hessian"):
        return
    target = regression()
    sampler = Laplace(covariance=covariance, curvature=curvature)
    start = jnp.asarray(target.mean + 3 * np.sqrt(np.diag(target.covariance)), jnp.float32)

    @jax.jit
    def look(theta):
        state = sampler.init(target.posterior, theta, num_warmup=0, key=jax.random.key(0))
        return state.mode, sampler.inspect(target.posterior, state, key=jax.random.key(0))

    mode, result = look(start)
    off = np.asarray(mode, float) - target.mean
    assert off @ np.linalg.solve(target.covariance, off) < 0.01 * len(off)
    assert float(result["mode_distance"]) < 0.01 * len(off)
    if (covariance, curvature) == ("full", "ggn"):
        assert float(result["log_evidence"]) == pytest.approx(target.log_evidence, abs=2e-3)


def test_the_evidence_of_a_gaussian_is_known_beside_its_mode():
    """The integral follows from value, slope and curvature.

    Far from the mode the slope is omitted, and the run reports this.
    """
    target = regression()
    sampler = Laplace(covariance="full")
    mode = jnp.asarray(target.mean, jnp.float32)
    state = eqx.filter_jit(sampler.init)(target.posterior, mode, num_warmup=0, key=jax.random.key(0))

    @jax.jit  # operation by operation, about a hundred programs would be compiled
    def inspect(state, off):
        away = state.mode + state.factor.correlate(off * jnp.ones(3))
        return sampler.inspect(target.posterior, dataclasses.replace(state, mode=away), key=jax.random.key(0))

    for off, counted in ((0.45, True), (1.0, False)):
        inspection = inspect(state, off)
        distance = float(inspection["mode_distance"])
        assert distance == pytest.approx(3 * off**2, rel=2e-3)
        expected = target.log_evidence - (0 if counted else distance / 2)
        assert float(inspection["log_evidence"]) == pytest.approx(expected, abs=5e-3)
    (finding,) = sampler.findings(target.posterior, {"mode_distance": 3.0})
    assert finding.kind == "mode"
    assert sampler.findings(target.posterior, {"mode_distance": 0.3}) == ()


def test_the_gauss_newton_matrix_of_a_softmax_is_the_hessian(monkeypatch):
    """This holds for a linear model, with any blocks of data."""
    posterior = _network(hidden=())
    dim = posterior.layout.dim
    theta = 0.5 * jax.random.normal(jax.random.key(0), (dim,))
    hessian = -np.asarray(jax.jit(jax.hessian(posterior.log_density))(theta), float)
    expected = np.linalg.inv(hessian)
    np.testing.assert_allclose(_covariance(_curvature.full, posterior, theta), expected, rtol=1e-3, atol=1e-6)
    monkeypatch.setattr(_curvature, "_ELEMENTS", 7 * dim * 3)
    np.testing.assert_allclose(_covariance(_curvature.full, posterior, theta), expected, rtol=1e-3, atol=1e-6)


def test_a_kronecker_product_is_found_where_there_is_one():
    """With two classes and one datum H of the softmax has rank one; a weight matrix has the curvature H (x) x x'."""
    posterior = _network(outputs=2, hidden=(), rows=1)
    theta = 0.5 * jax.random.normal(jax.random.key(0), (posterior.layout.dim,))
    block = posterior.layout.blocks[0]
    precision = -np.asarray(jax.jit(jax.hessian(posterior.log_density))(theta), float)[: block.stop, : block.stop]
    covariance_of_fit = _covariance(_curvature.kronecker, posterior, theta)[: block.stop, : block.stop]
    np.testing.assert_allclose(covariance_of_fit, np.linalg.inv(precision), rtol=1e-3, atol=1e-5)
    assert not np.allclose(covariance_of_fit, np.diag(1 / np.diag(precision)), rtol=0.05, atol=0.01)


@pytest.mark.parametrize("outputs", [2, 3])
def test_a_kronecker_product_of_one_gradient_is_its_square(outputs):
    """Factors larger than the number of rows: g g' of one datum plus the prior, by block, against the closed form."""
    posterior = _network(outputs=outputs, hidden=(), rows=1, prior=Normal(0.8))
    theta = 0.5 * jax.random.normal(jax.random.key(0), (posterior.layout.dim,))
    slope = np.asarray(jax.grad(lambda t: posterior.log_likelihoods(t)[0])(theta), float)
    expected = np.zeros((posterior.layout.dim,) * 2)
    for block in posterior.layout.blocks:
        part = slope[block.start : block.stop]
        expected[block.start : block.stop, block.start : block.stop] = np.linalg.inv(
            np.outer(part, part) + np.eye(block.size) / 0.64
        )
    make = lambda posterior, theta, kind: _curvature.kronecker(posterior, theta, "fisher")  # noqa: E731
    np.testing.assert_allclose(_covariance(make, posterior, theta), expected, rtol=1e-3, atol=1e-5)


def test_a_kronecker_product_leaves_the_prior_beside_one_sharp_row():
    """One input has a precision of four million, whose rounding errors are as large as the prior's precision."""
    x, y = np.float32([[2.0, 0.0, 0.0]]), np.zeros((1, 1), np.float32)
    network = Linear().build((3,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Gaussian(scale=1e-3), Normal(), x, y)
    covariance_of_fit = _covariance(_curvature.kronecker, posterior, jnp.zeros(4))
    np.testing.assert_allclose(
        covariance_of_fit, np.diag([1 / (4e6 + 1), 1.0, 1.0, 1 / (1e6 + 1)]), rtol=1e-3, atol=1e-9
    )


@pytest.mark.parametrize(("outputs", "known"), [(2, 28), (3, 33), (4, 40)])
def test_a_whole_matrix_is_summed_by_blocks_of_as_many_rows_as_parameters(outputs, known, monkeypatch):
    """Blocks have no more rows, to bound the memory: 27, 33 and 39 parameters; two, three and four rows per datum."""
    monkeypatch.setattr(_curvature, "_ELEMENTS", 1)
    rows: list[int] = []
    triangle = _curvature.triangle
    monkeypatch.setattr(_curvature, "triangle", lambda block: rows.append(len(block)) or triangle(block))
    posterior = _network(outputs=outputs)
    jax.eval_shape(lambda theta: _curvature.full(posterior, theta, "ggn"), jnp.zeros(posterior.layout.dim))
    assert set(rows) == {known}


@pytest.mark.long
def test_a_learned_scale_has_its_exact_curvature():
    """Each of two targets has its own scale."""
    x = np.linspace(-1, 1, 30, dtype=np.float32)[:, None]
    y = x + np.float32([0.2, 2.0]) * np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    likelihood = Gaussian().of_targets(2)
    posterior = NetworkPosterior.of(Mlp((2,)).build((1,), 2, key=jax.random.key(0)), likelihood, Normal(), x, y)
    theta = posterior.position(Mlp((2,)).build((1,), 2, key=jax.random.key(1)))
    hessian = jax.jit(jax.hessian(posterior.log_density))(theta)
    for make in (_curvature.full, _curvature.kronecker, _curvature.diagonal):
        covariance_of_fit = _covariance(make, posterior, theta)
        np.testing.assert_allclose(
            covariance_of_fit[-2:, -2:], np.diag(-1 / np.diag(hessian)[-2:]), rtol=1e-3, atol=1e-9
        )
        np.testing.assert_allclose(covariance_of_fit[-2:, :-2], 0, atol=1e-6)


@pytest.mark.parametrize("make", [_curvature.full, _curvature.kronecker])
def test_laplace_with_weak_data_keeps_the_prior(make):
    """Two inputs are always 0: the Gaussian equals the prior for their weights, and only for these."""
    posterior = _network(hidden=(6,), rows=2)
    still = eqx.tree_at(lambda p: p.data.x, posterior, np.zeros_like(posterior.data.x))
    covariance_of_fit = _covariance(make, still, 0.5 * jax.random.normal(jax.random.key(0), (posterior.layout.dim,)))
    first = posterior.layout.blocks[0]
    np.testing.assert_allclose(covariance_of_fit[: first.stop, : first.stop], np.eye(first.size), atol=1e-4)
    assert np.linalg.eigvalsh(covariance_of_fit)[0] < 0.9


def test_laplace_refuses_unsupported_problems():
    with pytest.raises(UsageError, match=r"curvature=.hessian."):
        Laplace().check(gaussian().posterior)
    with pytest.raises(UsageError, match=r"predictive=.network."):
        Laplace(curvature="hessian").check(gaussian().posterior)
    with pytest.raises(UsageError, match=r"use covariance=.full. or covariance=.diagonal."):
        Laplace(curvature="hessian", covariance="kronecker").check(_network())
    Laplace(curvature="hessian", predictive="network").check(gaussian().posterior)
    with pytest.raises(UsageError, match="at most 5000 parameters"):
        Laplace(covariance="full").check(_network(hidden=(2000,)))
    with pytest.raises(UsageError, match="has no mode"):
        Laplace().check(_network(prior=Hierarchical()))


@pytest.mark.parametrize("prior", [LaplacePrior(scale=0.5), ScaleMixture(wide=1.5, narrow=0.1)])
def test_laplace_is_no_wider_than_a_prior_that_is_flat_or_pointed_at_the_mode(prior):
    """Hidden units that no datum determines, with a prior whose curvature there is zero or negative."""
    posterior = _network(prior=prior)
    away = 0.4 * jnp.ones(posterior.layout.dim)
    for make in (_curvature.full, _curvature.diagonal, _curvature.kronecker):
        sd = np.sqrt(np.diag(_covariance(make, posterior, away)))
        inner = posterior.layout.network
        own = float(np.sqrt(np.max(np.asarray(prior.distribution(inner).variance))))
        assert sd[: inner.dim].max() <= own * 1.001
    # The curvature of a normal prior is unchanged.
    plain = _network(prior=Normal(scale=0.3))
    base = _curvature._base(plain, jnp.zeros(plain.layout.dim))
    np.testing.assert_allclose(base[: plain.layout.network.dim], 1 / 0.3**2, rtol=1e-5)


def _together(x: Any, y: Any) -> None:
    """Two coefficients with dependent priors, and rows that form one observation."""
    both = numpyro.sample("both", dist.MultivariateNormal(jnp.zeros(2), jnp.asarray([[1.0, 0.9], [0.9, 1.0]])))
    numpyro.sample("y", dist.MultivariateNormal(x @ both, 0.5 * jnp.eye(len(x)) + 0.5), obs=y)


@pytest.mark.long
@pytest.mark.parametrize("covariance", ["auto", "diagonal"])
def test_any_posterior_has_its_hessian(covariance):
    """A NumPyro model with correlated prior and data, compared with the closed form."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 2)), rng.normal(size=6)
    posterior = NumpyroPosterior.of(_together, x.astype(np.float32), y.astype(np.float32))
    assert not posterior.by_row
    noise = np.linalg.inv(0.5 * np.eye(6) + 0.5)
    precision = x.T @ noise @ x + np.linalg.inv([[1, 0.9], [0.9, 1]])
    sampler = Laplace(curvature="hessian", predictive="network", covariance=covariance)
    sampler.check(posterior)
    expected = np.linalg.inv(precision if covariance == "auto" else np.diag(np.diag(precision)))
    mean = jnp.asarray(np.linalg.solve(precision, x.T @ noise @ y), jnp.float32)

    def make(posterior, theta, kind):
        return sampler.init(posterior, theta, num_warmup=0, key=jax.random.key(0)).factor

    np.testing.assert_allclose(_covariance(make, posterior, mean), expected, rtol=1e-3, atol=1e-6)
    volume = np.log(2 * np.pi) + np.linalg.slogdet(expected)[1] / 2
    state = jax.jit(lambda mean: sampler.init(posterior, mean, num_warmup=0, key=jax.random.key(0)))(mean)
    evidence = sampler.inspect(posterior, state, key=jax.random.key(0))["log_evidence"]
    assert float(evidence - posterior.log_density(mean)) == pytest.approx(volume, abs=1e-3)


# ---- the linearised predictive -------------------------------------------------------------------


def _laplace_recipe(**more: Any) -> Recipe:
    return tiny.recipe("laplace", "mlp", **{"model.hidden": "4", "warmup": 2000, "likelihood.scale": "learned", **more})


def _by_hand(run: bnnzoo.Run, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return f and its polynomial, [chain, draw, row], computed from the numbers in the file."""
    tree, names = run.posterior, [f"layers_{i}_{part}" for i in (0, 1) for part in ("weight", "bias")]
    constant = tree["constant_data"]
    scaled = jnp.asarray((x - constant["x_mean"].values) / constant["x_sd"].values, jnp.float32)

    def f(w0, b0, w1, b1):
        return jnp.tanh(scaled @ w0.T + b0) @ w1[0] + b1[0]

    def predict(draw, mode):
        value, change = jax.jvp(f, mode, jax.tree.map(jnp.subtract, draw, mode))
        return f(*draw), value + change

    draws = tuple(jnp.asarray(tree["posterior"][n].values) for n in names)
    modes = tuple(jnp.asarray(constant[f"linearised_at_{n}"].values) for n in names)
    plain, linear = jax.vmap(jax.vmap(predict, (0, None)))(draws, modes)
    return np.asarray(plain), np.asarray(linear)


@pytest.mark.slow
def test_predictions_from_the_file_are_linearised(tmp_path):
    run = entrances.run_recipe(_laplace_recipe(), out=tmp_path / "run.nc")
    run = bnnzoo.open(run.path)
    x = run.posterior["constant_data"]["x_test"].values[:6]
    plain, linear = _by_hand(run, x)
    result = run.functions(x)[..., 0]
    np.testing.assert_allclose(result, linear, atol=1e-4)
    assert np.abs(result - plain).max() > 0.05
    frame, scale = run.predict(x), float(run.posterior["constant_data"]["y_sd"].values[0])
    np.testing.assert_allclose(frame["epistemic_sd"], scale * linear.std((0, 1)), rtol=1e-3)
    assert np.isfinite(list(run.evaluate().values())).all()
    assert run.diagnose()["still_chains"] == 0
    other = entrances.run_recipe(_laplace_recipe(**{"sampler.predictive": "network"}), out=tmp_path / "network.nc")
    assert "linearised_at_layers_0_weight" not in other.posterior["constant_data"]
    np.testing.assert_allclose(other.functions(x)[..., 0], plain, atol=1e-4)


@pytest.mark.slow
def test_an_unfinished_and_a_resumed_run_are_linearised(tmp_path):
    out = tmp_path / "run.nc"
    reports: list[Progress] = []

    def stop() -> int:
        return 15 if reports[-1].phase == "sampling" and reports[-1].done else 0

    with pytest.raises(InterruptedRunError):
        entrances.run_recipe(_laplace_recipe(draws=5000), out=out, observer=reports.append, stop=stop)
    part = bnnzoo.open(out)
    x = part.posterior["constant_data"]["x_test"].values[:6]
    assert 0 < part.attributes["draws_done"] < 5000
    np.testing.assert_allclose(part.functions(x)[..., 0], _by_hand(part, x)[1], atol=1e-4)
    modes = part.posterior["constant_data"]["linearised_at_layers_0_weight"].values
    part.posterior.close()
    uninterrupted = resuming.resume(out)
    np.testing.assert_array_equal(
        uninterrupted.posterior["constant_data"]["linearised_at_layers_0_weight"].values, modes
    )


def test_a_linear_network_is_its_own_linearisation():
    posterior = regression().posterior
    theta, mode = jnp.asarray([0.3, -0.2, 1.0]), jnp.asarray([1.0, 2.0, 3.0])
    x = jnp.asarray(posterior.data.x[:5])
    _, outputs = posterior.predictive(jnp.concatenate([theta, mode]), x)
    np.testing.assert_allclose(outputs, posterior.outputs(theta, x), rtol=1e-5)


@pytest.mark.slow
def test_a_last_layer_is_its_own_linearisation(tmp_path):
    run = entrances.run_recipe(_laplace_recipe(stochastic="last", init="map"), out=tmp_path / "run.nc")
    x = run.posterior["constant_data"]["x_test"].values[:6]
    posterior, draws = run.predictor.posterior, run.predictor.draws[:]
    scaled = run.predictor.inputs(x)
    with jax_settings.arithmetic("float32"):
        expected = jax.vmap(lambda d: posterior.outputs(d, jnp.asarray(scaled)))(jnp.asarray(draws))
    np.testing.assert_allclose(run.functions(x).reshape(expected.shape), expected, atol=1e-4)


# ---- SWAG ----------------------------------------------------------------------------------------


def test_swag_draws_from_the_snapshots_of_its_path():
    sampler = Swag(interval=3, rank=4, batch_size=20)
    chunks = tiny.run("swag", sampler_object=sampler, keep_warmup=True, num_draws=4)
    path = tiny.joined(chunks, "warm-up")["theta"].astype(float)
    state = chunks[-1].carry.states
    first = tiny.WARMUP // 2
    snapshots = path[:, first + 2 :: 3]
    assert snapshots.shape[1] == state.snapshots[0] == (tiny.WARMUP - first) // 3
    np.testing.assert_allclose(state.mean, snapshots.mean(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.variance, snapshots.var(1), rtol=1e-2, atol=1e-7)
    means = np.cumsum(snapshots, 1) / np.arange(1, 1 + snapshots.shape[1])[:, None]
    np.testing.assert_allclose(state.deviations, (snapshots - means)[:, -4:][:, ::-1], atol=1e-5)


def test_swag_has_its_covariance():
    rng = np.random.default_rng(0)
    variance, deviations = rng.uniform(0.5, 2, 5), rng.normal(size=(3, 5))
    sampler, zero = Swag(rank=3), jnp.zeros(())
    mean = jnp.arange(5.0)
    state = sampler.init(gaussian().posterior, mean, num_warmup=10, key=jax.random.key(0))
    state = eqx.tree_at(
        lambda s: (s.variance, s.deviations, s.snapshots),
        state,
        (jnp.asarray(variance, jnp.float32), jnp.asarray(deviations, jnp.float32), zero + 3),
    )
    values = _draws(gaussian().posterior, sampler, state, 20_000).astype(float)
    covariance = np.diag(variance) / 2 + deviations.T @ deviations / 4
    whitened = (values - np.arange(5)) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    products = whitened[:, :, None] * whitened[:, None] - np.eye(5)
    scores = products.mean(0) / (products.std(0) / len(values) ** 0.5)
    assert np.abs(scores).max() < Z
    wrong = products.mean(0) + 0.1 * np.eye(5)  # control: a variance that is a tenth larger is detected
    assert np.abs(wrong / (products.std(0) / len(values) ** 0.5)).max() > Z


def test_swag_says_when_its_warm_up_was_too_short(tmp_path):
    with pytest.warns(BnnzooWarning, match=r"number of snapshots 1, must be at least 20; use at least warmup=400"):
        run = entrances.run_recipe(
            tiny.recipe("swag", warmup=20, **{"sampler.rank": 20, "sampler.interval": 10}), out=tmp_path / "run.nc"
        )
    assert run.attributes["regime_ok"] == 0


# ---- dropout, ensemble ---------------------------------------------------------------------------


def test_dropout_drops_inputs_of_the_later_layers():
    posterior = _network(hidden=(50, 20))
    sampler = Dropout(rate=0.3)
    point = posterior.position(Mlp((50, 20)).build((2,), 3, key=jax.random.key(1)))
    state = sampler.init(posterior, point, num_warmup=0, key=jax.random.key(0))
    result = posterior.layout.unflatten(_draws(posterior, sampler, state, 2000))
    parameters = posterior.layout.unflatten(np.asarray(point))
    for name in ("layers_0_weight", "layers_0_bias", "layers_1_bias", "layers_2_bias"):
        np.testing.assert_array_equal(result[name], np.broadcast_to(parameters[name], result[name].shape))
    for name in ("layers_1_weight", "layers_2_weight"):
        factor = result[name] / parameters[name]
        np.testing.assert_allclose(factor, np.broadcast_to(factor[:, :1], factor.shape), atol=1e-5)
        columns = factor[:, 0]
        assert set(np.round(np.unique(columns), 4)) == {0.0, np.round(np.float32(1 / 0.7), 4)}
        dropped = (columns == 0).mean()
        error = (0.3 * 0.7 / columns.size) ** 0.5
        assert abs(dropped - 0.3) < Z * error
        assert abs(1 - dropped - 0.3) > Z * error  # control: a mask that keeps the dropped inputs


def test_dropout_drops_the_inputs_of_an_only_layer():
    posterior = _network(hidden=())
    state = Dropout(rate=0.5).init(posterior, jnp.ones(9), num_warmup=0, key=jax.random.key(0))
    values = posterior.layout.unflatten(_draws(posterior, Dropout(rate=0.5), state, 50))
    assert set(np.unique(values["layers_0_weight"])) == {0.0, 2.0}
    assert set(np.unique(values["layers_0_bias"])) == {1.0}


def test_dropout_spares_the_biases_of_convolutions():
    network = Cnn().build((1, 8, 8), 3, key=jax.random.key(0))
    x, y = np.zeros((4, 1, 8, 8), np.float32), np.zeros(4, np.int32)
    posterior = NetworkPosterior.of(network, Categorical(), Normal(), x, y)
    point = jnp.ones(posterior.layout.dim)
    state = Dropout(rate=0.5).init(posterior, point, num_warmup=0, key=jax.random.key(0))
    values = posterior.layout.unflatten(_draws(posterior, Dropout(rate=0.5), state, 20))
    dropped = {name for name, value in values.items() if set(np.unique(value)) == {0.0, 2.0}}
    first = posterior.layout.network.blocks[0].name
    assert dropped == {name for name in values if name.endswith("weight")} - {first}
    assert all(np.all(values[name] == 1) for name in set(values) - dropped)


class _Signals(eqx.Module):
    """Convolutions along one axis, with a norm of two."""

    first: eqx.nn.Conv1d
    norm: eqx.nn.LayerNorm
    second: eqx.nn.Conv1d
    last: eqx.nn.Linear


def test_dropout_spares_biases_and_norms_that_look_like_weights():
    keys = jax.random.split(jax.random.key(0), 3)
    convolutions = (eqx.nn.Conv1d(a, 4, 3, key=key) for a, key in zip((1, 4), keys[:2], strict=True))
    first, second = convolutions
    network = _Signals(first, eqx.nn.LayerNorm((4, 6)), second, eqx.nn.Linear(1, 3, key=keys[2]))
    assert [block.name for block in _droppable_weights(network_layout(network))] == ["second_weight", "last_weight"]


def test_dropout_refuses_unsupported_problems():
    with pytest.raises(UsageError, match="weight matrix"):
        Dropout().check(gaussian().posterior)
    with pytest.raises(ValueError, match="masks: must be a divisor of batch_size"):
        Dropout(batch_size=10, masks=3)


def test_dropout_trains_for_its_masks():
    """Masked networks fit far better than at the initial position."""
    target = regression()
    sampler = Dropout(rate=0.1)
    before, after = (_trained(sampler, target.posterior, chains=1, steps=steps) for steps in (1, 500))

    def fit(states):
        draws = _draws(target.posterior, sampler, jax.tree.map(lambda a: a[0], states), 100)
        return float(jnp.mean(jax.jit(jax.vmap(target.posterior.log_likelihoods))(draws)))

    assert fit(after) > fit(before) + 0.5


@pytest.mark.long
def test_an_ensemble_is_where_its_chains_were_trained_to(tmp_path):
    options = {"init": "map", "warmup": 0, "draws": 3, "chains": 2}
    run = entrances.run_recipe(tiny.recipe("ensemble", **options), out=tmp_path / "run.nc")
    weight = run.posterior["posterior"]["weight"].values
    np.testing.assert_array_equal(weight, np.broadcast_to(weight[:, :1], weight.shape))
    assert not np.array_equal(weight[0], weight[1])
    assert run.attributes["exactness"] == "approximate"


def test_an_ensembles_warm_up_climbs():
    target = regression()
    trained = _trained(Ensemble(learning_rate=0.03, batch_size=200), target.posterior, chains=3, steps=500)
    sd = np.sqrt(np.diag(target.covariance))
    np.testing.assert_allclose((trained.position - target.mean) / sd, 0, atol=0.1)


@pytest.mark.long
def test_few_draws_still_have_quantiles(tmp_path):
    """With one draw per chain, the quantiles use many samples of each draw."""
    recipe = tiny.recipe("ensemble", init="map", warmup=0, draws=1, chains=2)
    run = entrances.run_recipe(recipe, out=tmp_path / "run.nc")
    frame = run.predict(run.posterior["constant_data"]["x_test"].values)
    width = (frame["q95"] - frame["q05"]) / frame["sd"]
    # Two quantiles of 1000 samples: 0.11 of a standard deviation of error in the width.
    np.testing.assert_allclose(width, 2 * stats.norm.ppf(0.95), atol=0.6)


# ---- all of them ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("sampler", tiny.APPROXIMATE)
def test_after_warm_up_only_the_position_changes(sampler):
    run_chunks = [chunk for chunk in tiny.run(sampler) if chunk.next_step >= tiny.WARMUP]
    first, last = (
        eqx.tree_at(lambda c: c.states.position, chunk.carry, None) for chunk in (run_chunks[0], run_chunks[-1])
    )
    assert eqx.tree_equal(first, last)
    moved = not np.array_equal(run_chunks[0].carry.states.position, run_chunks[-1].carry.states.position)
    assert moved == (sampler != "ensemble")


@pytest.mark.parametrize("sampler", [Bbb(), Dropout(), Ensemble(), Laplace(), Swag()])
def test_an_infinite_gradient_moves_no_parameter(sampler):
    posterior = regression().posterior
    broken = eqx.tree_at(lambda p: p.data.y, posterior, np.full_like(posterior.data.y, np.nan))
    start = jnp.ones(3)
    state = sampler.init(broken, start, num_warmup=5, key=jax.random.key(0))
    after, step_stats = eqx.filter_jit(sampler.warmup_step)(broken, state, key=jax.random.key(1))
    assert bool(step_stats["diverging"])
    for name in ("mean", "point", "mode"):
        if hasattr(after, name):
            np.testing.assert_array_equal(getattr(after, name), start)
    assert np.isfinite(after.position).all()
