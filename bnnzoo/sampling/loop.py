"""The only loop: chunks of jitted steps over all chains, the same for every sampler.

A chunk is one compiled program whose number of draws, thinning and first step are arguments: any cut of a run into
chunks executes the same instructions, which is why chunk sizes, stopping and resuming change no bit, and why nothing
is compiled twice. Randomness is by absolute step: `fold_in(chain_key, step)`.
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
"""How many times as long as the first a chunk may be, and in how many seconds it gets as long again: half a second at
first, ten seconds after three hours."""


class Chunk(NamedTuple):
    """What one meeting of host and device, and of the processes, brings of all chains.

    `draws` [chain, draw, dim] is empty in warm-up unless it is kept; `stats` are [chain, draw].
    """

    phase: Phase
    draws: Float[np.ndarray, "chain draw dim"]
    stats: dict[str, np.ndarray]
    carry: Carry
    next_step: int
    sampler: AbstractSampler


@dataclasses.dataclass
class Seconds:
    """Where the time of a run went; together all of it, from the command's first line to its last."""

    start: float = 0.0
    """Imports, data, and what is compiled before the chains are where they start."""
    compile: float = 0.0
    """The programs of the chains."""
    warmup: float = 0.0
    """Training of the start, or the way there from the prior, and the steps of warm-up."""
    sampling: float = 0.0
    judging: float = 0.0
    """The last look at the chains, and the test of convergence."""
    writing: float = 0.0
    """The file."""

    @property
    def total(self) -> float:
        """All of them."""
        return sum(dataclasses.astuple(self))

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Counts what happens inside as compilation."""
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
    """Run the chains, a chunk at a time; the device works on the next chunk while the caller writes this one.

    Where processes share the chains each of them runs this loop, and it ends in all when the first closes it.

    Args:
        thetas: where the chains start.
        num_warmup: steps of warm-up, not thinned.
        num_draws: kept draws a chain, each `thin` steps after the last.
        resume: carry and next step of a checkpoint, instead of a start at `thetas`. `sampler` is then the tuned one.
        chunk_seconds: how long the first chunks should take; `most_draws` bounds them too. Neither changes a draw.
        seconds: filled with the time spent.
        stops: numbers of kept draws at which a chunk ends, so that the caller can look at exactly so many.
        outputs: what is kept of a draw; its position unless given.
        leaving: asked before each chunk; the number of a signal for which the processes shall all stop, or 0.

    Raises:
        InterruptedRunError: when a process that is not the first asked for it.
        BnnzooError: when a chain's position is no longer finite, no chain accepts a proposal for 1000 steps, or the
            sampler says that it cannot go on.
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
    """A run's keys, lengths and clock."""

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
        """Draws that a chunk from this step on may hold."""
        return (min((stop for stop in self.stops if stop > step), default=self.last_step) - step) // self.thin

    def warming(self, setup: Setup, carry: Carry, *, start: int, count: int) -> Work:
        """Steps of warm-up: each is a row, for each moves the tuning."""
        return Work(setup, carry, self.chain_keys, start, count, 1, "warm-up", self.keep_warmup)

    def sampling(self, setup: Setup, carry: Carry, *, start: int, count: int) -> Work:
        """Draws, each of `thin` steps."""
        return Work(setup, carry, self.chain_keys, start, count, self.thin, "sampling", True)


def _warm_up(plan: _Plan, setup: Setup, carry: Carry, step: int) -> Generator[Chunk, None, tuple[Setup, Carry] | None]:
    """Chunks that end where windows do; what is tuned between them comes back, or None where the processes stop."""
    seconds, last, processes = plan.seconds, plan.num_warmup, setup.placement.processes
    constraints = setup.constraints(carry.states, last)
    rows = Rows.of(setup, carry, "warm-up", keep=plan.keep_warmup, thin=1, most_draws=plan.most_draws)
    with seconds.compiling():
        # No step at all compiles the program that the first chunk runs, and its time is known to be compilation.
        carry, buffer = advance(plan.warming(setup, carry, start=step, count=0), rows.buffer(setup.placement))
        jax.block_until_ready(buffer)
    started, before = time.perf_counter(), seconds.warmup
    pace = _Pace(plan.chunk_seconds, rows.capacity)
    while step < last:
        # A chunk never goes past its window: between windows the sampler looks at all chains, on the host, and may
        # become another one (`tune`). Where windows end is a matter of the number of steps alone, never of the clock.
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
    """The sampler and the states after a window: each chain settles on the device, then all are tuned on the host."""
    put, final = setup.placement.put, step == plan.num_warmup
    chain_keys = put(by_chain(jax.random.fold_in(plan.keys.settle, step), plan.num_chains), 0)
    states = programs.settled(setup, carry, chain_keys, final)
    key = jax.random.fold_in(plan.keys.tune, step)
    states = _everyones(setup.placement.processes, states)
    with setup.placement.within():
        tuned, states = setup.sampler.tune(setup.posterior, states, final=final, key=key, num_steps=step)
    return eqx.tree_at(lambda s: s.sampler, setup, tuned), put(states, 0)


def _sample(plan: _Plan, setup: Setup, carry: Carry, step: int) -> Iterator[Chunk]:
    """Chunks of kept draws, each handed on while the device works at the next."""
    seconds, thin, processes = plan.seconds, plan.thin, setup.placement.processes
    rows = Rows.of(setup, carry, "sampling", keep=True, thin=thin, most_draws=plan.most_draws)
    # Two buffers: the host reads the one that is full while the device fills the other.
    spare, buffer = rows.buffer(setup.placement), rows.buffer(setup.placement)
    with seconds.compiling():
        carry, buffer = advance(plan.sampling(setup, carry, start=step, count=0), buffer)
        jax.block_until_ready(buffer)
    started, before = time.perf_counter(), seconds.sampling
    pace = _Pace(plan.chunk_seconds, rows.capacity)
    quiet = np.zeros(plan.num_chains, int)
    # On a CPU the call returns when the chunk is done: a thread makes it, so that the caller can write meanwhile.
    with worker() as submit:

        def work(carry: Carry, step: int, count: int, buffer: dict[str, Array]) -> tuple[Carry, dict[str, Array], Any]:
            carry, filled = advance(plan.sampling(setup, carry, start=step, count=count), buffer)
            # Processes meet in one order everywhere: here, between the agreement on this chunk and that on the next.
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
            # What a checkpoint of this chunk holds; an interrupted run gets no further.
            seconds.sampling = before + time.perf_counter() - started
            with processes.told_of_the_end(under_way and under_way.result):
                yield Chunk("sampling", draws, stats, everyones, step, setup.sampler)
            # Only now: the draws of chains that are stuck are still the caller's; and where all are made, the run is
            # whole, and its end says that they are.
            quiet = steps_in_a_row(setup.sampler.moved(stats), quiet, thin)
            if under_way is not None:
                refuse_all_stuck(quiet, step)
    seconds.sampling = before + time.perf_counter() - started


def _everyones(processes: Processes, states: S) -> S:
    """Those of all chains, as arrays that compute."""
    return jax.tree.map(jnp.asarray, processes.everyones(states))


def carry_template(posterior: AbstractPosterior, sampler: AbstractSampler, num_chains: int, num_warmup: int) -> Carry:
    """The shapes and types of a carry, to read one back into."""
    setup = Setup(posterior, sampler, StepSize(), Placement("vectorized", None))
    thetas = jnp.zeros((num_chains, posterior.layout.dim), posterior.dtype)
    keys = by_chain(jax.random.key(0), num_chains)
    states = eqx.filter_eval_shape(lambda: setup.first_states(thetas, keys, num_warmup))
    constraints = setup.constraints(states, num_warmup)
    never = jnp.zeros(num_chains, jnp.int32)
    return eqx.filter_eval_shape(lambda s: setup.tuned_anew(s, never, constraints), states)


class _Pace:
    """How many rows make a chunk of the wanted length, from how long the last one took.

    The length grows with the run, to twenty times the first: every part that a chunk becomes is named in the manifest,
    which is written anew with each. A night then has thousands of parts, not a hundred thousand.
    """

    def __init__(self, seconds: float, most: int):
        self.seconds, self.most = seconds, most
        self.last, self.per_row = 0, 0.0
        self.began = self.since = time.perf_counter()

    def next(self, left: int) -> int:
        """At most eight times the last one: the first rows of a program are slower than the others will be."""
        seconds = self.seconds * min(_LONGEST, 1 + (self.since - self.began) / _GROWTH)
        wanted = int(seconds / self.per_row) if self.per_row else 1
        self.last = min(left, self.most, max(1, wanted), 8 * max(1, self.last))
        return self.last

    def took(self, count: int) -> None:
        """So many rows came since the last time."""
        now = time.perf_counter()
        self.per_row, self.since = (now - self.since) / count, now


def _check_positions(setup: Setup, carry: Carry, next_step: int) -> None:
    positions = np.asarray(carry.states.position)[:, None]
    _check_finite(positions, setup.posterior.layout, setup, next_step)


def _check_finite(draws: Float[np.ndarray, "chain draw value"], layout: Layout, setup: Setup, next_step: int) -> None:
    with np.errstate(all="ignore"):
        if np.isfinite(np.sum(draws)):  # one cheap pass; only what fails it is looked at closely
            return
    bad = np.argwhere(~np.isfinite(draws))
    if len(bad):
        chain, _, index = bad[0]
        name, cure = layout.name_of(int(index)), spelt(setup.sampler.smaller_steps, spelling())
        raise BnnzooError(f"chain {chain}: {name} is not finite before step {next_step}; {cure}")
