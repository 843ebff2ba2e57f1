"""Placement of the chains and of the rows of the data on devices.

The chains run in parallel on several devices, in one vmap, or one after the other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from bnnzoo.errors import UsageError
from bnnzoo.finding import setting
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.passes import DATA_AXIS
from bnnzoo.recipe import Recipe
from bnnzoo.recipe.mesh import Axes, axes
from bnnzoo.samplers import AbstractSampler
from bnnzoo.samplers.statistics import ACCEPTANCE_RATE
from bnnzoo.sampling.devices.processes import SINGLE_PROCESS, Processes

Method = Literal["auto", "parallel", "vectorized", "sequential"]

_CHAINS = "chains"
_CACHE_BYTES = 2**22
"""Largest size of the data, in bytes, for which the CPU's cache can hold them. Reading larger data slows a step."""
_MAX_DEVICES = 256
"""Largest number of devices into which the CPU is split. Each device has its own threads."""


class Placement(eqx.Module):
    """A way to run a function of one chain for all chains. Programs are compiled again if a field changes."""

    method: Literal["parallel", "vectorized", "sequential"] = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    """The devices of this process that share the chains or rows; None for JAX's default device alone."""
    processes: Processes = eqx.field(static=True, default=SINGLE_PROCESS)

    @property
    def axes(self) -> Axes:
        """Numbers of devices along each axis of the mesh, counted over all processes."""
        process_axes = Axes() if self.mesh is None else Axes(**self.mesh.shape)
        return process_axes._replace(chains=process_axes.chains * self.processes.count)

    def __str__(self) -> str:
        chains, data = self.axes
        return f"{self.method} on {chains}" + (f" x {data}" if data > 1 else "")

    def all_chains(self, function: Callable[..., PyTree], shared: PyTree, *chains: PyTree) -> PyTree:
        """Return `function(shared, values of one chain)` for every chain.

        Args:
            function: the function of one chain.
            shared: values that are the same for all chains.
            chains: values of all chains; the first axis of every array is the chain.
        """

        def local(shared_part: PyTree, *parts: PyTree) -> PyTree:
            count = jax.tree.leaves(parts)[0].shape[0]
            if count == 1:
                # Do not use vmap for a single chain: a convolution with a batch of kernels is much slower.
                result = function(shared_part, *jax.tree.map(lambda a: a[0], parts))
                return jax.tree.map(lambda a: a[None], result)
            if self.method == "sequential":
                return jax.lax.map(lambda part: function(shared_part, *part), parts)
            return jax.vmap(lambda *part: function(shared_part, *part))(*parts)

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
        """Run `local(shared, *chains)` for a part of the chains on each device, or on each group of devices.

        A group of devices shares the rows of the data. Within a group, the compiler divides the work: it recognises
        sums over rows, and adds the sums of all devices. The chains are split explicitly, because they never interact.

        Args:
            local: function of `shared` and the values of some chains.
            shared: values that are the same for all chains.
            chains: values of all chains.
            axes: the axis of the chains in the arrays of each tree of `chains`.
            out_axes: the axis of the chains in the arrays of the result: one number, or a number for each tuple item.
        """
        if self.mesh is None:
            return local(shared, *chains)
        arrays, static = eqx.partition(shared, eqx.is_array)
        spec = lambda axis: P(*(None,) * axis, _CHAINS)  # noqa: E731
        mapped = jax.shard_map(
            lambda a, *c: local(eqx.combine(a, static), *c),
            mesh=self.mesh,
            in_specs=(P(), *map(spec, axes)),
            out_specs=jax.tree.map(spec, out_axes),
            axis_names={_CHAINS},
            check_vma=False,
        )
        return mapped(arrays, *chains)

    def put(self, tree: PyTree, axis: int | None) -> PyTree:
        """Put arrays of all chains on the devices, split along `axis`; if `axis` is None, copy them to each device."""
        return (
            self._put(tree, P()) if axis is None else self.put_process_part(self.processes.own_part(tree, axis), axis)
        )

    def put_process_part(self, tree: PyTree, axis: int) -> PyTree:
        """Put arrays of this process's chains on the devices, split along `axis`."""
        return self._put(tree, P(*(None,) * axis, _CHAINS))

    def put_posterior(self, posterior: AbstractPosterior) -> AbstractPosterior:
        """Put a posterior on the devices, with the rows of its data split along the mesh's data axis.

        Raises:
            UsageError: if the rows cannot be split evenly.
        """
        posterior = posterior.padded(self.axes.data)
        placed_posterior = self.put(eqx.tree_at(lambda p: p.data, posterior, None), None)
        data = self._put(posterior.data, P(DATA_AXIS) if self.axes.data > 1 else P())
        return eqx.tree_at(lambda p: p.data, placed_posterior, data, is_leaf=lambda node: node is None)

    def mesh_context(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which JAX knows the mesh of the rows, for programs that do not call `spread`."""
        return jax.set_mesh(self.mesh) if self.mesh is not None and self.axes.data > 1 else contextlib.nullcontext()

    def _put(self, tree: PyTree, spec: P) -> PyTree:
        sharding = None if self.mesh is None else NamedSharding(self.mesh, spec)
        return jax.tree.map(lambda a: jax.device_put(a, sharding) if eqx.is_array(a) else a, tree)


def host_devices(recipe: Recipe) -> int:
    """Return the number of devices into which to split the CPU before JAX starts.

    With a mesh, it is the number of devices of the mesh, at most `_MAX_DEVICES`. With the chain methods `vectorized`
    and `sequential` it is 1. Otherwise it is the largest divisor of the number of chains that does not exceed the
    number of cores. A machine with fewer than 4 cores counts as a machine with 4 cores.
    """
    if recipe.mesh is not None:
        return min(_MAX_DEVICES, prod(axes(recipe.mesh)))
    if recipe.chain_method in ("vectorized", "sequential"):
        return 1
    return _divisor(recipe.chains, _max_cpu_devices())


def place_run(recipe: Recipe, posterior: AbstractPosterior, sampler: AbstractSampler) -> Placement:
    """Return the placement of a run's chains on the devices of this process.

    With the chain method `auto`, chains are vectorized also on a CPU if reading the rows dominates the time of a step.

    Raises:
        UsageError: if the chains cannot be split evenly over the processes or the mesh, or if the mesh needs more
            devices than there are.
    """
    processes = Processes.current()
    if recipe.chains % processes.count:
        raise UsageError(
            f"{processes.count} processes cannot share {recipe.chains} chains equally; use "
            f"{setting('chains', processes.count)} or a multiple of it"
        )
    if recipe.mesh is None:
        share_rows = recipe.chain_method == "auto" and _waits_for_memory(posterior, sampler)
        return place_chains("vectorized" if share_rows else recipe.chain_method, recipe.chains, processes)
    mesh_axes, devices = axes(recipe.mesh), jax.local_devices()
    if recipe.chains % mesh_axes.chains:
        per_process = _divisor(recipe.chains // processes.count, max(1, mesh_axes.chains // processes.count))
        raise UsageError(
            f"[[mesh]]: chains={mesh_axes.chains} must be a divisor of the number of chains, {recipe.chains}; use "
            f"chains={per_process * processes.count}"
        )
    if mesh_axes.chains % processes.count:
        raise UsageError(
            f"[[mesh]]: chains={mesh_axes.chains} must be a multiple of {processes.count}, the number of processes; "
            f"use chains={processes.count} or a multiple of it"
        )
    method = (
        "sequential" if recipe.chain_method == "sequential" else "parallel" if mesh_axes.chains > 1 else "vectorized"
    )
    mesh_axes = mesh_axes._replace(chains=mesh_axes.chains // processes.count)
    num_devices = prod(mesh_axes)
    if num_devices > len(devices):
        can_split = devices[0].platform == "cpu" and num_devices <= _MAX_DEVICES
        remedy = f"call bnnzoo.devices({num_devices}) before anything uses JAX, or " if can_split else ""
        raise UsageError(
            f"[[mesh={recipe.mesh}]] needs {num_devices} devices (got {len(devices)}: {devices[0].device_kind}); "
            f"{remedy}use a smaller mesh"
        )
    if mesh_axes.data == 1:
        return Placement(method, _chain_mesh(devices, mesh_axes.chains, processes), processes)
    grid = np.array(devices[:num_devices]).reshape(mesh_axes)
    return Placement(method, Mesh(grid, (_CHAINS, DATA_AXIS), axis_types=(AxisType.Auto,) * 2), processes)


def place_chains(method: Method, num_chains: int, processes: Processes = SINGLE_PROCESS) -> Placement:
    """Return the placement of `num_chains` chains without a mesh.

    Each process has an equal share of the chains, and each device has all rows of the data.

    The method `auto` is `parallel` on a CPU and `vectorized` elsewhere. The method `parallel` uses the largest number
    of devices that divides the number of chains of this process.
    """
    devices = jax.local_devices()
    if method == "auto":
        method = "parallel" if devices[0].platform == "cpu" else "vectorized"
    if method != "parallel":
        return Placement(method, None, processes)
    max_devices = len(devices) if devices[0].platform != "cpu" else min(len(devices), _max_cpu_devices())
    count = _divisor(num_chains // processes.count, max_devices)
    mesh = _chain_mesh(devices, count, processes)
    return Placement("parallel" if mesh else "vectorized", mesh, processes)


def _waits_for_memory(posterior: AbstractPosterior, sampler: AbstractSampler) -> bool:
    """Whether reading the rows dominates the time of a step. Vectorized chains read each row once for all chains."""
    rows = jax.tree.leaves(posterior.data)
    has_single_gradient = ACCEPTANCE_RATE in sampler.statistics and sampler.gradients == 1
    if not has_single_gradient or sum(leaf.nbytes for leaf in rows) <= _CACHE_BYTES:
        return False
    has_few_parameters = posterior.layout.dim <= 2 * sum(prod(leaf.shape[1:]) for leaf in rows)
    return has_few_parameters and sampler.evaluations(posterior, {}) >= posterior.num_data


def _chain_mesh(devices: Sequence[Any], count: int, processes: Processes) -> Mesh | None:
    """Return a mesh of the devices that share the chains, or None if a single device has all chains."""
    return Mesh(np.array(devices[:count]), (_CHAINS,)) if count * processes.count > 1 else None


def _max_cpu_devices() -> int:
    """Return the largest number of devices for chains: one per core, but at least four."""
    return max(4, os.cpu_count() or 1)


def _divisor(num_chains: int, max_devices: int) -> int:
    """Return the largest number of devices, at most `max_devices`, that divides the chains evenly."""
    return max(d for d in range(1, min(num_chains, max_devices) + 1) if num_chains % d == 0)
