"""A network of one's own, made in Python, as a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from bnnzoo.errors import UsageError
from bnnzoo.models._base import AbstractModel

PREFIX = "own:"
"""How the name of such a model begins in a recipe: no registered name has a distribution called `own`."""


class Own(AbstractModel):
    """An Equinox module that someone built: `network(one input) -> outputs`, inputs in the shape the data have.

    A key gives every floating array of two or more axes new values with the mean and the standard deviation of its
    present ones, so that chains trained from it start apart; biases and scales keep theirs.
    """

    network: Any

    @property
    def name(self) -> str:
        """What a recipe calls it."""
        return PREFIX + type(self.network).__name__.casefold()

    def build(self, input_shape: tuple[int, ...], num_outputs: int, *, key: PRNGKeyArray) -> Callable[[Array], Array]:
        self._check(input_shape, num_outputs)
        leaves, structure = jax.tree.flatten(self.network)
        keys = jax.random.split(key, len(leaves))
        return jax.tree.unflatten(structure, [_redrawn(a, key=k) for a, k in zip(leaves, keys, strict=True)])

    def arrange(self, x: Shaped[np.ndarray, "batch ..."]) -> Shaped[np.ndarray, "batch ..."]:
        return x

    def _check(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        name = type(self.network).__name__
        _refuse_layers(name, self.network)
        example = jax.ShapeDtypeStruct(input_shape, jnp.float32)
        try:
            outputs = eqx.filter_eval_shape(self.network, example)
        except Exception as error:
            raise UsageError(f"{name}: cannot take one input of shape {list(input_shape)}: {error}") from error
        if not hasattr(outputs, "shape"):
            raise UsageError(f"{name}: gives a {type(outputs).__name__} for one input; return the outputs alone")
        if outputs.shape != (num_outputs,):
            raise UsageError(
                f"{name}: gives {list(outputs.shape)} for one input, and the likelihood takes [{num_outputs}]; change "
                "the last layer, or use another likelihood"
            )


def _refuse_layers(name: str, network: Any) -> None:
    """Refuse layers whose outputs are no function of one row and the weights.

    Raises:
        UsageError: with the layer to take instead.
    """
    kinds = (eqx.nn.BatchNorm, eqx.nn.Dropout)
    for layer in jax.tree.leaves(network, is_leaf=lambda node: isinstance(node, kinds)):
        if isinstance(layer, eqx.nn.BatchNorm):
            raise UsageError(
                f"{name}: has a BatchNorm layer, and statistics of a batch are no function of one row; use "
                "equinox.nn.LayerNorm or GroupNorm instead"
            )
        if isinstance(layer, eqx.nn.Dropout) and not layer.inference:
            raise UsageError(
                f"{name}: has a Dropout layer, which draws at random at every call; sample "
                "equinox.nn.inference_mode(network) instead"
            )


def _redrawn(leaf: Any, *, key: PRNGKeyArray) -> Any:
    if not eqx.is_inexact_array(leaf) or leaf.ndim < 2:
        return leaf
    values: Float[Array, "..."] = jnp.mean(leaf) + jnp.std(leaf) * jax.random.normal(key, leaf.shape, leaf.dtype)
    return values
