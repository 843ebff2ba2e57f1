"""Conditionals that are known: of a last layer under Gaussian noise and a normal prior, and of that noise's scale."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bnnzoo.posterior import AbstractPosterior, NetworkPosterior
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.samplers.kernel import choose, standard_normal

_ROWS = 1024
"""Rows whose derivatives are looked at together."""
_TRIES = 64
"""Proposals of a noise scale; after them it stays. How likely that is depends on the other parameters alone, so that
the conditional is kept all the same."""


class Conjugate(NamedTuple):
    """The places in theta of what is drawn from its conditional; empty where that is not known."""

    layer: slice
    scale: slice

    @property
    def any(self) -> bool:
        return self.layer.stop + self.scale.stop > 0

    def drawn(self, dim: int) -> Bool[np.ndarray, " dim"]:
        found = np.zeros(dim, bool)
        found[self.layer] = found[self.scale] = True
        return found


def conjugate(posterior: AbstractPosterior) -> Conjugate:
    """What is conjugate in the likelihood and the prior; that outputs are affine in the layer, `is_affine` tells."""
    nothing = slice(0, 0)
    if not isinstance(posterior, NetworkPosterior) or not isinstance(posterior.likelihood, Gaussian):
        return Conjugate(nothing, nothing)
    network, layer, scale = posterior.layout.network, nothing, nothing
    if network.blocks and isinstance(_prior(posterior, jnp.zeros(posterior.layout.dim)), dist.Normal):
        layers = network.layer_index()
        layer = slice(int(np.argmax(layers == layers[-1])), network.dim)
    for block in posterior.layout.blocks:
        if block.name == "likelihood_scale":
            scale = slice(block.start, block.stop)
    return Conjugate(layer, scale)


@eqx.filter_jit
def is_affine(posterior: AbstractPosterior) -> Bool[Array, ""]:
    """Whether outputs are affine in the parameters of the last layer: by a second difference, on a few rows."""
    layer = conjugate(posterior).layer
    key_theta, key_move = jax.random.split(jax.random.key(0))
    theta = posterior.start(key=key_theta)
    move = jnp.zeros_like(theta).at[layer].set(standard_normal(theta[layer], key=key_move))
    rows = jnp.asarray(posterior.take(jnp.arange(min(8, posterior.num_data))).x)
    there, middle, back = (posterior.outputs(theta + step * move, rows) for step in (1.0, 0.0, -1.0))
    size = 1 + jnp.max(jnp.abs(jnp.stack([there, middle, back])))
    return jnp.max(jnp.abs(there - 2 * middle + back)) < 1e-3 * size


def draw_layer(
    posterior: NetworkPosterior, layer: slice, theta: Float[Array, " dim"], *, key: PRNGKeyArray
) -> Float[Array, " dim"]:
    """theta with the layer w drawn from N(P^-1 b, P^-1), its conditional given the rest.

    With outputs f_i = f_i0 + J_i w, noise s and prior N(m, diag(v)):

        P = (beta / s^2) sum_i J_i' J_i + diag(1 / v),   b = (beta / s^2) sum_i J_i' (y_i - f_i0) + m / v
    """
    size, still = layer.stop - layer.start, theta.at[layer].set(0.0)

    def sums(batch: Any, weights: Float[Array, " batch"]) -> tuple[Array, Array]:
        x, y = jnp.asarray(batch.x), jnp.asarray(batch.y)

        def outputs(row: Array) -> tuple[Array, Array]:
            def of_layer(w: Float[Array, " layer"]) -> tuple[Array, Array]:
                found = posterior.outputs(still.at[layer].set(w), row[None])[0]
                return found, found

            return jax.jacrev(of_layer, has_aux=True)(jnp.zeros(size, theta.dtype))

        slopes, base = jax.vmap(outputs)(x)
        slopes, rest = slopes.reshape(-1, size), (y - base).reshape(-1)
        weights = jnp.repeat(weights, rest.shape[0] // weights.shape[0])
        return (slopes * weights[:, None]).T @ slopes, slopes.T @ (weights * rest)

    inner, outer = posterior.sum_over_data(sums, rows=_ROWS)
    prior: Any = _prior(posterior, theta)
    likelihood: Any = posterior.likelihood_at(theta)
    dim = posterior.layout.network.dim
    loc, sd = (jnp.broadcast_to(jnp.asarray(value, theta.dtype), (dim,))[layer] for value in (prior.loc, prior.scale))
    each = posterior.likelihood_power / likelihood.scale**2
    lower = jnp.linalg.cholesky(each * inner + jnp.diag(sd**-2))
    centre = cho_solve((lower, True), each * outer + loc / sd**2)
    noise = solve_triangular(lower, standard_normal(centre, key=key), lower=True, trans="T")
    return theta.at[layer].set(centre + noise)


def draw_scale(
    posterior: NetworkPosterior, scale: slice, theta: Float[Array, " dim"], *, key: PRNGKeyArray
) -> Float[Array, " dim"]:
    """theta with the noise scale s drawn from its conditional given the rest, by rejection.

    Under s ~ HalfNormal(1), and with S the sum of squared residuals of N T targets, the precision h = s^-2 has the
    density h^(beta N T / 2 - 3/2) exp(-beta S h / 2) exp(-1 / (2 h)): a draw of a gamma law is kept with probability
    exp(-s^2 / 2).
    """
    squares = posterior.over_data(
        lambda batch: jnp.sum((jnp.asarray(batch.y) - posterior.outputs(theta, jnp.asarray(batch.x))) ** 2, 1)
    )
    power = jnp.asarray(posterior.likelihood_power, theta.dtype)
    shape = (power * posterior.num_data * prod(posterior.data.y.shape[1:]) - 1) / 2
    rate = power * jnp.sum(squares) / 2

    def searching(carry: tuple[Array, Array, Array]) -> Bool[Array, ""]:
        tried, kept, _ = carry
        return ~kept & (tried < _TRIES)

    def propose(carry: tuple[Array, Array, Array]) -> tuple[Int[Array, ""], Bool[Array, ""], Float[Array, ""]]:
        tried, _, _ = carry
        key_gamma, key_keep = jax.random.split(jax.random.fold_in(key, tried))
        square = rate / jax.random.gamma(key_gamma, shape, dtype=theta.dtype)
        kept = jax.random.exponential(key_keep, dtype=theta.dtype) > square / 2
        return tried + 1, kept, jnp.log(square) / 2

    start = (jnp.zeros((), jnp.int32), jnp.zeros((), bool), jnp.zeros((), theta.dtype))
    _, kept, value = jax.lax.while_loop(searching, propose, start)
    return choose(kept, theta.at[scale].set(value), theta)


def _prior(posterior: NetworkPosterior, theta: Float[Array, " dim"]) -> dist.Distribution:
    """Of the network's parameters, given the prior's own."""
    network, values = posterior.layout.network, posterior.layout.unflatten(theta)
    own = {p.name: p.natural(values[f"prior_{p.name}"]) for p in posterior.prior.parameters(network)}
    return posterior.prior.with_parameters(own).distribution(network)
