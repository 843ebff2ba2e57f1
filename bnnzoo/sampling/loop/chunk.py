"""The compiled programs of a run: first states, steps of all chains, and the tuning between windows of warm-up."""

from __future__ import annotations

from math import prod
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, PyTree, UInt32

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.outputs import Outputs
from bnnzoo.samplers.base import AbstractSampler, Stats
from bnnzoo.samplers.statistics import Reduce, reductions
from bnnzoo.sampling.devices.placement import Placement
from bnnzoo.sampling.loop import sampler_output
from bnnzoo.sampling.loop.warmup import AbstractWarmup

Phase = Literal["warm-up", "sampling"]
Count = UInt32[Array, ""] | np.uint32
"""Type of a count: a NumPy scalar outside a compiled program, a JAX scalar inside."""

MAX_DRAWS = 4096
_BUFFER_BYTES = 2**25
_POSITION = "position"
_ONE_BY_ONE = Placement("vectorized", None)
"""Placement of chains inside a program that already runs on the device of these chains."""


class Carry(NamedTuple):
    """The state of all chains. Together with the recipe it determines the next step. A checkpoint stores it."""

    states: PyTree
    tuning: PyTree
    restarted: Int[Array, " chain"]
    """Number of restarts of each chain at the position of another chain."""


class Setup(eqx.Module):
    """Posterior, sampler, warm-up, placement and stored outputs of a run.

    A setup is an argument of the compiled programs, so that a program can be reused with other numbers.
    """

    posterior: AbstractPosterior
    sampler: AbstractSampler
    warmup: AbstractWarmup
    placement: Placement
    outputs: Outputs | None = None
    """The values that are kept of each draw instead of the position; None to keep the position."""

    def values_to_keep(self, states: PyTree) -> Float[Array, "chain value"]:
        """Return the values that are kept of each chain's current draw."""
        if self.outputs is None:
            return states.position

        def kept_values(setup: Setup, state: PyTree) -> Float[Array, " value"]:
            assert setup.outputs is not None
            mode = getattr(state, setup.sampler.mode_field) if setup.sampler.mode_field else None
            return setup.outputs.values_at(state.position, mode)

        return _ONE_BY_ONE.all_chains(kept_values, self, states)

    def first_states(self, thetas: Float[Array, "chain dim"], keys: Key[Array, " chain"], num_warmup: int) -> PyTree:
        """Return the first state of each chain."""

        def first_state(setup: Setup, theta: Array, key: PRNGKeyArray) -> PyTree:
            state = setup.sampler.init(setup.posterior, theta, num_warmup=num_warmup, key=key)
            sampler_output.check_state(setup.sampler, state, theta)
            return state

        return self.placement.all_chains(first_state, self, thetas, keys)

    def settle_chain(self, carry: Carry, keys: Key[Array, " chain"], final: bool) -> PyTree:
        """Return the states of all chains at the end of a window: set the tuned numbers, then call `sampler.settle`."""

        def settle_one_chain(setup: Setup, carry: Carry, key: PRNGKeyArray) -> PyTree:
            state = setup.warmup.final(carry.tuning, carry.states)
            return setup.sampler.settle(setup.posterior, state, final=final, key=key)

        return self.placement.all_chains(settle_one_chain, self, carry, keys)

    def restart_tuning(self, states: PyTree, restarted: Int[Array, " chain"], constraints: int) -> Carry:
        """Return the carry at the start of a window. The tuning is reset, because earlier windows would bias it."""

        def start_carry(setup: Setup, state: PyTree, restarted: Array) -> Carry:
            return Carry(state, setup.warmup.init(state, constraints), restarted)

        return self.placement.all_chains(start_carry, self, states, restarted)

    def one_step(self, phase: Phase, carry: Carry, key: PRNGKeyArray) -> tuple[Carry, Stats]:
        """Run one step of one chain."""
        state, stats = self.sampler_step(phase, carry.states, key)
        if phase == "sampling":
            return carry._replace(states=state), stats
        tuning, state = self.warmup.update(carry.tuning, state, self.sampler.headroom(stats))
        return Carry(state, tuning, carry.restarted), stats

    def sampler_step(self, phase: Phase, state: PyTree, key: PRNGKeyArray) -> tuple[PyTree, Stats]:
        """Run one step of the sampler, and check its result during tracing, because plugins may contain errors."""
        # Error messages name the method that the author wrote: `warmup_step` if it is overridden, otherwise `step`.
        has_own_method = phase == "warm-up" and type(self.sampler).warmup_step is not AbstractSampler.warmup_step
        step = self.sampler.warmup_step if has_own_method else self.sampler.step
        result = step(self.posterior, state, key=key)
        sampler_output.check_step(self.sampler, step.__name__, state, result)
        return result

    def statistics(self, phase: Phase, states: PyTree) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes and types of the statistics of one step of one chain. The step is not executed."""
        return eqx.filter_eval_shape(_reported, self, phase, states)

    def constraints(self, states: PyTree, num_warmup: int) -> int:
        """Return the number of values of `sampler.headroom` in warm-up, which is the size of the arrays for tuning."""
        if not num_warmup:
            return 0
        return eqx.filter_eval_shape(self.sampler.headroom, self.statistics("warm-up", states)).shape[0]


@eqx.filter_jit  # never executed: with `jit`, JAX caches the trace for this run and for later runs
def _reported(setup: Setup, phase: Phase, states: PyTree) -> Stats:
    """Return the statistics of the first chain's step."""
    return setup.sampler_step(phase, jax.tree.map(lambda a: a[0], states), jax.random.key(0))[1]


@eqx.filter_jit
def _prepared_without_rows(sampler: AbstractSampler, posterior: AbstractPosterior) -> AbstractPosterior:
    """Return the prepared posterior, without its data if `prepare` has not changed them: JAX would copy the data."""
    prepared = sampler.prepare(posterior)
    leaves = zip(jax.tree.leaves(prepared.data), jax.tree.leaves(posterior.data), strict=True)
    has_same_rows = all(leaf is other for leaf, other in leaves)
    return eqx.tree_at(lambda p: p.data, prepared, None) if has_same_rows else prepared


def _prepared(sampler: AbstractSampler, posterior: AbstractPosterior) -> AbstractPosterior:
    prepared = _prepared_without_rows(sampler, posterior)
    if prepared.data is not None:
        return prepared
    return eqx.tree_at(lambda p: p.data, prepared, posterior.data, is_leaf=lambda node: node is None)


def prepare(sampler: AbstractSampler, posterior: AbstractPosterior, placement: Placement) -> AbstractPosterior:
    """Return the posterior after `sampler.prepare`. In most cases it is not yet on the devices of the chains.

    If each device gets a copy of all rows, the posterior is prepared only once, before it is put on the devices. If the
    rows are split over devices, the posterior is put on the devices first, and each device prepares its part.
    """
    if type(sampler).prepare is AbstractSampler.prepare:
        return posterior
    if placement.axes.data == 1:
        return _prepared(sampler, posterior)
    with placement.mesh_context():
        return _prepared(sampler, placement.put_posterior(posterior))


first_states = eqx.filter_jit(Setup.first_states)
settle_chains = eqx.filter_jit(Setup.settle_chain)
restart_tuning = eqx.filter_jit(Setup.restart_tuning)


def on_accelerator() -> bool:
    """Whether JAX's default device is not a CPU."""
    return jax.default_backend() != "cpu"


class Work(eqx.Module):
    """Input of one call of `advance`: `count` rows of `thin` steps each, starting at step `start`.

    The numbers `start`, `count` and `thin` are uint32 arrays. A Python integer would be a constant of the program, so
    that every new value would need a new compilation. On an accelerator `thin` is a Python integer nevertheless,
    because a loop without a constant length is slow there: the device waits after each iteration until the host has
    read whether the loop continues. A new value of `phase` or `keep` needs a new compilation.
    """

    setup: Setup
    carry: Carry
    chain_keys: Key[Array, " chain"]
    start: Count = eqx.field(converter=np.uint32)
    count: Count = eqx.field(converter=np.uint32)
    thin: Count | int = eqx.field(converter=lambda thin: int(thin) if on_accelerator() else np.uint32(thin))
    phase: Phase = eqx.field(static=True)
    keep: bool = eqx.field(static=True)


@eqx.filter_jit(donate="all-except-first")
def advance(work: Work, buffer: dict[str, Array]) -> tuple[Carry, dict[str, Array]]:
    """Run the steps of `work`, and write draws and statistics to the first rows of `buffer` [row, chain, ...].

    The buffer is donated: the result reuses its memory, so 32 MB need not be allocated and cleared for each chunk. The
    carry is not donated, because the caller needs the previous carry for the checkpoint of the draws already written.
    """
    setup = work.setup
    fill = _fill_chain_by_chain if setup.placement.method == "sequential" else _fill
    shared = eqx.tree_at(lambda w: (w.carry, w.chain_keys), work, (None, None))  # the same on all devices
    return setup.placement.spread(
        fill,
        shared,
        (work.carry, work.chain_keys, buffer),
        axes=(0, 0, 1),
        out_axes=(0, 1),
    )


def _fill(work: Work, carry: Carry, keys: Array, buffer: dict[str, Array]) -> tuple[Carry, dict[str, Array]]:
    """Fill the buffer's rows for the chains on one device."""

    def row(i: Array, value: tuple[Carry, dict[str, Array]]) -> tuple[Carry, dict[str, Array]]:
        carry, buffer = value
        carry, values = _row(work, carry, keys, work.start + i * work.thin, buffer)
        write = jax.lax.dynamic_update_index_in_dim
        return carry, {n: write(b, values[n].astype(b.dtype), i, 0) for n, b in buffer.items()}

    return jax.lax.fori_loop(jnp.uint32(0), work.count, row, (carry, buffer))


def _row(
    work: Work, carry: Carry, keys: Array, first: Array, buffer: dict[str, Array]
) -> tuple[Carry, dict[str, Array]]:
    """Run `thin` steps of each chain from step `first` on, and return the values of one row of the buffer.

    Statistics are reduced during the steps, so that a draw that takes a thousand steps needs no more memory than a draw
    that takes one step.
    """
    reduce_rules = reductions(work.setup.sampler)
    zeros = {n: jnp.zeros(b.shape[1:], b.dtype) for n, b in buffer.items() if n != _POSITION}

    def step(j: Array | int, value: tuple[Carry, Stats]) -> tuple[Carry, Stats]:
        carry, reduced = value

        def chain_step(setup: Setup, carry: Carry, key: PRNGKeyArray) -> tuple[Carry, Stats]:
            # The key depends only on the number of the step in the run, so chunks and resuming do not change a draw.
            return setup.one_step(work.phase, carry, jax.random.fold_in(key, first + jnp.asarray(j, first.dtype)))

        carry, stats = _ONE_BY_ONE.all_chains(chain_step, work.setup, carry, keys)
        return carry, {n: _reduce(reduce_rules.get(n, "last"), reduced.get(n), stats[n]) for n in stats}

    def step_for_means(j: Array, value: tuple[Carry, Stats]) -> tuple[Carry, Stats]:
        carry, stats = step(j, value)
        return carry, {n: stats[n] for n in value[1]}

    if isinstance(work.thin, int):
        # The last step is outside the loop, because some statistics are computed only for the last step.
        means = {n: zero for n, zero in zeros.items() if reduce_rules.get(n) == "mean"}
        carry, means = jax.lax.fori_loop(0, work.thin - 1, step_for_means, (carry, means))
        carry, values = step(work.thin - 1, (carry, means))
    else:
        carry, values = jax.lax.fori_loop(jnp.uint32(0), work.thin, step, (carry, zeros))
    values = {n: v / jnp.asarray(work.thin, v.dtype) if reduce_rules.get(n) == "mean" else v for n, v in values.items()}
    return carry, values | ({_POSITION: work.setup.values_to_keep(carry.states)} if work.keep else {})


def _reduce(rule: Reduce, reduced: Array | None, value: Array) -> Array:
    """Return the sum of `reduced` and `value` if the rule is "mean" (the caller divides the sum), else `value`."""
    return value if reduced is None or rule != "mean" else reduced + value.astype(reduced.dtype)


def _fill_chain_by_chain(
    work: Work, carry: Carry, keys: Array, buffer: dict[str, Array]
) -> tuple[Carry, dict[str, Array]]:
    """Fill the buffer's rows one chain at a time, so that the memory for a step is needed for only one chain."""

    def add_chain_axis(axis: int) -> Any:
        return lambda a: jnp.expand_dims(a, axis)

    def fill_one_chain(slices: tuple[Carry, Array, dict[str, Array]]) -> tuple[Carry, dict[str, Array]]:
        carry, key, buffer = slices
        carry, buffer = _fill(
            work,
            jax.tree.map(add_chain_axis(0), carry),
            add_chain_axis(0)(key),
            jax.tree.map(add_chain_axis(1), buffer),
        )
        return jax.tree.map(lambda a: a[0], carry), {n: jnp.squeeze(b, 1) for n, b in buffer.items()}

    chains_first = {n: jnp.moveaxis(b, 1, 0) for n, b in buffer.items()}
    carry, filled = jax.lax.map(fill_one_chain, (carry, keys, chains_first))
    return carry, {n: jnp.moveaxis(b, 0, 1) for n, b in filled.items()}


class Rows(NamedTuple):
    """Shapes and types of the rows of a buffer: each statistic `[chain, ...]`, and the positions if they are kept."""

    shapes: dict[str, tuple[tuple[int, ...], Any]]
    booleans: frozenset[str]
    """Boolean statistics that the buffer stores as numbers and `fetch` converts back. Empty if `thin` is not 1."""
    capacity: int
    position: tuple[int, int]

    @classmethod
    def from_setup(cls, setup: Setup, carry: Carry, phase: Phase, *, keep: bool, thin: int, most_draws: int) -> Rows:
        """Construct the rows. `capacity` does not depend on the length of the run, so programs can be reused."""
        num_chains, dim = eqx.filter_eval_shape(setup.values_to_keep, carry.states).shape
        reduce_rules = reductions(setup.sampler)
        steps = setup.statistics(phase, carry.states)
        means = {n for n in steps if reduce_rules.get(n) == "mean"}
        types = {n: jnp.zeros(()).dtype if n in means and not _is_real(s.dtype) else s.dtype for n, s in steps.items()}
        shapes = {n: ((num_chains, *s.shape), types[n]) for n, s in steps.items()}
        if keep:
            shapes[_POSITION] = ((num_chains, dim), carry.states.position.dtype)
        row_bytes = max(1, sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values()))
        capacity = min(most_draws, 2 ** max(0, (_BUFFER_BYTES // row_bytes).bit_length() - 1))
        booleans = frozenset(n for n in means if steps[n].dtype == bool) if thin == 1 else frozenset()
        return cls(shapes, booleans, capacity, (num_chains, dim))

    def buffer(self, placement: Placement) -> dict[str, Array]:
        """Return an empty buffer for this process's chains, on their devices."""
        empty = {n: np.zeros((self.capacity, *shape), dtype) for n, (shape, dtype) in self.shapes.items()}
        return placement.put_process_part(empty, 1)

    def fetch(
        self, buffer: dict[str, Array], count: int
    ) -> tuple[Float[np.ndarray, "chain draw dim"], dict[str, np.ndarray]]:
        """Copy the first `count` rows to arrays [chain, draw, ...] of the host. The device then reuses the buffer."""
        # A CPU device shares its memory with the host, so `np.asarray` makes no copy, and `np.array` must make one.
        copy = np.asarray if on_accelerator() else np.array
        values = {n: copy(np.swapaxes(np.asarray(b)[:count], 0, 1)) for n, b in buffer.items()}
        values |= {n: values[n] > 0 for n in self.booleans}
        num_chains, dim = self.position
        return values.pop(_POSITION, np.zeros((num_chains, 0, dim), np.float32)), values


def _is_real(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)
