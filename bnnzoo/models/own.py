"""A network that a user built in Python, as a model."""

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
"""Prefix of the name of an `Own` model in a recipe. The name is unique, as no package of plugins is called `own`."""


class Own(AbstractModel):
    """An Equinox module that a user built. `network(x)` returns the outputs for one input x, one row of the data.

    `build` replaces the values of every floating-point array with two or more axes by random values, so that chains
    have different initial positions. The random values are normal, with the mean and the standard deviation of the
    previous values of the array. Vectors, such as biases and scales, keep their values.
    """

    network: Any

    @property
    def name(self) -> str:
        """Name of the model in a recipe."""
        return PREFIX + type(self.network).__name__.casefold()

    def build(self, input_shape: tuple[int, ...], num_outputs: int, *, key: PRNGKeyArray) -> Callable[[Array], Array]:
        """Return the user's network with random values in its weight arrays.

        Raises:
            UsageError: if the network has a BatchNorm or Dropout layer, does not accept an input, or returns wrong
                outputs.
        """
        self._check(input_shape, num_outputs)
        leaves, structure = jax.tree.flatten(self.network)
        keys = jax.random.split(key, len(leaves))
        return jax.tree.unflatten(structure, [_redraw(a, key=k) for a, k in zip(leaves, keys, strict=True)])

    def arrange(self, x: Shaped[np.ndarray, "batch ..."]) -> Shaped[np.ndarray, "batch ..."]:
        """Return the inputs unchanged."""
        return x

    def _check(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        name = type(self.network).__name__
        _refuse_layers(name, self.network)
        example = jax.ShapeDtypeStruct(input_shape, jnp.float32)
        try:
            outputs = eqx.filter_eval_shape(self.network, example)
        except Exception as error:
            raise UsageError(
                f"{name}: cannot take one input of shape {list(input_shape)} ({error}); write the network for a single "
                "row, without a batch dimension"
            ) from error
        if not hasattr(outputs, "shape"):
            raise UsageError(
                f"{name}: returns a {type(outputs).__name__} for one input; return only the array of outputs"
            )
        if outputs.shape != (num_outputs,):
            raise UsageError(
                f"{name}: returns shape {list(outputs.shape)} for one input, but the likelihood needs "
                f"[{num_outputs}]; change the last layer, or use another likelihood"
            )


def _refuse_layers(name: str, network: Any) -> None:
    """Check that the outputs of a row use no other rows (BatchNorm) or random numbers (Dropout outside inference mode).

    Raises:
        UsageError: if the network has a BatchNorm layer, or a Dropout layer outside inference mode. The message names a
            replacement.
    """
    kinds = (eqx.nn.BatchNorm, eqx.nn.Dropout)
    for layer in jax.tree.leaves(network, is_leaf=lambda node: isinstance(node, kinds)):
        if isinstance(layer, eqx.nn.BatchNorm):
            raise UsageError(
                f"{name}: has a BatchNorm layer, so the outputs of a row depend on other rows; use "
                "equinox.nn.LayerNorm or GroupNorm instead"
            )
        if isinstance(layer, eqx.nn.Dropout) and not layer.inference:
            raise UsageError(
                f"{name}: has a Dropout layer, which is random at every call; use "
                "equinox.nn.inference_mode(network) instead"
            )


def _redraw(leaf: Any, *, key: PRNGKeyArray) -> Any:
    if not eqx.is_inexact_array(leaf) or leaf.ndim < 2:
        return leaf
    values: Float[Array, "..."] = jnp.mean(leaf) + jnp.std(leaf) * jax.random.normal(key, leaf.shape, leaf.dtype)
    return values
