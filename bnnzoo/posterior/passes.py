"""Passes over all data, block by block in bounded memory. On a mesh, each device processes its own rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import subjaxprs
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

DATA_AXIS = "data"
"""Mesh axis along which rows are split."""
_BLOCK_ELEMENTS = 2**21
"""Largest number of elements of an intermediate array in one block of rows. It bounds the memory of a pass."""
_PROBE_ROWS = 509
"""Number of rows with which a function is traced to find its largest intermediate array.

A prime number is hardly ever the width of a layer, so an axis of this length is assumed to be the axis of rows.
"""


def over_blocks(
    data: PyTree, num_data: int, function: Callable[[PyTree], Float[Array, "batch *value"]]
) -> Float[Array, "num_data *value"]:
    """Apply a function of a batch to the first `num_data` rows, block by block, and return its values for every row."""
    size, shards = max(64, _BLOCK_ELEMENTS // widest(data, function)), _shards(data)
    if shards == 1:
        return _each(jax.tree.map(lambda a: jnp.asarray(a)[:num_data], data), size, function)
    rows_by_device = _fold_by_device(data, shards)
    values = jax.vmap(lambda shard: _each(shard, size, function), spmd_axis_name=DATA_AXIS)(rows_by_device)
    return values.reshape(-1, *values.shape[2:])[:num_data]


def total(data: PyTree, num_data: int, function: Callable[[PyTree], Float[Array, " batch"]]) -> Float[Array, ""]:
    """Return the sum of a function over the first `num_data` rows, block by block; `function` returns row values."""
    size = max(64, _BLOCK_ELEMENTS // widest(data, function))
    if _shards(data) > 1 or num_data <= size:
        return jnp.sum(over_blocks(data, num_data, function))
    rows = jax.tree.map(lambda a: jnp.asarray(a)[:num_data], data)

    @jax.checkpoint
    def block(start: Int[Array, ""]) -> Float[Array, ""]:
        return jnp.sum(function(jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), rows)))

    num_blocks = num_data // size
    sums = jnp.sum(jax.lax.map(block, size * jnp.arange(num_blocks, dtype=jnp.int32)))
    if num_blocks * size == num_data:
        return sums
    return sums + jnp.sum(function(jax.tree.map(lambda a: a[num_blocks * size :], rows)))


def values_and_gradient(
    data: PyTree,
    num_data: int,
    function: Callable[[Float[Array, " dim"], PyTree], Float[Array, " batch"]],
    theta: Float[Array, " dim"],
) -> tuple[Float[Array, " num_data"], Float[Array, " dim"]]:
    """Return the values of a function at all data, and the gradient of their sum with respect to theta, in one pass.

    The derivative of `over_blocks` would compute every block again. Here the gradient of each block is computed
    together with the values of the block.
    """
    if _shards(data) > 1:
        values, pull_back = jax.vjp(lambda t: over_blocks(data, num_data, lambda batch: function(t, batch)), theta)
        return values, pull_back(jnp.ones_like(values))[0]
    rows = jax.tree.map(lambda a: jnp.asarray(a)[:num_data], data)
    size = max(64, _BLOCK_ELEMENTS // widest(data, lambda batch: function(theta, batch)))

    def block(gradient: Float[Array, " dim"], batch: PyTree) -> tuple[Float[Array, " dim"], Float[Array, " batch"]]:
        values, pull_back = jax.vjp(lambda t: function(t, batch), theta)
        return gradient + pull_back(jnp.ones_like(values))[0], values

    zero_gradient = jnp.zeros_like(theta)
    if num_data <= size:
        gradient, values = block(zero_gradient, rows)
        return values, gradient

    def block_at(gradient: Float[Array, " dim"], start: Int[Array, ""]) -> tuple[Array, Array]:
        return block(gradient, jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), rows))

    num_blocks = num_data // size
    gradient, first_values = jax.lax.scan(block_at, zero_gradient, size * jnp.arange(num_blocks, dtype=jnp.int32))
    if num_blocks * size == num_data:
        return first_values.reshape(-1), gradient
    gradient, last_values = block(gradient, jax.tree.map(lambda a: a[num_blocks * size :], rows))
    return jnp.concatenate([first_values.reshape(-1), last_values]), gradient


def add_trees(sums: PyTree[Array], other_sums: PyTree[Array]) -> PyTree[Array]:
    """Add two trees leaf by leaf."""
    return jax.tree.map(jnp.add, sums, other_sums)


def sum_over_blocks(
    data: PyTree,
    num_data: int,
    function: Callable[[PyTree, Float[Array, " batch"]], PyTree[Array]],
    *,
    size: int,
    add: Callable[[PyTree[Array], PyTree[Array]], PyTree[Array]] = add_trees,
) -> PyTree[Array]:
    """Split the first `num_data` rows into blocks of `size` rows and return the sum of `function(batch, weights)`.

    The last block may overlap the previous block. In the last block, rows of the overlap have weight 0. Rows of padding
    also have weight 0. All other weights are 1. On a mesh, each device splits its own rows into blocks, and `size` is
    the total number of rows of the devices' blocks. The function `add` combines the values of two blocks, by
    default by addition. A value of zeros must not change the value that it is combined with.
    """
    shards = _shards(data)
    if shards == 1:
        return _sum_rows(jax.tree.map(jnp.asarray, data), 0, num_data, num_data, size, function, add)
    rows_by_device = _fold_by_device(data, shards)
    length = jax.tree.leaves(rows_by_device)[0].shape[1]

    def sum_shard(shard: PyTree, first: Int[Array, ""]) -> PyTree[Array]:
        return _sum_rows(shard, first, length, num_data, size // shards, function, add)

    sums = jax.vmap(sum_shard, spmd_axis_name=DATA_AXIS)(rows_by_device, length * jnp.arange(shards))
    if add is add_trees:
        return jax.tree.map(lambda leaf: jnp.sum(leaf, 0), sums)
    return functools.reduce(add, [jax.tree.map(lambda leaf, i=i: leaf[i], sums) for i in range(shards)])


def widest(data: PyTree, function: Callable[[PyTree], Array]) -> int:
    """Return the number of elements per row of the largest array: an input, or an intermediate value of `function`."""

    def largest_size(jaxpr: Any) -> int:
        avals = [var.aval for equation in jaxpr.eqns for var in equation.outvars]
        sizes = [aval.size // _PROBE_ROWS for aval in avals if _PROBE_ROWS in getattr(aval, "shape", ())]
        return max([1, *sizes, *(largest_size(inner) for inner in subjaxprs(jaxpr))])

    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((_PROBE_ROWS, *leaf.shape[1:]), jnp.result_type(leaf)), data)
    inputs = max(prod(leaf.shape[1:]) for leaf in jax.tree.leaves(data))
    return max(inputs, largest_size(jax.make_jaxpr(function)(rows).jaxpr))


def _shards(data: PyTree) -> int:
    """Return the number of devices over which the mesh splits the rows; 1 if the rows cannot be split evenly."""
    shards = jax.sharding.get_abstract_mesh().shape.get(DATA_AXIS, 1)
    return shards if jax.tree.leaves(data)[0].shape[0] % shards == 0 else 1


def _fold_by_device(data: PyTree, shards: int) -> PyTree:
    """Return the rows of each device, `[device, row, ...]`. An operation on each device then needs no communication."""

    def fold(leaf: Array) -> Array:
        # Do not use -1 in the shape: JAX cannot compute it for the inputs of a density, which have no columns.
        by_shard = jnp.asarray(leaf).reshape(shards, leaf.shape[0] // shards, *leaf.shape[1:])
        return jax.lax.with_sharding_constraint(by_shard, PartitionSpec(DATA_AXIS))

    return jax.tree.map(fold, data)


def _each(
    data: PyTree, size: int, function: Callable[[PyTree], Float[Array, "batch *value"]]
) -> Float[Array, "row *value"]:
    total = jax.tree.leaves(data)[0].shape[0]
    if total <= size:
        return function(data)

    @jax.checkpoint
    def block(start: Int[Array, ""]) -> Float[Array, "batch *value"]:
        return function(jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), data))

    num_blocks = total // size
    first_values = jax.lax.map(block, size * jnp.arange(num_blocks, dtype=jnp.int32))
    first_values = first_values.reshape(num_blocks * size, *first_values.shape[2:])
    if num_blocks * size == total:
        return first_values
    last_values = function(jax.tree.map(lambda a: a[num_blocks * size :], data))
    return jnp.concatenate([first_values, last_values])


def _sum_rows(
    data: PyTree,
    first: Int[Array, ""] | int,
    length: int,
    num_data: int,
    size: int,
    function: Callable[[PyTree, Float[Array, " batch"]], PyTree[Array]],
    add: Callable[[PyTree[Array], PyTree[Array]], PyTree[Array]],
) -> PyTree[Array]:
    """Return the sum of `function(batch, weights)` over the blocks of the first `length` rows of `data`.

    `first` is the index of the first row of `data` among the rows of all devices. Rows whose index is `num_data` or
    larger are padding.
    """
    size = min(length, max(1, size))

    def block(i: Int[Array, ""] | int) -> PyTree[Array]:
        start = jnp.minimum(i * size, length - size)
        batch = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), data)
        row = start + jnp.arange(size)
        is_counted = (row >= i * size) & (first + row < num_data)
        return function(batch, is_counted.astype(jnp.zeros(()).dtype))

    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(block, 0))
    return jax.lax.fori_loop(0, -(-length // size), lambda i, sums: add(sums, block(i)), zero)
