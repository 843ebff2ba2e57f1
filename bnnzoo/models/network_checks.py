"""Check of a model's network before programs are compiled, because a plugin can provide the model."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from bnnzoo.errors import UsageError
from bnnzoo.models._base import AbstractModel
from bnnzoo.models.building import Architecture
from bnnzoo.plugins import registry
from bnnzoo.plugins.failures import one_line


def check(model: AbstractModel, network: Any, architecture: Architecture, likelihood: str) -> None:
    """Check that a network accepts an input and returns the required number of outputs.

    Without this check, JAX would broadcast a wrong number of outputs against the targets. The network is traced, not
    run.

    Args:
        model: the model that built the network.
        network: the result of the method `build` of the model.
        architecture: the input shape and the number of outputs with which `build` was called.
        likelihood: name of the likelihood, for the message.

    Raises:
        UsageError: if the network cannot be called, does not accept an input, or returns wrong outputs.
    """
    if not callable(network):
        result = "nothing" if network is None else f"a {type(network).__name__}"
        raise _fault(
            model, f"build must return a network: an eqx.Module that can be called with one input (got {result})"
        )
    input_shape, num_outputs = architecture.input_shape, architecture.num_outputs
    precision = jnp.result_type(float)
    try:
        outputs = eqx.filter_eval_shape(
            lambda network, x: network(x),
            _with_precision(network, precision),
            jax.ShapeDtypeStruct(input_shape, precision),
        )
    except Exception as error:
        problem = f"its network cannot take one {precision} input of shape {list(input_shape)}: {one_line(error)}"
        raise _fault(model, problem) from error
    expectation = f"but the likelihood {likelihood} needs floating-point outputs of shape [{num_outputs}]"
    if not hasattr(outputs, "shape"):
        raise _fault(model, f"its network returns a {type(outputs).__name__} for one input, {expectation}")
    if outputs.shape != (num_outputs,) or not jnp.issubdtype(outputs.dtype, jnp.floating):
        result = f"{outputs.dtype}{list(outputs.shape)} for one input of shape {list(input_shape)}"
        raise _fault(
            model, f"its network returns {result}, {expectation}; build was called with num_outputs={num_outputs}"
        )


def _with_precision(network: Any, precision: Any) -> Any:
    """Return the network with the types of its arrays in a run. The run may have another precision than the arrays."""

    def in_run(leaf: Any) -> Any:
        is_floating = eqx.is_inexact_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)
        return jax.ShapeDtypeStruct(leaf.shape, precision) if is_floating else leaf

    return jax.tree.map(in_run, network)


def _fault(model: Any, problem: str) -> UsageError:
    return UsageError(f"{registry.describe_part('models', model)}: {problem}")
