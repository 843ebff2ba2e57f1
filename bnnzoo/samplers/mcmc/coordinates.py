"""The coordinates in which a Hamiltonian trajectory moves."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.last_layer import LastLayerCoordinates
from bnnzoo.samplers.kernel import density

WHITEN_LAST_LAYER = (
    "move in coordinates in which the last layer given the other parameters is about N(0, I); for networks with a "
    "dense last layer, and Gaussian or Student's t noise"
)
"""Description of the samplers' field `whiten_last_layer`."""


class Coordinates(eqx.Module):
    """The coordinates u: either theta itself, or those of `LastLayerCoordinates`."""

    posterior: AbstractPosterior
    last_layer: LastLayerCoordinates | None

    @classmethod
    def of(cls, posterior: AbstractPosterior, *, whiten_last_layer: bool) -> Coordinates:
        """Return coordinates with a whitened last layer if the posterior supports them, otherwise u = theta."""
        return cls(posterior, LastLayerCoordinates.of(posterior) if whiten_last_layer else None)

    def to_theta(self, u: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """Return theta and the log Jacobian log |det d theta / d u|."""
        return (u, jnp.zeros((), u.dtype)) if self.last_layer is None else self.last_layer.to_theta(u)

    def from_theta(self, theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return the coordinates of theta."""
        return theta if self.last_layer is None else self.last_layer.from_theta(theta)

    def gradient(self, u: Float[Array, " dim"]) -> Float[Array, " dim"] | None:
        """Return the gradient of the log density of u; None if u = theta."""
        return None if self.last_layer is None else self.last_layer.density(u)[2]

    def density(
        self, u: Float[Array, " dim"]
    ) -> tuple[Float[Array, ""], Float[Array, " num_data"], Float[Array, " dim"]]:
        """Return the log prior plus the log Jacobian, each datum's log-likelihood, and the gradient of the log density.

        The log density is that of u, and the gradient is with respect to u.
        """
        return density(self.posterior, u) if self.last_layer is None else self.last_layer.density(u)
