"""Placement of chains (in parallel on devices, under one vmap, or one after the other) and of the data's rows."""

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
from bnnzoo.sampling.processes import ALONE, Processes

Method = Literal["auto", "parallel", "vectorized", "sequential"]

_CHAINS = "chains"
_CACHE = 2**22
"""Bytes of rows above which a processor waits for its memory."""
_MOST_DEVICES = 256
"""Largest number of devices into which a host's CPU is split; each has its own threads."""


class Placement(eqx.Module):
    """A way to run a function of one chain for all chains. Its fields are static: they are part of what is compiled."""

    method: Literal["parallel", "vectorized", "sequential"] = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    """The devices of this process."""
    processes: Processes = eqx.field(static=True, default=ALONE)

    @property
    def axes(self) -> Axes:
        """Devices of all processes along each axis of the mesh."""
        own = Axes() if self.mesh is None else Axes(**self.mesh.shape)
        return own._replace(chains=own.chains * self.processes.count)

    def __str__(self) -> str:
        chains, data = self.axes
        return f"{self.method} on {chains}" + (f" x {data}" if data > 1 else "")

    def all_chains(self, function: Callable[..., PyTree], shared: PyTree, *chains: PyTree) -> PyTree:
        """Return `function(shared, one chain's slices)` of every chain; the first axis of all `chains` is the chain."""

        def local(whole: PyTree, *parts: PyTree) -> PyTree:
            count = jax.tree.leaves(parts)[0].shape[0]
            if count == 1:
                # No vmap for a single chain: a batched convolution kernel is far slower than a plain one.
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
        """Run `local(shared, *chains)` on each device, or group of devices, for its part of the chains.

        Chains are split explicitly, since they never interact. Along the data axis the compiler divides the work: it
        recognises sums over rows, and adds up across devices there.

        Args:
            local: the function to run.
            shared: values that are the same for all chains.
            chains: values of all chains.
            axes: for each tree of `chains`, the axis of the chains.
            out_axes: the same for the result, a prefix of its tree.
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
        """Put arrays of all chains on the devices, split along `axis`, or as a full copy on each device for None."""
        return self._put(tree, P()) if axis is None else self.put_own(self.processes.own(tree, axis), axis)

    def put_own(self, tree: PyTree, axis: int) -> PyTree:
        """Put arrays of this process's chains on the devices, split along `axis`."""
        return self._put(tree, P(*(None,) * axis, _CHAINS))

    def put_posterior(self, posterior: AbstractPosterior) -> AbstractPosterior:
        """Put a posterior on the devices, with its rows split along the mesh's data axis.

        Raises:
            UsageError: if its rows cannot be split.
        """
        posterior = posterior.padded(self.axes.data)
        rest = self.put(eqx.tree_at(lambda p: p.data, posterior, None), None)
        data = self._put(posterior.data, P(DATA_AXIS) if self.axes.data > 1 else P())
        return eqx.tree_at(lambda p: p.data, rest, data, is_leaf=lambda node: node is None)

    def within(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which programs that do not use `spread` find the mesh of the rows."""
        return jax.set_mesh(self.mesh) if self.mesh is not None and self.axes.data > 1 else contextlib.nullcontext()

    def _put(self, tree: PyTree, spec: P) -> PyTree:
        sharding = None if self.mesh is None else NamedSharding(self.mesh, spec)
        return jax.tree.map(lambda a: jax.device_put(a, sharding) if eqx.is_array(a) else a, tree)


def host_devices(recipe: Recipe) -> int:
    """Return the number of devices to split the host's CPU into.

    It is the mesh's size, or a divisor of the number of chains, at most one per core (or 4). It must be set
    (`jax_num_cpu_devices`) before JAX starts.
    """
    if recipe.mesh is not None:
        return min(_MOST_DEVICES, prod(axes(recipe.mesh)))
    if recipe.chain_method in ("vectorized", "sequential"):
        return 1
    return _divisor(recipe.chains, _most_on_cpu())


def place_run(recipe: Recipe, posterior: AbstractPosterior, sampler: AbstractSampler) -> Placement:
    """Return the placement of a run's chains on the devices of this process, for all processes that share the run.

    Raises:
        UsageError: if the chains do not divide by the processes or the mesh, or the mesh needs more devices than exist.
    """
    processes = Processes.here()
    if recipe.chains % processes.count:
        raise UsageError(
            f"{processes.count} processes cannot share {recipe.chains} chains equally; use "
            f"{setting('chains', processes.count)} or a multiple"
        )
    if recipe.mesh is None:
        alike = recipe.chain_method == "auto" and _waits_for_memory(posterior, sampler)
        return place("vectorized" if alike else recipe.chain_method, recipe.chains, processes)
    wanted, devices = axes(recipe.mesh), jax.local_devices()
    if recipe.chains % wanted.chains:
        raise UsageError(f"mesh: chains={wanted.chains} must be a divisor of the number of chains, {recipe.chains}")
    if wanted.chains % processes.count:
        raise UsageError(
            f"mesh: chains={wanted.chains} must be a multiple of {processes.count}, the number of processes, "
            f"because the rows of a chain lie in one process; use chains={processes.count} or a multiple"
        )
    method = "sequential" if recipe.chain_method == "sequential" else "parallel" if wanted.chains > 1 else "vectorized"
    wanted = wanted._replace(chains=wanted.chains // processes.count)
    needed = prod(wanted)
    if needed > len(devices):
        splits = devices[0].platform == "cpu" and needed <= _MOST_DEVICES
        cure = f"call bnnzoo.devices({needed}) before anything uses JAX, or " if splits else ""
        raise UsageError(
            f"mesh: {recipe.mesh} needs {needed} devices (got {len(devices)}: {devices[0].device_kind}); "
            f"{cure}use a smaller mesh"
        )
    if wanted.data == 1:
        return Placement(method, _line(devices, wanted.chains, processes), processes)
    grid = np.array(devices[:needed]).reshape(wanted)
    return Placement(method, Mesh(grid, (_CHAINS, DATA_AXIS), axis_types=(AxisType.Auto,) * 2), processes)


def place(method: Method, num_chains: int, processes: Processes = ALONE) -> Placement:
    """Return the placement of `num_chains` chains, shared by the processes; every device has all rows.

    `auto` is `parallel` on a CPU and `vectorized` elsewhere. `parallel` uses as many devices as divide the chains.
    """
    devices = jax.local_devices()
    if method == "auto":
        method = "parallel" if devices[0].platform == "cpu" else "vectorized"
    if method != "parallel":
        return Placement(method, None, processes)
    most = len(devices) if devices[0].platform != "cpu" else min(len(devices), _most_on_cpu())
    count = _divisor(num_chains // processes.count, most)
    mesh = _line(devices, count, processes)
    return Placement("parallel" if mesh else "vectorized", mesh, processes)


def _waits_for_memory(posterior: AbstractPosterior, sampler: AbstractSampler) -> bool:
    """Whether a step mainly reads rows that fit no cache. Vectorized chains then read them once for all."""
    rows = jax.tree.leaves(posterior.data)
    one_look = ACCEPTANCE_RATE in sampler.statistics and sampler.gradients == 1
    if not one_look or sum(leaf.nbytes for leaf in rows) <= _CACHE:
        return False
    does_little = posterior.layout.dim <= 2 * sum(prod(leaf.shape[1:]) for leaf in rows)
    return does_little and sampler.evaluations(posterior, {}) >= posterior.num_data


def _line(devices: Sequence[Any], count: int, processes: Processes) -> Mesh | None:
    """Return a mesh of the devices that share the chains, or None if one device of one process has all of them."""
    return Mesh(np.array(devices[:count]), (_CHAINS,)) if count * processes.count > 1 else None


def _most_on_cpu() -> int:
    """Return the largest number of devices for chains: one per core, but at least four."""
    return max(4, os.cpu_count() or 1)


def _divisor(num_chains: int, most: int) -> int:
    """Return the largest number of devices, at most `most`, that divides the chains evenly."""
    return max(d for d in range(1, min(num_chains, most) + 1) if num_chains % d == 0)
