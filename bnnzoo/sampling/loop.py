"""The sampling loop: jitted steps of all chains in chunks, the same for every sampler.

A chunk is one call of a compiled program. Its number of draws, thinning and first step are arguments, so every way to
cut a run into chunks executes the same instructions. Chunk sizes, stopping and resuming therefore change no bit, and
nothing is compiled twice. Random numbers depend only on the absolute step: `fold_in(chain_key, step)`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from bnnzoo.errors import BnnzooError
from bnnzoo.finding import spelling, spelt
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.layout import Layout
from bnnzoo.posterior.outputs import Outputs
from bnnzoo.samplers.base import AbstractSampler
from bnnzoo.samplers.statistics import ACCEPTANCE_RATE
from bnnzoo.sampling import chunk as programs
from bnnzoo.sampling.chunk import MOST_DRAWS, Carry, Phase, Rows, Setup, Work, advance
from bnnzoo.sampling.keys import Keys, by_chain
from bnnzoo.sampling.placement import Placement
from bnnzoo.sampling.processes import Processes
from bnnzoo.sampling.restart import restarted
from bnnzoo.sampling.stuck import refuse_all_stuck, steps_in_a_row
from bnnzoo.sampling.warmup import AbstractWarmup, StepSize, windows
from bnnzoo.sampling.worker import worker

S = TypeVar("S")

_LONGEST, _GROWTH = 20.0, 500.0
"""Largest relative length of a chunk, and seconds in which it grows by its first length: 10 s after three hours."""


class Chunk(NamedTuple):
    """One compiled chunk of draws and statistics for all chains.

    `draws` [chain, draw, dim] is empty in warm-up unless warm-up is kept; `stats` are [chain, draw].
    """

    phase: Phase
    draws: Float[np.ndarray, "chain draw dim"]
    stats: dict[str, np.ndarray]
    carry: Carry
    next_step: int
    sampler: AbstractSampler


@dataclasses.dataclass
class Seconds:
    """Wall-clock seconds of a run by phase; their sum covers the command from its first line to its last."""

    start: float = 0.0
    """Imports, loading the data, and compilation before the initial positions are found."""
    compile: float = 0.0
    """Compilation of the chains' programs."""
    warmup: float = 0.0
    """Training of the initial positions, or moving them there from the prior, and the warm-up steps."""
    sampling: float = 0.0
    judging: float = 0.0
    """The sampler's final inspection of the chains, and the test of convergence."""
    writing: float = 0.0
    """Writing the file."""

    @property
    def total(self) -> float:
        """Sum over all phases, in seconds."""
        return sum(dataclasses.astuple(self))

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Count the time spent inside the block as compilation."""
        started = time.perf_counter()
        yield
        self.compile += time.perf_counter() - started


def chunks(
    posterior: AbstractPosterior,
    sampler: AbstractSampler,
    thetas: Float[Array | np.ndarray, "chain dim"],
    *,
    keys: Keys,
    num_warmup: int,
    num_draws: int,
    placement: Placement,
    warmup: AbstractWarmup | None = None,
    thin: int = 1,
    keep_warmup: bool = False,
    resume: tuple[Carry, int] | None = None,
    chunk_seconds: float = 0.5,
    most_draws: int = MOST_DRAWS,
    seconds: Seconds | None = None,
    stops: Sequence[int] = (),
    outputs: Outputs | None = None,
    leaving: Callable[[], int] | None = None,
) -> Generator[Chunk, None, None]:
    """Run the chains chunk by chunk; the device computes the next chunk while the caller writes the current one.

    If several processes share the chains, each runs this loop, and it ends in all of them when the first one closes it.

    Args:
        thetas: initial positions.
        num_warmup: warm-up steps, not thinned.
        num_draws: kept draws per chain, `thin` steps apart.
        resume: carry and next step of a checkpoint, used instead of `thetas`. `sampler` is then the tuned one.
        chunk_seconds: target duration of the first chunks. `most_draws` bounds them too. Neither changes a draw.
        seconds: filled with the time spent.
        stops: numbers of kept draws at which a chunk must end, so that the caller can test exactly that many.
        outputs: values to keep of each draw; the default is its position.
        leaving: called before each chunk; returns the number of a signal that stops all processes, or 0.

    Raises:
        InterruptedRunError: if a process other than the first asked to stop.
        BnnzooError: if a position is no longer finite, no chain accepts a proposal for 1000 steps, or the sampler
            fails.
    """
    num_chains = len(thetas)
    posterior, outputs = placement.put_posterior(posterior), placement.put(outputs, None)
    setup = Setup(posterior, sampler, warmup or StepSize(), placement, outputs)
    plan = _Plan(
        keys=keys,
        num_chains=num_chains,
        chain_keys=placement.put(by_chain(keys.chain, num_chains), 0),
        num_warmup=num_warmup,
        last_step=num_warmup + num_draws * thin,
        thin=thin,
        keep_warmup=keep_warmup,
        chunk_seconds=chunk_seconds,
        most_draws=most_draws,
        seconds=seconds if seconds is not None else Seconds(),
        stops=tuple(num_warmup + stop * thin for stop in stops),
        leaving=leaving or (lambda: 0),
    )
    with plan.seconds.compiling():
        if resume is None:
            first_keys = placement.put(by_chain(keys.states, num_chains), 0)
            states = programs.first_states(setup, placement.put(jnp.asarray(thetas), 0), first_keys, num_warmup)
            never = placement.put(jnp.zeros(num_chains, jnp.int32), 0)
            carry, step = programs.tuned_anew(setup, states, never, setup.constraints(states, num_warmup)), 0
        else:
            carry, step = placement.put(resume[0], 0), resume[1]
    if step < num_warmup:
        warmed = yield from _warm_up(plan, setup, carry, step)
        if warmed is None:
            return
        (setup, carry), step = warmed, num_warmup
    yield from _sample(plan, setup, carry, step)


class _Plan(NamedTuple):
    """Keys, lengths and timing options of a run."""

    keys: Keys
    num_chains: int
    chain_keys: Key[Array, " chain"]
    num_warmup: int
    last_step: int
    thin: int
    keep_warmup: bool
    chunk_seconds: float
    most_draws: int
    seconds: Seconds
    stops: tuple[int, ...]
    leaving: Callable[[], int]

    def left(self, step: int) -> int:
        """Return the largest number of draws that a chunk starting at this step may hold."""
        return (min((stop for stop in self.stops if stop > step), default=self.last_step) - step) // self.thin

    def warming(self, setup: Setup, carry: Carry, *, start: int, count: int) -> Work:
        """Return warm-up steps as work for the device; each step is one row because each one updates the tuning."""
        return Work(setup, carry, self.chain_keys, start, count, 1, "warm-up", self.keep_warmup)

    def sampling(self, setup: Setup, carry: Carry, *, start: int, count: int) -> Work:
        """Return draws of `thin` steps each as work for the device."""
        return Work(setup, carry, self.chain_keys, start, count, self.thin, "sampling", True)


def _warm_up(plan: _Plan, setup: Setup, carry: Carry, step: int) -> Generator[Chunk, None, tuple[Setup, Carry] | None]:
    """Yield chunks that end where windows do; return the tuned setup and carry, or None if the processes stop."""
    seconds, last, processes = plan.seconds, plan.num_warmup, setup.placement.processes
    constraints = setup.constraints(carry.states, last)
    rows = Rows.of(setup, carry, "warm-up", keep=plan.keep_warmup, thin=1, most_draws=plan.most_draws)
    with seconds.compiling():
        # A call with zero steps compiles the program of the first chunk, so its time is compilation alone.
        carry, buffer = advance(plan.warming(setup, carry, start=step, count=0), rows.buffer(setup.placement))
        jax.block_until_ready(buffer)
    started, before = time.perf_counter(), seconds.warmup
    pace = _Pace(plan.chunk_seconds, rows.capacity)
    while step < last:
        # A chunk ends with its window: there the host tunes the sampler on all chains, which may replace it (`tune`).
        # The ends depend only on the number of steps, never on the clock.
        end = next(end for end in windows(last) if end > step)
        if not (count := processes.meet(pace.next(end - step), leaving=plan.leaving())):
            return None
        carry, buffer = advance(plan.warming(setup, carry, start=step, count=count), buffer)
        draws, stats = processes.everyones(rows.fetch(buffer, count))
        pace.took(count)
        step += count
        if step == end:
            if step < last and ACCEPTANCE_RATE in setup.sampler.statistics:
                everyones, key = _everyones(processes, carry), jax.random.fold_in(plan.keys.restart, step)
                with setup.placement.within():
                    again = restarted(setup.posterior, everyones, key=key)
                carry = setup.placement.put(again, 0)
            setup, states = _between_windows(plan, setup, carry, step)
            carry = programs.tuned_anew(setup, states, carry.restarted, constraints)
        everyones = processes.everyones(carry)
        _check_positions(setup, everyones, step)
        seconds.warmup = before + time.perf_counter() - started
        with processes.told_of_the_end(lambda: None):
            yield Chunk("warm-up", draws, stats, everyones, step, setup.sampler)
    return setup, carry


def _between_windows(plan: _Plan, setup: Setup, carry: Carry, step: int) -> tuple[Setup, PyTree]:
    """Settle each chain on the device, tune all on the host, and return the new setup and states."""
    put, final = setup.placement.put, step == plan.num_warmup
    chain_keys = put(by_chain(jax.random.fold_in(plan.keys.settle, step), plan.num_chains), 0)
    states = programs.settled(setup, carry, chain_keys, final)
    key = jax.random.fold_in(plan.keys.tune, step)
    states = _everyones(setup.placement.processes, states)
    with setup.placement.within():
        tuned, states = setup.sampler.tune(setup.posterior, states, final=final, key=key, num_steps=step)
    return eqx.tree_at(lambda s: s.sampler, setup, tuned), put(states, 0)


def _sample(plan: _Plan, setup: Setup, carry: Carry, step: int) -> Iterator[Chunk]:
    """Yield chunks of kept draws while the device computes the next one."""
    seconds, thin, processes = plan.seconds, plan.thin, setup.placement.processes
    rows = Rows.of(setup, carry, "sampling", keep=True, thin=thin, most_draws=plan.most_draws)
    # Two buffers: the host reads the full one while the device fills the other.
    spare, buffer = rows.buffer(setup.placement), rows.buffer(setup.placement)
    with seconds.compiling():
        carry, buffer = advance(plan.sampling(setup, carry, start=step, count=0), buffer)
        jax.block_until_ready(buffer)
    started, before = time.perf_counter(), seconds.sampling
    pace = _Pace(plan.chunk_seconds, rows.capacity)
    quiet = np.zeros(plan.num_chains, int)
    # On a CPU the call returns only when the chunk is done. A thread makes it, so that the caller can write meanwhile.
    with worker() as submit:

        def work(carry: Carry, step: int, count: int, buffer: dict[str, Array]) -> tuple[Carry, dict[str, Array], Any]:
            carry, filled = advance(plan.sampling(setup, carry, start=step, count=count), buffer)
            # All processes must communicate in the same order: here, between agreeing on this chunk and on the next.
            several = processes.count > 1
            return carry, filled, processes.everyones((rows.fetch(filled, count), carry)) if several else None

        def launch(carry: Carry, step: int, buffer: dict[str, Array]) -> tuple[Future | None, int]:
            if not (count := processes.meet(pace.next(plan.left(step)), leaving=plan.leaving())):
                return None, step
            return submit(work, carry, step, count, buffer), step + count * thin

        under_way, next_step = launch(carry, step, buffer)
        while under_way is not None:
            carry, filled, shared = under_way.result()
            count, step = (next_step - step) // thin, next_step
            under_way, next_step = launch(carry, step, spare)
            (draws, stats), everyones = shared or (rows.fetch(filled, count), carry)
            spare = filled
            pace.took(count)
            if setup.outputs is None:
                _check_finite(draws, setup.posterior.layout, setup, step)
            else:
                _check_positions(setup, everyones, step)
                _check_finite(draws, setup.outputs.layout, setup, step)
            if problem := setup.sampler.failure(stats):
                raise BnnzooError(problem)
            # A checkpoint of this chunk stores these seconds; an interrupted run does not get past the yield.
            seconds.sampling = before + time.perf_counter() - started
            with processes.told_of_the_end(under_way and under_way.result):
                yield Chunk("sampling", draws, stats, everyones, step, setup.sampler)
            # After the yield, because the caller still keeps the draws of stuck chains. After the last chunk the run is
            # complete, and its findings report them.
            quiet = steps_in_a_row(setup.sampler.moved(stats), quiet, thin)
            if under_way is not None:
                refuse_all_stuck(quiet, step)
    seconds.sampling = before + time.perf_counter() - started


def _everyones(processes: Processes, states: S) -> S:
    """Return the states of all chains as JAX arrays."""
    return jax.tree.map(jnp.asarray, processes.everyones(states))


def carry_template(posterior: AbstractPosterior, sampler: AbstractSampler, num_chains: int, num_warmup: int) -> Carry:
    """Return the shapes and types of a carry, into which a checkpoint is read."""
    setup = Setup(posterior, sampler, StepSize(), Placement("vectorized", None))
    thetas = jnp.zeros((num_chains, posterior.layout.dim), posterior.dtype)
    keys = by_chain(jax.random.key(0), num_chains)
    states = eqx.filter_eval_shape(lambda: setup.first_states(thetas, keys, num_warmup))
    constraints = setup.constraints(states, num_warmup)
    never = jnp.zeros(num_chains, jnp.int32)
    return eqx.filter_eval_shape(lambda s: setup.tuned_anew(s, never, constraints), states)


class _Pace:
    """Number of rows in the next chunk, from the target duration and the time per row of the last chunk.

    The target grows to twenty times the first, because the manifest names every chunk's part and is rewritten with each
    chunk. A run of one night then has thousands of parts instead of a hundred thousand.
    """

    def __init__(self, seconds: float, most: int):
        self.seconds, self.most = seconds, most
        self.last, self.per_row = 0, 0.0
        self.began = self.since = time.perf_counter()

    def next(self, left: int) -> int:
        """Return the rows of the next chunk: at most eight times the last, because a program's first rows are slow."""
        seconds = self.seconds * min(_LONGEST, 1 + (self.since - self.began) / _GROWTH)
        wanted = int(seconds / self.per_row) if self.per_row else 1
        self.last = min(left, self.most, max(1, wanted), 8 * max(1, self.last))
        return self.last

    def took(self, count: int) -> None:
        """Record that `count` rows were computed since the last call."""
        now = time.perf_counter()
        self.per_row, self.since = (now - self.since) / count, now


def _check_positions(setup: Setup, carry: Carry, next_step: int) -> None:
    positions = np.asarray(carry.states.position)[:, None]
    _check_finite(positions, setup.posterior.layout, setup, next_step)


def _check_finite(draws: Float[np.ndarray, "chain draw value"], layout: Layout, setup: Setup, next_step: int) -> None:
    with np.errstate(all="ignore"):
        if np.isfinite(np.sum(draws)):  # one cheap pass; the exact place is searched only if it fails
            return
    bad = np.argwhere(~np.isfinite(draws))
    if len(bad):
        chain, _, index = bad[0]
        name, cure = layout.name_of(int(index)), spelt(setup.sampler.smaller_steps, spelling())
        raise BnnzooError(f"chain {chain}: {name} is not finite before step {next_step}; {cure}")
