"""Draws of the last layer and of the noise scales from their conditional distributions given all other parameters.

The conditionals are known for Gaussian noise. The conditional of the last layer also requires a normal prior.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bnnzoo.posterior import AbstractPosterior, NetworkPosterior
from bnnzoo.posterior.affine import is_affine_along
from bnnzoo.posterior.likelihoods import Gaussian, half_normal_of_log
from bnnzoo.samplers.common.triangle import factor_over_data, join_factors
from bnnzoo.samplers.kernel import standard_normal
from bnnzoo.samplers.mcmc.log_scale import draw_log_scale

_SCALE = "likelihood_scale"
"""Name of the block of the noise scales."""
_ROWS = 1024
"""Number of rows whose derivatives are computed together."""


class Conjugate(NamedTuple):
    """Slices of theta that are drawn from their conditionals. A slice is empty if the conditional is unknown."""

    layer: slice
    scale: slice

    @property
    def is_any_known(self) -> bool:
        """Whether at least one conditional is known."""
        return self.layer.stop + self.scale.stop > 0

    def mask(self, dim: int) -> Bool[np.ndarray, " dim"]:
        """Return a mask of the parameters that are drawn from their conditionals."""
        mask = np.zeros(dim, bool)
        mask[self.layer] = mask[self.scale] = True
        return mask


def conjugate(posterior: AbstractPosterior) -> Conjugate:
    """Return the parameters whose conditionals are known for this likelihood and this prior.

    The conditional of the last layer also requires that the outputs are affine in the parameters of this layer. This
    function does not test the requirement: `is_affine` does.
    """
    no_parameters = slice(0, 0)
    if not isinstance(posterior, NetworkPosterior) or not isinstance(posterior.likelihood, Gaussian):
        return Conjugate(no_parameters, no_parameters)
    network, layer, scale = posterior.layout.network, no_parameters, no_parameters
    if network.blocks and isinstance(_prior(posterior, jnp.zeros(posterior.layout.dim)), dist.Normal):
        layers = network.layer_index()
        layer = slice(int(np.argmax(layers == layers[-1])), network.dim)
    parameter = posterior.own_parameters().get(_SCALE)
    # With `prior_from`, the scale has the moments of an earlier run, and its conditional is unknown.
    if parameter is not None and parameter.log_prior is half_normal_of_log:
        scale = next(slice(block.start, block.stop) for block in posterior.layout.blocks if block.name == _SCALE)
    return Conjugate(layer, scale)


@eqx.filter_jit
def is_affine(posterior: NetworkPosterior) -> Bool[Array, ""]:
    """Whether the outputs are affine in the last layer's parameters, tested by a second difference on a few rows."""
    layer = conjugate(posterior).layer
    key_theta, key_move = jax.random.split(jax.random.key(0))
    theta = posterior.start(key=key_theta)
    move = jnp.zeros_like(theta).at[layer].set(standard_normal(theta[layer], key=key_move))
    rows = jnp.asarray(posterior.take(jnp.arange(min(8, posterior.num_data))).x)
    return is_affine_along(posterior, theta, move, rows)


def draw_layer(
    posterior: NetworkPosterior, layer: slice, theta: Float[Array, " dim"], *, key: PRNGKeyArray
) -> Float[Array, " dim"]:
    """Return theta with new parameters w of the last layer, drawn from their conditional N(P^-1 b, P^-1).

    Let f_it = f_it0 + J_it w be output t of datum i (f_it0 at w = 0, J_it the derivative), y_it its target, s_t the
    noise scale of target t, N(m, diag(v)) the prior of w, and beta the likelihood power. Then

        P = beta sum_it J_it' J_it / s_t^2 + diag(1 / v),   b = beta sum_it J_it' (y_it - f_it0) / s_t^2 + m / v

    P is never computed. It equals T'T, where T is the triangular factor of a matrix whose rows are
    J_it sqrt(beta) / s_t and the rows of diag(1 / sqrt(v)). The draw is w + T^-1 (z + eps), where w is the present
    value and eps ~ N(0, I). The residuals y - f and m - w at the present w are multiplied by the same factors as the
    rows. The Householder reflections that give T then turn these residuals into z.
    """
    size, current = layer.stop - layer.start, theta[layer]
    likelihood: Any = posterior.likelihood_at(theta)
    root = jnp.sqrt(jnp.asarray(posterior.likelihood_power, theta.dtype)) / likelihood.scale

    def rows(batch: Any, weights: Float[Array, " batch"]) -> Float[Array, "row column"]:
        def outputs(row: Array) -> tuple[Array, Array]:
            def layer_outputs(w: Float[Array, " layer"]) -> tuple[Array, Array]:
                outputs_at_layer = posterior.outputs(theta.at[layer].set(w), row[None])[0]
                return outputs_at_layer, outputs_at_layer

            return jax.jacrev(layer_outputs, has_aux=True)(current)

        slopes, base = jax.vmap(outputs)(jnp.asarray(batch.x))
        augmented = jnp.concatenate([slopes, (jnp.asarray(batch.y) - base)[..., None]], -1)
        scale = weights[:, None] * jnp.broadcast_to(root, base.shape)
        return (augmented * scale[..., None]).reshape(-1, size + 1)

    prior: Any = _prior(posterior, theta)
    dim = posterior.layout.network.dim
    loc, sd = (jnp.broadcast_to(jnp.asarray(value, theta.dtype), (dim,))[layer] for value in (prior.loc, prior.scale))
    prior_rows = jnp.concatenate([jnp.diag(1 / sd), ((loc - current) / sd)[:, None]], 1)
    upper = join_factors(factor_over_data(posterior, rows, size=max(_ROWS, size)), prior_rows)
    eps = standard_normal(current, key=key)
    return theta.at[layer].add(solve_triangular(upper[:size, :size], upper[:size, size] + eps))


def draw_scale(
    posterior: NetworkPosterior, scale: slice, theta: Float[Array, " dim"], *, key: PRNGKeyArray
) -> Float[Array, " dim"]:
    """Return theta with each noise scale s drawn from its conditional distribution.

    The prior is s ~ HalfNormal(1). Let S be the sum of the K squared residuals whose noise scale is s, and beta the
    likelihood power. (If every target has its own scale, K is the number of data.) Then u = log s has a density
    proportional to exp(-(beta K - 1) u - beta S e^(-2u) / 2 - e^(2u) / 2). `draw_log_scale` draws from it. Given the
    other parameters, the scales of different targets are independent. A scale that cannot be drawn is NaN.
    """
    number = scale.stop - scale.start

    def squares(batch: Any) -> Float[Array, "batch scale"]:
        residuals = jnp.asarray(batch.y) - posterior.outputs(theta, jnp.asarray(batch.x))
        return jnp.sum(residuals.reshape(len(residuals), number, -1) ** 2, 2)

    likelihood_power = jnp.asarray(posterior.likelihood_power, theta.dtype)
    power = likelihood_power * posterior.num_data * (prod(posterior.data.y.shape[1:]) // number) - 1
    rates = likelihood_power * jnp.sum(posterior.over_data(squares), 0) / 2

    def draw(rate: Float[Array, ""], key: PRNGKeyArray) -> Float[Array, ""]:
        return draw_log_scale(power, rate, key=key)[0]

    keys = jax.random.split(key, number) if number > 1 else key[None]
    return theta.at[scale].set(jax.vmap(draw)(rates, keys))


def _prior(posterior: NetworkPosterior, theta: Float[Array, " dim"]) -> dist.Distribution:
    """Return the prior of the network's parameters. If this prior has unknown scales, they are taken from theta."""
    return posterior.prior_at(posterior.layout.unflatten(theta)).distribution(posterior.layout.network)
