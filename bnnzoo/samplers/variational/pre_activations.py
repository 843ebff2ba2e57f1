"""Local reparameterisation: sampling of a dense layer's pre-activations instead of its weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from bnnzoo.posterior import NetworkPosterior


class _Dense(eqx.Module):
    """A dense layer with independent Gaussian parameters. A call draws its outputs, which are Gaussian too."""

    mean: eqx.nn.Linear
    scale: eqx.nn.Linear
    key: PRNGKeyArray

    def __call__(self, x: Float[Array, " feature"], *, key: PRNGKeyArray | None = None) -> Float[Array, " output"]:
        del key
        mean = self.mean(x)
        variance = self.scale.weight**2 @ x**2
        if self.scale.bias is not None:
            variance = variance + self.scale.bias**2
        # The floor keeps the gradient of the square root finite if all inputs are 0.
        scale = jnp.sqrt(jnp.maximum(variance, jnp.finfo(variance.dtype).tiny))
        return mean + scale * jax.random.normal(self.key, mean.shape, mean.dtype)


def outputs(
    posterior: NetworkPosterior,
    mean: Float[Array, " dim"],
    scale: Float[Array, " dim"],
    draw: Float[Array, " dim"],
    x: Shaped[Array, "batch ..."],
    *,
    key: PRNGKeyArray,
) -> Float[Array, "batch output"]:
    """Return outputs of the network for theta ~ N(mean, diag(scale^2)), with independent noise for each datum.

    Kingma, Salimans and Welling 2015. In every `eqx.nn.Linear` the pre-activations are drawn for each datum, instead of
    the weights. The pre-activations are the outputs of the layer. For all other parameters the whole batch uses the
    values in `draw`. The distribution of one datum's outputs is exact if the network uses each layer once per datum.
    """
    # Parameters that are not sampled have scale 0.
    zero_network = jax.tree.map(
        lambda leaf: jnp.zeros_like(leaf) if eqx.is_inexact_array(leaf) else leaf, posterior.network
    )
    scale_network = dataclasses.replace(posterior, network=zero_network).network_at(scale)
    parts, tree = jax.tree.flatten(posterior.network_at(draw), is_leaf=_is_dense)
    layer_means, layer_scales = (
        jax.tree.leaves(n, is_leaf=_is_dense) for n in (posterior.network_at(mean), scale_network)
    )

    def network_output(x: Array, key: PRNGKeyArray) -> Array:
        keys = jax.random.split(key, len(parts))
        layers = [
            _Dense(layer_mean, layer_scale, k) if _is_dense(part) else part
            for part, layer_mean, layer_scale, k in zip(parts, layer_means, layer_scales, keys, strict=True)
        ]
        return jax.tree.unflatten(tree, layers)(x)

    return posterior.with_exposure(jax.vmap(network_output)(posterior.inputs(x), jax.random.split(key, x.shape[0])), x)


def _is_dense(part: Any) -> bool:
    """Whether a part of the network is a dense layer with vector inputs and outputs."""
    return isinstance(part, eqx.nn.Linear) and "scalar" not in (part.in_features, part.out_features)
