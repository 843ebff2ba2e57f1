"""Coordinates u in which the weights of an input have no heavy tails, for the prior `ard`.

Under `ard`, the n weights w of an input have a multivariate Student-t distribution with the scale s. Their norm r = |w|
can be many times as large as s, and the posterior of log r is often wide. A trajectory whose steps suit small r then
moves slowly where r is large. A sampler draws from the density of v instead:

    w = s v sinh(x) / x,  x = |v| / sqrt(n).

For small r, w is about s v. For large r, log r grows linearly with |v|, so the heavy tails become light. Johnson and
Geyer (2012, Annals of Statistics 40, doi 10.1214/12-AOS1048) use such a map for random-walk Metropolis.

The map is exact, because the density contains its Jacobian: dr / d|v| = s cosh(x) along v, and s sinh(x) / x in the
n - 1 directions orthogonal to v.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bnnzoo.posterior.ard import Ard, input_columns
from bnnzoo.posterior.base import AbstractPosterior
from bnnzoo.posterior.network import NetworkPosterior


class InputWeightCoordinates(eqx.Module):
    """The map between the parameters theta and the coordinates u. Only the weights of the inputs change."""

    scale: Float[Array, ""]
    """The scale s of the Student-t distribution."""
    start: int = eqx.field(static=True)
    """Index in theta of the first of all weights of the inputs."""
    shape: tuple[int, int] = eqx.field(static=True)
    """Number of units of the first layer, and number of inputs."""

    @classmethod
    def of(cls, posterior: AbstractPosterior) -> InputWeightCoordinates | None:
        """Return the map for a posterior; None if its prior is not `ard`, or if no weight of an input is sampled."""
        if not isinstance(posterior, NetworkPosterior) or not isinstance(posterior.prior, Ard):
            return None
        place, shape = input_columns(posterior.layout.network)
        if not all(shape):
            return None
        return cls(jnp.asarray(posterior.prior.input_scale, posterior.dtype), place.start, (shape[0], shape[1]))

    def to_theta(self, u: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """Return theta and log |det d theta / d u|."""
        v, num_units = self._columns(u), self.shape[0]
        # The tiny number keeps the derivative of the norm finite at v = 0.
        tiny = jnp.finfo(u.dtype).tiny ** 0.5
        x = jnp.sqrt((jnp.sum(v**2, 0) + tiny) / num_units)
        log_sinhc = _log_sinhc(x)
        log_cosh = x + jnp.log1p(jnp.exp(-2 * x)) - jnp.log(2.0)
        log_jacobian = jnp.sum(log_cosh + (num_units - 1) * log_sinhc) + v.size * jnp.log(self.scale)
        return self._with_columns(u, self.scale * v * jnp.exp(log_sinhc)), log_jacobian

    def from_theta(self, theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return the coordinates u of theta."""
        w, num_units = self._columns(theta) / self.scale, self.shape[0]
        x = jnp.arcsinh(jnp.sqrt(jnp.sum(w**2, 0) / num_units))
        return self._with_columns(theta, w * jnp.exp(-_log_sinhc(x)))

    def _columns(self, vector: Float[Array, " dim"]) -> Float[Array, "unit input"]:
        return jax.lax.dynamic_slice(vector, (self.start,), (self.shape[0] * self.shape[1],)).reshape(self.shape)

    def _with_columns(self, vector: Float[Array, " dim"], columns: Float[Array, "unit input"]) -> Float[Array, " dim"]:
        return jax.lax.dynamic_update_slice(vector, columns.ravel(), (self.start,))


def _log_sinhc(x: Float[Array, " input"]) -> Float[Array, " input"]:
    """Return log(sinh(x) / x) for x >= 0, without overflow, and 0 at x = 0."""
    # Below the limit the series has a relative error below the rounding error of single precision.
    is_small = x < 0.1
    large = jnp.where(is_small, 1.0, x)
    return jnp.where(is_small, x**2 / 6 - x**4 / 180, large + jnp.log(-jnp.expm1(-2 * large) / (2 * large)))
