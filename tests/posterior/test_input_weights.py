"""Coordinates in which the weights of an input have no heavy tails: the map and its density."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bnnzoo.models import Linear, Mlp
from bnnzoo.posterior.ard import Ard
from bnnzoo.posterior.input_weights import InputWeightCoordinates
from bnnzoo.posterior.likelihoods import Gaussian, Heteroscedastic
from bnnzoo.posterior.network import NetworkPosterior
from bnnzoo.posterior.priors import FanIn
from bnnzoo.samplers.mcmc.coordinates import Coordinates

UNITS, INPUTS, ROWS = 5, 3, 25

# As one program each; otherwise every operation is compiled on its own for every posterior.
to_theta = eqx.filter_jit(lambda coordinates, u: coordinates.to_theta(u))
from_theta = eqx.filter_jit(lambda coordinates, theta: coordinates.from_theta(theta))
density = eqx.filter_jit(lambda coordinates, u: coordinates.density(u))
jacobian_of_map = eqx.filter_jit(lambda coordinates, u: jax.jacrev(lambda u: coordinates.to_theta(u)[0])(u))


def _posterior(model: Any = Mlp((UNITS,)), prior: Any = Ard(df=2.0, input_scale=0.2), likelihood: Any = None) -> Any:  # noqa: B008
    likelihood = likelihood or Heteroscedastic()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, INPUTS)), rng.normal(size=(ROWS, 1))
    network = model.build((INPUTS,), likelihood.num_outputs(1), key=jax.random.key(0))
    return NetworkPosterior.of(network, likelihood, prior, x, y)


@pytest.mark.long
@pytest.mark.parametrize("size", [1e-9, 0.03, 1.0, 60.0])
@pytest.mark.parametrize("whitens", [False, True])
def test_the_density_is_that_of_theta_times_the_jacobian_of_the_map(size, whitens):
    with jax.enable_x64(True):
        posterior = _posterior()
        coordinates = Coordinates.of(posterior, whiten_last_layer=whitens)
        theta = jax.random.normal(jax.random.key(3), (posterior.layout.dim,)) * 0.5
        theta = theta.at[: UNITS * INPUTS].multiply(size)
        u = from_theta(coordinates, theta)
        same_theta, log_jacobian = to_theta(coordinates, u)
        np.testing.assert_allclose(same_theta, theta, rtol=1e-9, atol=1e-12)
        _, expected = np.linalg.slogdet(jacobian_of_map(coordinates, u))
        np.testing.assert_allclose(log_jacobian, expected, rtol=1e-8)
        log_prior, values, gradient = density(coordinates, u)
        np.testing.assert_allclose(log_prior + values.sum(), posterior.log_density(theta) + expected, rtol=1e-9)

        def log_density(u):
            theta, log_jacobian = coordinates.to_theta(u)
            return posterior.log_density(theta) + log_jacobian

        np.testing.assert_allclose(gradient, eqx.filter_jit(jax.grad(log_density))(u), rtol=1e-6, atol=1e-8)


def test_the_norm_of_u_grows_only_with_the_logarithm_of_a_large_norm_of_the_weights():
    coordinates = InputWeightCoordinates.of(_posterior())
    assert coordinates is not None
    weights = jnp.zeros(_posterior().layout.dim).at[:INPUTS].set(jnp.asarray([1e-3, 1e2, 1e4]))
    u = np.asarray(coordinates.from_theta(weights))[:INPUTS]
    root = UNITS**0.5
    # sqrt(n) asinh(r / (s sqrt(n))), with only one weight per input
    np.testing.assert_allclose(u, root * np.arcsinh(np.array([1e-3, 1e2, 1e4]) / (0.2 * root)), rtol=1e-5)
    assert u[2] - u[1] == pytest.approx(root * np.log(100), rel=1e-3)


def test_the_gradient_is_finite_where_all_weights_of_an_input_are_zero():
    posterior = _posterior()
    coordinates = Coordinates.of(posterior, whiten_last_layer=True)
    log_prior, values, gradient = density(coordinates, jnp.zeros(posterior.layout.dim))
    for derivative in (log_prior, values, gradient):
        assert np.isfinite(derivative).all()


def test_only_a_network_with_sampled_input_weights_and_the_prior_ard_has_these_coordinates():
    assert InputWeightCoordinates.of(_posterior()) is not None
    assert InputWeightCoordinates.of(_posterior(Linear())) is not None
    assert InputWeightCoordinates.of(_posterior(prior=FanIn(2.0))) is None
    posterior = _posterior(likelihood=Gaussian())
    last = NetworkPosterior.of(
        Mlp((UNITS,)).build((INPUTS,), 1, key=jax.random.key(0)),
        Gaussian(),
        Ard(),
        posterior.data.x,
        posterior.data.y,
        sampled=lambda leaf: False,
    )
    assert InputWeightCoordinates.of(last) is None


def test_a_network_with_one_layer_is_whitened_instead():
    posterior = _posterior(Mlp(()))
    both = Coordinates.of(posterior, whiten_last_layer=True)
    assert (both.input_weights, both.last_layer is None) == (None, False)
    one = Coordinates.of(posterior, whiten_last_layer=False)
    assert (one.input_weights is None, one.last_layer) == (False, None)
