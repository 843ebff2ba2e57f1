"""Gibbs sampling from known conditionals, compared with closed forms."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_mean import Z, agrees, scores
from scipy import stats

import bnnzoo
from bnnzoo.assembly.recipe_parts import make_parts
from bnnzoo.data import from_arrays
from bnnzoo.errors import UsageError
from bnnzoo.models import Linear, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Gaussian, StudentT
from bnnzoo.posterior.priors import FanIn, Hierarchical, Normal
from bnnzoo.posterior.priors import Laplace as LaplacePrior
from bnnzoo.recipe import resolve
from bnnzoo.samplers import Gibbs
from bnnzoo.samplers.mcmc import conjugate as _conjugate
from bnnzoo.samplers.mcmc.conjugate import conjugate, draw_layer, draw_scale, is_affine
from bnnzoo.testing.targets import regression

CHAINS = 10_000


def _starts(keys: Any, dim: int, steps: int) -> Any:
    return jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, steps), (dim,)))(keys)


def _ends(sampler: Gibbs, posterior: Any, *, steps: int, chains: int = CHAINS) -> tuple[np.ndarray, dict[str, Any]]:
    """Return final positions [chain, dim] of chains that start at N(0, 1), and statistics of their last steps."""

    @eqx.filter_jit
    def run(posterior, starts, keys):
        def chain(start_and_key):
            start, key = start_and_key
            state = sampler.init(posterior, start, num_warmup=0, key=key)

            def sweep(i, carry):
                return sampler.step(posterior, carry[0], key=jax.random.fold_in(key, i))

            first = sampler.step(posterior, state, key=jax.random.fold_in(key, 0))
            return jax.lax.fori_loop(1, steps, sweep, first)

        state, result = jax.lax.map(chain, (starts, keys), batch_size=min(chains, 500))
        return state.position, result

    keys = jax.random.split(jax.random.key(5), chains)
    position, result = run(posterior, _starts(keys, posterior.layout.dim, steps), keys)
    return np.asarray(position, float), {name: np.asarray(value) for name, value in result.items()}


def _whitened(values: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> list[dict[str, float]]:
    """Return the scores of each coordinate of L^-1 (theta - mean)."""
    return [scores(z) for z in np.linalg.solve(np.linalg.cholesky(covariance), (values - mean).T)]


def test_one_sweep_draws_a_linear_regression_exactly():
    target = regression()
    values, result = _ends(Gibbs(conditionals="conjugate"), target.posterior, steps=1)
    assert all(agrees(item) for item in _whitened(values, target.mean, target.covariance))
    assert result["accepted"].all()
    assert (result["acceptance_rate"] == 1).all()
    np.testing.assert_allclose(
        result["lp"], jax.jit(jax.vmap(target.posterior.log_density))(values.astype(np.float32)), rtol=1e-4
    )
    # Positive control: another likelihood power gives another distribution.
    other = dataclasses.replace(target.posterior, likelihood_power=np.float32(0.8))
    wide, _ = _ends(Gibbs(conditionals="conjugate"), other, steps=1)
    assert max(item["variance"] for item in _whitened(wide, target.mean, target.covariance)) > 2 * Z


def _rows(count: int, *, inputs: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(count, inputs)).astype(np.float32)
    return x, (0.7 * x[:, :1] - 0.2 + 0.4 * rng.normal(size=(count, 1))).astype(np.float32)


@pytest.mark.parametrize(("prior", "targets"), [(FanIn(scale=1.3), 1), (Hierarchical(), 2)])
def test_a_last_layer_is_drawn_from_its_regression_on_the_features(prior, targets):
    x, y = _rows(30, inputs=2)
    y = np.concatenate([y, -2 * y], 1)[:, :targets]
    network = Mlp((3,)).build((2,), targets, key=jax.random.key(1))
    posterior = NetworkPosterior.of(network, Gaussian(scale=0.5), prior, x, y, likelihood_power=0.7)
    theta = posterior.start(key=jax.random.key(2))
    layer = conjugate(posterior).layer
    draw = jax.jit(jax.vmap(lambda key: draw_layer(posterior, layer, theta, key=key)))
    values = np.asarray(draw(jax.random.split(jax.random.key(3), CHAINS)), float)
    np.testing.assert_array_equal(values[:, : layer.start], np.tile(theta[: layer.start], (CHAINS, 1)))
    np.testing.assert_array_equal(values[:, layer.stop :], np.tile(theta[layer.stop :], (CHAINS, 1)))

    at = {name: np.asarray(value, float) for name, value in posterior.layout.unflatten(theta).items()}
    hidden = np.tanh(x @ at["layers_0_weight"].T + at["layers_0_bias"])
    design = np.column_stack([hidden, np.ones(len(x))])
    sd = np.r_[np.full(3, 1.3 / 3**0.5), 1.3] if targets == 1 else np.full(4, np.exp(at["prior_scale"][1]))
    covariance = np.linalg.inv(0.7 / 0.5**2 * design.T @ design + np.diag(sd**-2.0))
    expected = posterior.layout.unflatten(values)
    for target in range(targets):
        result = np.column_stack([expected["layers_1_weight"][:, target], expected["layers_1_bias"][:, target]])
        mean = covariance @ design.T @ y[:, target] * 0.7 / 0.5**2
        assert all(agrees(item) for item in _whitened(result, mean, covariance))
        wrong = np.linalg.inv(0.7 / 0.5**2 * design.T @ design + np.diag((1.5 * sd) ** -2.0))
        assert max(abs(item["variance"]) for item in _whitened(result, mean, wrong)) > Z


@pytest.mark.parametrize("rows", [7, 8, 1024])
def test_a_last_layer_has_every_row_once(rows, monkeypatch):
    """Blocks of rows overlap; the conditional is compared with NumPy.

    Without noise the draw is the mean, and unit noise vectors give the columns of the factor.
    """
    monkeypatch.setattr(_conjugate, "_ROWS", rows)
    noises = jnp.eye(7, 6, k=-1)
    monkeypatch.setattr(_conjugate, "standard_normal", lambda like, *, key: noises[jax.random.key_data(key)[1]])
    x, y = _rows(30, inputs=2)
    y = np.concatenate([y, -2 * y], 1)
    network, noise = Linear().build((2,), 2, key=jax.random.key(1)), np.array([0.5, 0.2])
    posterior = NetworkPosterior.of(network, Gaussian().of_targets(2), Normal(0.8), x, y, likelihood_power=0.7)
    theta = jnp.asarray([0.3, -0.8, 0.1, 0.5, -0.2, 0.7, *np.log(noise)], jnp.float32)
    draw = jax.jit(jax.vmap(lambda number: draw_layer(posterior, slice(0, 6), theta, key=jax.random.key(number))[:6]))
    mean, *ends = np.asarray(draw(jnp.arange(7)), float)
    factor = np.array(ends) - mean
    design = np.column_stack([x, np.ones(30)]).astype(float)
    for target, places in enumerate(([0, 1, 4], [2, 3, 5])):
        covariance = np.linalg.inv(0.7 / noise[target] ** 2 * design.T @ design + np.eye(3) / 0.64)
        expected = covariance @ design.T @ y[:, target] * 0.7 / noise[target] ** 2
        np.testing.assert_allclose(mean[places], expected, rtol=1e-4)
        np.testing.assert_allclose((factor.T @ factor)[np.ix_(places, places)], covariance, rtol=1e-3, atol=1e-7)


def _scale_moments(x: np.ndarray, y: np.ndarray, halfnormal: bool) -> tuple[float, float]:
    """Return mean and sd of log s given the data, with weights integrated out, by quadrature over log s."""
    design = np.column_stack([x, np.ones(len(x))]).astype(float)
    grid = np.linspace(-5, 3, 4001)
    logs = []
    for u in grid:
        covariance = np.exp(2 * u) * np.eye(len(x)) + design @ design.T
        logs.append(stats.multivariate_normal.logpdf(y[:, 0], cov=covariance) + u - halfnormal * np.exp(2 * u) / 2)
    weight = np.exp(np.array(logs) - max(logs))
    weight /= weight.sum()
    mean = float(weight @ grid)
    return mean, float((weight @ (grid - mean) ** 2) ** 0.5)


@pytest.mark.long
def test_a_noise_scale_is_drawn_from_its_conditional_and_the_joint_law_kept():
    """With eight rows the prior of the scale matters; without it (positive control) the mean differs."""
    x, y = _rows(8)
    y = 2 * y
    network = Linear().build((1,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Gaussian(), Normal(), x, y)
    values, result = _ends(Gibbs(conditionals="conjugate"), posterior, steps=25)
    logs = values[:, -1]
    mean, sd = _scale_moments(x, y, halfnormal=True)
    assert abs(logs.mean() - mean) < Z * sd / CHAINS**0.5
    squares = (logs - mean) ** 2
    assert abs(squares.mean() - sd**2) < Z * squares.std() / CHAINS**0.5
    assert abs(logs.mean() - _scale_moments(x, y, halfnormal=False)[0]) > 2 * Z * sd / CHAINS**0.5
    assert not result["diverging"].any()


@pytest.mark.slow
def test_each_target_has_a_noise_scale_of_its_own():
    """Two targets under a normal prior are two separate regressions, each with its noise scale.

    Positive control: the distribution of one common scale is that of neither target.
    """
    x, y = _rows(8)
    y = np.concatenate([2 * y, 0.3 * y[::-1]], 1)
    recipe = resolve("linear", "gibbs", [], {"likelihood": "gaussian", "sampler.conditionals": "conjugate"})
    parts = make_parts(recipe, from_arrays(x, y).signature)
    network = Linear().build((1,), 2, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, parts.likelihood, Normal(), x, y)
    parts.sampler.check(posterior)
    values, result = _ends(parts.sampler, posterior, steps=25, chains=4000)
    laws = [_scale_moments(x, y[:, t : t + 1], halfnormal=True) for t in range(2)]
    for logs, (mean, sd) in zip(values[:, -2:].T, laws, strict=True):
        assert abs(logs.mean() - mean) < Z * sd / len(logs) ** 0.5
        squares = (logs - mean) ** 2
        assert abs(squares.mean() - sd**2) < Z * squares.std() / len(logs) ** 0.5
        both = np.log(np.mean(np.exp([2 * m for m, _ in laws]))) / 2
        assert abs(logs.mean() - both) > 2 * Z * sd / len(logs) ** 0.5
    assert not result["diverging"].any()


@pytest.mark.long
def test_scales_of_two_targets_are_drawn_each_of_its_own_key():
    """Equal residuals give equal distributions, but different draws."""
    x, y = _rows(8)
    network = Linear().build((1,), 2, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Gaussian().of_targets(2), Normal(), x, np.concatenate([y, y], 1))
    scale = conjugate(posterior).scale
    theta = jnp.asarray([0.6, 0.6, -0.1, -0.1, 0.0, 0.0])
    draws = [draw_scale(posterior, scale, theta, key=key)[scale] for key in jax.random.split(jax.random.key(2), 3)]
    values = np.concatenate(draws)
    assert len(set(values.tolist())) == 6


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["normal", "laplace"])
def test_two_targets_of_a_run_have_two_scales(prior, tmp_path):
    """The noise scales are 1 and 0.1 in units of the targets; under `laplace` only the scales are conjugate."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 1))
    y = np.concatenate([rng.normal(size=(400, 1)), x + 0.1 * rng.normal(size=(400, 1))], 1)
    sampler = {"name": "gibbs", "conditionals": "conjugate"}
    options = {"chains": 2, "warmup": 50, "draws": 100, "init": "prior", "prior": prior, "seed": 1}
    run = bnnzoo.sample("linear", sampler, data=(x, y), out=tmp_path / "run.nc", standardise=False, **options)
    scales = np.mean(run.posterior["posterior"]["likelihood_scale"].to_numpy(), (0, 1))
    np.testing.assert_allclose(scales, [1, 0.1], rtol=0.2)


def test_a_layer_of_many_data_is_drawn_from_its_law_in_float32():
    """With variances from 6e-8 to 1, normal equations would miss the mean by more than a standard deviation."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10_000, 2)).astype(np.float32)
    y = (np.sin(2 * x[:, :1]) + 0.1 * rng.normal(size=(10_000, 1))).astype(np.float32)
    network = Mlp((50,)).build((2,), 1, key=jax.random.key(1))
    posterior = NetworkPosterior.of(network, Gaussian(scale=0.1), Normal(), x, y)
    theta, layer = posterior.start(key=jax.random.key(2)), conjugate(posterior).layer
    draws = jax.jit(
        lambda theta: jax.lax.map(
            lambda key: draw_layer(posterior, layer, theta, key=key), jax.random.split(jax.random.key(3), 500)
        )
    )
    values = np.asarray(draws(theta), float)[:, layer]
    at = {name: np.asarray(value, float) for name, value in posterior.layout.unflatten(theta).items()}
    hidden = np.tanh(x.astype(float) @ at["layers_0_weight"].T + at["layers_0_bias"])
    design = np.column_stack([hidden, np.ones(len(x))])
    precisions, vectors = np.linalg.eigh(design.T @ design / np.float32(0.1) ** 2 + np.eye(51))
    assert precisions[-1] > 1e7
    centre = (design @ vectors).T @ y[:, 0] / np.float32(0.1) ** 2 / precisions
    whitened = (values @ vectors - centre) * precisions**0.5
    assert all(agrees(scores(z)) for z in whitened.T)
    assert not agrees(scores(whitened[:, 0] + 0.5))


def test_a_scale_that_targets_share_is_of_all_their_residuals():
    """Two targets of eight rows equal one target of sixteen rows, and of thirty-two rows at likelihood power 0.5."""
    x, y = _rows(8)
    y = np.concatenate([2 * y, 0.3 * y[::-1]], 1)
    draw = eqx.filter_jit(lambda p, theta, key: draw_scale(p, conjugate(p).scale, theta, key=key))
    theta = {1: jnp.asarray([0.6, -0.1, 0.4]), 2: jnp.asarray([0.6, 0.6, -0.1, -0.1, 0.4])}

    def draw_scales(targets: int, x: np.ndarray, y: np.ndarray, power: float) -> np.ndarray:
        network = Linear().build((1,), targets, key=jax.random.key(0))
        posterior = NetworkPosterior.of(network, Gaussian(), Normal(), x, y, likelihood_power=power)
        keys = jax.random.split(jax.random.key(1), 10)
        values = np.array([draw(posterior, theta[targets], key) for key in keys])
        np.testing.assert_array_equal(values[:, :-1], np.tile(theta[targets][:-1], (10, 1)))
        return values[:, -1]

    shared = draw_scales(2, x, y, 1.0)
    stacked = np.tile(x, (2, 1)), y.T.reshape(-1, 1)
    np.testing.assert_allclose(draw_scales(1, *stacked, 1.0), shared, rtol=1e-4, atol=1e-5)
    twice = [np.tile(rows, (2, 1)) for rows in stacked]
    np.testing.assert_allclose(draw_scales(1, *twice, 0.5), shared, rtol=1e-4, atol=1e-5)
    assert np.abs(draw_scales(1, *stacked, 0.5) - shared).min() > 1e-3


@pytest.mark.long
def test_a_scale_far_from_its_prior_is_drawn():
    """Residuals of 1000 under a half-normal prior of 1: a proposal that ignores the prior would never be accepted."""
    x, y = _rows(40)
    network = Linear().build((1,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Gaussian(), Normal(scale=1e-3), x, 1000 * y)
    values, result = _ends(Gibbs(conditionals="conjugate"), posterior, steps=1, chains=1000)
    grid = np.linspace(-2, 8, 20_001)
    logs = -39 * grid - np.sum((1000.0 * y) ** 2) / 2 * np.exp(-2 * grid) - np.exp(2 * grid) / 2
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    mean = float(weight @ grid)
    sd = float((weight @ (grid - mean) ** 2) ** 0.5)
    assert abs(values[:, 2].mean() - mean) < Z * sd / 1000**0.5
    assert abs(values[:, 2].mean() + sd - mean) > Z * sd / 1000**0.5
    assert len(np.unique(values[:, 2])) > 950
    assert not result["diverging"].any()


def test_a_conditional_that_cannot_be_drawn_counts_as_a_rejection():
    """Residuals are zero, so that the conditional of the scale has no mode."""
    x = np.zeros((5, 1), np.float32)
    network = Linear().build((1,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Gaussian(), LaplacePrior(), x, np.zeros((5, 1), np.float32))
    sampler = Gibbs(conditionals="conjugate", blocks="array", step_size=1e-30)
    theta = jnp.asarray([0.3, 0.0, -1.0])

    @eqx.filter_jit
    def sweep(posterior, theta):
        state = sampler.init(posterior, theta, num_warmup=0, key=jax.random.key(0))
        return sampler.step(posterior, state, key=jax.random.key(1))

    state, stats = sweep(posterior, theta)
    assert float(state.position[2]) == -1.0
    assert bool(stats["diverging"])
    assert float(stats["acceptance_rate"]) < 0.7


@pytest.mark.long
def test_other_parameters_move_by_metropolis():
    """The hidden layer uses Metropolis, and the last layer and the scale are drawn, so one eta is adapted."""
    x, y = _rows(40)
    network = Mlp((3,)).build((1,), 1, key=jax.random.key(1))
    posterior = NetworkPosterior.of(network, Gaussian(), Normal(), x, y)
    sampler = Gibbs(conditionals="conjugate", step_size=0.3)
    sampler.check(posterior)
    np.testing.assert_array_equal(sampler.block_indices(posterior), [0] * 6 + [-1] * 5)
    values, result = _ends(sampler, posterior, steps=1, chains=400)
    assert result["accepted"].all()
    assert 0.3 < result["acceptance_rate"].mean() < 1
    moved = np.mean(values != np.asarray(_starts(jax.random.split(jax.random.key(5), 400), 11, 1)), 0)
    assert (moved[6:] > 0.99).all()
    assert ((moved[:6] > 0.05) & (moved[:6] < 1)).all()


class Bent(eqx.Module):
    """Network whose outputs are not affine in the last layer."""

    layer: eqx.nn.Linear

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(self.layer(x))


@pytest.mark.parametrize(
    ("likelihood", "prior", "network", "message"),
    [
        (StudentT(), Normal(), None, "either a normal prior of the last layer"),
        (Gaussian(scale=0.3), LaplacePrior(), None, "either a normal prior of the last layer"),
        (
            Gaussian(),
            Normal(),
            Bent(eqx.nn.Linear(1, 1, key=jax.random.key(0))),
            "not affine in the parameters of the last layer, such as layer_weight",
        ),
    ],
)
def test_a_posterior_that_is_not_conjugate_is_refused(likelihood, prior, network, message):
    x, y = _rows(10)
    network = network or Linear().build((1,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, likelihood, prior, x, y)
    with pytest.raises(UsageError, match=message):
        Gibbs(conditionals="conjugate").check(posterior)
    Gibbs().check(posterior)


class Parabola(eqx.Module):
    """Network with the output height + w + bend w^2 for its only parameter w."""

    weight: Any
    height: float = eqx.field(static=True)
    bend: float = eqx.field(static=True)

    def __call__(self, x: Any) -> Any:
        return self.height + self.weight + self.bend * self.weight**2


@pytest.mark.parametrize("height", [0.0, 99.0, -99.0, 1e5])
def test_a_layer_counts_as_affine_within_a_thousandth(height, monkeypatch):
    """The second difference between w = -1, 0 and 1 is twice the bend."""
    monkeypatch.setattr(_conjugate, "standard_normal", lambda like, *, key: jnp.ones_like(like))
    x, y = _rows(3)
    for share, affine in ((0.97, True), (-0.97, True), (1.03, False), (-1.03, False)):
        bend = share * 1e-3 * (2 + abs(height)) / 2
        network = Parabola(jnp.zeros(1), height, bend)
        posterior = NetworkPosterior.of(network, Gaussian(scale=1.0), Normal(scale=1e-9), x, y)
        assert bool(is_affine.__wrapped__(posterior)) == affine


@pytest.mark.parametrize(("count", "known"), [(5, 5), (8, 8), (100, 8)])
def test_whether_a_layer_is_affine_is_asked_of_no_more_than_eight_rows(count, known, monkeypatch):
    """The cost of this check before the run does not grow with the data."""
    calls: list[int] = []
    outputs = NetworkPosterior.outputs
    monkeypatch.setattr(
        NetworkPosterior, "outputs", lambda self, theta, x: calls.append(len(x)) or outputs(self, theta, x)
    )
    x, y = _rows(count)
    network = Linear().build((1,), 1, key=jax.random.key(0))
    eqx.filter_eval_shape(is_affine.__wrapped__, NetworkPosterior.of(network, Gaussian(), Normal(), x, y))
    assert set(calls) == {known}
