"""Networks that are sampled in a subspace: `--stochastic identified` and `linearised`."""

from __future__ import annotations

import functools
import json
import signal
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import bnnzoo
from bnnzoo import assembly, cli
from bnnzoo.api import entrances, resuming
from bnnzoo.errors import DamagedError, InterruptedRunError, UsageError
from bnnzoo.models import Cnn, Linear, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.layout import network_layout
from bnnzoo.posterior.likelihoods import Bernoulli, Gaussian
from bnnzoo.posterior.moments import Moments
from bnnzoo.posterior.priors import FanIn, Hierarchical, Laplace, Normal
from bnnzoo.posterior.subspace import COORDINATES, InducedNormal, SubspaceChoice, SubspaceNetwork, normal_moments
from bnnzoo.recipe import resolve
from bnnzoo.samplers import Penalty
from bnnzoo.samplers.common import control_variate, damped, directions, subspace_iteration
from bnnzoo.samplers.subsampled import batch_sizes, influence
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.initial import positions, subspace_start
from bnnzoo.sampling.keys import Keys
from bnnzoo.sampling.loop import chunk as programs
from bnnzoo.sampling.loop.loop import chunks

NOISE = 0.3
KEY = jax.random.key(0)


def _rows(count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2)).astype(np.float32)
    return x, (np.sin(2 * x[:, :1]) + NOISE * rng.normal(size=(count, 1))).astype(np.float32)


def _whole(prior: Any = None, hidden: int = 3, likelihood: Any = None) -> NetworkPosterior:
    x, y = _rows()
    network = Mlp((hidden,), "tanh").build((2,), 1, key=KEY)
    return NetworkPosterior.of(network, likelihood or Gaussian(NOISE), prior or Normal(0.8), x, y)


@pytest.mark.long
@pytest.mark.parametrize("reparameterisation", ["local", "weights"])
def test_bbb_samples_a_subspace(reparameterisation, tmp_path):
    bbb = {"name": "bbb", "reparameterisation": reparameterisation, "batch_size": 20}
    options = {"chains": 1, "warmup": 20, "draws": 5, "start_steps": 250, "likelihood": "gaussian", "progress": False}
    model = {"name": "mlp", "hidden": (3,)}
    run = bnnzoo.sample(
        model, bbb, data=_rows(), stochastic="identified", test_fraction=0, out=tmp_path / "run.nc", **options
    )
    assert np.isfinite(run.posterior["posterior"][COORDINATES].values).all()


def _restricted(
    whole: NetworkPosterior, mode: np.ndarray, basis: np.ndarray, *, is_linearised: bool = False
) -> NetworkPosterior:
    """Return the posterior in the subspace mode + basis z."""
    num_own = whole.layout.dim - whole.layout.network.dim
    own = np.full(num_own, 0.1)
    fixed = {"mode": mode, "basis": basis, "centre": np.concatenate([np.zeros(basis.shape[1]), own])}
    network = SubspaceNetwork.restrict(
        whole.network_at(jnp.zeros(whole.layout.dim)), fixed, num_own=num_own, is_linearised=is_linearised
    )
    prior = InducedNormal.of_subspace(whole.prior, network)
    x, y = whole.data.x, whole.data.y
    return NetworkPosterior.of(
        network, whole.likelihood, prior, x, y, sampled=lambda leaf: leaf is network.z, likelihood_power=0.5
    )


def _subspace(whole: NetworkPosterior, count: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return a mode and a basis whose columns are orthogonal in units of the prior."""
    rng, dim = np.random.default_rng(seed), whole.layout.network.dim
    _, sd = normal_moments(whole.prior, whole.layout.network)
    columns = np.linalg.qr(rng.normal(size=(dim, count)))[0] * rng.uniform(0.1, 0.5, count)
    return rng.normal(size=dim).astype(np.float32), (sd[:, None] * columns).astype(np.float32)


# ---- values of the option ------------------------------------------------------------------------


def test_the_option_names_a_subspace_and_its_threshold():
    assert SubspaceChoice.from_option("identified") == ("identified", None)
    assert SubspaceChoice.from_option("linearised:2e3") == ("linearised", 2000.0)
    assert SubspaceChoice.from_option("last") is None
    assert not SubspaceChoice("identified", None).is_linearised


@pytest.mark.parametrize(
    "text", ["identified:", "identified:much", "linearised:-1", "identified:nan", "identified:inf"]
)
def test_a_wrong_threshold_is_wrong_usage(text, tmp_path, capsys):
    out = tmp_path / "run.nc"
    assert cli.run(["sample", "mlp", "mala", "--stochastic", text, "-o", str(out), "--quiet"]) == 2
    kind, _, value = text.partition(":")
    problem = f"the threshold after the colon must be a number >= 0 (got {value!r}), such as {kind}:1000"
    assert capsys.readouterr().err == f"bnnzoo: --stochastic: {kind}: {problem}\n"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["identified", "linearised"])
def test_of_a_large_network_the_directions_with_the_largest_curvature_are_sampled(kind, monkeypatch, tmp_path):
    """The limits are lowered here. The posterior has its mode at the centre of the subspace."""
    for name, value in {"EXACT_UP_TO": 5, "_MAX_ELEMENTS": 1000, "_MIN_LEADING": 3, "_MAX_LEADING": 3}.items():
        monkeypatch.setattr(directions, name, value)
    recipe = tiny.recipe("penalty", model="mlp", draws=5, warmup=5, stochastic=kind)
    notes = []
    run = entrances.run_recipe(
        recipe, out=tmp_path / "run.nc", observer=lambda p: notes.append(p.note) if p.phase == "note" else None
    )
    description = json.loads(run.attributes["subspace"])
    assert description["directions"] == 3
    assert not description["complete"]
    assert any("largest ratio of the posterior's curvature to that of the prior; they" in n for n in notes)
    groups = ({n: v.values for n, v in run.posterior[g].items()} for g in ("constant_data", "observed_data"))
    posterior = assembly.Problem.restored(run.attributes, *groups).network_posterior
    slope = jax.grad(posterior.log_density)(posterior.centre())
    assert float(jnp.sqrt(jnp.mean(slope**2))) < 0.3


def test_a_network_whose_directions_would_take_very_long_is_refused(monkeypatch, capsys, tmp_path):
    for name, value in {"EXACT_UP_TO": 5, "_MAX_ELEMENTS": 1000, "_LEADING_WORK": 1.0}.items():
        monkeypatch.setattr(directions, name, value)
    words = ["sample", "mlp", "penalty", "--stochastic", "identified", "--draws", "5", "--warmup", "5"]
    assert cli.run([*words, "-o", str(tmp_path / "run.nc")]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "--stochastic identified: finding the directions of " in message
    assert "would take very long; use --stochastic last" in message


def test_the_number_of_directions_of_a_large_network(monkeypatch):
    """A dense network of P parameters needs about 2 P operations for a prediction; a convolution needs more."""
    whole = _whole()
    operations = 2.0 * whole.layout.dim
    for work, expected in ((1e9, 256), (100.4 * operations * whole.num_data, 100), (15.0 * operations, 0)):
        monkeypatch.setattr(directions, "_LEADING_WORK", work)
        assert directions.num_leading(whole) == expected
    images = np.zeros((60, 1, 8, 8), np.float32)
    network = Cnn((4,)).build((1, 8, 8), 1, key=KEY)
    convolution = NetworkPosterior.of(network, Gaussian(NOISE), Normal(1.0), images, np.zeros((60, 1), np.float32))
    monkeypatch.setattr(directions, "_LEADING_WORK", 100.4 * 2 * convolution.layout.dim * 60)
    assert directions.num_leading(convolution) < 100


@pytest.mark.long
def test_weighted_rows_estimate_the_gauss_newton_matrix_of_all_rows():
    """Few rows have most of the curvature: a uniform subset of the same size has a far larger error."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2000, 2)).astype(np.float32)
    x[:20] *= 30
    network = Mlp((3,), "relu").build((2,), 1, key=KEY)
    posterior = NetworkPosterior.of(network, Gaussian(NOISE), Normal(1.0), x, x[:, :1])
    theta = np.asarray(posterior.position(network))
    scale = jnp.asarray(normal_moments(posterior.prior, posterior.layout.network)[1], jnp.float32)
    identity = jnp.eye(posterior.layout.dim)

    def matrix(part):
        return np.asarray(subspace_iteration._product(part, jnp.asarray(theta), scale, identity))

    def error(part):
        return np.linalg.norm(matrix(part) - exact) / np.linalg.norm(exact)

    exact = matrix(posterior)
    keys = jax.random.split(KEY, 10)
    weighted = [error(subspace_iteration.weighted_rows(posterior, theta, 200, key=key)) for key in keys]
    uniform = [error(directions.random_rows(posterior, 200, key=key)) for key in keys]
    assert np.mean(weighted) < 0.15
    assert np.mean(uniform) > 3 * np.mean(weighted)  # positive control
    matrices = [matrix(subspace_iteration.weighted_rows(posterior, theta, 200, key=key)) for key in keys]
    error_of_mean = np.linalg.norm(np.mean(matrices, 0) - exact) / np.linalg.norm(exact)
    assert error_of_mean < 0.6 * np.mean(weighted)  # without bias: about 0.3


@pytest.mark.parametrize(("prior", "name"), [(Laplace(), "laplace"), (Hierarchical(), "hierarchical")])
def test_a_prior_that_is_not_normal_is_refused(prior, name):
    with pytest.raises(UsageError, match=rf"subspaces .* need a normal prior with fixed scales \(got {name}\)"):
        normal_moments(prior, _whole().layout)


# ---- the posterior in the subspace ---------------------------------------------------------------


@pytest.mark.parametrize("prior", [Normal(0.8), FanIn(1.5)])
def test_the_induced_prior_is_the_prior_of_the_network_on_the_subspace(prior):
    """Log densities agree up to a constant, so their differences are compared."""
    whole = _whole(prior)
    mode, basis = _subspace(whole, 4)
    block = _restricted(whole, mode, basis)
    z = np.asarray(jax.random.normal(KEY, (6, 4)))
    induced = np.array([block.log_prior(jnp.asarray(row)) for row in z])
    full = np.array([whole.log_prior(jnp.asarray(mode + basis @ row)) for row in z])
    np.testing.assert_allclose(induced - induced[0], full - full[0], rtol=1e-4, atol=1e-4)
    # Positive control: the test detects a prior that is centred at the mode.
    centred = -np.sum(z**2 / np.asarray(block.prior.scale) ** 2, 1) / 2
    assert np.abs((centred - centred[0]) - (full - full[0])).max() > 0.1


def test_the_prior_of_a_learned_scale_is_that_of_the_whole_network():
    narrow = Moments({"likelihood_scale": np.array(-1.5)}, {"likelihood_scale": np.array(0.01)})
    whole = _whole(narrow, likelihood=Gaussian())
    block = _restricted(whole, *_subspace(whole, 4))
    draw = block.sample_prior(key=KEY)
    assert abs(draw[-1] + 1.5) < 0.1
    changes = []
    for posterior, theta in ((block, draw), (whole, jnp.append(jnp.zeros(whole.layout.network.dim), draw[-1]))):
        changes.append(posterior.log_prior(theta) - posterior.log_prior(theta.at[-1].add(0.02)))
    np.testing.assert_allclose(changes[0], changes[1], rtol=1e-3)


def test_the_likelihood_is_that_of_the_whole_network():
    whole = _whole(likelihood=Gaussian("learned"))
    mode, basis = _subspace(whole, 4)
    block = _restricted(whole, mode, basis)
    assert [b.name for b in block.layout.blocks] == [COORDINATES, "likelihood_scale"]
    z = jnp.asarray([0.3, -1.0, 2.0, 0.5, -0.2])
    theta = jnp.concatenate([mode + basis @ z[:4], z[4:]])
    rows = whole.all_rows()
    np.testing.assert_allclose(block.log_likelihood(z, rows), whole.log_likelihood(theta, rows), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(block.centre(), [0, 0, 0, 0, 0.1], rtol=1e-6)
    assert whole.centre() is None


def test_the_linearised_network_is_the_one_that_laplace_predicts_with():
    whole = _whole()
    mode, basis = _subspace(whole, 4)
    block = _restricted(whole, mode, basis, is_linearised=True)
    z = jnp.asarray([0.3, -1.0, 2.0, 0.5])
    x = jnp.asarray(whole.data.x)
    _, wanted = whole.predictive(jnp.concatenate([mode + basis @ z, jnp.asarray(mode)]), x)
    np.testing.assert_allclose(block.outputs(z, x), wanted, rtol=1e-5, atol=1e-6)
    nonlinear = _restricted(whole, mode, basis).outputs(z, x)
    assert np.abs(nonlinear - wanted).max() > 0.01


def test_a_subspace_that_does_not_fit_the_network_is_damage():
    whole = _whole()
    mode, basis = _subspace(whole, 4)
    with pytest.raises(DamagedError, match="does not fit the network"):
        _restricted(whole, mode[1:], basis)


# ---- the directions ------------------------------------------------------------------------------


def _line(columns: int = 4, rows: int = 300, seed: int = 2) -> tuple[NetworkPosterior, np.ndarray, np.ndarray]:
    """Return a linear regression with two equal inputs, and its exact mean and covariance."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns)).astype(np.float32)
    x[:, -1] = x[:, -2]
    y = (x @ rng.normal(size=(columns, 1)) + NOISE * rng.normal(size=(rows, 1))).astype(np.float32)
    posterior = NetworkPosterior.of(Linear().build((columns,), 1, key=KEY), Gaussian(NOISE), Normal(0.7), x, y)
    design = np.column_stack([x, np.ones(rows)]).astype(float)
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(columns + 1) / 0.7**2)
    return posterior, covariance @ design.T @ y[:, 0].astype(float) / NOISE**2, covariance


def test_the_directions_of_a_linear_model_are_its_exact_posterior():
    """All directions give the exact mean and covariance; without the undetermined direction they do not."""
    posterior, mean, covariance = _line()
    mode = directions.find_mode(posterior, np.zeros(5, np.float32), smallest=0.0, key=KEY)
    values = np.linalg.eigvalsh(0.7**2 * np.linalg.inv(covariance))
    np.testing.assert_allclose(mode.spectrum.values, values[::-1], rtol=1e-3)
    np.testing.assert_allclose(mode.theta, mean, atol=2e-3)
    assert mode.distance < 0.2
    everything = 0.7 * mode.spectrum.vectors * mode.spectrum.values**-0.5
    np.testing.assert_allclose(everything @ everything.T, covariance, rtol=2e-3, atol=1e-5)
    # The data determine only the sum of the weights of two equal inputs.
    assert mode.spectrum.values[-1] == pytest.approx(1, abs=1e-3)
    assert mode.spectrum.values[-2] > 100
    undetermined = mode.spectrum.vectors[:, -1]
    np.testing.assert_allclose(np.abs(undetermined), [0, 0, 0.5**0.5, 0.5**0.5, 0], atol=2e-3)
    determined = everything[:, :-1]
    assert np.abs(determined @ determined.T - covariance)[3, 3] > 0.1
    assert mode.spectrum.variance_fraction(4) == pytest.approx(1, abs=1e-4)
    assert mode.spectrum.variance_fraction(2) < 0.6


@pytest.mark.parametrize("likelihood", [Gaussian(NOISE), Bernoulli()], ids=["gaussian", "bernoulli"])
def test_subspace_iteration_finds_the_directions_of_the_exact_matrix(likelihood, monkeypatch):
    x, y = _rows()
    targets = (y[:, 0] > 0).astype(np.int32) if isinstance(likelihood, Bernoulli) else y
    network = Mlp((6,), "tanh").build((2,), 1, key=KEY)
    posterior = NetworkPosterior.of(network, likelihood, FanIn(1.0), x, targets)
    theta = np.asarray(posterior.position(network))
    exact = directions.compute_spectrum(posterior, theta, smallest=2.0, key=KEY)
    monkeypatch.setattr(directions, "EXACT_UP_TO", 0)
    monkeypatch.setattr(directions, "_MIN_DIRECTIONS", 4)
    iterated = directions.compute_spectrum(posterior, theta, smallest=2.0, key=KEY)
    count = int(np.sum(exact.values > 2))
    assert count >= 3
    np.testing.assert_allclose(iterated.values[:count], exact.values[:count], rtol=0.02)
    assert iterated.total == pytest.approx(exact.total, rel=0.1)
    eps = jnp.asarray(np.random.default_rng(3).normal(size=posterior.layout.dim), jnp.float32)
    _, sd = normal_moments(posterior.prior, posterior.layout.network)
    for damping in (0.0, 5.0):
        iterated_factor, exact_factor = (spectrum.factor(sd, damping, np.float32) for spectrum in (iterated, exact))
        forth = iterated_factor.correlate(iterated_factor.project(eps))
        np.testing.assert_allclose(forth, exact_factor.correlate(exact_factor.project(eps)), rtol=0.3, atol=0.05)


@pytest.mark.long
def test_a_damped_step_never_lowers_the_density_and_moves_the_likelihood_by_a_newton_step():
    whole = _whole(likelihood=Gaussian())
    _, sd = normal_moments(whole.prior, whole.layout.network)
    start = np.asarray(whole.sample_prior(key=jax.random.key(3)), np.float32)
    spectrum = directions.compute_spectrum(whole, start, smallest=0.0, key=KEY)
    own_sd = spectrum.own_sd
    curvature = -jax.hessian(whole.log_density)(jnp.asarray(start))[-1, -1]  # of the log of the noise scale
    assert own_sd[0] == pytest.approx(float(curvature) ** -0.5, rel=0.02)
    arrays = {"sd": sd, "own_sd": own_sd, "values": spectrum.values, "vectors": spectrum.vectors}
    arguments = {name: jnp.asarray(array, jnp.float32) for name, array in arrays.items()}
    slope = jax.grad(whole.log_density)(jnp.asarray(start))[-1]
    own_step = np.clip(own_sd[0] ** 2 * float(slope), -0.5, 0.5)
    for damping in (1e-3, 1.0, 1e4):
        position, next_damping, rise = damped.step_up(
            whole, jnp.asarray(start), damping=jnp.float32(damping), **arguments
        )
        gained = float(whole.log_density(position) - whole.log_density(jnp.asarray(start)))
        assert float(rise) == pytest.approx(gained, rel=1e-3, abs=1e-2)
        assert gained >= 0
        assert next_damping in damping * np.array([*damped._FACTORS, damped._RAISE], np.float32)
        assert float(position[-1] - start[-1]) == pytest.approx(own_step if gained else 0.0, rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_mode_is_found_from_a_poorly_trained_network_of_many_rows(seed):
    """Without the damped steps, the ascent ends 19 to 58 standard deviations from the mode."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20_000, 2)).astype(np.float32)
    y = (np.sin(2 * x[:, :1]) + NOISE * rng.normal(size=(len(x), 1))).astype(np.float32)
    network = Mlp((3,), "tanh").build((2,), 1, key=KEY)
    whole = NetworkPosterior.of(network, Gaussian(), Normal(1.0), x, y)
    start = np.asarray(whole.sample_prior(key=jax.random.key(seed)), np.float32)
    assert directions.find_mode(whole, start, smallest=100.0, key=KEY).distance < 1


# ---- the penalty in the subspace -----------------------------------------------------------------


@pytest.mark.long
def test_the_anchor_of_the_penalty_stays_at_the_mode():
    block = _restricted(_whole(), *_subspace(_whole(), 4))
    sampler = Penalty(control_variate="second", batch_size=5, num_batches=2)
    state = sampler.init(block, jnp.ones(4), num_warmup=100, key=KEY)
    settled = sampler.settle(block, state, final=False, key=KEY)
    for anchor in (state.anchor, settled.anchor):
        np.testing.assert_array_equal(anchor.point, np.zeros(4))
    precision = np.diag(np.asarray(block.prior.scale) ** -2.0) - 0.5 * np.asarray(state.anchor.hessian)
    is_concave = np.linalg.eigvalsh(precision).min() > 0
    wanted = precision if is_concave else control_variate._make_definite(jnp.asarray(precision, jnp.float32))
    np.testing.assert_allclose(settled.preconditioner.precision, wanted, rtol=1e-3, atol=1e-3)


def test_the_chains_share_one_anchor_at_the_mode():
    whole = _whole()
    posterior = _restricted(whole, *_subspace(whole, 4))
    sampler = Penalty(control_variate="second", proposal="hmc")

    def first_state(posterior: NetworkPosterior) -> Any:
        return sampler.init(posterior, jnp.ones(posterior.layout.dim), num_warmup=10, key=KEY)

    prepared = sampler.prepare(posterior)
    without_rows = eqx.tree_at(lambda p: (p.data.x, p.data.y), prepared, replace_fn=lambda a: np.full_like(a, np.nan))
    expected, state = first_state(posterior).anchor, first_state(without_rows).anchor
    assert np.all(np.isfinite(expected.hessian))
    assert np.array_equal(expected.point, posterior.centre())
    np.testing.assert_allclose(state.hessian, expected.hessian, rtol=1e-5)
    np.testing.assert_allclose(state.gradient, expected.gradient, rtol=1e-5)
    assert Penalty(control_variate="none").prepare(posterior) is posterior
    assert sampler.prepare(whole) is whole


@pytest.mark.long
@pytest.mark.parametrize("placement", ["parallel", "sequential"])
def test_the_loop_prepares_the_posterior_once(placement, monkeypatch):
    calls, prepare = [], programs.prepare
    monkeypatch.setattr(programs, "prepare", lambda *arguments: calls.append(1) or prepare(*arguments))
    whole = _whole()
    posterior = _restricted(whole, *_subspace(whole, 4, seed=3))
    sampler = Penalty(control_variate="second", proposal="hmc", batch_size=20, num_batches=2)
    how = {"keys": Keys.from_seed(0), "num_warmup": 4, "num_draws": 4, "placement": place_chains(placement, 2)}
    *_, last = chunks(posterior, sampler, np.zeros((2, posterior.layout.dim), np.float32), **how)
    assert len(calls) == 1
    anchors = last.carry.states.anchor
    np.testing.assert_array_equal(anchors.hessian[0], anchors.hessian[1])
    np.testing.assert_allclose(anchors.hessian[0], sampler.prepare(posterior).expansion.hessian, rtol=1e-5)


@pytest.mark.long
def test_the_outputs_of_rows_are_those_of_single_rows():
    for model, shape in ((Mlp((3,), "tanh"), (2,)), (Cnn((2,)), (1, 8, 8))):
        network = model.build(shape, 2, key=KEY)
        dim = network_layout(network).dim
        rng = np.random.default_rng(4)
        x = jnp.asarray(rng.normal(size=(7, *shape)), jnp.float32)
        fixed = {"mode": rng.normal(size=dim), "basis": 0.1 * rng.normal(size=(dim, 3)), "centre": np.zeros(3)}
        for is_linearised in (False, True):
            restricted = SubspaceNetwork.restrict(network, fixed, num_own=0, is_linearised=is_linearised)
            moved = eqx.tree_at(lambda n: n.z, restricted, jnp.asarray([0.5, -1.0, 2.0], jnp.float32))
            np.testing.assert_allclose(moved.outputs_of_rows(x).T, jax.vmap(moved)(x), rtol=1e-4, atol=1e-5)
            assert not np.allclose(moved.outputs_of_rows(x), restricted.outputs_of_rows(x), atol=0.1)


def test_where_the_density_is_not_concave_only_the_wrong_directions_of_the_preconditioner_change():
    """One direction is negative, and the curvature of the last coordinate is that of a noise scale of many rows."""
    curvature = np.diag([2.0, 1.0, -0.5, 1e6]).astype(np.float32)
    definite = np.asarray(control_variate._make_definite(jnp.asarray(curvature)))
    np.testing.assert_allclose(definite, np.diag([2.0, 1.0, 0.1, 1e6]), rtol=1e-4, atol=1e-4)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    mixed = curvature.copy()
    mixed[:3, :3] = turn @ curvature[:3, :3] @ turn.T
    values = np.linalg.eigvalsh(np.asarray(control_variate._make_definite(jnp.asarray(mixed))))
    assert values[0] > 0.05
    assert values[-1] == pytest.approx(1e6, rel=1e-3)


def test_directions_in_which_the_mode_is_a_saddle_are_left_out(monkeypatch):
    monkeypatch.setattr(subspace_start, "_predict", lambda *_: 1.0)
    monkeypatch.setattr(subspace_start, "_smallest_curvature", lambda _, sampled, __: -0.1 if sampled[2] else 1.0)
    whole = _whole()
    posterior = _restricted(whole, *_subspace(whole, 4))
    mode = directions.find_mode(whole, np.zeros(whole.layout.dim, np.float32), smallest=0.0, key=KEY)
    spectrum = mode.spectrum._replace(values=np.array([1e6, 1e5, 500.0, 200.0]))
    choose = functools.partial(subspace_start._choose_threshold, posterior, mode._replace(spectrum=spectrum), 100.0)
    assert choose(is_concave=True, key=KEY)[0] == 100.0
    assert 500 < choose(is_concave=False, key=KEY)[0] < 1e5


@pytest.mark.long
def test_the_smallest_curvature_is_that_of_the_hessian_in_the_sampled_directions():
    whole = _whole(hidden=6)
    posterior = _restricted(whole, *_subspace(whole, 12))
    hessian = -np.asarray(jax.hessian(posterior.log_density)(posterior.centre()))
    for count in (1, 5, 12):
        is_sampled = jnp.arange(12) < count
        smallest = np.linalg.eigvalsh(hessian[:count, :count])[0]
        np.testing.assert_allclose(
            subspace_start._smallest_curvature(posterior, is_sampled, KEY), smallest, rtol=0.01, atol=0.05
        )


def test_the_penalty_chooses_a_control_variate_only_where_the_mode_is_known(monkeypatch):
    whole = _whole()
    block = _restricted(whole, *_subspace(whole, 4))
    thetas = jnp.zeros((2, 4))
    assert Penalty().choose(block, thetas) == {}  # each step uses all rows, because they are few
    small = Penalty(batch_size=5)
    assert small.choose(block, thetas) == {"control_variate": "second", "proposal": "hmc"}
    assert Penalty(batch_size=5, proposal="langevin").choose(block, thetas) == {"control_variate": "second"}
    assert small.choose(whole, thetas) == {}
    # With automatic sizes, influential rows are drawn more often, unless there are too many rows to evaluate them.
    monkeypatch.setattr(batch_sizes, "FULL_BATCH_UP_TO", 5)
    automatic = {"control_variate": "second", "proposal": "hmc"}
    assert Penalty().choose(block, thetas) == automatic | {"sampling": "importance"}
    assert Penalty(sampling="disjoint").choose(block, thetas) == automatic
    monkeypatch.setattr(influence, "MANY_ROWS", 5)
    assert Penalty().choose(block, thetas) == automatic
    assert (small.order, Penalty(control_variate="first").order) == ("none", "first")


PROBLEMS = {
    "line": (Linear(), Gaussian(NOISE), {"step_size": 1e-3}),
    "line, hmc": (Linear(), Gaussian(NOISE), {"step_size": 3e-4, "proposal": "hmc"}),
    "classes, anchor": (Linear(), Bernoulli(), {"step_size": 0.1, "control_variate": "first"}),
    "classes, hmc, anchor": (Linear(), Bernoulli(), {"step_size": 0.03, "proposal": "hmc", "control_variate": "first"}),
    "network": (Mlp((4,), "tanh"), Gaussian(NOISE), {"step_size": 1e-3}),
    "network, classes": (Mlp((4,), "tanh"), Bernoulli(), {"step_size": 0.01}),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("line", "classes, hmc, anchor") else pytest.param(name, marks=pytest.mark.slow)
        for name in PROBLEMS
    ],
)
def test_the_rows_that_a_step_needs_predict_sigma2_within_a_factor_of_two(name):
    model, likelihood, fields = PROBLEMS[name]
    x, y = _rows(1000)
    targets = (y[:, 0] > 0).astype(np.int32) if isinstance(likelihood, Bernoulli) else y
    network = model.build((2,), 1, key=KEY)
    posterior = NetworkPosterior.of(network, likelihood, Normal(1.0), x, targets)
    sampler = Penalty(batch_size=50, num_batches=4, num_steps=3, **fields)
    start = directions.find_mode(posterior, np.asarray(posterior.position(network)), smallest=0.0, key=KEY).theta
    state = sampler.init(posterior, jnp.asarray(start), num_warmup=0, key=KEY)

    @jax.jit
    def run(state: Any) -> Any:
        return jax.lax.scan(lambda s, k: sampler.step(posterior, s, key=k), state, jax.random.split(KEY, 2000))

    state, stats = run(state)
    measured = float(np.mean(stats["sigma2"][1000:]))
    assert measured < 3  # within the range of a valid run
    # The value is averaged as over the chains of a run, because sigma2 varies by factors between proposals.
    look = jax.jit(lambda key: sampler.inspect(posterior, state, key=key)["rows_needed"])
    rows_needed = float(np.mean([look(key) for key in jax.random.split(KEY, 4)]))
    assert 0.5 < rows_needed / 200 / measured < 2
    remark = sampler.remark(posterior, {"rows_needed": rows_needed})
    assert remark.startswith(
        f"with {rows_needed:.3g} rows per step, drawn with replacement, the noise of the log acceptance ratio"
    )
    # Without a control variate, the remark suggests to sample a subspace.
    hopeless = sampler.remark(posterior, {"rows_needed": 1e6})
    can_restrict = "control_variate" not in fields
    assert ("mini-batches save no time" in hopeless, "[[stochastic=identified]]" in hopeless) == (True, can_restrict)


# ---- through files -------------------------------------------------------------------------------


def _options(kind: str, path: Any, **more: Any) -> dict[str, Any]:
    own = {"data": str(path), "stochastic": kind, "init": "map", "model.hidden": [3], "likelihood.scale": NOISE}
    return tiny.options("random-walk", **{**own, "chains": 2, "start_steps": 500, **more})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.npz"
    x, y = _rows()
    np.savez(path, x=x, y=y[:, 0])
    return path


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """Return a function that makes a run of each kind from Python, once."""

    @functools.cache
    def make(kind: str) -> bnnzoo.Run:
        out = tmp_path_factory.mktemp("run") / "run.nc"
        return bnnzoo.sample("mlp", "random-walk", out=out, **_options(kind, data))

    return make


@pytest.fixture(params=["identified:20", "linearised"])
def run(request, runs):
    return runs(request.param)


def _theta(run: bnnzoo.Run) -> tuple[np.ndarray, np.ndarray]:
    """Return the mode, and all parameters of every draw [chain, draw, parameter]."""
    tree = run.posterior
    mode, basis = (tree["constant_data"][f"fixed_{name}"].values.astype(float) for name in ("mode", "basis"))
    return mode, mode + tree["posterior"]["z"].values.astype(float) @ basis.T


def _by_hand(theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the outputs [..., row] of the perceptron 2-3-1 for parameters in the order of its leaves."""
    weight, bias = theta[..., :6].reshape(*theta.shape[:-1], 3, 2), theta[..., None, 6:9]
    hidden = np.tanh(x @ np.swapaxes(weight, -1, -2) + bias)
    return np.einsum("...rh,...h->...r", hidden, theta[..., 9:12]) + theta[..., 12:]


@pytest.mark.long
def test_the_file_holds_the_subspace_and_says_what_it_is(run):
    block = json.loads(run.attributes["subspace"])
    constant, z = run.posterior["constant_data"], run.posterior["posterior"]["z"]
    assert constant["fixed_mode"].shape == (13,)
    assert constant["fixed_basis"].shape == (13, block["directions"])
    assert z.shape == (2, tiny.DRAWS, block["directions"])
    assert block["parameters"] == 13
    if block["kind"] == "identified":
        assert (block["tau"], 0 < block["directions"] < 13) == (20, True)
        assert 0.5 < block["variance_fraction"] < 1
    else:
        assert (block["tau"], block["directions"]) == (0, 13)
    summary = run.summary()
    assert (summary["subspace"], summary["directions"]) == (block["kind"], block["directions"])
    assert run.diagnose()["variance_fraction"] == block["variance_fraction"]


@pytest.mark.long
def test_predictions_are_those_of_mode_and_directions(run):
    x = np.random.default_rng(1).normal(size=(7, 2)).astype(np.float32)
    again = bnnzoo.open(run.path)
    constant = again.posterior["constant_data"]
    inputs = (x - constant["x_mean"].values) / constant["x_sd"].values
    mode, theta = _theta(again)
    curves = _by_hand(theta, inputs)
    if json.loads(run.attributes["subspace"])["kind"] == "linearised":
        step = 1e-5
        slopes = [
            (_by_hand(mode + step * e, inputs) - _by_hand(mode - step * e, inputs)) / 2 / step for e in np.eye(13)
        ]
        curves = _by_hand(mode, inputs) + (theta - mode) @ np.stack(slopes)
    np.testing.assert_allclose(again.functions(x)[..., 0], curves, rtol=1e-3, atol=1e-4)
    assert np.isfinite(run.evaluate()["nll"])


def test_an_interrupted_run_resumes_to_the_same_bits_without_training(run, data, tmp_path, monkeypatch):
    seen: list[Any] = []
    kind = run.posterior.attrs["recipe"].split("stochastic: ")[1].split("\n")[0].strip("'\"")

    def stop() -> int:
        return signal.SIGINT if seen and seen[-1].phase == "sampling" else 0

    recipe = resolve("mlp", "random-walk", [], _options(kind, data))
    with pytest.raises(InterruptedRunError, match=r"continue: bnnzoo\.resume\("):
        entrances.run_recipe(recipe, out=tmp_path / "run.nc", observer=seen.append, stop=stop)
    notes = [p.note for p in seen if p.phase == "note"]
    assert any("directions in the parameter space of the" in note for note in notes)

    def train(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is trained again")

    monkeypatch.setattr(positions, "train", train)
    again = resuming.resume(tmp_path / "run.nc")
    for group in ("posterior", "sample_stats", "constant_data"):
        result, wanted = ({str(n): v.values for n, v in r.posterior[group].data_vars.items()} for r in (again, run))
        tiny.assert_same_bits(result, wanted)


@pytest.mark.slow
def test_the_penalty_resumes_with_its_anchor_at_the_mode(data, tmp_path):
    options = _options("identified:20", data, **{"sampler.batch_size": 20, "sampler.num_batches": 4})
    recipe, seen = resolve("mlp", "penalty", [], options), list[Any]()
    whole = entrances.run_recipe(recipe, out=tmp_path / "whole.nc")
    assert json.loads(whole.attributes["tuned"])["control_variate"] == "second"
    assert min(json.loads(whole.attributes["inspected"])["rows_needed"]) > 0
    stop = lambda: signal.SIGINT if seen and seen[-1].phase == "sampling" else 0  # noqa: E731
    with pytest.raises(InterruptedRunError):
        entrances.run_recipe(recipe, out=tmp_path / "run.nc", observer=seen.append, stop=stop)
    again = resuming.resume(tmp_path / "run.nc")
    for group in ("posterior", "sample_stats"):
        result, wanted = ({str(n): v.values for n, v in r.posterior[group].data_vars.items()} for r in (again, whole))
        tiny.assert_same_bits(result, wanted)


def test_a_threshold_above_all_directions_is_wrong_usage(data, tmp_path):
    recipe = resolve("mlp", "random-walk", [], _options("identified:1e9", data))
    with pytest.raises(
        UsageError, match=r'^stochastic="identified:1e\+09": no direction has .* curvature above 1e\+09 '
    ):
        entrances.run_recipe(recipe, out=tmp_path / "run.nc")


@pytest.mark.parametrize("sampler", ["mala", "mclmc", "mams"])
def test_a_problem_without_its_subspace_has_a_placeholder_that_every_sampler_accepts(sampler, data):
    problem = assembly.Problem.from_recipe(resolve("mlp", sampler, [], _options("identified", data)))
    assert problem.posterior.layout.dim == 2
    assert problem.with_all_sampled().posterior.layout.dim == 13


def test_the_placeholder_of_a_network_with_one_parameter_has_one_direction():
    network = eqx.nn.Linear(1, 1, use_bias=False, key=KEY)
    assert SubspaceNetwork.restrict(network, {}, num_own=0, is_linearised=False).z.shape == (1,)


def test_a_subspace_of_one_direction_is_refused_for_a_microcanonical_sampler(data, tmp_path, monkeypatch):
    whole = _whole()
    mode, basis = _subspace(whole, 1)
    values = {"mode": mode, "basis": basis, "centre": np.zeros(1, np.float32)}
    subspace = subspace_start.Subspace(values, "identified", 20.0, 13, 0.9, 0.0, 0.0, True, False)
    monkeypatch.setattr(subspace_start, "find_subspace", lambda *_, **__: subspace)
    recipe = resolve("mlp", "mclmc", [], _options("identified", data))
    with pytest.raises(UsageError, match=r"need at least 2 parameters \(got 1\); use the sampler nuts"):
        entrances.run_recipe(recipe, out=tmp_path / "run.nc")
    assert list(tmp_path.iterdir()) == []
