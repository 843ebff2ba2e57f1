"""The coordinates in which a Hamiltonian trajectory moves."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.input_weights import InputWeightCoordinates
from bnnzoo.posterior.last_layer import LastLayerCoordinates
from bnnzoo.samplers.kernel import density

WHITEN_LAST_LAYER = (
    "move in coordinates in which the last layer has a distribution near N(0, I) given the other parameters; only for "
    "networks with a dense last layer, and for Gaussian or Student's t noise"
)
"""Description of the samplers' field `whiten_last_layer`."""


class Coordinates(eqx.Module):
    """The map between theta and the coordinates u of a trajectory.

    `InputWeightCoordinates` maps the weights of the inputs. `LastLayerCoordinates` maps the last layer. Each map is
    used only if the posterior supports it. All other parameters are the same in u and in theta. The map of the last
    layer is a function of the other parameters of theta.
    """

    posterior: AbstractPosterior
    input_weights: InputWeightCoordinates | None
    last_layer: LastLayerCoordinates | None

    @classmethod
    def of(cls, posterior: AbstractPosterior, *, whiten_last_layer: bool) -> Coordinates:
        """Return the map between theta and u that the posterior supports.

        If the maps of the input weights and of the last layer would change the same parameters, only the last layer is
        mapped.
        """
        input_weights = InputWeightCoordinates.of(posterior)
        last_layer = LastLayerCoordinates.of(posterior) if whiten_last_layer else None
        if input_weights is not None and last_layer is not None and input_weights.start in np.ravel(last_layer.indices):
            input_weights = None
        return cls(posterior, input_weights, last_layer)

    def to_theta(self, u: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """Return theta and the log Jacobian log |det d theta / d u|."""
        theta, log_jacobian = u, jnp.zeros((), u.dtype)
        for coordinates in (self.input_weights, self.last_layer):
            if coordinates is not None:
                theta, added_log_jacobian = coordinates.to_theta(theta)
                log_jacobian += added_log_jacobian
        return theta, log_jacobian

    def from_theta(self, theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return the coordinates u of theta."""
        u = theta
        for coordinates in (self.last_layer, self.input_weights):
            u = u if coordinates is None else coordinates.from_theta(u)
        return u

    def gradient(self, u: Float[Array, " dim"]) -> Float[Array, " dim"] | None:
        """Return the gradient of the log density of u; None if u and theta are always equal."""
        return None if self.input_weights is None and self.last_layer is None else self.density(u)[2]

    def density(
        self, u: Float[Array, " dim"]
    ) -> tuple[Float[Array, ""], Float[Array, " num_data"], Float[Array, " dim"]]:
        """Return the log prior plus the log Jacobian, each datum's log-likelihood, and the gradient of the log density.

        The log density is that of u, and the gradient is with respect to u.
        """
        if self.input_weights is None:
            return self._density_given_input_weights(u)
        (u, log_jacobian), pull_back = jax.vjp(self.input_weights.to_theta, u)
        log_prior, log_likelihoods, gradient = self._density_given_input_weights(u)
        (gradient,) = pull_back((gradient, jnp.ones_like(log_jacobian)))
        return log_prior + log_jacobian, log_likelihoods, gradient

    def _density_given_input_weights(
        self, u: Float[Array, " dim"]
    ) -> tuple[Float[Array, ""], Float[Array, " num_data"], Float[Array, " dim"]]:
        return density(self.posterior, u) if self.last_layer is None else self.last_layer.density(u)
