"""Local reparameterisation: sampling of a dense layer's pre-activations instead of its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from bnnzoo.posterior import NetworkPosterior


class _Dense(eqx.nn.Linear):
    """A dense layer with independent Gaussian parameters. A call draws its outputs, which are Gaussian too.

    The fields `weight` and `bias` are one draw of the parameters. A network that reads these fields, instead of calling
    the layer, uses this draw.
    """

    mean: eqx.nn.Linear
    scale: eqx.nn.Linear
    key: PRNGKeyArray

    def __init__(self, draw: eqx.nn.Linear, mean: eqx.nn.Linear, scale: eqx.nn.Linear, key: PRNGKeyArray) -> None:
        for field in dataclasses.fields(draw):
            setattr(self, field.name, getattr(draw, field.name))
        self.mean, self.scale, self.key = mean, scale, key

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

    Kingma, Salimans and Welling 2015. In each `eqx.nn.Linear` that the network uses once per datum, the pre-activations
    are drawn for each datum, instead of the weights. The pre-activations are the outputs of the layer. For all other
    parameters the whole batch uses the values in `draw`. The distribution of one datum's outputs is therefore exact.
    """
    inputs = posterior.inputs(x)
    # Parameters that are not sampled have scale 0.
    zero_network = jax.tree.map(
        lambda leaf: jnp.zeros_like(leaf) if eqx.is_inexact_array(leaf) else leaf, posterior.network
    )
    scale_network = dataclasses.replace(posterior, network=zero_network).network_at(scale)
    parts, tree = jax.tree.flatten(posterior.network_at(draw), is_leaf=_is_dense)
    layer_means, layer_scales = (
        jax.tree.leaves(n, is_leaf=_is_dense) for n in (posterior.network_at(mean), scale_network)
    )
    datum = jax.ShapeDtypeStruct(inputs.shape[1:], inputs.dtype)
    are_local = _are_called_once(parts, lambda parts, x: jax.tree.unflatten(tree, parts)(x), datum)

    def network_output(x: Array, key: PRNGKeyArray) -> Array:
        keys = jax.random.split(key, len(parts))
        layers = [
            _Dense(part, layer_mean, layer_scale, k) if is_local else part
            for part, is_local, layer_mean, layer_scale, k in zip(
                parts, are_local, layer_means, layer_scales, keys, strict=True
            )
        ]
        return jax.tree.unflatten(tree, layers)(x)

    return posterior.with_exposure(jax.vmap(network_output)(inputs, jax.random.split(key, x.shape[0])), x)


def _is_dense(part: Any) -> bool:
    """Whether a part of the network is a dense layer with vector inputs and outputs."""
    return type(part) is eqx.nn.Linear and "scalar" not in (part.in_features, part.out_features)


def _are_called_once(
    parts: list[Any], network_output: Callable[[list[Any], Array], Array], x: jax.ShapeDtypeStruct
) -> list[bool]:
    """Return for each part of the network whether it is a dense layer that is used for a single vector per datum.

    A layer is used for several vectors if its weights are tied, if it processes the tokens of a sequence, or if the
    network is recurrent.
    """
    arrays, others = eqx.partition(parts, eqx.is_array)
    program = jax.make_jaxpr(lambda arrays, x: network_output(eqx.combine(arrays, others), x))(arrays, x).jaxpr
    variables, _ = jax.tree.unflatten(jax.tree.structure((arrays, x)), program.invars)

    def is_called_once(layer: eqx.nn.Linear) -> bool:
        uses = [[e for e in program.eqns if variable in e.invars] for variable in jax.tree.leaves(layer)]
        # The product of the weights with a vector is a vector. Over tokens, it is a matrix.
        return all(len(equations) == 1 for equations in uses) and (
            uses[0][0].primitive.name == "dot_general" and len(uses[0][0].outvars[0].aval.shape) == 1
        )

    return [_is_dense(part) and is_called_once(layer) for part, layer in zip(parts, variables, strict=True)]
