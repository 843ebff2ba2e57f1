"""The sampling loop: jitted steps of all chains in chunks, the same for every sampler.

A chunk is one call of a compiled program. The chunk's number of draws, its thinning and its first step are arguments of
the program. Therefore all chunks execute the same instructions, and nothing is compiled twice. The random key of a step
depends only on the number of the step in the run: `fold_in(chain_key, step)`. Therefore the draws do not change if the
chunks have other sizes, or if the run is stopped and resumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from bnnzoo.errors import BnnzooError
from bnnzoo.finding import setting, spell_settings, spelling
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.layout import Layout
from bnnzoo.posterior.outputs import Outputs
from bnnzoo.samplers.base import AbstractSampler
from bnnzoo.samplers.statistics import ACCEPTANCE_RATE
from bnnzoo.sampling.devices.placement import Placement
from bnnzoo.sampling.devices.processes import Processes
from bnnzoo.sampling.keys import Keys, keys_by_chain
from bnnzoo.sampling.loop import chunk as programs
from bnnzoo.sampling.loop.chunk import MAX_DRAWS, Carry, Phase, Rows, Setup, advance
from bnnzoo.sampling.loop.pace import Pace
from bnnzoo.sampling.loop.pilot import measure_step
from bnnzoo.sampling.loop.plan import Plan
from bnnzoo.sampling.loop.stragglers import restart_stragglers
from bnnzoo.sampling.loop.stuck_chains import count_rejected_steps, refuse_all_stuck
from bnnzoo.sampling.loop.warmup import AbstractWarmup, StepSize, windows
from bnnzoo.sampling.loop.worker import worker
from bnnzoo.sampling.seconds import Seconds

S = TypeVar("S")


class Chunk(NamedTuple):
    """One compiled chunk of draws and statistics for all chains.

    The axes of `draws` are [chain, draw, dim]. The first axes of each array in `stats` are [chain, draw]. In warm-up,
    `draws` is empty unless the recipe keeps warm-up.
    """

    phase: Phase
    draws: Float[np.ndarray, "chain draw dim"]
    stats: dict[str, np.ndarray]
    carry: Carry
    next_step: int
    sampler: AbstractSampler


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
    planned_warmup: int | None = None,
    plan_warmup: Callable[[int], int] | None = None,
    revise_warmup: Callable[[float], int] | None = None,
    thin: int = 1,
    plan_thinning: Callable[[], int] | None = None,
    keep_warmup: bool = False,
    resume: tuple[Carry, int] | None = None,
    chunk_seconds: float = 0.5,
    most_draws: int = MAX_DRAWS,
    seconds: Seconds | None = None,
    stops: Sequence[int] = (),
    outputs: Outputs | None = None,
    stop_signal: Callable[[], int] | None = None,
) -> Generator[Chunk, None, None]:
    """Run the chains chunk by chunk. The device computes the next chunk while the caller writes the current one.

    If several processes share the chains, each of them runs this loop. If the first process closes its generator, the
    loop ends in all processes.

    Args:
        thetas: initial positions.
        num_warmup: number of warm-up steps; they are not thinned.
        planned_warmup: number of planned warm-up steps if warm-up ended early (see `windows`); else `num_warmup`.
        plan_warmup: function that is called at the end of each window but the last, with the number of steps so far. It
            returns a new value of `num_warmup`. All processes use the value of the first process.
        revise_warmup: function that is called before the first step, with the measured seconds of a step. It returns a
            new value of `num_warmup`. All processes use the value of the first process.
        num_draws: number of kept draws per chain; there are `thin` steps for each draw.
        plan_thinning: function that is called once, after the last chunk of warm-up. It returns a new value of `thin`.
            All processes use the value of the first process.
        resume: carry and next step of a checkpoint, used instead of `thetas`. `sampler` must then be the tuned sampler.
        chunk_seconds: target duration of the first chunks. The draws do not depend on it.
        most_draws: largest number of draws in a chunk. The draws do not depend on it.
        seconds: object to which the time of each phase is added.
        stops: numbers of kept draws at which a chunk must end, so that the caller can test convergence there.
        outputs: the values to keep of each draw; by default the position.
        stop_signal: function that is called before each chunk. It returns the number of a signal that stops all
            processes, or 0.

    Raises:
        InterruptedRunError: if there are several processes, and `stop_signal` returned a signal in one of them.
        BnnzooError: if a position is no longer finite, if no chain accepts a proposal in 1000 steps, or if the sampler
            reports a failure.
    """
    num_chains, seconds = len(thetas), seconds if seconds is not None else Seconds()
    if resume is None:
        with seconds.time_compilation():
            posterior = programs.prepare(sampler, posterior, placement)
    posterior, outputs = placement.put_posterior(posterior), placement.put(outputs, None)
    setup = Setup(posterior, sampler, warmup or StepSize(), placement, outputs)
    plan = Plan(
        keys=keys,
        num_chains=num_chains,
        chain_keys=placement.put(keys_by_chain(keys.chain, num_chains), 0),
        num_warmup=num_warmup,
        planned_warmup=planned_warmup or num_warmup,
        plan_warmup=plan_warmup,
        num_draws=num_draws,
        thin=thin,
        keep_warmup=keep_warmup,
        chunk_seconds=chunk_seconds,
        most_draws=most_draws,
        seconds=seconds,
        stops=tuple(stops),
        stop_signal=stop_signal or (lambda: 0),
    )
    if resume is not None:
        carry, step = placement.put(resume[0], 0), resume[1]
    else:
        carry, step = _first_carry(plan, setup, thetas), 0
        if revise_warmup is not None and num_warmup:
            step_seconds = _measure_step(plan, setup, carry)
            with placement.processes.share_first_error():
                revised = revise_warmup(step_seconds)
            revised = int(placement.processes.broadcast_first(revised))
            if revised != num_warmup:
                plan = plan._replace(num_warmup=revised, planned_warmup=revised)
                carry = _first_carry(plan, setup, thetas)
    if step < plan.num_warmup:
        warmup_result = yield from _warm_up(plan, setup, carry, step)
        if warmup_result is None:
            return
        plan, setup, carry = warmup_result
        step = plan.num_warmup
        if plan_thinning is not None:
            plan = plan._replace(thin=int(placement.processes.broadcast_first(plan_thinning())))
    yield from _sample(plan, setup, carry, step)


def _first_carry(plan: Plan, setup: Setup, thetas: Float[Array | np.ndarray, "chain dim"]) -> Carry:
    """Return the state of all chains before the first step."""
    placement = setup.placement
    with plan.seconds.time_compilation():
        first_keys = placement.put(keys_by_chain(plan.keys.states, plan.num_chains), 0)
        positions = placement.put(jnp.asarray(thetas), 0)
        states = programs.first_states(setup, positions, first_keys, plan.planned_warmup)
        zero_restarts = placement.put(jnp.zeros(plan.num_chains, jnp.int32), 0)
        return programs.restart_tuning(setup, states, zero_restarts, setup.constraints(states, plan.num_warmup))


def _measure_step(plan: Plan, setup: Setup, carry: Carry) -> float:
    """Return the seconds of a warm-up step of all chains."""
    rows = Rows.from_setup(setup, carry, "warm-up", keep=plan.keep_warmup, thin=1, most_draws=plan.most_draws)

    def run_steps(count: int) -> Carry:
        return advance(plan.warmup_work(setup, carry, start=0, count=count), rows.buffer(setup.placement))[0]

    with plan.seconds.time_compilation():
        jax.block_until_ready(run_steps(0))
    start_time = time.perf_counter()
    step_seconds = measure_step(run_steps)
    plan.seconds.warmup += time.perf_counter() - start_time
    return step_seconds


def _warm_up(
    plan: Plan, setup: Setup, carry: Carry, step: int
) -> Generator[Chunk, None, tuple[Plan, Setup, Carry] | None]:
    """Yield the chunks of warm-up.

    Returns:
        the plan with the number of steps made, the tuned setup and the carry; None if the first process ended the run.
    """
    seconds, processes = plan.seconds, setup.placement.processes
    constraints = setup.constraints(carry.states, plan.num_warmup)
    rows = Rows.from_setup(setup, carry, "warm-up", keep=plan.keep_warmup, thin=1, most_draws=plan.most_draws)
    with seconds.time_compilation():
        # A call with zero steps only compiles the program, so this time is the time of compilation.
        carry, buffer = advance(plan.warmup_work(setup, carry, start=step, count=0), rows.buffer(setup.placement))
        jax.block_until_ready(buffer)
    start_time, earlier_seconds = time.perf_counter(), seconds.warmup
    pace = Pace(plan.chunk_seconds, rows.capacity)
    while step < plan.num_warmup:
        # A chunk never goes beyond the end of its window, because there the host tunes the sampler with the states of
        # all chains. The ends of the windows depend only on the number of steps, never on the clock.
        end = next(end for end in windows(plan.num_warmup, plan.planned_warmup) if end > step)
        if not (count := processes.agree_on_rows(pace.next_rows(end - step), stop_signal=plan.stop_signal())):
            return None
        carry, buffer = advance(plan.warmup_work(setup, carry, start=step, count=count), buffer)
        draws, stats = processes.gather(rows.fetch(buffer, count))
        pace.record(count)
        step += count
        if step == end:
            if step < plan.num_warmup and ACCEPTANCE_RATE in setup.sampler.statistics:
                all_chains, key = _gather_states(processes, carry), jax.random.fold_in(plan.keys.restart, step)
                with setup.placement.mesh_context():
                    restarted_carry = restart_stragglers(setup.posterior, all_chains, key=key)
                carry = setup.placement.put(restarted_carry, 0)
            setup, states = _between_windows(plan, setup, carry, step)
            carry = programs.restart_tuning(setup, states, carry.restarted, constraints)
            seconds.warmup = earlier_seconds + time.perf_counter() - start_time
            plan = plan.revise_warmup(step, processes)
        all_chains = processes.gather(carry)
        _check_positions(setup, all_chains, step)
        seconds.warmup = earlier_seconds + time.perf_counter() - start_time
        with processes.announce_close(lambda: None):
            yield Chunk("warm-up", draws, stats, all_chains, step, setup.sampler)
    return plan, setup, carry


def _between_windows(plan: Plan, setup: Setup, carry: Carry, step: int) -> tuple[Setup, PyTree]:
    """Run the sampler's `settle` for each chain and `tune` for all chains. Return the new setup and states."""
    put, final = setup.placement.put, step == plan.num_warmup
    chain_keys = put(keys_by_chain(jax.random.fold_in(plan.keys.settle, step), plan.num_chains), 0)
    states = programs.settle_chains(setup, carry, chain_keys, final)
    key = jax.random.fold_in(plan.keys.tune, step)
    states = _gather_states(setup.placement.processes, states)
    with setup.placement.mesh_context():
        tuned_sampler, states = setup.sampler.tune(setup.posterior, states, final=final, key=key, num_steps=step)
    return eqx.tree_at(lambda s: s.sampler, setup, tuned_sampler), put(states, 0)


def _sample(plan: Plan, setup: Setup, carry: Carry, step: int) -> Iterator[Chunk]:
    """Yield the chunks of kept draws. While the caller uses a chunk, the device computes the next one."""
    seconds, thin, processes = plan.seconds, plan.thin, setup.placement.processes
    rows = Rows.from_setup(setup, carry, "sampling", keep=True, thin=thin, most_draws=plan.most_draws)
    # Two buffers: the host reads the full one while the device fills the other.
    spare_buffer, buffer = rows.buffer(setup.placement), rows.buffer(setup.placement)
    with seconds.time_compilation():
        carry, buffer = advance(plan.sampling_work(setup, carry, start=step, count=0), buffer)
        jax.block_until_ready(buffer)
    start_time, earlier_seconds = time.perf_counter(), seconds.sampling
    pace = Pace(plan.chunk_seconds, rows.capacity)
    steps_rejected = np.zeros(plan.num_chains, int)
    # On a CPU, `advance` returns only when the chunk is done. It runs in a thread, so that the caller can write.
    with worker() as submit:

        def work(carry: Carry, step: int, count: int, buffer: dict[str, Array]) -> tuple[Carry, dict[str, Array], Any]:
            carry, filled = advance(plan.sampling_work(setup, carry, start=step, count=count), buffer)
            # All processes must communicate in the same order, so the draws are exchanged before the next chunk is
            # agreed on.
            is_distributed = processes.count > 1
            return carry, filled, processes.gather((rows.fetch(filled, count), carry)) if is_distributed else None

        def launch(carry: Carry, step: int, buffer: dict[str, Array]) -> tuple[Future | None, int]:
            if not (
                count := processes.agree_on_rows(pace.next_rows(plan.max_rows(step)), stop_signal=plan.stop_signal())
            ):
                return None, step
            return submit(work, carry, step, count, buffer), step + count * thin

        future, next_step = launch(carry, step, buffer)
        while future is not None:
            carry, filled, exchanged = future.result()
            count, step = (next_step - step) // thin, next_step
            future, next_step = launch(carry, step, spare_buffer)
            (draws, stats), all_chains = exchanged or (rows.fetch(filled, count), carry)
            spare_buffer = filled
            pace.record(count)
            if setup.outputs is None:
                _check_finite(draws, setup.posterior.layout, setup, step)
            else:
                _check_positions(setup, all_chains, step)
                _check_finite(draws, setup.outputs.layout, setup, step)
            if problem := setup.sampler.failure(stats):
                raise BnnzooError(problem)
            # Count the seconds before the yield: the checkpoint stores them, and an interrupted run ends at the yield.
            seconds.sampling = earlier_seconds + time.perf_counter() - start_time
            with processes.announce_close(future and future.result):
                yield Chunk("sampling", draws, stats, all_chains, step, setup.sampler)
            # Test for stuck chains after the yield, so that the caller has stored the draws. After the last chunk the
            # run is complete, and its findings report stuck chains.
            if "accepted" in stats:
                steps_rejected = count_rejected_steps(stats["accepted"] > 0, steps_rejected, thin)
            if future is not None:
                refuse_all_stuck(steps_rejected, step)
    seconds.sampling = earlier_seconds + time.perf_counter() - start_time


def _gather_states(processes: Processes, states: S) -> S:
    """Return the states of all chains of all processes as JAX arrays."""
    return jax.tree.map(jnp.asarray, processes.gather(states))


def carry_template(posterior: AbstractPosterior, sampler: AbstractSampler, num_chains: int, num_warmup: int) -> Carry:
    """Return a carry that has shapes and types but no values, as the template for reading a checkpoint."""
    setup = Setup(posterior, sampler, StepSize(), Placement("vectorized", None))
    thetas = jnp.zeros((num_chains, posterior.layout.dim), posterior.dtype)
    keys = keys_by_chain(jax.random.key(0), num_chains)
    states = eqx.filter_eval_shape(lambda: setup.first_states(thetas, keys, num_warmup))
    constraints = setup.constraints(states, num_warmup)
    zero_restarts = jnp.zeros(num_chains, jnp.int32)
    return eqx.filter_eval_shape(lambda s: setup.restart_tuning(s, zero_restarts, constraints), states)


def _check_positions(setup: Setup, carry: Carry, next_step: int) -> None:
    positions = np.asarray(carry.states.position)[:, None]
    _check_finite(positions, setup.posterior.layout, setup, next_step)


def _check_finite(draws: Float[np.ndarray, "chain draw value"], layout: Layout, setup: Setup, next_step: int) -> None:
    with np.errstate(all="ignore"):
        if np.isfinite(np.sum(draws)):  # a fast test; the place is searched only if the test fails
            return
    invalid_places = np.argwhere(~np.isfinite(draws))
    if len(invalid_places):
        chain, _, index = invalid_places[0]
        name, remedy = layout.name_of(int(index)), spell_settings(_advise_smaller_steps(setup.sampler), spelling())
        raise BnnzooError(f"chain {chain}: {name} is not finite before step {next_step}; {remedy}")


def _advise_smaller_steps(sampler: AbstractSampler) -> str:
    """Return the advice to a user if the position of a chain is no longer finite."""
    for name in ("learning_rate", "step_size"):
        if hasattr(sampler, name):
            return f"use a smaller {setting(f'sampler.{name}')}"
    return f"use {setting('precision', 'float64')}, or another sampler"
