"""Damped Gauss-Newton ascent (Levenberg 1944, Marquardt 1963) of the log posterior density of a network.

An undamped step is too long in directions that the data hardly determine. In these directions the change of the
curvature along the step is much larger than the Gauss-Newton matrix. The damping adds a constant to the curvature of
all directions.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bnnzoo.posterior import NetworkPosterior

_FIRST_DAMPING = 1e-3
"""Damping of the first step, relative to the largest curvature."""
_FACTORS = (1 / 16, 1 / 4, 1.0, 4.0, 16.0)
"""Factors by which a step multiplies the damping. The step tries all factors. The damping with the largest density is
used, and the next step begins with it."""
_MAX_OWN = 0.5
"""Largest change in a step of a parameter of the likelihood, such as the logarithm of the noise scale."""
_RAISE = 64.0
"""Factor by which the damping is multiplied after a step in which none of the dampings increases the density."""


def first_damping(values: Float[Array, " direction"]) -> Float[Array, ""]:
    """Return the damping of the first step. `values` are the curvatures in units of the prior, largest first."""
    return _FIRST_DAMPING * values[0]


@eqx.filter_jit
def step_up(
    posterior: NetworkPosterior,
    theta: Float[Array, " dim"],
    *,
    sd: Float[Array, " parameter"],
    own_sd: Float[Array, " own"],
    values: Float[Array, " direction"],
    vectors: Float[Array, "parameter direction"],
    damping: Float[Array, ""],
) -> tuple[Float[Array, " dim"], Float[Array, ""], Float[Array, ""]]:
    """Make one Gauss-Newton step. The step is damped for the network's parameters only, not for the likelihood's.

    Args:
        posterior: the posterior of the whole network.
        theta: the position.
        sd: prior standard deviations of the network's parameters.
        own_sd: posterior standard deviations of the parameters of the likelihood.
        values: curvatures of the log posterior density along the directions, in units of the prior.
        vectors: the directions. In directions orthogonal to all of them, the curvature is that of the prior.
        damping: damping of the previous step. The step adds this number, times one of `_FACTORS`, to the curvatures.

    Returns:
        The new position, the damping of the next step, and the increase of the log density. If no damping increases the
        density, the position is unchanged and the increase is 0.
    """
    size = len(sd)
    gradient = jax.grad(posterior.log_density)(theta)
    slope = sd * gradient[:size]
    # Most parameters of the likelihood are logarithms. Their Newton step can be far too long, but its sign is right.
    own_step = jnp.clip(own_sd**2 * gradient[size:], -_MAX_OWN, _MAX_OWN)
    along = vectors.T @ slope
    across = slope - vectors @ along
    log_likelihoods, log_prior = posterior.log_likelihoods(theta), posterior.log_prior(theta)

    def position_with(damping: Float[Array, ""]) -> Float[Array, " dim"]:
        step = vectors @ (along / (values + damping)) + across / (1 + damping)
        return theta + jnp.concatenate([sd * step, own_step])

    def rise(new_theta: Float[Array, " dim"]) -> Float[Array, ""]:
        change = jnp.sum(posterior.log_likelihoods(new_theta) - log_likelihoods)
        return posterior.log_prior(new_theta) - log_prior + posterior.likelihood_power * change

    dampings = damping * jnp.asarray(_FACTORS, damping.dtype)
    rises = jnp.nan_to_num(jax.lax.map(lambda value: rise(position_with(value)), dampings), nan=-jnp.inf)
    best = jnp.argmax(rises)
    has_risen = rises[best] > 0
    new_theta = jnp.where(has_risen, position_with(dampings[best]), theta)
    return new_theta, jnp.where(has_risen, dampings[best], damping * _RAISE), jnp.maximum(rises[best], 0.0)
