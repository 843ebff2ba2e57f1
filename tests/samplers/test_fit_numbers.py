"""Training, optimisation and fits before the first draw: limits and constants, each tested at its limit."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from gaussian_mean import NormalPrior
from parabolas import Parabolas, of_size, parabolas
from scipy import stats

from bnnzoo.errors import UsageError
from bnnzoo.finding import spell_settings
from bnnzoo.models import Linear, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.layout import Block, Layout, network_layout
from bnnzoo.posterior.likelihoods import Categorical, Gaussian, Heteroscedastic
from bnnzoo.posterior.priors import Normal
from bnnzoo.samplers import Bbb, Dropout, Ensemble, Importance, Laplace, Rejection, Swag
from bnnzoo.samplers.common import climb
from bnnzoo.samplers.common import curvature as _curvature
from bnnzoo.samplers.independent import proposals as _proposal
from bnnzoo.samplers.independent import rejection
from bnnzoo.samplers.variational import bbb, laplace, pre_activations, training
from bnnzoo.samplers.variational.laplace import LaplaceState
from bnnzoo.samplers.variational.swag import SwagState
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import Placement
from bnnzoo.sampling.initial import trained_start, transport

ONE, KEY = jnp.ones(()), jax.random.key(0)
VECTORIZED = Placement("vectorized", None)

# ---- training ------------------------------------------------------------------------------------


def test_a_batch_as_large_as_the_data_has_all_rows():
    posterior = parabolas([1.0, 2.0, 3.0], [0.0] * 3)
    for size in (3, 4):
        np.testing.assert_array_equal(training.batch(posterior, size, key=KEY)[0], [1.0, 2.0, 3.0])
    assert training.batch(posterior, 2, key=KEY)[0].shape == (2,)
    assert Bbb(batch_size=2).evaluations(posterior, {}, warmup=True) == 2
    assert Bbb(batch_size=9).evaluations(posterior, {}, warmup=True) == 3
    assert Bbb().evaluations(posterior, {}) == 0


def test_adam_without_warm_up_takes_one_step_and_none_that_is_no_number():
    start = jnp.zeros(2)
    adam = training.Adam.start(start, 0)
    assert float(adam.total) == 1
    after, moved, finite = adam.descend(start, jnp.asarray([1.0, -1.0]), 0.1)
    np.testing.assert_allclose(moved, [-0.1, 0.1], rtol=1e-4)
    assert bool(finite)
    _, still, _ = after.descend(moved, jnp.ones(2), 0.1)
    np.testing.assert_allclose(still, moved, atol=1e-7)
    same, rejected, finite = training.Adam.start(start, 10).descend(start, jnp.asarray([jnp.nan, 1.0]), 0.1)
    assert not bool(finite)
    np.testing.assert_array_equal(rejected, start)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(same.moments))
    assert float(same.done) == 1


class OneEach(NormalPrior):
    """One parameter per row: l_i = -(theta_i - 1)^2 / 2."""

    layout: Layout = eqx.field(static=True, default=Layout((Block("theta", (40,), 0),)))

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        return -((theta[batch.astype(jnp.int32)] - 1) ** 2) / 2

    def start(self, *, key: Any) -> Any:
        return 5 + jnp.linspace(1, 40, 40) * jax.random.normal(key, (40,))


def _trained(*, most_steps: int = 500, **how: Any) -> list[trained_start.Trained]:
    posterior = OneEach(np.arange(40, dtype=np.float32), likelihood_power=np.float32(0.5))
    thetas = np.zeros((3, 40), np.float32)
    return list(trained_start.train(posterior, thetas, placement=VECTORIZED, key=KEY, most_steps=most_steps, **how))


def test_a_start_is_the_best_of_what_was_trained_on_some_rows_and_judged_on_the_others():
    """Parameters of held-out rows do not move, so the first score stays the best, and training stops early."""
    (result,) = _trained(held_out=0.25)
    moved = result.positions != 0
    assert moved.sum(1).tolist() == [30] * 3
    assert not np.array_equal(moved[0], moved[1])  # each chain holds out different rows
    assert result.losses.tolist() == [0.5] * 3  # nats per row, of the likelihood alone
    assert result.steps.tolist() == [150] * 3  # the first score, then a fifth of all steps without an improvement
    early, *_ = _trained(held_out=0.25, steps_per_report=50)
    np.testing.assert_array_equal(result.positions, early.positions)
    assert early.steps.tolist() == [50] * 3


def test_a_start_on_all_rows_is_judged_by_the_density_that_it_climbs():
    (result,) = _trained(held_out=0.0)
    assert result.steps.tolist() == [500] * 3
    assert np.all(result.positions > 0.2)  # with half of each likelihood the mode is at a third
    expected = 0.5 * np.sum((result.positions - 1) ** 2, 1) / 2 + np.sum(result.positions**2, 1) / 2
    np.testing.assert_allclose(result.losses, expected / 40, rtol=1e-5)


def test_the_learning_rate_and_held_out_rows_of_training():
    rates = [float(trained_start._learning_rate(jnp.asarray(step), jnp.asarray(100))) for step in (0, 50, 100, 110)]
    np.testing.assert_allclose(rates, [5e-3, 0.51 * 5e-3, 1e-4, 1e-4], rtol=1e-5)
    assert [trained_start.num_held_out(rows, 0.1) for rows in (99, 100, 20_480, 20_490, 10**6)] == [
        0,
        10,
        2048,
        2048,
        2048,
    ]


def _steep(likelihood: Any) -> NetworkPosterior:
    """Return noise-free data of a curve that a network fits slowly."""
    x = np.linspace(-1, 1, 300, dtype=np.float32)[:, None]
    network = eqx.nn.MLP(1, likelihood.num_outputs(1), 16, 2, jnp.tanh, key=jax.random.key(0))
    return NetworkPosterior.of(network, likelihood, Normal(), x, np.exp(2 * x) / 3 * np.sin(6 * x))


@pytest.mark.long
def test_rows_count_by_their_variance_until_half_way():
    posterior = _steep(Heteroscedastic())
    theta = posterior.start(key=jax.random.key(1))
    batch = posterior.take(jnp.arange(50))
    sd = jax.nn.softplus(posterior.outputs(theta, batch.x)[:, 1]) + 1e-4
    np.testing.assert_allclose(posterior.noise_widths(theta, batch), sd, rtol=1e-5)
    for share, power in ((0.0, 2.0), (0.25, 1.0), (0.5, 0.0), (0.9, 0.0)):
        result = trained_start._weights(posterior, theta, batch, jnp.asarray(share))
        np.testing.assert_allclose(result, sd**power / jnp.mean(sd**power), rtol=1e-4)
    assert trained_start._weights(_steep(Gaussian()), theta, batch, jnp.zeros(())) is None
    assert Parabolas((np.zeros(2), np.zeros(2))).noise_widths(theta, batch) is None


def test_the_noise_of_several_targets_is_their_geometric_mean():
    x, y = np.ones((3, 1), np.float32), np.zeros((3, 2), np.float32)
    posterior = NetworkPosterior.of(eqx.nn.Linear(1, 4, key=jax.random.key(0)), Heteroscedastic(), Normal(), x, y)
    theta = jnp.zeros(8).at[6].set(1.0).at[7].set(-1.0)  # the outputs are the biases
    sds = np.log1p(np.exp([1.0, -1.0])) + 1e-4
    np.testing.assert_allclose(
        posterior.noise_widths(theta, posterior.all_rows()), [np.sqrt(sds.prod())] * 3, rtol=1e-4
    )


@pytest.mark.long
def test_a_network_with_noise_outputs_learns_the_mean_first(monkeypatch):
    """Positive control: with equal weights of all rows, the network explains errors of the mean as noise."""
    posterior = _steep(Heteroscedastic())
    thetas = np.stack([posterior.start(key=jax.random.key(i)) for i in range(4)])

    def errors() -> float:
        *_, result = trained_start.train(posterior, thetas, placement=VECTORIZED, key=KEY, most_steps=2000)
        means = jax.vmap(lambda theta: posterior.outputs(theta, jnp.asarray(posterior.data.x)))(result.positions)[
            ..., 0
        ]
        return float(np.sqrt(np.mean((means - posterior.data.y[:, 0]) ** 2)))

    counted = errors()
    monkeypatch.setattr(trained_start, "_WEIGHTING_END", 1e-9)
    jax.clear_caches()  # otherwise the old program would be used again
    alike = errors()
    monkeypatch.undo()
    jax.clear_caches()
    assert counted < 0.7 * alike, (counted, alike)


class Whole(Parabolas):
    """Rows from which no mini-batch can be drawn."""

    def minibatch(self, size: int, *, replace: bool = True, key: Any) -> Any:
        raise UsageError("mini-batches are not possible")


@pytest.mark.parametrize("kind", [Parabolas, Whole])
def test_transport_follows_the_gradient_of_the_posterior(kind):
    """All rows are equal, so every batch gives the loss of all rows, with the likelihood power and the prior."""
    posterior = kind((np.full(300, 2.0, np.float32), np.full(300, 0.5, np.float32)), likelihood_power=np.float32(0.25))
    for theta in (jnp.asarray([1.5]), jnp.asarray([-3.0])):
        result = transport._loss(posterior, theta, key=KEY)
        assert float(result) == pytest.approx(-float(posterior.log_density(theta)) / 300, rel=1e-5)
    assert transport.evaluations(posterior, 3) == 30 * (128 if kind is Parabolas else 300) + 600


def test_transport_steps_are_in_prior_deviations_and_fall_a_thousandfold():
    posterior = OneEach(np.arange(40, dtype=np.float32), likelihood_power=np.float32(0.5))
    spread = transport._spread(posterior, KEY)
    np.testing.assert_allclose(spread, np.linspace(1, 40, 40), rtol=0.45)  # estimated from 64 draws
    wide = jnp.asarray([1.0, 7.0] * 20)
    far, keys = jnp.full((2, 40), 3.0), jax.random.split(KEY, 2)
    state = jax.vmap(lambda theta: transport._Moving(theta, transport._ADAM.init(theta)))(far)
    for first, rate in ((0, 0.1), (9, 0.1 * 1e-3**0.9)):
        moved = transport._advance(posterior, wide, VECTORIZED, state, keys, *map(np.int32, (first, first + 1, 10)))
        # Adam's first step has the length of the learning rate, whatever the slope.
        np.testing.assert_allclose(far - moved.theta, rate * jnp.broadcast_to(wide, (2, 40)), rtol=1e-2)


def test_the_average_of_a_constant_rate_is_of_the_larger_half():
    posterior = parabolas([1.0], [0.0])
    for schedule, num_warmup, first in (("constant", 5, 2), ("constant", 6, 3), ("cosine", 16, 14), ("cosine", 17, 14)):
        state = Bbb(schedule=schedule).init(posterior, jnp.zeros(1), num_warmup=num_warmup, key=KEY)
        assert float(state.first) == first


@pytest.mark.parametrize(("weights", "shares"), [("uniform", (1.0, 1.0)), ("blundell", (4 / 3, 2 / 3))])
@pytest.mark.parametrize("samples", [1, 3])
def test_a_step_of_bbb_descends_by_a_share_of_the_kl_and_tells_the_bound_with_all_of_it(
    samples, weights, shares, monkeypatch
):
    """All rows are equal, there are two batches, and the noise is given.

    The value, the slope and the draw are compared with closed forms.
    """
    eps, power, c, m, scale = np.array([1.5, -2.0]), 0.7, 2.0, 0.5, 0.3
    monkeypatch.setattr(bbb, "standard_normal", lambda like, *, key: jnp.asarray(eps, like.dtype))
    posterior = parabolas([c] * 4, [m] * 4, dim=2, power=power)
    sampler = Bbb(scale=scale, batch_size=2, samples=samples, kl_weights=weights)
    start = sampler.init(posterior, jnp.asarray([0.4, -0.2]), num_warmup=9, key=KEY)
    theta = np.array([0.4, -0.2]) + scale * eps
    entropy = 2 * math.log(scale) + math.log(2 * math.pi) + 1
    expected = -power * 4 * c * np.sum((theta - m) ** 2) / 2 + entropy - theta @ theta / 2
    for steps_done, share in enumerate(shares):
        state = eqx.tree_at(lambda s: s.adam.done, start, jnp.asarray(float(steps_done)))
        after, step_stats = sampler.warmup_step(posterior, state, key=KEY)
        assert float(step_stats["elbo_estimate"]) == pytest.approx(expected, rel=1e-5)
        np.testing.assert_allclose(after.position, theta, rtol=1e-5)
        slope = (share * theta + power * 4 * c * (theta - m)) / 4
        wide = (slope * eps - share / scale / 4) * (1 - math.exp(-scale))
        # Adam's first moment is a tenth of the first gradient.
        np.testing.assert_allclose(after.adam.moments.mu, [0.1 * slope, 0.1 * wide], rtol=1e-4)
    next_state, step_stats = sampler.step(posterior, start, key=KEY)
    np.testing.assert_allclose(next_state.position, theta, rtol=1e-5)
    assert float(step_stats["log_q"]) == pytest.approx(-eps @ eps / 2 - entropy + 1, rel=1e-5)


@pytest.mark.parametrize("sampler", [Bbb(), Dropout(rate=0.5), Laplace(), Swag(rank=2)])
def test_a_draw_is_independent_of_the_draw_before(sampler):
    """The same key gives the same draw from any position, so that dropped units can return."""
    network = Linear().build((3,), 1, key=KEY)
    x = np.eye(3, dtype=np.float32)
    posterior = NetworkPosterior.of(network, Gaussian(scale=0.5), Normal(), x, x[:, :1])
    init = jax.jit(lambda theta: sampler.init(posterior, theta, num_warmup=0, key=KEY))
    state = init(jnp.asarray([0.4, -0.2, 0.7, 0.1]))
    if isinstance(state, SwagState):
        state = eqx.tree_at(lambda s: s.variance, state, jnp.ones(4))
    step = jax.jit(lambda state, key: sampler.step(posterior, state, key=key)[0])
    keys = jax.random.split(KEY, 4)
    first = [step(state, key).position for key in keys]
    assert len(np.unique(first, axis=0)) > 1
    away = eqx.tree_at(lambda s: s.position, state, jnp.asarray([5.0, 0.0, -7.0, 9.0]))
    np.testing.assert_array_equal([step(away, key).position for key in keys], first)


def test_local_noise_has_the_noise_scale_that_was_drawn(monkeypatch):
    """The weights have no spread, and the log noise scale has mean log 0.5 and sd 0.3: value and slope."""
    monkeypatch.setattr(bbb, "standard_normal", lambda like, *, key: jnp.full_like(like, 1.5))
    x = np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    posterior = NetworkPosterior.of(
        Linear().build((1,), 1, key=KEY), Gaussian(), Normal(), x, 2 * x, likelihood_power=0.7
    )
    mean, scale = jnp.asarray([0.4, -0.1, math.log(0.5)]), jnp.asarray([0.0, 0.0, 0.3])

    def fit(wide: Any) -> Any:
        return Bbb(reparameterisation="local")._fit(posterior, mean, wide, posterior.data, None, key=KEY)[1]

    value, slope = jax.jit(jax.value_and_grad(fit))(scale)
    u = math.log(0.5) + 0.3 * 1.5
    squares = np.mean((2 * x - 0.4 * x + 0.1).astype(float) ** 2)
    expected = 0.7 * (-squares / 2 * math.exp(-2 * u) - u - math.log(2 * math.pi) / 2)
    assert float(value) == pytest.approx(expected, rel=1e-5)
    assert float(slope[2]) == pytest.approx(0.7 * 1.5 * (squares * math.exp(-2 * u) - 1), rel=1e-4)


def test_local_noise_uses_the_arranged_inputs():
    """Inputs of bytes are scaled on the device."""
    network = Linear().build((2,), 1, key=KEY)
    x = np.array([[10, 200], [90, 3]], np.uint8)
    posterior = NetworkPosterior.of(
        network, Gaussian(0.5), Normal(), x, np.zeros((2, 1)), input_mean=80.0, input_sd=60.0
    )
    mean = jnp.asarray([0.4, -0.2, 0.1])
    result = pre_activations.outputs(posterior, mean, 0 * mean, mean, jnp.asarray(x), key=KEY)
    np.testing.assert_allclose(result[:, 0], (x.astype(float) - 80) / 60 @ [0.4, -0.2] + 0.1, rtol=1e-5)


class Unusual(eqx.Module):
    """A network that calls only `last` once per row."""

    read: eqx.nn.Linear
    tokens: eqx.nn.Linear
    normed: eqx.nn.WeightNorm
    repeated: eqx.nn.Linear
    last: eqx.nn.Linear

    def __call__(self, x: Any) -> Any:
        h = jnp.tanh(self.read.weight @ x + self.read.bias)
        h = self.normed(jnp.sum(jax.vmap(self.tokens)(jnp.stack([h, 2 * h])), 0))
        return self.last(jnp.tanh(self.repeated(self.repeated(h))))


def test_local_noise_is_only_of_layers_that_a_row_calls_once():
    first, *layers = (eqx.nn.Linear(2, 2, key=key) for key in jax.random.split(KEY, 5))
    network = Unusual(first, layers[0], eqx.nn.WeightNorm(layers[1]), *layers[2:])
    x = np.float32([[1.0, -2.0], [0.5, 0.3], [0.5, 0.3]])
    posterior = NetworkPosterior.of(network, Gaussian(0.5), Normal(), x, np.zeros((3, 2), np.float32))
    theta = 0.5 * jax.random.normal(KEY, (posterior.layout.dim,))
    is_last = jnp.concatenate([jnp.full(b.size, b.name.startswith("last")) for b in posterior.layout.blocks])
    outputs = jax.jit(lambda scale: pre_activations.outputs(posterior, theta, scale, theta, jnp.asarray(x), key=KEY))
    np.testing.assert_allclose(
        outputs(jnp.where(is_last, 0.0, 1.0)), posterior.outputs(theta, jnp.asarray(x)), rtol=1e-5
    )
    noisy = outputs(jnp.ones_like(theta))
    assert not np.allclose(noisy[1], noisy[2], atol=0.01)  # equal rows with noise of their own


@pytest.mark.long
@pytest.mark.parametrize(
    ("scale", "precision"), [(0.05, "float32"), (50.0, "float32"), (1e4, "float32"), (39.0, "float64")]
)
def test_bbb_starts_at_its_scale(scale, precision):
    with jax_settings.arithmetic(precision):
        state = Bbb(scale=scale).init(parabolas([1.0], [0.0]), jnp.zeros(1), num_warmup=9, key=KEY)
        np.testing.assert_allclose(jax.nn.softplus(state.rho), scale, rtol=1e-5)


def test_the_distance_of_a_mean_is_told_without_the_noise_of_the_pairs():
    """The slope is 1 - t^2 in each of many parameters.

    The mean slope of a pair m +- s eps, in units of q, is s (1 - m^2 - s^2 eps^2).
    """
    dim, m, s = 10_000, 1.2, 1.5
    posterior = given_arguments(lambda t: jnp.sum(t - t**3 / 3))
    sampler = Bbb(scale=s)
    state = sampler.init(posterior, jnp.full(dim, m), num_warmup=0, key=KEY)
    inspection = float(sampler.inspect(posterior, state, key=KEY)["mean_distance"])
    mean, variance = s * (1 - m**2 - s**2), 2 * s**6
    # The estimate is the product of the slopes of two pairs.
    error = (dim * (2 * mean**2 * variance + variance**2)) ** 0.5
    assert abs(inspection - dim * mean**2) < 4.89 * error
    assert dim * variance / 2 > 4 * 4.89 * error


@pytest.mark.parametrize(("sampler", "name"), [(Laplace(), "mode_distance"), (Bbb(), "mean_distance")])
def test_the_tolerated_distance_is_a_quarter_of_a_squared_deviation(sampler, name):
    posterior = of_size(2)
    assert sampler.findings(posterior, {}) == ()
    assert sampler.findings(posterior, {name: 0.5}) == ()
    (finding,) = sampler.findings(posterior, {name: 0.6})
    assert (finding.value, finding.limit) == (0.3, 0.25)


def test_the_slope_counts_in_the_evidence_up_to_where_the_mode_is_found_too_far():
    """The density is exp(-t^2 / 2), and the points are half a deviation from its mode and slightly more."""
    posterior = given_arguments(lambda t: -jnp.sum(t**2) / 2)
    sampler = Laplace(covariance="diagonal", curvature="hessian")
    for place, counted in ((0.5, True), (0.501, False)):
        at = jnp.asarray([place])
        state = LaplaceState(at, at, _curvature.Factor(jnp.ones(1)), training.Adam.start(at, 1))
        statistics = sampler.inspect(posterior, state, key=KEY)
        distance = float(statistics["mode_distance"])
        assert distance == pytest.approx(place**2, rel=1e-6)
        expected = math.log(2 * math.pi) / 2 - (0 if counted else place**2 / 2)
        assert float(statistics["log_evidence"]) == pytest.approx(expected, abs=1e-5)
        assert (sampler.findings(posterior, {"mode_distance": distance}) == ()) == counted


def test_a_draw_of_laplace_is_as_many_deviations_from_the_mode_as_its_noise_is(monkeypatch):
    eps = jnp.asarray([1.0, -2.0, 0.5])
    monkeypatch.setattr(laplace, "standard_normal", lambda like, *, key: eps)
    mode, factor = jnp.asarray([3.0, 4.0, -5.0]), _curvature.Factor(jnp.asarray([0.1, 0.2, 4.0]))
    state = LaplaceState(jnp.zeros(3), mode, factor, training.Adam.start(mode, 1))
    after, step_stats = Laplace().step(of_size(3), state, key=KEY)
    np.testing.assert_allclose(after.position, [3.1, 3.6, -3.0], rtol=1e-6)
    np.testing.assert_array_equal(after.mode, mode)
    assert after.factor is factor
    assert not bool(step_stats["diverging"])


def test_the_factor_of_laplace_is_the_best_that_is_affordable(monkeypatch):
    """Full up to a thousand parameters, then Kronecker if it needs at most 1e12 multiplications, then diagonal."""
    factors = {
        "full": _curvature.Factor(jnp.eye(1)),
        "kronecker": _curvature.Kronecker(()),
        "diagonal": _curvature.Factor(jnp.ones(1)),
    }
    for name, item in factors.items():
        monkeypatch.setattr(_curvature, name, lambda posterior, theta, kind, item=item: item)

    def factor(dim: int, num_data: int, curvature: Any = "fisher", **fields: Any) -> str:
        posterior = of_size(dim, num_data, shape=(dim // 100, 100) if dim % 100 == 0 else ())
        result = Laplace(curvature=curvature, **fields)._factor(posterior, jnp.zeros(1))
        return next(name for name, item in factors.items() if item is result)

    assert factor(1000, 10) == "full"
    assert factor(1001, 10) == "kronecker"
    assert factor(10_000, 500_000) == "kronecker"
    assert factor(10_000, 500_001) == "diagonal"
    assert factor(10_000, 10, "hessian") == "diagonal"
    assert factor(10_000, 10, covariance="full") == "full"
    layout = Layout((Block("weight", (3, 5), 0), Block("bias", (3,), 15), Block("scale", (), 18)))
    assert _curvature.kronecker_work(layout, 7) == 7 * (15 * 8 + 3 * 4 + 1 * 2)
    assert _curvature._block(1000, 10, 1) == 419  # a block has at most 2^22 numbers
    assert _curvature._block(1000, 10, 420) == 420
    assert _curvature._block(2**23, 1, 0) == 1
    np.testing.assert_allclose(
        _curvature._floor_eigenvalues(jnp.asarray([-3.0, 0.0, 1e-5, 4.0])), [4e-6, 4e-6, 1e-5, 4.0]
    )


@pytest.mark.long
@pytest.mark.parametrize("form", ["full", "diagonal", "kronecker"])
def test_the_curvature_of_many_outputs_is_estimated_from_one_combination_of_them(form, monkeypatch):
    """With 3000 rows the standard error of a variance is about 2 %. The limit is lowered here."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 3)).astype(np.float32)
    labels = rng.integers(0, 4, 3000).astype(np.int32)
    posterior = NetworkPosterior.of(
        Mlp((2,), "tanh").build((3,), 4, key=jax.random.key(1)), Categorical(), Normal(1.0), x, labels
    )
    theta = posterior.sample_prior(key=jax.random.key(2))

    def covariance():
        factor = getattr(_curvature, form)(posterior, theta, "ggn")
        columns = jax.vmap(factor.correlate)(jnp.eye(posterior.layout.dim)).T
        return np.asarray(columns @ columns.T, np.float64)

    exact = covariance()
    assert _curvature.num_rows(posterior, "ggn") == 4
    monkeypatch.setattr(_curvature, "_MAX_DERIVATIVES", 0)
    assert _curvature.num_rows(posterior, "ggn") == 1
    estimated = covariance()
    assert not np.array_equal(estimated, exact)
    np.testing.assert_allclose(np.diag(estimated), np.diag(exact), rtol=0.12)


def test_laplace_limits_the_parameters_of_a_full_covariance():
    Laplace(covariance="full").check(of_size(5000))
    with pytest.raises(UsageError, match="got 5001"):
        Laplace(covariance="full").check(of_size(5001))
    Laplace(covariance="kronecker").check(of_size(5001))
    Laplace(curvature="hessian", covariance="full").check(of_size(10))


class _Scaled(eqx.Module):
    """Factor F = scale I."""

    scale: float = 1.0

    def correlate(self, eps: Any) -> Any:
        return self.scale * eps

    def project(self, gradient: Any) -> Any:
        return self.scale * gradient


class Given(NormalPrior):
    """A given log density as the prior, and one row without information."""

    function: Any = eqx.field(static=True, default=None)

    def log_prior(self, theta: Any) -> Any:
        return self.function(theta)

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        return batch * 0.0 * theta[0]


def given_arguments(function: Any) -> Any:
    return Given(np.zeros(1, np.float32), function=function)


def test_a_climb_is_ten_steps_of_conjugate_gradients():
    curvature = np.linspace(1.0, 40.0, 30)
    start = x = np.linspace(1.0, 2.0, 30)
    residual = -curvature * x
    direction = residual.copy()
    for _ in range(10):
        length = residual @ residual / (direction @ (curvature * direction))
        x = x + length * direction
        new = residual - length * curvature * direction
        direction, residual = new + new @ new / (residual @ residual) * direction, new
    posterior = given_arguments(lambda t: -jnp.sum(jnp.asarray(curvature, jnp.float32) * t**2) / 2)
    result = climb.climb_to_mode(posterior, jnp.asarray(start, jnp.float32), _Scaled())
    np.testing.assert_allclose(result, x, atol=1e-4)
    assert np.abs(x).max() > 1e-3


@pytest.mark.parametrize(("place", "forgotten"), [([0.6, 0.1], False), ([1.0, 1.0], True)])
def test_a_step_of_the_climb_keeps_of_the_last_direction_what_polak_and_ribiere_say(place, forgotten, monkeypatch):
    """The directions are those of Polak and Ribiere.

    For a density that is not quadratic, successive slopes are not orthogonal, and the formula of Fletcher and Reeves
    gives other directions.
    """
    monkeypatch.setattr(climb, "_STEPS", 2)
    curvature, start = np.array([1.0, 10.0]), np.array(place)

    def slope(x: np.ndarray) -> np.ndarray:
        return -curvature * x - 4 * x**3

    def length(x: np.ndarray, along: np.ndarray) -> float:
        return slope(x) @ along / np.sum((curvature + 12 * x**2) * along**2)

    first = slope(start)
    middle = start + length(start, first) * first
    new = slope(middle)
    share = new @ (new - first) / (first @ first)
    assert (share < 0) == forgotten
    ends = []
    for factor in (max(share, 0.0), new @ new / (first @ first)):
        direction = new + factor * first
        ends.append(middle + length(middle, direction) * direction)
    posterior = given_arguments(lambda t: -jnp.sum(jnp.asarray(curvature, jnp.float32) * t**2 / 2 + t**4))
    result = climb.climb_to_mode(posterior, jnp.asarray(start, jnp.float32), _Scaled())
    np.testing.assert_allclose(result, ends[0], atol=1e-4)
    assert np.abs(ends[1] - ends[0]).max() > 0.01


def test_a_climb_begins_where_a_parameter_is_a_hundredth_of_a_deviation_off():
    posterior = given_arguments(lambda t: -jnp.sum(t**2) / 2)
    for off, moves in ((0.0098, False), (0.0102, True)):
        start = jnp.full(3, off)
        assert bool(jnp.any(climb.climb_to_mode(posterior, start, _Scaled()) != start)) == moves


def test_a_distance_at_the_tolerance_counts_as_near(monkeypatch):
    """Four parameters are one deviation off each, which is exactly the limit for a tolerance of one."""
    posterior = given_arguments(lambda t: -jnp.sum(t**2) / 2)
    for near, end in ((1.0, 1.0), (0.99, 0.0)):
        monkeypatch.setattr(climb, "_TOLERANCE", near)
        np.testing.assert_allclose(climb.climb_to_mode(posterior, jnp.ones(4), _Scaled()), [end] * 4, atol=1e-6)


def test_the_length_of_a_step_of_the_climb(monkeypatch):
    """The step leads to the maximum of the fitted parabola.

    It is halved until the density rises by a quarter of what the slope predicts. Without curvature the step is one
    slope long.
    """
    monkeypatch.setattr(climb, "_STEPS", 1)
    hill = given_arguments(lambda t: -jnp.sum(jnp.logaddexp(t, -t)))
    for place, halvings in ((0.5, 0), (2.6, 4), (2.89, 5), (3.0, 5)):
        result = float(climb.climb_to_mode(hill, jnp.asarray([place]), _Scaled())[0])
        assert result == pytest.approx(place - np.cosh(place) ** 2 / 2**halvings * np.tanh(place), abs=1e-3)
    double = given_arguments(lambda t: jnp.sum(t**2 / 2 - t**4 / 4))
    result = float(climb.climb_to_mode(double, jnp.asarray([0.1]), _Scaled())[0])
    assert result == pytest.approx(0.1 + 0.099, rel=1e-4)
    result = float(climb.climb_to_mode(double, jnp.asarray([0.1]), _Scaled(2.0))[0])
    assert result == pytest.approx(0.1 + 4 * 0.099, rel=1e-4)
    straight = given_arguments(lambda t: 3 * jnp.sum(t))
    for scale in (1.0, 2.0):
        result = float(climb.climb_to_mode(straight, jnp.asarray([0.5]), _Scaled(scale))[0])
        assert result == pytest.approx(0.5 + 3 * scale**2, rel=1e-5)


def test_a_step_of_the_climb_that_is_uphill_at_no_share_is_not_made():
    """The mode is a kink: from 0.1 the step would need 2^-10, which is not tried; from 0.2 it needs 2^-9."""
    kink = given_arguments(lambda t: -100 * jnp.sum(jnp.abs(t)) - jnp.sum(t**2) / 2)
    assert float(climb.climb_to_mode(kink, jnp.asarray([0.1]), _Scaled())[0]) == pytest.approx(0.1)
    assert abs(float(climb.climb_to_mode(kink, jnp.asarray([0.2]), _Scaled())[0])) < 0.01


def test_the_descent_of_swag_has_momentum():
    """v <- 0.5 v + g, theta <- theta - 0.02 v, with g the slope of the negative log density per datum."""
    c, m, power, theta, velocity = 2.0, 0.5, 0.7, np.array([0.4, -3.0]), np.zeros(2)
    posterior = parabolas([c] * 4, [m] * 4, dim=2, power=power)
    sampler = Swag(learning_rate=0.02, momentum=0.5)
    state = sampler.init(posterior, jnp.asarray(theta, jnp.float32), num_warmup=20, key=KEY)
    for _ in range(4):
        state, _ = sampler.warmup_step(posterior, state, key=KEY)
        velocity = 0.5 * velocity + power * c * (theta - m) + theta / 4
        theta = theta - 0.02 * velocity
        np.testing.assert_allclose(state.position, theta, rtol=1e-5)


@pytest.mark.parametrize("kind", [Laplace, Ensemble, Dropout])
def test_training_goes_downhill_by_adam(kind):
    """Adam's first step equals the learning rate in every parameter."""
    posterior = parabolas([2.0] * 8, [0.5] * 8, dim=2)
    fields = {"curvature": "hessian"} if kind is Laplace else {}
    sampler = kind(learning_rate=0.02, batch_size=8, **fields)
    state = sampler.init(posterior, jnp.asarray([0.4, 1.7]), num_warmup=1000, key=KEY)
    for expected in ([0.42, 1.68], [0.44, 1.66]):
        state, _ = sampler.warmup_step(posterior, state, key=KEY)
        np.testing.assert_allclose(state.position, expected, atol=1e-3)


@pytest.mark.parametrize("num_warmup", [0, 5])
def test_the_curvature_of_laplace_is_that_at_the_mode(num_warmup):
    """The log density is -cosh t, with curvature 1 at its mode and 1.5 at the initial position."""
    posterior = given_arguments(lambda t: -jnp.sum(jnp.cosh(t)))
    sampler = Laplace(covariance="diagonal", curvature="hessian")
    start = jnp.asarray([math.acosh(1.5), -math.acosh(1.5)])
    state = sampler.init(posterior, start, num_warmup=num_warmup, key=KEY)
    state = sampler.settle(posterior, state, final=True, key=KEY)
    np.testing.assert_allclose(state.mode, 0.0, atol=1e-2)
    np.testing.assert_array_equal(state.position, state.mode)
    np.testing.assert_allclose(state.factor.factor, 1.0, rtol=1e-3)


def test_layers_are_dropped_independently_of_one_another():
    """Two layers have equally many inputs, and their masks agree in half of the places."""
    sampler, keys = Dropout(rate=0.5), jax.random.split(KEY, 200)
    layout = network_layout(Mlp((20, 20)).build((2,), 1, key=KEY))
    draws = jax.vmap(lambda key: sampler._drop(layout, jnp.ones(layout.dim), key=key))(keys)
    values = layout.unflatten(draws)
    first, other = (np.asarray(values[name])[:, 0] > 0 for name in ("layers_1_weight", "layers_2_weight"))
    assert abs((first == other).mean() - 0.5) < 4.89 * 0.5 / first.size**0.5


class Powered(NormalPrior):
    """A given log-likelihood of one row, raised to a power."""

    function: Any = eqx.field(static=True, default=None)

    def log_prior(self, theta: Any) -> Any:
        return 0.0 * jnp.sum(theta)

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        return self.function(theta) + 0.0 * batch


@pytest.mark.parametrize("power", [0.1, 10.0])
def test_a_climb_goes_by_the_power(power, monkeypatch):
    """A likelihood divided by the power and raised to it is unchanged: the step from 2.89 has as many halvings."""
    monkeypatch.setattr(climb, "_STEPS", 1)
    hill = Powered(
        np.zeros(1, np.float32),
        likelihood_power=np.float32(power),
        function=lambda t: -jnp.sum(jnp.logaddexp(t, -t)) / power,
    )
    result = float(climb.climb_to_mode(hill, jnp.asarray([2.89]), _Scaled())[0])
    assert result == pytest.approx(2.89 - np.cosh(2.89) ** 2 / 2**5 * np.tanh(2.89), abs=1e-3)


def test_the_curvature_of_a_learned_scale_goes_by_the_power():
    """For u = log s it is beta sum 2 r^2 e^-2u of the rows plus 2 e^2u of its prior, for each of two targets."""
    x, u = np.zeros((3, 1), np.float32), np.array([0.2, -0.4])
    y = np.array([[1.0, 0.5], [-2.0, 0.3], [0.5, -0.1]], np.float32)
    network = Linear().build((1,), 2, key=KEY)
    posterior = NetworkPosterior.of(network, Gaussian().of_targets(2), Normal(), x, y, likelihood_power=0.25)
    base = jax.jit(lambda theta: _curvature._base(posterior, theta))(jnp.asarray([0.0] * 4 + [*u], jnp.float32))
    rows = 0.25 * np.sum(2 * y.astype(float) ** 2, 0) * np.exp(-2 * u)
    np.testing.assert_allclose(base, [1.0] * 4 + [*(rows + 2 * np.exp(2 * u))], rtol=1e-4)


@pytest.mark.parametrize("elements", [2**22, 1])
def test_a_kronecker_product_is_of_the_gradients_of_all_rows(elements, monkeypatch):
    """Two layers are compared with L (x) R / trace plus the prior in NumPy, in one block of rows or many."""
    monkeypatch.setattr(_curvature, "_ELEMENTS", elements)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 4)).astype(np.float32), rng.integers(0, 3, 7)
    network = Mlp((2,)).build((4,), 3, key=KEY)
    posterior = NetworkPosterior.of(network, Categorical(), Normal(0.8), x, y, likelihood_power=0.5)
    theta = jnp.asarray(rng.normal(size=posterior.layout.dim), jnp.float32)
    slopes = np.asarray(jax.jit(jax.jacobian(posterior.log_likelihoods))(theta), float)
    expected = np.zeros((posterior.layout.dim,) * 2)
    for block in posterior.layout.blocks:
        rows = slopes[:, block.start : block.stop].reshape(7, block.shape[0], -1)
        left, right = np.einsum("iab,icb->ac", rows, rows), np.einsum("iab,iac->bc", rows, rows)
        product = 0.5 * np.kron(left, right) / np.trace(left) + np.eye(block.size) / 0.64
        expected[block.start : block.stop, block.start : block.stop] = np.linalg.inv(product)

    def factor_of(theta):
        return jax.vmap(_curvature.kronecker(posterior, theta, "fisher").correlate)(jnp.eye(len(theta)))

    matrix = jax.jit(factor_of)
    factor = matrix(theta)
    np.testing.assert_allclose(np.asarray(factor, float).T @ factor, expected, rtol=2e-3, atol=1e-5)


def test_a_snapshot_is_due_at_every_interval_of_the_second_half():
    posterior = parabolas([1.0] * 4, [0.5] * 4)
    sampler = Swag(interval=2, rank=2)
    state = sampler.init(posterior, jnp.asarray([0.4]), num_warmup=9, key=KEY)
    assert float(state.first) == 4
    snapshots = []
    for i in range(9):
        state, _ = sampler.warmup_step(posterior, state, key=jax.random.key(i))
        snapshots.append(int(state.snapshots))
    assert snapshots == [0, 0, 0, 0, 0, 1, 1, 2, 2]


def test_every_share_of_a_batch_has_a_mask_of_its_own():
    posterior = parabolas([1.0] * 4, [0.5] * 4)
    sampler = Dropout(batch_size=8, masks=4)
    state = sampler.init(posterior, jnp.asarray([0.4]), num_warmup=9, key=KEY)
    calls: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "batch", lambda p, size, *, key: calls.append(size) or p.all_rows())
        patch.setattr(Dropout, "_drop", lambda self, layout, point, *, key: point)
        _, step_stats = sampler.warmup_step(posterior, state, key=KEY)
    assert calls == [2]
    assert float(step_stats["lp_estimate"]) == pytest.approx(float(posterior.log_density(state.point)), rel=1e-5)


def test_local_noise_of_a_layer_without_inputs_is_that_of_its_bias():
    layers = [eqx.nn.Linear(2, 1, use_bias=bias, key=KEY) for bias in (True, False)]
    for layer, expected in zip(layers, (0.3, 0.0), strict=True):
        wide = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.3), layer)
        noise = pre_activations._Dense(layer, layer, wide, KEY)(jnp.zeros(2)) - layer(jnp.zeros(2))
        assert float(noise[0]) == pytest.approx(expected * float(jax.random.normal(KEY, (1,))[0]), abs=1e-6)
    slope = jax.grad(lambda x: pre_activations._Dense(*3 * [layers[1]], KEY)(x)[0])(jnp.zeros(2))
    assert np.isfinite(slope).all()


# ---- independent draws ---------------------------------------------------------------------------


def test_a_gaussian_is_fitted_to_at_most_five_hundred_parameters():
    for name in ("gaussian", "laplace"):
        _proposal.check(name, of_size(500), "importance")
        with pytest.raises(UsageError, match="got 501"):
            _proposal.check(name, of_size(501), "importance")


def test_the_fit_at_a_mode_is_never_wider_than_the_prior():
    posterior = parabolas([3.0, -3.9], [1.0, 0.0], dim=2)
    result = _proposal.laplace(posterior, jnp.asarray([0.4, 0.6]))
    np.testing.assert_allclose(result.mean, [30.0] * 2, rtol=1e-2)
    np.testing.assert_allclose(result.factor, np.eye(2), atol=1e-3)
    posterior_right = parabolas([3.0], [1.0], dim=2)
    result = _proposal.fit_proposal("laplace", posterior_right, jnp.zeros(2), scale=1.5, pilot=100, key=KEY)
    assert result is not None
    np.testing.assert_allclose(result.mean, [0.75] * 2, rtol=1e-4)
    np.testing.assert_allclose(result.factor, 1.5 * np.eye(2) / 2, atol=1e-4)
    np.testing.assert_allclose(
        result.log_prob(jnp.asarray([1.5, 0.75])), -0.5 - 2 * np.log(0.75) - np.log(2 * np.pi), rtol=1e-4
    )


def test_a_draw_of_a_gaussian_is_its_factor_times_noise(monkeypatch):
    """Its density is that of N(mean, F F'), here with a factor that is not diagonal."""
    mean, factor = np.array([0.5, -1.0, 2.0]), np.array([[2.0, 0.0, 0.0], [-1.0, 0.5, 0.0], [0.3, 0.7, 1.5]])
    result = _proposal.Gaussian(jnp.asarray(mean, jnp.float32), jnp.asarray(factor, jnp.float32))
    monkeypatch.setattr(_proposal, "standard_normal", lambda like, *, key: jnp.asarray([1.0, -2.0, 0.5], like.dtype))
    value = result.sample(KEY)
    np.testing.assert_allclose(value, mean + factor @ [1.0, -2.0, 0.5], rtol=1e-5)
    expected = stats.multivariate_normal.logpdf(np.asarray(value, float), mean, factor @ factor.T)
    assert float(result.log_prob(value)) == pytest.approx(expected, rel=1e-5)


def test_no_curvature_of_a_fit_is_less_than_the_priors_least_or_a_millionth_of_the_largest():
    for curvature, floor in (([1e8, 4.0, 5.0], 100.0), ([1e4, 4.0, 5.0], 0.0)):
        posterior = given_arguments(lambda t, c=curvature: -jnp.sum(jnp.asarray(c) * t**2) / 2)
        result = _proposal.laplace(posterior, jnp.zeros(3))
        np.testing.assert_allclose(result.factor, np.diag(np.maximum(curvature, floor) ** -0.5), rtol=1e-4, atol=1e-7)


def test_a_climb_takes_the_best_of_its_strides(monkeypatch):
    """Newton's step is too short for the quartic and too long for the hill.

    In a convex region it is reversed.
    """
    monkeypatch.setattr(_proposal, "_ASCENT", 1)

    def climbed(function: Any, place: float) -> float:
        return float(_proposal.climb_by_newton(function, jnp.asarray([place]))[0])

    assert climbed(lambda t: -jnp.sum(t**4), 3.0) == pytest.approx(3 - 2 * 1.0, rel=1e-4)
    assert climbed(lambda t: -jnp.sum(t**2), 3.0) == pytest.approx(0.0, abs=1e-5)
    assert climbed(lambda t: -jnp.sum(jnp.logaddexp(t, -t)), 3.0) == pytest.approx(
        3 - np.cosh(3) ** 2 / 32 * np.tanh(3), abs=1e-3
    )
    assert climbed(lambda t: jnp.sum(t**2 / 2 - t**4 / 4), 0.1) == pytest.approx(0.1 + 2 * 0.099 / 0.97, rel=1e-4)
    # Longer strides, of 12 and 24, give NaN.
    assert climbed(lambda t: jnp.sum(2 * jnp.log(t) - t), 6.0) == pytest.approx(3.0, rel=1e-4)

    # The shortest stride is 2^-11. If it overshoots, the climb does not move.
    def kink(t: Any) -> Any:
        return -1000 * jnp.sum(jnp.abs(t)) - jnp.sum(t**2) / 2

    for place, expected in ((0.3, 0.3 - 1000.3 / 2**11), (0.2, 0.2)):
        assert climbed(kink, place) == pytest.approx(expected, abs=1e-4)
    # In a direction without curvature, a step uses a millionth of the largest curvature.
    ramp = _proposal.climb_by_newton(lambda t: -(t[0] ** 2) / 2 + 1e-6 * t[1], jnp.zeros(2))
    np.testing.assert_allclose(ramp, [0.0, 2.0], rtol=1e-4)


def test_a_climb_has_sixty_steps():
    """The log density -exp(-t) has no maximum. Newton's step is 1 everywhere, and the longest stride, 2, is best."""
    result = _proposal.climb_by_newton(lambda t: -jnp.sum(jnp.exp(-t)), jnp.asarray([-80.0]))
    np.testing.assert_allclose(result, -80.0 + 60 * 2, rtol=1e-4)


def test_a_climb_on_a_plateau_stays_where_it_is():
    """Slope and curvature are zero, so Newton's step would be 0 / 0."""

    def basin(t: Any) -> Any:
        return -jnp.sum(jnp.maximum(jnp.abs(t) - 5, 0.0) ** 2)

    np.testing.assert_array_equal(_proposal.climb_by_newton(basin, jnp.asarray([3.0, -1.0])), [3.0, -1.0])


def test_the_pilot_is_a_langevin_chain_whose_later_half_counts(monkeypatch):
    """The target is N(0, I), the noise is one, and every proposal is accepted with a given rate."""
    dim, steps, eta = 8, 6, 1.65**2 / 4
    ratios: list[float] = []

    def accept(log_ratio: Any, *, key: Any) -> Any:
        jax.debug.callback(lambda value: ratios.append(float(value)), log_ratio, ordered=True)
        return jnp.asarray(True), jnp.asarray(0.674), jnp.asarray(False)

    monkeypatch.setattr(_proposal, "metropolis", accept)
    monkeypatch.setattr(_proposal, "standard_normal", lambda like, *, key: jnp.ones_like(like))
    posterior = parabolas([0.0], [0.0], dim=dim)
    start = _proposal.Gaussian(jnp.zeros(dim), jnp.eye(dim))
    result = _proposal._moments(posterior, start, steps, key=KEY)
    z, later_half, expected = 0.0, [], []
    for i in range(steps):
        proposed = z - eta * z + (2 * eta) ** 0.5
        back = 1 - (eta / 2) ** 0.5 * (z + proposed)
        expected.append(dim * (z**2 / 2 - proposed**2 / 2 + (1 - back**2) / 2))
        z = proposed
        if i < steps // 2:
            eta *= np.exp(0.1 / (i + 1) ** 0.5)
        else:
            later_half.append(z)
    jax.effects_barrier()
    np.testing.assert_allclose(ratios, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(result.mean, [np.mean(later_half)] * dim, rtol=1e-4)
    scatter = len(later_half) * np.var(later_half) * np.ones((dim, dim)) + 10 * dim * np.eye(dim)
    np.testing.assert_allclose(
        result.factor @ result.factor.T, scatter / (len(later_half) + 10 * dim), rtol=1e-3, atol=1e-5
    )


def test_the_moments_of_the_pilot_are_in_units_of_the_fit_that_it_starts_from():
    """In its own units a Gaussian N(m, F F') is N(0, I), so that the pilot is the same chain, mapped by F."""
    centre, factor = np.array([3.0, -2.0]), np.array([[2.0, 0.0], [-1.5, 0.5]])

    @jax.jit
    def moments(centre: Any, factor: Any, inverse: Any) -> Any:
        posterior = given_arguments(lambda t: -jnp.sum((inverse @ (t - centre)) ** 2) / 2)
        result = _proposal._moments(posterior, _proposal.Gaussian(centre, factor), 40, key=KEY)
        return result.mean, result.factor

    plain, inner = moments(jnp.zeros(2), jnp.eye(2), jnp.eye(2))
    assert abs(float(inner[1, 0])) > 0.01
    mean, outer = moments(*(jnp.asarray(a, jnp.float32) for a in (centre, factor, np.linalg.inv(factor))))
    np.testing.assert_allclose(mean, centre + factor @ plain, rtol=1e-3)
    np.testing.assert_allclose(outer, factor @ inner, rtol=1e-3)


@pytest.mark.parametrize("kind", [Rejection(log_bound=3.0), Importance()], ids=["rejection", "importance"])
def test_a_sampler_fits_its_proposal_as_it_was_asked_to(kind, monkeypatch):
    """The fit receives the chain's initial position, the scale and the length of the pilot; draws come from it."""
    calls: list[Any] = []
    fit = _proposal.Gaussian(jnp.asarray([5.0]), jnp.asarray([[1e-4]]))
    monkeypatch.setattr(_proposal, "fit_proposal", lambda *args, **more: calls.append((*args, more)) or fit)
    sampler = dataclasses.replace(kind, proposal="gaussian", proposal_scale=np.float32(3.0), pilot=123)
    posterior = parabolas([1.0], [0.0])
    state = sampler.init(posterior, jnp.asarray([0.8]), num_warmup=0, key=KEY)
    ((name, of, start, more),) = calls
    assert (name, of, float(start[0])) == ("gaussian", posterior, pytest.approx(0.8))
    assert (float(more["scale"]), more["pilot"]) == (3.0, 123)
    density = _proposal.proposal_density(sampler.proposal, state.fit)
    assert float(_proposal.draw(posterior, density, key=KEY)[0]) == pytest.approx(5, abs=1e-3)


class Bounded(Parabolas):
    """Rows whose likelihood has the maximum e^b at m: l = b - (theta - m)^2 / 2; the prior can be sampled."""

    def sample_prior(self, *, key: Any) -> Any:
        return jax.random.normal(key, (self.layout.dim,))

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        b, m = batch
        return b - jnp.sum((theta - m[:, None]) ** 2, 1) / 2

    def log_likelihood_bounds(self, batch: Any) -> Any:
        return batch[0]


def _bounded() -> Bounded:
    return Bounded((np.float32([2.0, -3.0, 0.5]), np.float32([0.2, -0.4, 0.3])), likelihood_power=np.float32(0.6))


def test_the_bound_is_raised_to_the_likelihoods_power():
    """log k = beta sum_i b_i, which a proposal equal to all m_i would reach."""
    posterior, sampler = _bounded(), Rejection()
    state = sampler.init(posterior, jnp.zeros(1), num_warmup=0, key=KEY)
    for theta in (0.1, -0.7):
        result = rejection._log_ratio(sampler, posterior, state, jnp.asarray([theta]))
        assert float(result) == pytest.approx(-0.6 * np.sum((theta - np.array([0.2, -0.4, 0.3])) ** 2) / 2, rel=1e-4)


def test_rejection_reports_the_excess_over_its_bound(monkeypatch):
    """The bound is reported as a log, raised to the likelihood power.

    The excess is the largest so far, because a thinned draw stores the last step alone. Of two proposals tested
    together, the second counts too, although it is not used.
    """
    proposals = jnp.asarray([[0.1], [0.3]]), jnp.asarray([-0.2, 0.4]), jnp.asarray([True, True])
    monkeypatch.setattr(rejection, "_proposals", lambda *args, **more: proposals)
    posterior, sampler = _bounded(), Rejection(block=2)
    state = sampler.init(posterior, jnp.zeros(1), num_warmup=0, key=KEY)
    step = jax.jit(lambda state: sampler.step(posterior, state, key=KEY))
    for before, expected in ((-jnp.inf, 0.4), (0.7, 0.7), (0.1, 0.4)):
        after, statistics = step(eqx.tree_at(lambda s: s.excess, state, jnp.asarray(before)))
        assert float(statistics["log_excess"]) == float(after.excess) == pytest.approx(expected)
    np.testing.assert_allclose(after.position, [0.1])
    assert int(statistics["n_steps"]) == 1
    assert float(statistics["log_bound"]) == pytest.approx(0.6 * (2.0 - 3.0 + 0.5), rel=1e-5)
    # The log density follows from the ratio of the proposal: log prior - 0.2 + log k.
    assert float(statistics["lp"]) == pytest.approx(-(0.1**2) / 2 - 0.2 - 0.3, rel=1e-5)


def test_a_weight_is_of_the_whole_density_of_its_proposal():
    """A proposal that gives one log density per parameter counts by their sum; `lp` and `log_weight` are compared."""
    plain = _bounded()
    posterior = Bounded(plain.data, likelihood_power=plain.likelihood_power, layout=Layout((Block("theta", (3,), 0),)))
    for proposal, sd in (("prior", 1.0), (dist.Normal(jnp.zeros(3), 2.0), 2.0)):
        sampler = Importance(proposal=proposal)
        state = sampler.init(posterior, jnp.zeros(3), num_warmup=0, key=KEY)
        after, step_stats = sampler.step(posterior, state, key=KEY)
        theta, density = np.asarray(after.position, float), float(posterior.log_density(after.position))
        # The prior's density has no constant here, and cancels if the prior is the proposal.
        of_proposal = -theta @ theta / 2 if proposal == "prior" else stats.norm.logpdf(theta, scale=sd).sum()
        assert float(step_stats["lp"]) == pytest.approx(density, rel=1e-5)
        assert float(step_stats["log_weight"]) == pytest.approx(density - of_proposal, rel=1e-4)


class Wide(eqx.Module):
    """Proposal N(0, 4)."""

    def sample(self, key: Any) -> Any:
        return 2 * jax.random.normal(key, (1,))

    def log_prob(self, value: Any) -> Any:
        return -jnp.sum(value**2) / 8 - jnp.log(2.0) - jnp.log(2 * jnp.pi) / 2


def test_a_bound_that_was_searched_for_is_a_hundredth_above_what_was_found():
    posterior = parabolas([3.0], [1.0])
    state = Rejection(proposal=Wide()).init(posterior, jnp.zeros(1), num_warmup=0, key=KEY)
    grid = np.linspace(-1, 3, 100_001)
    ratio = -3 * (grid - 1) ** 2 / 2 - grid**2 / 2 + grid**2 / 8 + np.log(2) + np.log(2 * np.pi) / 2
    assert float(state.log_bound) == pytest.approx(ratio.max() + 0.01, abs=2e-4)
    stated = Rejection(proposal=Wide(), log_bound=3.0).init(posterior, jnp.zeros(1), num_warmup=0, key=KEY)
    assert float(stated.log_bound) == 3
    assert float(stated.excess) == -np.inf


def test_a_bound_that_is_stated_has_the_precision_of_the_run():
    with jax_settings.arithmetic("float64"):
        sampler, posterior = Rejection(proposal=Wide(), log_bound=3.0, block=8), parabolas([3.0], [1.0])

        @jax.jit
        def draw(start: Any) -> Any:
            state = sampler.init(posterior, start, num_warmup=0, key=KEY)
            return state, *sampler.step(posterior, state, key=KEY)

        state, after, statistics = draw(jnp.zeros(1))
        for item in (state.log_bound, state.excess, after.excess, statistics["log_bound"], statistics["log_excess"]):
            assert jnp.asarray(item).dtype == np.float64
        assert float(statistics["log_bound"]) == 3
        assert float(statistics["lp"]) == pytest.approx(float(posterior.log_density(after.position)), rel=1e-9)


class Halves(NormalPrior):
    """Two rows whose likelihood depends only on the sign of theta."""

    left: Any = np.float32(0.0)
    right: Any = np.float32(0.0)

    def sample_prior(self, *, key: Any) -> Any:
        return jax.random.normal(key, (1,))

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        return batch + jnp.where(theta[0] < 0, self.left, self.right)


def test_a_pilot_is_the_mean_of_what_proposals_are_accepted_with():
    """A proposal above the bound counts as accepted, and a proposal with NaN counts as rejected."""

    def pilot(left: float, right: float, count: int = 192) -> float:
        posterior = Halves(np.zeros(2, np.float32), np.float32(0.5), left=np.float32(left), right=np.float32(right))
        return float(rejection._pilot(Rejection(log_bound=1.0), posterior, count, KEY))

    for each, expected in ((-2.0, -3.0), (0.7, -0.3), (1.0, 0.0), (2.0, 0.0)):
        assert pilot(each, each) == pytest.approx(expected, abs=1e-5)
    share = np.exp(pilot(1.0, -np.inf))
    assert share * 192 == pytest.approx(round(share * 192), abs=1e-2)
    assert 0.3 < share < 0.7
    for nothing in (float("nan"), float("inf")):
        expected = share * np.exp(-3.0) + (nothing == np.inf) * (1 - share)
        assert pilot(-2.0, nothing) == pytest.approx(np.log(expected), abs=1e-4)
    assert np.exp(pilot(float("nan"), float("nan"))) == 0


class Torn(Parabolas):
    """NaN below -1, where a third of the mass of `Wide` is, and a NaN slope everywhere, so that no climb moves."""

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        return jnp.where(theta[0] < -1, jnp.nan, super().log_likelihood(theta, batch) + jnp.sqrt(0.0 * theta[0]))


def test_the_search_for_a_bound_skips_nan():
    """The log ratio is b - 15 (theta - 4/5)^2 / 8; of thousands of proposals one is near its maximum."""
    posterior = Torn((np.float32([3.0]), np.float32([1.0])))
    state = Rejection(proposal=Wide()).init(posterior, jnp.zeros(1), num_warmup=0, key=KEY)
    top = -0.3 + np.log(2) + np.log(2 * np.pi) / 2
    assert float(state.log_bound) == pytest.approx(top + 0.01, abs=2e-4)


@pytest.mark.usefixtures("as_options")
def test_an_excess_within_rounding_ends_no_run():
    sampler = Rejection(max_proposals=50)

    def failure(excess: float, accepted: float = 1.0) -> str:
        stats = {"log_excess": [[-1.0, excess]], "log_bound": [[1.0, 2.0]], "accepted": [[1.0, accepted]]}
        return spell_settings(sampler.failure({name: np.array(value) for name, value in stats.items()}), "options")

    assert failure(1e-3) == ""
    assert "exceeded the bound log k = 2 by 0.0015 nats," in failure(0.0015)
    assert "use --sampler.log-bound 2.0115 or" in failure(0.0015)
    assert failure(-1.0, 0.9) == failure(-1.0, 0.0)
    assert failure(-1.0, 0.0).startswith("chain 0: none of 50 proposals")
    assert failure(-1.0, float("nan")).startswith("chain 0: none of 50")


@pytest.mark.usefixtures("as_options")
def test_twenty_acceptances_must_be_promised(monkeypatch):
    calls: list[int] = []

    def check(num_data: int, log10: float, **fields: Any) -> None:
        def pilot(sampler: Any, posterior: Any, count: int, key: Any) -> float:
            calls.append(count)
            return log10 * math.log(10)

        monkeypatch.setattr(rejection, "_bounds", lambda posterior: 0.0)
        monkeypatch.setattr(rejection, "_pilot", pilot)
        monkeypatch.setattr(_proposal, "check", lambda *args: None)
        Rejection(**fields).check(of_size(2, num_data))

    check(10, math.log10(20.001e-6))
    with pytest.raises(UsageError, match=r"with probability 2\.0e-05 \(estimated from 16384 draws\)"):
        check(10, math.log10(19.999e-6))
    check(10, math.log10(0.0201), max_proposals=1000)
    for log10, probability in ((-29.5, "3.2e-30"), (-30.5, "1e-3[01]"), (-999.0, "1e-999"), (-1001.0, "0")):
        with pytest.raises(UsageError, match=f"with probability {probability} "):
            check(10, log10)
    calls.clear()
    for num_data in (256, 257, 1000, 65_536, 10**6):
        check(num_data, 0.0)
    assert calls == [16384, 2**22 // 257, 4194, 64, 64]
    with pytest.raises(UsageError, match="or a narrower prior"):
        check(10, -9.0)
    with pytest.raises(UsageError, match=r"or another --sampler\.proposal-scale"):
        check(10, -9.0, proposal="laplace")
