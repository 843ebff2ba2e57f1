"""Passes over all data: block after block in bounded memory. On a mesh each device processes its own rows."""

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
"""Elements of the largest value in one block, which bounds the memory of a pass."""
_LOOK = 509
"""Rows for which a function is traced to measure its largest value. A prime, so that it equals no layer's width."""


def each(
    data: PyTree, num_data: int, function: Callable[[PyTree], Float[Array, "batch *value"]]
) -> Float[Array, "num_data *value"]:
    """Apply a function of a batch to each of the first `num_data` rows, block after block."""
    size, shards = max(64, _BLOCK_ELEMENTS // _widest(data, function)), _shards(data)
    if shards == 1:
        return _each(jax.tree.map(lambda a: jnp.asarray(a)[:num_data], data), size, function)
    folded = _folded(data, shards)
    values = jax.vmap(lambda shard: _each(shard, size, function), spmd_axis_name=DATA_AXIS)(folded)
    return values.reshape(-1, *values.shape[2:])[:num_data]


def each_and_gradient(
    data: PyTree,
    num_data: int,
    function: Callable[[Float[Array, " dim"], PyTree], Float[Array, " batch"]],
    theta: Float[Array, " dim"],
) -> tuple[Float[Array, " num_data"], Float[Array, " dim"]]:
    """Return a function of theta at each datum and the gradient of its sum in theta, from one pass over the blocks.

    The derivative of `each` would compute every block again. Here a block's gradient is taken with its values.
    """
    if _shards(data) > 1:
        values, pull = jax.vjp(lambda t: each(data, num_data, lambda batch: function(t, batch)), theta)
        return values, pull(jnp.ones_like(values))[0]
    rows = jax.tree.map(lambda a: jnp.asarray(a)[:num_data], data)
    size = max(64, _BLOCK_ELEMENTS // _widest(data, lambda batch: function(theta, batch)))

    def block(gradient: Float[Array, " dim"], batch: PyTree) -> tuple[Float[Array, " dim"], Float[Array, " batch"]]:
        values, pull = jax.vjp(lambda t: function(t, batch), theta)
        return gradient + pull(jnp.ones_like(values))[0], values

    nothing = jnp.zeros_like(theta)
    if num_data <= size:
        gradient, values = block(nothing, rows)
        return values, gradient

    def at(gradient: Float[Array, " dim"], start: Int[Array, ""]) -> tuple[Array, Array]:
        return block(gradient, jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), rows))

    whole = num_data // size
    gradient, head = jax.lax.scan(at, nothing, size * jnp.arange(whole, dtype=jnp.int32))
    if whole * size == num_data:
        return head.reshape(-1), gradient
    gradient, rest = block(gradient, jax.tree.map(lambda a: a[whole * size :], rows))
    return jnp.concatenate([head.reshape(-1), rest]), gradient


def plus(sums: PyTree[Array], more: PyTree[Array]) -> PyTree[Array]:
    """Add two trees leaf by leaf."""
    return jax.tree.map(jnp.add, sums, more)


def summed(
    data: PyTree,
    num_data: int,
    function: Callable[[PyTree, Float[Array, " batch"]], PyTree[Array]],
    *,
    size: int,
    add: Callable[[PyTree[Array], PyTree[Array]], PyTree[Array]] = plus,
) -> PyTree[Array]:
    """Return the sum of `function(batch, weights)` over blocks of `size` of the first `num_data` rows.

    The last block overlaps the one before it. Rows of the overlap have weight 0 there, all others 1. `add` combines two
    blocks; zeros must be its neutral element.
    """
    shards = _shards(data)
    if shards == 1:
        return _summed(jax.tree.map(jnp.asarray, data), 0, num_data, num_data, size, function, add)
    folded = _folded(data, shards)
    length = jax.tree.leaves(folded)[0].shape[1]

    def of_shard(shard: PyTree, first: Int[Array, ""]) -> PyTree[Array]:
        return _summed(shard, first, length, num_data, size // shards, function, add)

    sums = jax.vmap(of_shard, spmd_axis_name=DATA_AXIS)(folded, length * jnp.arange(shards))
    if add is plus:
        return jax.tree.map(lambda leaf: jnp.sum(leaf, 0), sums)
    return functools.reduce(add, [jax.tree.map(lambda leaf, i=i: leaf[i], sums) for i in range(shards)])


def _widest(data: PyTree, function: Callable[[PyTree], Array]) -> int:
    """Return the elements per row of the function's largest intermediate value: inputs, a layer, or image patches."""

    def of(jaxpr: Any) -> int:
        made = [var.aval for equation in jaxpr.eqns for var in equation.outvars]
        sizes = [a.size // _LOOK for a in made if _LOOK in getattr(a, "shape", ())]
        return max([1, *sizes, *(of(inner) for inner in subjaxprs(jaxpr))])

    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((_LOOK, *leaf.shape[1:]), jnp.result_type(leaf)), data)
    inputs = max(prod(leaf.shape[1:]) for leaf in jax.tree.leaves(data))
    return max(inputs, of(jax.make_jaxpr(function)(rows).jaxpr))


def _shards(data: PyTree) -> int:
    """Return the number of devices of the traced mesh that the rows are split over; 1 if they do not divide evenly."""
    shards = jax.sharding.get_abstract_mesh().shape.get(DATA_AXIS, 1)
    return shards if jax.tree.leaves(data)[0].shape[0] % shards == 0 else 1


def _folded(data: PyTree, shards: int) -> PyTree:
    """Return the rows by device, `[shard, row, ...]`. Operations along `shard` then need no communication."""

    def fold(leaf: Array) -> Array:
        by_shard = jnp.asarray(leaf).reshape(shards, -1, *leaf.shape[1:])
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

    whole = total // size
    head = jax.lax.map(block, size * jnp.arange(whole, dtype=jnp.int32))
    head = head.reshape(whole * size, *head.shape[2:])
    if whole * size == total:
        return head
    rest = function(jax.tree.map(lambda a: a[whole * size :], data))
    return jnp.concatenate([head, rest])


def _summed(
    data: PyTree,
    first: Int[Array, ""] | int,
    length: int,
    num_data: int,
    size: int,
    function: Callable[[PyTree, Float[Array, " batch"]], PyTree[Array]],
    add: Callable[[PyTree[Array], PyTree[Array]], PyTree[Array]],
) -> PyTree[Array]:
    """Sum over `length` rows, whose first has the global index `first`; rows from `num_data` on are padding."""
    size = min(length, max(1, size))

    def block(i: Int[Array, ""] | int) -> PyTree[Array]:
        start = jnp.minimum(i * size, length - size)
        batch = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), data)
        row = start + jnp.arange(size)
        new = (row >= i * size) & (first + row < num_data)
        return function(batch, new.astype(jnp.zeros(()).dtype))

    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(block, 0))
    return jax.lax.fori_loop(0, -(-length // size), lambda i, sums: add(sums, block(i)), zero)
