"""Coordinates in which the last layer of a network is whitened: the map, its Jacobian, the density and its limits."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bnnzoo.models import Linear, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.ard import Ard
from bnnzoo.posterior.last_layer import LastLayerCoordinates
from bnnzoo.posterior.likelihoods import Gaussian, Heteroscedastic, Mixture, StudentT
from bnnzoo.posterior.priors import FanIn

ROWS, TARGETS = 25, 2
LIKELIHOODS = [
    Gaussian().of_targets(TARGETS),
    StudentT().of_targets(TARGETS),
    Gaussian(0.3),
    Heteroscedastic(),
    Heteroscedastic(df=5.0),
]


# As one program each; otherwise every operation is compiled on its own for every posterior.
from_theta = eqx.filter_jit(lambda coordinates, theta: coordinates.from_theta(theta))
to_theta = eqx.filter_jit(lambda coordinates, u: coordinates.to_theta(u))
density = eqx.filter_jit(lambda coordinates, u: coordinates.density(u))
jacobian_of_map = eqx.filter_jit(lambda coordinates, u: jax.jacrev(lambda u: coordinates.to_theta(u)[0])(u))
sample_prior = eqx.filter_jit(lambda posterior, *, key: posterior.sample_prior(key=key))


def _posterior(model: Any = Mlp((4,)), likelihood: Any = None, prior: Any = FanIn(2.0), power: float = 1.0) -> Any:  # noqa: B008
    likelihood = Gaussian().of_targets(TARGETS) if likelihood is None else likelihood
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 3)).astype(np.float32), rng.normal(size=(ROWS, TARGETS)).astype(np.float32)
    network = model.build((3,), likelihood.num_outputs(TARGETS), key=jax.random.key(0))
    return NetworkPosterior.of(network, likelihood, prior, x, y, likelihood_power=power)


def _coordinates(posterior: Any) -> LastLayerCoordinates:
    coordinates = LastLayerCoordinates.of(posterior)
    assert coordinates is not None
    return coordinates


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "likelihood"),
    [*((Mlp((4,)), likelihood) for likelihood in LIKELIHOODS), *((Mlp(h), LIKELIHOODS[0]) for h in ((3, 4), ()))],
)
def test_the_density_is_that_of_theta_times_the_jacobian_of_the_map(model, likelihood):
    with jax.enable_x64(True):
        posterior = _posterior(model, likelihood, power=0.5)
        coordinates = _coordinates(posterior)
        theta = sample_prior(posterior, key=jax.random.key(3))
        u = from_theta(coordinates, theta)
        np.testing.assert_allclose(to_theta(coordinates, u)[0], theta, atol=1e-10)
        assert float(jnp.max(jnp.abs(u - theta))) > 0.1

        @eqx.filter_jit
        def log_density(u, posterior, coordinates):  # as arguments: XLA rounds arithmetic on constants differently
            theta, log_jacobian = coordinates.to_theta(u)
            return posterior.log_density(theta) + log_jacobian

        arrays = posterior, coordinates
        jacobian = jacobian_of_map(coordinates, u)
        assert float(to_theta(coordinates, u)[1]) == pytest.approx(float(jnp.linalg.slogdet(jacobian)[1]), abs=1e-9)
        log_prior, log_likelihoods, gradient = density(coordinates, u)
        assert float(log_prior + 0.5 * log_likelihoods.sum()) == pytest.approx(float(log_density(u, *arrays)), abs=1e-8)
        np.testing.assert_allclose(gradient, eqx.filter_jit(jax.grad(log_density))(u, *arrays), atol=1e-8)
        step = 1e-5 * jax.random.normal(jax.random.key(4), u.shape)
        change = log_density(u + step, *arrays) - log_density(u - step, *arrays)
        assert float(change) == pytest.approx(2 * float(gradient @ step), rel=1e-5)


@pytest.mark.parametrize("likelihood", [Gaussian().of_targets(TARGETS), Heteroscedastic()])
def test_with_gaussian_noise_and_this_prior_the_whitened_weights_are_standard_normal(likelihood):
    """The density of theta, as a function of the whitened weights alone, is that of N(0, I) up to a constant."""
    with jax.enable_x64(True):
        posterior = _posterior(likelihood=likelihood, prior=FanIn(2.0))
        coordinates = _coordinates(posterior)
        u = from_theta(coordinates, sample_prior(posterior, key=jax.random.key(1)))
        places = np.asarray(coordinates.indices)
        assert places.shape == (TARGETS, 5)

        @jax.jit
        def log_density(weights):
            return posterior.log_density(to_theta(coordinates, u.at[places].set(weights))[0])

        hessian = jax.jit(jax.jacrev(jax.grad(log_density)))(u[places])
        np.testing.assert_allclose(hessian.reshape(10, 10), -np.eye(10), atol=2e-3)
        gradient = density(coordinates, u.at[places].set(0.0))[2][places]
        np.testing.assert_allclose(gradient, 0.0, atol=2e-2)


class OwnNetwork(eqx.Module):
    """A user's network that can have a whitened last layer."""

    layers: tuple[eqx.nn.Linear, eqx.nn.Linear]
    ends_with_linear_layer: ClassVar[bool] = True

    def features(self, x: Any) -> Any:
        return jnp.sin(self.layers[0](x))

    def __call__(self, x: Any) -> Any:
        return self.layers[1](self.features(x))


def test_an_own_network_can_have_a_whitened_last_layer():
    keys = jax.random.split(jax.random.key(0))
    network = OwnNetwork((eqx.nn.Linear(3, 4, key=keys[0]), eqx.nn.Linear(4, TARGETS, key=keys[1])))
    data = _posterior().data
    posterior = NetworkPosterior.of(network, Gaussian(0.3), FanIn(2.0), data.x, data.y)
    coordinates, theta = _coordinates(posterior), sample_prior(posterior, key=jax.random.key(1))
    u = from_theta(coordinates, theta)
    log_prior, log_likelihoods, _ = density(coordinates, u)
    expected = eqx.filter_jit(posterior.log_density)(theta) + to_theta(coordinates, u)[1]
    assert float(log_prior + log_likelihoods.sum()) == pytest.approx(float(expected), rel=1e-4)


def test_rows_of_padding_do_not_change_the_map():
    posterior = _posterior()
    theta = sample_prior(posterior, key=jax.random.key(1))
    padded = posterior.in_bucket()
    assert len(padded.data.x) > ROWS
    difference = from_theta(_coordinates(posterior), theta) - from_theta(_coordinates(padded), theta)
    assert float(jnp.max(jnp.abs(difference))) < 1e-3


def test_a_posterior_with_other_noise_or_another_end_has_no_such_coordinates():
    assert LastLayerCoordinates.of(_posterior(likelihood=Mixture(1))) is None
    assert LastLayerCoordinates.of(_posterior(Linear())) is None
    assert LastLayerCoordinates.of(_posterior(Mlp((31,)), prior=Ard())) is not None
    assert LastLayerCoordinates.of(_posterior(Mlp((32,)))) is None
    network = Mlp((4,)).build((3,), TARGETS, key=jax.random.key(0))
    data = np.zeros((ROWS, 3), np.float32), np.zeros((ROWS, TARGETS), np.float32)
    fixed_end = NetworkPosterior.of(
        network, Gaussian(), FanIn(), *data, sampled=lambda leaf: leaf is network.layers[0].weight
    )
    assert LastLayerCoordinates.of(fixed_end) is None
    many = eqx.tree_at(
        lambda p: p.data, _posterior(), type(_posterior().data)(*(np.zeros((500_000, k), np.float32) for k in (3, 2)))
    )
    assert LastLayerCoordinates.of(many) is None


@pytest.mark.parametrize(("scale", "size"), [(1e-4, 1.0), (1e4, 1.0), (0.1, 1e4)])
def test_extreme_scales_give_finite_coordinates(scale, size):
    """Noise scales, and features of `relu` for inputs of this size."""
    posterior = _posterior(Mlp((20,), activation="relu"), likelihood=Gaussian(scale))
    data = posterior.data._replace(x=size * posterior.data.x)
    coordinates = _coordinates(eqx.tree_at(lambda p: p.data, posterior, data))
    theta = sample_prior(posterior, key=jax.random.key(2))
    u = from_theta(coordinates, theta)
    assert all(bool(jnp.isfinite(part).all()) for part in (u, *density(coordinates, u)))
