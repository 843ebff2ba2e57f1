"""Where chains run: side by side on host devices, under one vmap, or one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

Method = Literal["auto", "parallel", "vectorized", "sequential"]


class Placement(eqx.Module):
    """A way to run a function of one chain for all chains. Static: part of what is compiled."""

    method: Literal["parallel", "vectorized", "sequential"] = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)

    @property
    def num_devices(self) -> int:
        return self.mesh.size if self.mesh is not None else 1

    def all_chains(self, function: Callable[..., PyTree], shared: PyTree, *chains: PyTree) -> PyTree:
        """`function(shared, one chain's slices)` for every chain; each tree of `chains` has the leading axis chain."""

        def local(whole: PyTree, *parts: PyTree) -> PyTree:
            count = jax.tree.leaves(parts)[0].shape[0]
            if count == 1:
                # No vmap for a lone chain: a batched convolution kernel is far slower than a plain one.
                one = function(whole, *jax.tree.map(lambda a: a[0], parts))
                return jax.tree.map(lambda a: a[None], one)
            if self.method == "sequential":
                return jax.lax.map(lambda part: function(whole, *part), parts)
            return jax.vmap(lambda *part: function(whole, *part))(*parts)

        return self.spread(local, shared, chains, axes=(0,) * len(chains), out_axes=0)

    def spread(
        self,
        local: Callable[..., PyTree],
        shared: PyTree,
        chains: tuple[PyTree, ...],
        *,
        axes: Any,
        out_axes: Any,
    ) -> PyTree:
        """`local(shared, *chains)` on each device for its share of the chains.

        Args:
            axes: for each tree of `chains` the axis that is the chain's.
            out_axes: the same for the result, a prefix of its tree.
        """
        if self.mesh is None:
            return local(shared, *chains)
        arrays, static = eqx.partition(shared, eqx.is_array)
        spec = lambda axis: P(*(None,) * axis, "chains")  # noqa: E731
        mapped = jax.shard_map(
            lambda a, *c: local(eqx.combine(a, static), *c),
            mesh=self.mesh,
            in_specs=(P(), *map(spec, axes)),
            out_specs=jax.tree.map(spec, out_axes),
            check_vma=False,
        )
        return mapped(arrays, *chains)

    def put(self, tree: PyTree, axis: int | None) -> PyTree:
        """Arrays on the devices: split by chain along `axis`, or whole on each of them for None."""
        if self.mesh is None:
            return jax.tree.map(lambda a: jax.device_put(a) if eqx.is_array(a) else a, tree)
        spec = P() if axis is None else P(*(None,) * axis, "chains")
        sharding = NamedSharding(self.mesh, spec)
        return jax.tree.map(lambda a: jax.device_put(a, sharding) if eqx.is_array(a) else a, tree)


def host_devices(method: Method, num_chains: int) -> int:
    """How many devices to split the host's CPU into: a divisor of the number of chains, at most one a core (or 4).

    Must be set (`jax_num_cpu_devices`) before JAX starts.
    """
    if method in ("vectorized", "sequential"):
        return 1
    most = min(num_chains, max(4, os.cpu_count() or 1))
    return max(d for d in range(1, most + 1) if num_chains % d == 0)


def place(method: Method, num_chains: int) -> Placement:
    """The placement of `num_chains` chains on the devices there are.

    `auto` is `parallel` on a CPU and `vectorized` elsewhere. `parallel` takes as many devices as divide the chains.
    """
    devices = jax.local_devices()
    if method == "auto":
        method = "parallel" if devices[0].platform == "cpu" else "vectorized"
    if method != "parallel":
        return Placement(method, None)
    most = min(len(devices), host_devices(method, num_chains) if devices[0].platform == "cpu" else num_chains)
    count = max(d for d in range(1, most + 1) if num_chains % d == 0)
    if count == 1:
        return Placement("vectorized", None)
    return Placement("parallel", Mesh(np.array(devices[:count]), ("chains",)))
