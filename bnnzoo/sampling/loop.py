"""The only loop: chunks of jitted steps over all chains, the same for every sampler.

A chunk is one compiled program whose number of draws, thinning and first step are arguments: any cut of a run into
chunks executes the same instructions, which is why chunk sizes, stopping and resuming change no bit, and why nothing
is compiled twice. Randomness is by absolute step: `fold_in(chain_key, step)`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from math import prod
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray, PyTree

from bnnzoo.errors import BnnzooError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers.base import AbstractSampler, Stats
from bnnzoo.samplers.statistics import Reduce, reductions
from bnnzoo.sampling.placement import Placement
from bnnzoo.sampling.warmup import AbstractWarmup, StepSize, windows
from bnnzoo.sampling.worker import worker

_CHUNK_BYTES = 2**25
_MOST_DRAWS = 4096
_POSITION = "position"
STUCK_STEPS = 1000
"""Steps without an acceptance after which a chain is given up."""


class Keys(NamedTuple):
    """The named keys of a seed; nothing shares a key with anything else."""

    init: PRNGKeyArray
    """Where the chains start."""
    start: PRNGKeyArray
    """The samplers' first states."""
    tune: PRNGKeyArray
    settle: PRNGKeyArray
    chain: PRNGKeyArray
    fixed: PRNGKeyArray
    """The part of the network that is not sampled."""

    @classmethod
    def of(cls, seed: int) -> Keys:
        root = jax.random.key(seed, impl="threefry2x32")
        return cls(*(jax.random.fold_in(root, i) for i in (0, 4, 1, 2, 3, 5)))


class Carry(NamedTuple):
    """All that the next step depends on, besides the recipe: what a checkpoint holds."""

    states: PyTree
    tuning: PyTree


class Chunk(NamedTuple):
    """What one meeting of host and device brings.

    `draws` [chain, draw, dim] is empty in warm-up unless it is kept; `stats` are [chain, draw].
    """

    phase: Literal["warm-up", "sampling"]
    draws: Float[np.ndarray, "chain draw dim"]
    stats: dict[str, np.ndarray]
    carry: Carry
    next_step: int
    sampler: AbstractSampler


@dataclasses.dataclass
class Seconds:
    """Where the time of a run went."""

    compile: float = 0.0
    warmup: float = 0.0
    sampling: float = 0.0


class Loop(eqx.Module):
    """What a run's compiled programs depend on."""

    posterior: AbstractPosterior
    sampler: AbstractSampler
    warmup: AbstractWarmup
    placement: Placement


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
    most_draws: int = _MOST_DRAWS,
    seconds: Seconds | None = None,
) -> Iterator[Chunk]:
    """Run the chains, a chunk at a time; the device works on the next chunk while the caller writes this one.

    Args:
        thetas: where the chains start.
        num_warmup: steps of warm-up, not thinned.
        num_draws: kept draws a chain, each `thin` steps after the last.
        resume: carry and next step of a checkpoint, instead of a start at `thetas`. `sampler` is then the tuned one.
        chunk_seconds: how long a chunk should take; `most_draws` bounds it too. Neither changes a draw.
        seconds: filled with the time spent.

    Raises:
        BnnzooError: when a chain's position is no longer finite, no proposal is accepted for 1000 steps, or the
            sampler says that it cannot go on.
    """
    num_chains = len(thetas)
    posterior = placement.put(posterior, None)
    loop = Loop(posterior, sampler, warmup if warmup is not None else StepSize(), placement)
    plan = _Plan(
        keys=keys,
        chain_keys=placement.put(_chain_keys(keys.chain, num_chains), 0),
        num_warmup=num_warmup,
        last_step=num_warmup + num_draws * thin,
        thin=thin,
        keep_warmup=keep_warmup,
        chunk_seconds=chunk_seconds,
        most_draws=most_draws,
        seconds=seconds if seconds is not None else Seconds(),
    )
    started = time.perf_counter()
    if resume is None:
        first = placement.put(_chain_keys(keys.start, num_chains), 0)
        states, step = _begin(loop, placement.put(jnp.asarray(thetas), 0), first, num_warmup), 0
        carry = _retune(loop, states, _constraints(loop, states, num_warmup))
    else:
        carry, step = placement.put(resume[0], 0), resume[1]
    plan.seconds.compile += time.perf_counter() - started

    if step < num_warmup:
        loop, carry = yield from _warm_up(plan, loop, carry, step)
        step = num_warmup
    yield from _sample(plan, loop, carry, step)


class _Plan(NamedTuple):
    """A run's keys, lengths and clock."""

    keys: Keys
    chain_keys: Key[Array, " chain"]
    num_warmup: int
    last_step: int
    thin: int
    keep_warmup: bool
    chunk_seconds: float
    most_draws: int
    seconds: Seconds


def _warm_up(plan: _Plan, loop: Loop, carry: Carry, step: int) -> Generator[Chunk, None, tuple[Loop, Carry]]:
    """Chunks that end where windows do; what is tuned between them comes back."""
    started = time.perf_counter()
    num_chains, dim = carry.states.position.shape
    put, keys, last = loop.placement.put, plan.keys, plan.num_warmup
    constraints = _constraints(loop, carry.states, last)
    (buffer,), answers = _buffers(1, loop, carry, True, plan.keep_warmup, plan.most_draws)
    job = (loop, carry, plan.chain_keys, *_numbers(step, 0, 1), True, plan.keep_warmup)
    carry, buffer = _advance(job, buffer)
    jax.block_until_ready(buffer)
    plan.seconds.compile += time.perf_counter() - started
    started, before = time.perf_counter(), plan.seconds.warmup
    pace = _Pace(plan.chunk_seconds, _rows(buffer))
    while step < last:
        end = next(e for e in windows(last) if e > step)
        count = pace.next(end - step)
        job = (loop, carry, plan.chain_keys, *_numbers(step, count, 1), True, plan.keep_warmup)
        carry, buffer = _advance(job, buffer)
        draws, stats = _fetch(buffer, answers, count, num_chains, dim)
        pace.tell(count)
        step += count
        if step == end:
            settle_keys = put(_chain_keys(jax.random.fold_in(keys.settle, step), num_chains), 0)
            tuned, states = loop.sampler.tune(
                loop.posterior,
                _settle(loop, carry, settle_keys, step == last),
                final=step == last,
                key=jax.random.fold_in(keys.tune, step),
                num_steps=step,
            )
            loop = eqx.tree_at(lambda r: r.sampler, loop, tuned)
            carry = _retune(loop, put(states, 0), constraints)
        _check_finite(np.asarray(carry.states.position)[:, None], loop, step)
        plan.seconds.warmup = before + time.perf_counter() - started
        yield Chunk("warm-up", draws, stats, carry, step, loop.sampler)
    return loop, carry


def _sample(plan: _Plan, loop: Loop, carry: Carry, step: int) -> Iterator[Chunk]:
    """Chunks of kept draws, each handed on while the device works at the next."""
    started = time.perf_counter()
    (num_chains, dim), thin = carry.states.position.shape, plan.thin
    (spare, buffer), answers = _buffers(2, loop, carry, False, True, plan.most_draws)
    answers = answers if thin == 1 else frozenset()
    carry, buffer = _advance((loop, carry, plan.chain_keys, *_numbers(step, 0, thin), False, True), buffer)
    jax.block_until_ready(buffer)
    plan.seconds.compile += time.perf_counter() - started
    started, before = time.perf_counter(), plan.seconds.sampling
    pace = _Pace(plan.chunk_seconds, _rows(buffer))
    quiet = np.zeros(num_chains, int)
    # On a CPU the call returns when the chunk is done: a thread makes it, so that the caller can write meanwhile.
    with worker() as submit:

        def launch(carry: Carry, step: int, buffer: dict[str, Array]) -> tuple[Future | None, int]:
            count = pace.next((plan.last_step - step) // thin)
            if not count:
                return None, step
            job = (loop, carry, plan.chain_keys, *_numbers(step, count, thin), False, True)
            return submit(_advance, job, buffer), step + count * thin

        under_way, next_step = launch(carry, step, buffer)
        while under_way is not None:
            carry, filled = under_way.result()
            count, step = (next_step - step) // thin, next_step
            under_way, next_step = launch(carry, step, spare)
            draws, stats = _fetch(filled, answers, count, num_chains, dim)
            spare = filled
            pace.tell(count)
            _check_finite(draws, loop, step)
            if problem := loop.sampler.failure(stats):
                raise BnnzooError(problem)
            # What a checkpoint of this chunk holds; an interrupted run gets no further.
            plan.seconds.sampling = before + time.perf_counter() - started
            yield Chunk("sampling", draws, stats, carry, step, loop.sampler)
            quiet = _check_moving(loop, stats, quiet, thin, step)
    plan.seconds.sampling = before + time.perf_counter() - started


def carry_template(posterior: AbstractPosterior, sampler: AbstractSampler, num_chains: int, num_warmup: int) -> Carry:
    """The shapes and types of a carry, to read one back into."""
    loop = Loop(posterior, sampler, StepSize(), Placement("vectorized", None))
    thetas = jnp.zeros((num_chains, posterior.layout.dim), posterior.dtype)
    keys = _chain_keys(jax.random.key(0), num_chains)
    states = eqx.filter_eval_shape(lambda: _begin.__wrapped__(loop, thetas, keys, num_warmup))
    constraints = _constraints(loop, states, num_warmup)
    return eqx.filter_eval_shape(lambda s: _retune.__wrapped__(loop, s, constraints), states)


class _Pace:
    """How many rows make a chunk of the wanted length, from how long the last one took."""

    def __init__(self, seconds: float, most: int):
        self.seconds, self.most = seconds, most
        self.last, self.per_row = 0, 0.0
        self.since = time.perf_counter()

    def next(self, left: int) -> int:
        wanted = int(self.seconds / self.per_row) if self.per_row else 1
        self.last = min(left, self.most, max(1, wanted), 8 * max(1, self.last))
        return self.last

    def tell(self, count: int) -> None:
        now = time.perf_counter()
        self.per_row, self.since = (now - self.since) / count, now


def _numbers(*values: int) -> tuple[np.uint32, ...]:
    """Integers as arguments of a compiled program; a Python int would be compiled into it."""
    return tuple(np.uint32(value) for value in values)


def _chain_keys(key: PRNGKeyArray, num_chains: int) -> Key[Array, " chain"]:
    return jax.vmap(lambda c: jax.random.fold_in(key, c))(jnp.arange(num_chains, dtype=jnp.uint32))


@eqx.filter_jit
def _begin(loop: Loop, thetas: Float[Array, "chain dim"], keys: Key[Array, " chain"], num_warmup: int) -> PyTree:
    """The chains' first states."""

    def one(shared, theta, key):
        return shared.sampler.init(shared.posterior, theta, num_warmup=num_warmup, key=key)

    return loop.placement.all_chains(one, loop, thetas, keys)


@eqx.filter_jit
def _settle(loop: Loop, carry: Carry, keys: Key[Array, " chain"], final: bool) -> PyTree:
    """The states at the end of a window."""

    def one(shared, carry, key):
        state = shared.warmup.final(carry.tuning, carry.states)
        return shared.sampler.settle(shared.posterior, state, final=final, key=key)

    return loop.placement.all_chains(one, loop, carry, keys)


@eqx.filter_jit
def _retune(loop: Loop, states: PyTree, constraints: int) -> Carry:
    """States at the start of a window, with the tuning begun anew."""

    def one(shared, state):
        return Carry(state, shared.warmup.init(state, constraints))

    return loop.placement.all_chains(one, loop, states)


def _constraints(loop: Loop, states: PyTree, num_warmup: int) -> int:
    """How many limits the sampler's step size has in warm-up."""
    if not num_warmup:
        return 0

    def headroom(states, key):
        state = jax.tree.map(lambda a: a[0], states)
        return loop.sampler.headroom(loop.sampler.warmup_step(loop.posterior, state, key=key)[1])

    return eqx.filter_eval_shape(headroom, states, jax.random.key(0)).shape[0]


def _one_step(loop: Loop, warming: bool, carry: Carry, key: PRNGKeyArray) -> tuple[Carry, Stats]:
    if not warming:
        state, stats = loop.sampler.step(loop.posterior, carry.states, key=key)
        return Carry(state, carry.tuning), stats
    state, stats = loop.sampler.warmup_step(loop.posterior, carry.states, key=key)
    tuning, state = loop.warmup.update(carry.tuning, state, loop.sampler.headroom(stats))
    return Carry(state, tuning), stats


@eqx.filter_jit(donate="all-except-first")
def _advance(job: tuple, buffer: dict[str, Array]) -> tuple[Carry, dict[str, Array]]:
    """Fill the first `count` rows of `buffer` [row, chain, ...], `thin` steps a row, from step `start` on."""
    loop, carry, keys, start, count, thin, warming, keep = job
    sequential, how = loop.placement.method == "sequential", reductions(loop.sampler)

    def local(shared, carry, keys, buffer):
        run, start, count, thin = shared

        def step(carry, index):
            def one(run, carry, key):
                return _one_step(run, warming, carry, jax.random.fold_in(key, index))

            return Placement("vectorized", None).all_chains(one, run, carry, keys)

        def row(i, value):
            carry, buffer = value
            sums = {n: jnp.zeros(b.shape[1:], b.dtype) for n, b in buffer.items() if n != _POSITION}

            def inner(j, value):
                carry, sums = value
                carry, stats = step(carry, start + i * thin + j)
                return carry, {n: _add(how.get(n), sums[n], stats[n]) for n in stats}

            carry, sums = jax.lax.fori_loop(jnp.uint32(0), thin, inner, (carry, sums))
            values = {n: v / thin.astype(v.dtype) if how.get(n) == "mean" else v for n, v in sums.items()}
            if keep:
                values[_POSITION] = carry.states.position
            write = jax.lax.dynamic_update_index_in_dim
            return carry, {n: write(b, values[n].astype(b.dtype), i, 0) for n, b in buffer.items()}

        return jax.lax.fori_loop(jnp.uint32(0), count, row, (carry, buffer))

    def one_by_one(shared, carry, keys, buffer):
        chain = lambda tree, axis: jax.tree.map(lambda a: jnp.expand_dims(a, axis), tree)  # noqa: E731

        def single(slices):
            carry, keys, buffer = slices
            return local(shared, chain(carry, 0), chain(keys, 0), chain(buffer, 1))

        carry, rows = jax.lax.map(single, (carry, keys, jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), buffer)))
        squeeze = lambda a, axis: jnp.squeeze(a, axis)  # noqa: E731
        return (
            jax.tree.map(lambda a: squeeze(a, 1), carry),
            jax.tree.map(lambda a: jnp.moveaxis(squeeze(a, 2), 0, 1), rows),
        )

    return loop.placement.spread(
        one_by_one if sequential else local,
        (loop, start, count, thin),
        (carry, keys, buffer),
        axes=(0, 0, 1),
        out_axes=(0, 1),
    )


def _sum_type(how: Reduce | None, dtype: Any) -> Any:
    if how == "mean" and not jnp.issubdtype(dtype, jnp.floating):
        return jnp.zeros(()).dtype
    return dtype


def _add(how: Reduce | None, total: Array, value: Array) -> Array:
    """A statistic over the steps of one thinned draw: a sum (for the mean), any, or the last."""
    if how == "mean":
        return total + value.astype(total.dtype)
    return total | value if how == "any" else value


def _buffers(
    number: int, loop: Loop, carry: Carry, warming: bool, keep: bool, most_draws: int
) -> tuple[list[dict[str, Array]], frozenset[str]]:
    """Room for chunks: a power of two of rows, bounded in bytes, whatever the number of draws.

    And which statistics are averages of answers, yes or no.
    """
    num_chains, dim = carry.states.position.shape

    def stats(carry, key):
        return _one_step(loop, warming, jax.tree.map(lambda a: a[0], carry), key)[1]

    shapes = eqx.filter_eval_shape(stats, carry, jax.random.key(0))
    how = reductions(loop.sampler)
    rows = {n: ((num_chains, *s.shape), _sum_type(how.get(n), s.dtype)) for n, s in shapes.items()}
    if keep:
        rows[_POSITION] = ((num_chains, dim), carry.states.position.dtype)
    row_bytes = max(1, sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in rows.values()))
    count = min(most_draws, 2 ** max(0, (_CHUNK_BYTES // row_bytes).bit_length() - 1))
    empty = {n: np.zeros((count, *shape), dtype) for n, (shape, dtype) in rows.items()}
    answers = frozenset(n for n, s in shapes.items() if s.dtype == bool and how.get(n) == "mean")
    return [loop.placement.put(empty, 1) for _ in range(number)], answers


def _rows(buffer: dict[str, Array]) -> int:
    return min((array.shape[0] for array in buffer.values()), default=_MOST_DRAWS)


def _fetch(
    buffer: dict[str, Array], answers: frozenset[str], count: int, num_chains: int, dim: int
) -> tuple[Float[np.ndarray, "chain draw dim"], dict[str, np.ndarray]]:
    """The filled rows as host arrays of their own, [chain, draw, ...]."""
    values = {n: np.array(np.swapaxes(np.asarray(b)[:count], 0, 1)) for n, b in buffer.items()}
    # The mean of a single answer is the answer.
    values |= {n: values[n] > 0 for n in answers}
    draws = values.pop(_POSITION, None)
    return (np.zeros((num_chains, 0, dim), np.float32) if draws is None else draws), values


def _check_finite(draws: Float[np.ndarray, "chain draw dim"], loop: Loop, next_step: int) -> None:
    with np.errstate(all="ignore"):
        if np.isfinite(np.sum(draws)):  # one cheap pass; only what fails it is looked at closely
            return
    bad = np.argwhere(~np.isfinite(draws))
    if len(bad):
        chain, _, index = bad[0]
        paces = [pace for pace in ("learning-rate", "step-size") if hasattr(loop.sampler, pace.replace("-", "_"))]
        advice = f"use a smaller --sampler.{paces[0]}" if paces else "use --precision float64, or another sampler"
        name = loop.posterior.layout.name_of(int(index))
        raise BnnzooError(f"chain {chain}: {name} is not finite before step {next_step}; {advice}")


def _check_moving(loop: Loop, stats: dict[str, np.ndarray], quiet: np.ndarray, thin: int, next_step: int) -> np.ndarray:
    """How many steps each chain has now rejected in a row, up to the precision of a thinned draw."""
    accepted = loop.sampler.moved(stats)
    if accepted is None:
        return quiet
    length = accepted.shape[1]
    since = np.where(accepted.any(1), length - 1 - accepted[:, ::-1].argmax(1), -1)
    quiet = np.where(since >= 0, (length - 1 - since) * thin, quiet + length * thin)
    if (quiet >= STUCK_STEPS).any():
        chain = int(quiet.argmax())
        raise BnnzooError(
            f"chain {chain}: no proposal accepted for {quiet[chain]} steps up to step {next_step}; "
            "use a smaller --sampler.step-size, or a longer --warmup"
        )
    return quiet
