"""The compiled programs of a run: first states, steps of all chains into a buffer, what is tuned between windows."""

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
from bnnzoo.sampling import form
from bnnzoo.sampling.placement import Placement
from bnnzoo.sampling.warmup import AbstractWarmup

Phase = Literal["warm-up", "sampling"]
Count = UInt32[Array, ""] | np.uint32
"""NumPy's outside a program, JAX's inside."""

MOST_DRAWS = 4096
_BUFFER_BYTES = 2**25
_POSITION = "position"
_ONE_BY_ONE = Placement("vectorized", None)
"""Chains of one device side by side: inside a program that is on its device already."""


class Carry(NamedTuple):
    """All that the next step depends on, besides the recipe: what a checkpoint holds."""

    states: PyTree
    tuning: PyTree
    restarted: Int[Array, " chain"]
    """How often each chain began again where another one was."""


class Setup(eqx.Module):
    """What a run's compiled programs are made from; its numbers and data are arguments of them, not constants."""

    posterior: AbstractPosterior
    sampler: AbstractSampler
    warmup: AbstractWarmup
    placement: Placement
    outputs: Outputs | None = None
    """What is kept of a draw instead of its position."""

    def kept(self, states: PyTree) -> Float[Array, "chain value"]:
        """What is kept of each chain's draw."""
        if self.outputs is None:
            return states.position

        def one(setup: Setup, state: PyTree) -> Float[Array, " value"]:
            assert setup.outputs is not None
            return setup.outputs.of(state.position, setup.sampler.linearised_at(state))

        return _ONE_BY_ONE.all_chains(one, self, states)

    def first_states(self, thetas: Float[Array, "chain dim"], keys: Key[Array, " chain"], num_warmup: int) -> PyTree:
        """The chains' first states."""

        def one(setup: Setup, theta: Array, key: PRNGKeyArray) -> PyTree:
            state = setup.sampler.init(setup.posterior, theta, num_warmup=num_warmup, key=key)
            form.check_state(setup.sampler, state, theta)
            return state

        return self.placement.all_chains(one, self, thetas, keys)

    def settled(self, carry: Carry, keys: Key[Array, " chain"], final: bool) -> PyTree:
        """The states at the end of a window."""

        def one(setup: Setup, carry: Carry, key: PRNGKeyArray) -> PyTree:
            state = setup.warmup.final(carry.tuning, carry.states)
            return setup.sampler.settle(setup.posterior, state, final=final, key=key)

        return self.placement.all_chains(one, self, carry, keys)

    def tuned_anew(self, states: PyTree, restarted: Int[Array, " chain"], constraints: int) -> Carry:
        """The states at the start of a window, with the tuning begun anew: what moved the last one is history."""

        def one(setup: Setup, state: PyTree, restarted: Array) -> Carry:
            return Carry(state, setup.warmup.init(state, constraints), restarted)

        return self.placement.all_chains(one, self, states, restarted)

    def one_step(self, phase: Phase, carry: Carry, key: PRNGKeyArray) -> tuple[Carry, Stats]:
        """One step of one chain."""
        state, stats = self.stepped(phase, carry.states, key)
        if phase == "sampling":
            return carry._replace(states=state), stats
        tuning, state = self.warmup.update(carry.tuning, state, self.sampler.headroom(stats))
        return Carry(state, tuning, carry.restarted), stats

    def stepped(self, phase: Phase, state: PyTree, key: PRNGKeyArray) -> tuple[PyTree, Stats]:
        """One step of the sampler, which is a stranger's code: what it gives is looked at while it is traced."""
        trains = phase == "warm-up" and type(self.sampler).warmup_step is not AbstractSampler.warmup_step
        step = self.sampler.warmup_step if trains else self.sampler.step
        given = step(self.posterior, state, key=key)
        form.check_step(self.sampler, step.__name__, state, given)
        return given

    def statistics(self, phase: Phase, states: PyTree) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and types of what a step of one chain reports; nothing is computed."""
        return eqx.filter_eval_shape(_reported, self, phase, states)

    def constraints(self, states: PyTree, num_warmup: int) -> int:
        """How many limits the step size has in warm-up: what the tuning must have room for."""
        if not num_warmup:
            return 0
        return eqx.filter_eval_shape(self.sampler.headroom, self.statistics("warm-up", states)).shape[0]


@eqx.filter_jit  # never run: so that JAX remembers what it has traced, here and in the next run
def _reported(setup: Setup, phase: Phase, states: PyTree) -> Stats:
    """What the first chain's step reports."""
    return setup.stepped(phase, jax.tree.map(lambda a: a[0], states), jax.random.key(0))[1]


first_states = eqx.filter_jit(Setup.first_states)
settled = eqx.filter_jit(Setup.settled)
tuned_anew = eqx.filter_jit(Setup.tuned_anew)


class Work(eqx.Module):
    """What one call of `advance` starts from and does: `count` rows of `thin` steps each, from step `start` on.

    The numbers are uint32 arrays: a Python integer would be compiled into the program, and every other one be a
    program of its own. The phase, and whether positions are kept, change the program itself.
    """

    setup: Setup
    carry: Carry
    chain_keys: Key[Array, " chain"]
    start: Count = eqx.field(converter=np.uint32)
    count: Count = eqx.field(converter=np.uint32)
    thin: Count = eqx.field(converter=np.uint32)
    phase: Phase = eqx.field(static=True)
    keep: bool = eqx.field(static=True)


@eqx.filter_jit(donate="all-except-first")
def advance(work: Work, buffer: dict[str, Array]) -> tuple[Carry, dict[str, Array]]:
    """Fill the first rows of `buffer` [row, chain, ...].

    The buffer is donated: its memory becomes that of the result, and 32 MB are neither allocated nor cleared for each
    chunk. The carry is not: the caller keeps the one before, for a checkpoint of what is written.
    """
    setup = work.setup
    fill = _fill_chain_by_chain if setup.placement.method == "sequential" else _fill
    shared = _Shared(setup, work.start, work.count, work.thin, work.phase, work.keep)
    return setup.placement.spread(
        fill,
        shared,
        (work.carry, work.chain_keys, buffer),
        axes=(0, 0, 1),
        out_axes=(0, 1),
    )


class _Shared(NamedTuple):
    """The part of the work that all devices have in common."""

    setup: Setup
    start: Count
    count: Count
    thin: Count
    phase: Phase
    keep: bool


def _fill(work: _Shared, carry: Carry, keys: Array, buffer: dict[str, Array]) -> tuple[Carry, dict[str, Array]]:
    """The rows of the chains on one device."""

    def row(i: Array, value: tuple[Carry, dict[str, Array]]) -> tuple[Carry, dict[str, Array]]:
        carry, buffer = value
        carry, values = _row(work, carry, keys, work.start + i * work.thin, buffer)
        write = jax.lax.dynamic_update_index_in_dim
        return carry, {n: write(b, values[n].astype(b.dtype), i, 0) for n, b in buffer.items()}

    return jax.lax.fori_loop(jnp.uint32(0), work.count, row, (carry, buffer))


def _row(
    work: _Shared, carry: Carry, keys: Array, first: Array, buffer: dict[str, Array]
) -> tuple[Carry, dict[str, Array]]:
    """`thin` steps of each chain from step `first` on, and what is kept of them.

    Statistics are reduced as the steps go, so that a draw of a thousand steps takes no more room than one of one.
    """
    how = reductions(work.setup.sampler)
    empty = {n: jnp.zeros(b.shape[1:], b.dtype) for n, b in buffer.items() if n != _POSITION}

    def step(j: Array, value: tuple[Carry, Stats]) -> tuple[Carry, Stats]:
        carry, so_far = value

        def one(setup: Setup, carry: Carry, key: PRNGKeyArray) -> tuple[Carry, Stats]:
            # By the absolute step: neither the cut into chunks nor a resume can change a draw.
            return setup.one_step(work.phase, carry, jax.random.fold_in(key, first + j))

        carry, stats = _ONE_BY_ONE.all_chains(one, work.setup, carry, keys)
        return carry, {n: _reduced(how.get(n, "last"), so_far[n], stats[n]) for n in stats}

    carry, values = jax.lax.fori_loop(jnp.uint32(0), work.thin, step, (carry, empty))
    values = {n: v / work.thin.astype(v.dtype) if how.get(n) == "mean" else v for n, v in values.items()}
    return carry, values | ({_POSITION: work.setup.kept(carry.states)} if work.keep else {})


def _reduced(how: Reduce, so_far: Array, value: Array) -> Array:
    """A statistic over the steps of one thinned draw: their sum (for the mean), or the last."""
    return so_far + value.astype(so_far.dtype) if how == "mean" else value


def _fill_chain_by_chain(
    work: _Shared, carry: Carry, keys: Array, buffer: dict[str, Array]
) -> tuple[Carry, dict[str, Array]]:
    """The same, one chain after the other to its end: only one chain's step is in memory at a time."""

    def lone(axis: int) -> Any:
        return lambda a: jnp.expand_dims(a, axis)

    def single(slices: tuple[Carry, Array, dict[str, Array]]) -> tuple[Carry, dict[str, Array]]:
        carry, key, buffer = slices
        carry, buffer = _fill(work, jax.tree.map(lone(0), carry), lone(0)(key), jax.tree.map(lone(1), buffer))
        return jax.tree.map(lambda a: a[0], carry), {n: jnp.squeeze(b, 1) for n, b in buffer.items()}

    chains_first = {n: jnp.moveaxis(b, 1, 0) for n, b in buffer.items()}
    carry, filled = jax.lax.map(single, (carry, keys, chains_first))
    return carry, {n: jnp.moveaxis(b, 0, 1) for n, b in filled.items()}


class Rows(NamedTuple):
    """What a buffer's rows hold: of each statistic, and of the positions where they are kept, `[chain, ...]`."""

    shapes: dict[str, tuple[tuple[int, ...], Any]]
    answers: frozenset[str]
    """Statistics that are means of a yes or no over the steps of a draw of one step: that step's answer."""
    capacity: int
    position: tuple[int, int]

    @classmethod
    def of(cls, setup: Setup, carry: Carry, phase: Phase, *, keep: bool, thin: int, most_draws: int) -> Rows:
        """A power of two of rows, bounded in bytes, whatever the number of draws: a longer run compiles nothing new."""
        (num_chains, dim), how = eqx.filter_eval_shape(setup.kept, carry.states).shape, reductions(setup.sampler)
        steps = setup.statistics(phase, carry.states)
        means = {n for n in steps if how.get(n) == "mean"}
        types = {n: jnp.zeros(()).dtype if n in means and not _real(s.dtype) else s.dtype for n, s in steps.items()}
        shapes = {n: ((num_chains, *s.shape), types[n]) for n, s in steps.items()}
        if keep:
            shapes[_POSITION] = ((num_chains, dim), carry.states.position.dtype)
        row_bytes = max(1, sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values()))
        capacity = min(most_draws, 2 ** max(0, (_BUFFER_BYTES // row_bytes).bit_length() - 1))
        answers = frozenset(n for n in means if steps[n].dtype == bool) if thin == 1 else frozenset()
        return cls(shapes, answers, capacity, (num_chains, dim))

    def buffer(self, placement: Placement) -> dict[str, Array]:
        """An empty one for this process's chains, on their devices."""
        empty = {n: np.zeros((self.capacity, *shape), dtype) for n, (shape, dtype) in self.shapes.items()}
        return placement.put_own(empty, 1)

    def fetch(
        self, buffer: dict[str, Array], count: int
    ) -> tuple[Float[np.ndarray, "chain draw dim"], dict[str, np.ndarray]]:
        """The first rows as host arrays [chain, draw, ...]; copies, for the buffer's memory is filled again."""
        values = {n: np.array(np.swapaxes(np.asarray(b)[:count], 0, 1)) for n, b in buffer.items()}
        values |= {n: values[n] > 0 for n in self.answers}
        num_chains, dim = self.position
        return values.pop(_POSITION, np.zeros((num_chains, 0, dim), np.float32)), values


def _real(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)
