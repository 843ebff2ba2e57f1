"""Drift test: run short exact chains from draws and test whether the values of some functions change systematically.

Let a reversible chain start at a draw of the posterior. Then its start and its end are exchangeable. The joint
distribution of the differences f(end) - f(start) of all functions f therefore stays the same if all differences change
their signs together. The only assumption of the test is that the draws are independent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import stats

from bnnzoo.finding import Finding
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers import Penalty
from bnnzoo.samplers.kernel import replace

LEAPFROGS = 10
"""Largest number of leapfrog steps of a proposal."""
FULL_UP_TO = 20_000
"""Largest number of rows for which every step uses all rows; with more rows, mini-batches may be tried first."""
_SECOND_ORDER_UP_TO = 500
"""Largest number of parameters at which mini-batches with a control variate are tried.

The control variate needs a Hessian, which takes one pass over the data per parameter.
"""
_PILOTS, _ROUNDS, _STEPS_A_ROUND = 16, 16, 4
"""Largest number of pilots (the chains that tune the kernel), smallest number of tuning rounds, and steps per round.

If the acceptance rate stays too low, there are up to twice as many rounds.
"""
_INSPECTED, _STEPS_INSPECTED = 4, 100
"""Number of pilots that are inspected with a pass over all rows, and steps of each pilot before the inspection."""
_ACCEPTANCE = 0.7
"""Acceptance rate to which the step size is tuned."""
_SHORTEST = 1 / 8
"""Smallest step size divided by the largest step size; the logarithm of the step size is uniform in this range."""
_FLIPS = 9_999
"""Number of random sign flips, from which the distribution of the test statistic is estimated."""
MIN_FLIPPED = 12
"""Smallest number of chains for which random sign flips can give a p-value below the level of an audit."""
_ELEMENTS = 2**24
"""Largest product of three numbers: rows per step, parameters, and chains that are advanced together."""


class Kernel(NamedTuple):
    """Reversible transition kernel that preserves the posterior; it is tuned before the exact chains start."""

    sampler: Penalty
    state: Any
    """State of one pilot chain; an exact chain uses a copy of this state with its own position."""
    acceptance: float


def kernel_for(posterior: AbstractPosterior, pilots: Float[np.ndarray, "pilot dim"], *, key: PRNGKeyArray) -> Kernel:
    """Tune a transition kernel of Hamiltonian steps.

    For many rows and few parameters, the steps use mini-batches with a control variate and the noise penalty, and
    select influential rows more often. An inspection then tests whether chains of such steps are exact. The chains are
    not exact if, for example, some rows have no effect on the steps. Every step uses all rows if the chains are not
    exact, if there are few rows, or if there are many parameters.

    Args:
        posterior: the target.
        pilots: positions for tuning the step size and the proposal. Pilots should not be starts of exact chains,
            because the drift test requires a kernel that does not depend on the starts.
        key: PRNG key.
    """
    total, dim = posterior.num_data, posterior.layout.dim
    if total > FULL_UP_TO and dim <= _SECOND_ORDER_UP_TO:
        rows: dict[str, Any] = {"batch_size": 50, "num_batches": 20, "sampling": "importance"}
        mini_batch = Penalty(proposal="hmc", num_steps=LEAPFROGS, step_size=1.0, control_variate="second", **rows)
        key_tune, key_inspect = jax.random.split(jax.random.fold_in(key, 0))
        kernel, positions = _tuned(mini_batch, posterior, pilots, settled=_INSPECTED, key=key_tune)
        if not problems_of(kernel, posterior, positions[:_INSPECTED], key=key_inspect):
            return kernel
    rows = {"batch_size": max(2, total), "num_batches": 1, "sampling": "disjoint"}
    full_batch = Penalty(proposal="hmc", num_steps=LEAPFROGS, step_size=1.0, **rows)
    return _tuned(full_batch, posterior, pilots, settled=_PILOTS, key=key)[0]


def _tuned(
    sampler: Penalty,
    posterior: AbstractPosterior,
    pilots: Float[np.ndarray, "pilot dim"],
    *,
    settled: int,
    key: PRNGKeyArray,
) -> tuple[Kernel, Float[Array, "pilot dim"]]:
    """Return a kernel with a tuned step size, and the final positions of the pilots.

    The curvature and the probabilities of the rows are measured at the first `settled` pilots.
    """
    key_settle, key_steps = jax.random.split(key)
    positions = jnp.asarray(pilots[:_PILOTS], posterior.dtype)
    states = _settle_pilots(sampler, posterior, positions[:settled], None, key_settle)
    log_eta, acceptance, number, state = float(np.log(0.3)), 0.0, 0, _first(states)
    # If the acceptance rate is still too low, further rounds shorten the step, so that the returned kernel moves.
    while number < _ROUNDS or (acceptance < _ACCEPTANCE / 2 and number < 2 * _ROUNDS):
        if number == _ROUNDS // 2:
            # Pilots that started far from the posterior are now closer to it, so the curvature is measured again.
            eta = jnp.full_like(states.step_size, np.exp(log_eta))
            states = replace(states, position=positions[:settled], step_size=eta)
            states = _settle_pilots(sampler, posterior, states.position, states, key_settle)
            log_eta, state = float(np.log(0.3)), _first(states)
        state = replace(state, step_size=jnp.full_like(state.step_size, np.exp(log_eta)))
        keys = jax.random.split(jax.random.fold_in(key_steps, number), len(positions))
        positions, rates, sigma2 = _advance_all(sampler, posterior, state, positions, keys, jnp.asarray(_STEPS_A_ROUND))
        acceptance = float(jnp.mean(rates))
        noisy = float(jnp.mean(sigma2)) > 1.0
        log_eta += min(-0.3 if noisy else 0.3, 2 * (acceptance - _ACCEPTANCE))
        number += 1
    return Kernel(sampler, state, acceptance), positions


def problems_of(
    kernel: Kernel, posterior: AbstractPosterior, positions: Float[Array, "pilot dim"], *, key: PRNGKeyArray
) -> tuple[Finding, ...]:
    """Run pilot chains, inspect them with a pass over all rows, and return the problems that the sampler finds.

    If every step that selects a certain row is rejected, the statistics of the steps do not show the influence of this
    row. The pass over all rows shows its influence. The step size is the median of the step sizes in `_advance_all`,
    because the largest steps are often rejected, whichever rows they select.
    """
    state = replace(kernel.state, step_size=kernel.state.step_size * _SHORTEST**0.5)
    keys = jax.random.split(key, len(positions))

    @eqx.filter_jit
    def inspect_all(
        sampler: Penalty, posterior: AbstractPosterior, state: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        def inspect_pilot(pilot: tuple[Array, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            position, key = pilot
            key_steps, key_inspect = jax.random.split(key)

            def step(state: Any, key: Any) -> tuple[Any, dict[str, Any]]:
                next_state, step_stats = sampler.step(posterior, state, key=key)
                return next_state, dict(step_stats)

            step_keys = jax.random.split(key_steps, _STEPS_INSPECTED)
            end, step_stats = jax.lax.scan(step, replace(state, position=position), step_keys)
            inspection = sampler.inspect(posterior, end, key=key_inspect)
            return {name: jnp.mean(values.astype(float)) for name, values in step_stats.items()}, dict(inspection)

        return jax.lax.map(inspect_pilot, (positions, keys))

    step_stats, inspections = inspect_all(kernel.sampler, posterior, state)
    means = {name: float(np.mean(values)) for name, values in step_stats.items()}
    # One inspection is noisy, so half of the largest value is used if it exceeds the mean, as in a run.
    means |= {name: float(max(np.mean(values), np.max(values) / 2)) for name, values in inspections.items()}
    return kernel.sampler.findings(posterior, means)


def _first(states: Any) -> Any:
    """Return the state of the first chain; the chains share everything except their positions."""
    return jax.tree.map(lambda leaf: leaf[0], states)


def advance(
    kernel: Kernel, posterior: AbstractPosterior, starts: Float[np.ndarray, "unit dim"], *, steps: int, key: Any
) -> tuple[Float[np.ndarray, "unit dim"], float]:
    """Return the position of each chain after `steps` steps from its start, and the mean acceptance rate."""
    positions = jnp.asarray(starts, posterior.dtype)
    keys = jax.random.split(key, len(starts))
    ends, rates, _ = _advance_all(kernel.sampler, posterior, kernel.state, positions, keys, jnp.asarray(steps))
    return np.asarray(ends), float(np.mean(np.asarray(rates)))


def trace(
    kernel: Kernel,
    posterior: AbstractPosterior,
    starts: Float[np.ndarray, "unit dim"],
    *,
    steps: int,
    snapshots: int,
    key: PRNGKeyArray,
) -> Iterator[tuple[Float[np.ndarray, "unit dim"], float]]:
    """Yield the positions of all chains at evenly spaced steps, and the mean acceptance rate since the last snapshot.

    Args:
        kernel: the tuned kernel.
        posterior: the target.
        starts: initial positions.
        steps: total number of steps of each chain; a multiple of `snapshots`.
        snapshots: number of snapshots to yield.
        key: PRNG key.
    """
    positions = starts
    for number in range(snapshots):
        snapshot_key = jax.random.fold_in(key, number)
        positions, acceptance = advance(kernel, posterior, positions, steps=steps // snapshots, key=snapshot_key)
        yield positions, acceptance


def _settle_pilots(
    sampler: Penalty, posterior: AbstractPosterior, positions: Array, states: Any, key: PRNGKeyArray
) -> Any:
    """Return states of the pilots (chains that tune the kernel), all with the same curvature estimate and anchor.

    The anchor is the point about which the control variate expands the log-likelihood.
    """
    keys = jax.random.split(key, len(positions))

    @eqx.filter_jit
    def settle_all(sampler: Any, posterior: Any, positions: Array, states: Any) -> Any:
        if states is None:
            states = jax.vmap(lambda t, k: sampler.init(posterior, t, num_warmup=1, key=k))(positions, keys)
        return jax.lax.map(
            lambda state_and_key: sampler.settle(posterior, state_and_key[0], final=False, key=state_and_key[1]),
            (states, keys),
        )

    states = settle_all(sampler, posterior, positions, states)
    _, states = sampler.tune(posterior, states, final=False, key=key, num_steps=0)
    if states.anchor is None:
        return states
    first = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[0], leaf.shape), states.anchor)
    return replace(states, anchor=first)


@eqx.filter_jit
def _advance_all(
    sampler: Penalty,
    posterior: AbstractPosterior,
    state: Any,
    positions: Float[Array, "unit dim"],
    keys: Any,
    steps: Array,
) -> tuple[Float[Array, "unit dim"], Float[Array, " unit"], Float[Array, " unit"]]:
    """Advance all chains; return their positions, acceptance rates, and mean variances of the log acceptance ratio.

    The chains share `state` except for their positions. The number of steps is a traced argument, so that another
    number of steps needs no new compilation.
    """
    shared = state

    def advance_chain(chain_input: tuple[Array, Any]) -> tuple[Array, Array, Array]:
        position, key = chain_input
        state = replace(shared, position=position)

        def step(i: Array, carry: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
            state, rate, sigma2 = carry
            key_size, key_step = jax.random.split(jax.random.fold_in(key, i))
            # The random factor does not depend on the position, so the step stays reversible. In a narrow region of the
            # posterior, only short steps are accepted; without short steps a chain would get stuck there.
            factor = _SHORTEST ** jax.random.uniform(key_size, (), position.dtype)
            scaled_state = replace(state, step_size=state.step_size * factor)
            next_state, step_stats = sampler.step(posterior, scaled_state, key=key_step)
            state = replace(next_state, step_size=state.step_size)
            return state, rate + step_stats["acceptance_rate"], sigma2 + jnp.minimum(step_stats["sigma2"], 10.0)

        zero = jnp.zeros((), position.dtype)
        state, rate, sigma2 = jax.lax.fori_loop(0, steps, step, (state, zero, zero))
        return state.position, rate / steps, sigma2 / steps

    chains_per_batch = max(1, _ELEMENTS // max(1, sampler.plan(posterior.num_data).num_used * posterior.layout.dim))
    return jax.lax.map(advance_chain, (positions, keys), batch_size=min(chains_per_batch, positions.shape[0]))


# ---- test of the drift ---------------------------------------------------------------------------


class Drift(NamedTuple):
    """Result of the test whether functions change between the starts and the ends of the exact chains."""

    p_value: float
    function: str
    """Name of the function of theta with the strongest evidence of a change."""
    score: float
    """Signed-rank statistic of `function`, about standard normal without drift; negative if the values decreased."""


def find_drift(starts: Mapping[str, np.ndarray], ends: Mapping[str, np.ndarray], *, seed: int = 0) -> Drift:
    """Test whether any of the functions drifts, with one p-value for all functions.

    The statistic is the largest absolute signed-rank statistic of all functions (Wilcoxon 1945). Its distribution
    without drift is estimated by random sign flips. A flip changes the signs of the differences of all functions on one
    chain together. With fewer than a dozen chains, the p-value comes from a t-test of each function, with a Bonferroni
    correction.

    Args:
        starts: values [chain, value] of each function at the starts, by name.
        ends: values of the same functions at the ends of the chains.
        seed: seed of the sign flips.
    """
    names = [name for name, values in starts.items() for _ in range(values.shape[1])]
    start_values, end_values = (
        np.concatenate([np.asarray(values[name], float) for name in starts], 1) for values in (starts, ends)
    )
    with np.errstate(invalid="ignore"):  # infinity at the start and at the end counts as no difference
        difference = np.nan_to_num(end_values - start_values, posinf=1e300, neginf=-1e300)
    has_moved = np.any(difference != 0, 0)
    if not has_moved.any():
        return Drift(1.0, "nothing moved", 0.0)
    names, difference = list(itertools.compress(names, has_moved)), difference[:, has_moved]
    ranks = stats.rankdata(np.abs(difference), axis=0) * np.sign(difference)
    ranks = ranks / np.sqrt((ranks**2).sum(0))
    scores = ranks.sum(0)
    largest_score = int(np.argmax(np.abs(scores)))
    units = len(difference)
    if units < MIN_FLIPPED:
        # A single chain has no standard deviation, so it cannot be tested.
        tests: Any = stats.ttest_1samp(difference, 0.0, axis=0) if units > 1 else None
        p = 1.0 if tests is None else min(1.0, float(np.nanmin(tests.pvalue)) * len(names))
        return Drift(p, names[largest_score], float(scores[largest_score]))
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(_FLIPS, units))
    largest_scores = np.abs(signs @ ranks).max(1)
    p = (1 + np.sum(largest_scores >= np.abs(scores[largest_score]) * (1 - 1e-9))) / (1 + _FLIPS)
    return Drift(float(p), names[largest_score], float(scores[largest_score]))
