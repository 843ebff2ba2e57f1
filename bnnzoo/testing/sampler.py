"""Tests of a sampler on posteriors whose moments are known exactly, with many independent chains.

The test posteriors are called targets. On each target, the chains start at overdispersed positions, warm up, and
continue until there are enough draws to detect a bias. Only the second half of the draws is used. The chains are
independent, so the tests need no effective sample size. Means, variances and correlations are tested by t tests of the
chains' averages. The distribution is tested by a Kolmogorov-Smirnov test of the chains' final states.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import stats

from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.finding import sentence
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.progress import Observer, Progress, ignore
from bnnzoo.samplers import AbstractSampler
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.keys import Keys
from bnnzoo.sampling.loop.loop import chunks
from bnnzoo.testing.chain_state import adaptation
from bnnzoo.testing.sampler_report import Outcome, Row, SamplerReport
from bnnzoo.testing.targets import TARGETS, Target

LEVEL = 1e-6
"""Probability that any test of a check rejects a correct sampler. Each test has this level / number of tests."""

RESOLUTION = 0.07
"""The chains continue until a bias of this size is detected with a probability of at least 50 %.

A bias of a mean is in units of the standard deviation. A bias of a variance is relative to the variance.
"""

COARSEST = 0.1
"""If a bias of this size is detected with a probability below 50 %, the verdict is undecided."""

PATIENCE = 3e7
"""Number of likelihood evaluations per chain after which `COARSEST` replaces `RESOLUTION`.

This limit ends the tests of samplers with trajectories of fixed length. Such trajectories can be almost periodic, and
the chains then mix very slowly.
"""

_FIRST_TEST_DRAWS = 128
_OTHER_KEYS = 32
_MAX_PASSES = 20
"""Largest number of passes over the data per gradient of a step.

If a step needs more passes, the target has too few rows for the mini-batches of the sampler.
"""


def check_sampler(
    sampler: AbstractSampler,
    *,
    targets: Sequence[str | Target] = tuple(TARGETS),
    chains: int = 128,
    warmup: int = 400,
    draws: int = 2**16,
    seed: int = 0,
    observer: Observer | None = None,
) -> SamplerReport:
    """Compare the draws of a sampler with the exact moments and distributions of all targets.

    The method `choose` of the sampler is not called, so fields with the value `auto` keep their fallback values.

    Args:
        sampler: the sampler to test.
        targets: the test posteriors: names in `TARGETS`, or your own targets.
        chains: number of independent chains.
        warmup: number of warm-up steps. If it is 0, the sampler does not adapt.
        draws: largest number of draws per chain. The chains end earlier if there are enough draws to detect a bias.
        seed: seed of the initial positions and of the chains.
        observer: a function that is called with a `Progress`. Its phase is the name of the target, followed by
            ", warm-up" during warm-up.

    Raises:
        UsageError: if a target is unknown, or if there are fewer than 32 chains.
    """
    if chains < 32:
        raise UsageError(f"chains: must be >= 32, because the tests compare chains (got {chains})")
    target_list = [target if isinstance(target, Target) else _target_by_name(target) for target in targets]
    reason_by_target = {target.name: _not_applicable(sampler, target) for target in target_list}
    level = LEVEL / max(1, sum(_num_tests(target) for target in target_list if not reason_by_target[target.name]))
    rows: list[Row] = []
    outcomes: list[Outcome] = []
    for index, target in enumerate(target_list):
        is_first = not any(outcome.state != "not applicable" for outcome in outcomes)
        if reason_by_target[target.name]:
            outcomes.append(Outcome(target.name, "not applicable", reason_by_target[target.name]))
            continue
        with jax_settings.arithmetic("float32"):
            outcome, target_rows = _check(
                sampler, target, chains, warmup, draws, (seed, index), level, observer, is_first
            )
        outcomes.append(outcome)
        rows += target_rows
    return SamplerReport(type(sampler).__name__, sampler.stated_exactness, chains, tuple(rows), tuple(outcomes))


def assert_exact(sampler: AbstractSampler, *, targets: Sequence[str | Target] = tuple(TARGETS), seed: int = 0) -> None:
    """Raise AssertionError unless the sampler passes `check_sampler`. Plugins can call this function in their tests.

    Args:
        sampler: the sampler to test.
        targets: the test posteriors, as for `check_sampler`.
        seed: seed of the initial positions and of the chains.

    Raises:
        AssertionError: if the sampler does not pass; the message contains the report.
    """
    report = check_sampler(sampler, targets=targets, seed=seed)
    if not report.passed:
        raise AssertionError(f"{report.sampler}: {report.verdict}\n{report}")


def _target_by_name(name: str) -> Target:
    if name not in TARGETS:
        raise UsageError(f"unknown target {name!r}; use one of {', '.join(TARGETS)}")
    return TARGETS[name]()


def _not_applicable(sampler: AbstractSampler, target: Target) -> str:
    """Return the reason why the sampler cannot run on the target; empty if it can."""
    try:
        sampler.check(target.posterior)
    except UsageError as error:
        return str(error)
    evaluations, num_data = sampler.evaluations(target.posterior, {"n_steps": 1.0}), target.posterior.num_data
    if evaluations > _MAX_PASSES * sampler.gradients * num_data:
        return f"a step uses {evaluations:.0f} rows, but the target has only {num_data} rows, too few for mini-batches"
    return ""


def _check(
    sampler: AbstractSampler,
    target: Target,
    chains: int,
    warmup: int,
    draws: int,
    seed: tuple[int, int],
    level: float,
    observer: Observer | None,
    test_keys: bool,
) -> tuple[Outcome, list[Row]]:
    """Draw until a bias of the size `RESOLUTION` can be detected, and test the second half of the draws.

    If `test_keys` is true, also check that all randomness of a step comes from its random key.
    """
    tell = observer or ignore
    start_time = time.perf_counter()
    keys = Keys(*(jax.random.fold_in(key, seed[1]) for key in Keys.from_seed(seed[0])))
    thetas = target.start(np.random.default_rng(seed), chains).astype(np.float32)
    # Use one device, so that the report does not depend on the number of cores.
    placement = place_chains("vectorized", chains)
    stream = chunks(
        target.posterior, sampler, thetas, keys=keys, num_warmup=warmup, num_draws=draws, placement=placement
    )
    values: list[np.ndarray] = []
    sums: dict[str, float] = {}
    rows: list[Row] = []
    num_draws, num_tested, stop_reason, is_resolved = 0, 0, "", False
    used_sampler, states, first_states = sampler, None, None
    try:
        for chunk in stream:
            if chunk.phase == "warm-up":
                tell(Progress(f"{target.name}, warm-up", chunk.next_step, warmup))
                continue
            used_sampler, num_draws, states = chunk.sampler, num_draws + chunk.draws.shape[1], chunk.carry.states
            # The next chunk reuses the buffers, so copy the states.
            first_states = _on_host(states) if first_states is None else first_states
            values.append(target.look(chunk.draws))
            for name, value in chunk.stats.items():
                sums[name] = sums.get(name, 0.0) + float(np.sum(value, dtype=np.float64)) / chains
            rate = sums.get("acceptance_rate", math.nan) / num_draws
            tell(Progress(target.name, num_draws, 0, acceptance=rate, note=f"{num_draws} draws per chain"))
            # Test after fixed numbers of draws, because the lengths of chunks depend on the clock.
            while (
                not is_resolved
                and (next_test := _next_test_draws(num_tested, draws)) <= num_draws
                and next_test > num_tested
            ):
                values = [np.concatenate(values, 1)]
                rows, num_tested = statistics(values[0][:, next_test // 2 : next_test], target, level), next_test
                means = {name: total / num_draws for name, total in sums.items()}
                evaluations = num_tested * used_sampler.evaluations(target.posterior, means)
                is_resolved = _resolution(rows) <= (RESOLUTION if evaluations < PATIENCE else COARSEST)
            if is_resolved:
                break
        if sums.get("accepted") == 0 == sums.get("acceptance_rate"):
            # The loop itself stops a stuck run only at the end of a chunk, which depends on the clock.
            stop_reason = f"no proposal was accepted in {num_draws} steps"
        else:
            stop_reason = adaptation(used_sampler, first_states, _on_host(states))
            if test_keys and not stop_reason:
                stop_reason = _step_fault(used_sampler, target.posterior, states, keys.settle)
    except BnnzooError as error:
        stop_reason = str(error)
    means = {name: total / max(num_draws, 1) for name, total in sums.items()}
    acceptance = means.get("acceptance_rate", math.nan)
    seconds = time.perf_counter() - start_time
    if stop_reason:
        outcome = Outcome(target.name, "stopped", stop_reason, num_tested, acceptance, seconds)
    elif _resolution(rows) > COARSEST and all(row.passed for row in rows):
        reason = (
            f"after {num_tested} draws per chain, a bias of {100 * _resolution(rows):.2g} % is detected with a "
            "probability of only 50 %, because the chains mix too slowly; use another step size, or more draws"
        )
        outcome = Outcome(target.name, "undecided", reason, num_tested, acceptance, seconds)
    else:
        findings_text = "; ".join(map(sentence, used_sampler.findings(target.posterior, means)))
        outcome = Outcome(target.name, "tested", findings_text, num_tested, acceptance, seconds)
    passed = outcome.state == "tested" and all(row.passed for row in rows)
    tell(Progress(target.name, num_tested, num_tested, acceptance, note="passed" if passed else "not passed"))
    return outcome, rows


def _on_host(states: Any) -> Any:
    """Copy the states, because the next chunk reuses (overwrites) their memory."""
    return jax.tree.map(lambda leaf: jax.random.clone(leaf) if _is_key(leaf) else np.array(leaf), states)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def _step_fault(sampler: AbstractSampler, posterior: AbstractPosterior, states: Any, key: PRNGKeyArray) -> str:
    """Return the fault of a step; empty if there is none.

    A step is wrong if its randomness does not come from its random key, or if it adapts after warm-up. All chains take
    a step from their final states with each of 32 keys, twice. Both steps with the same key must give the same
    position. The new positions must not be the same for all keys, unless the sampler is approximate.
    """

    @eqx.filter_jit
    def run_steps(sampler: Any, posterior: AbstractPosterior, states: Any) -> tuple[Any, Float[Array, "key chain dim"]]:
        def step(state: Any, key: PRNGKeyArray) -> Any:
            return sampler.step(posterior, state, key=key)[0]

        def all_chains(key: PRNGKeyArray) -> Any:
            return jax.vmap(step, in_axes=(0, None))(states, key)

        keys = jax.random.split(key, _OTHER_KEYS)
        return all_chains(keys[0]), jax.lax.map(lambda key: all_chains(key).position, keys)

    (next_states, first_positions), (_, second_positions) = (
        _on_host(run_steps(sampler, posterior, states)) for _ in range(2)
    )
    if fault := adaptation(sampler, _on_host(states), next_states):
        return fault
    if not np.array_equal(first_positions, second_positions, equal_nan=True):
        return "two steps from the same state with the same key differ; take all randomness from the key"
    if sampler.stated_exactness != "approximate" and np.array_equal(
        first_positions, np.broadcast_to(first_positions[:1], first_positions.shape)
    ):
        return "steps with different keys are equal; take all randomness from the key"
    return ""


def statistics(values: Float[np.ndarray, "chain draw quantity"], target: Target, level: float) -> list[Row]:
    """Return all statistics of a target, with their thresholds for the two-sided significance `level`.

    Variances are computed around the mean of the draws, so a bias of the mean is not also reported as a bias of the
    variance. The standard error of a correlation comes from a linear approximation (the delta method).
    """
    chains, num_draws, count = values.shape
    with np.errstate(all="ignore"):  # NaNs become infinite scores below
        z = (values.astype(np.float64) - target.mean) / target.sd
        shift = z.mean((0, 1))
        centred = z - shift
        products = np.einsum("cdq,cdr->cqr", centred, centred) / num_draws
        covariance = products.mean(0)
    limit = float(stats.t.isf(level / 2, chains - 1))
    rows: list[Row] = []

    def add(name: str, statistic: Any, estimate: float, truth: float, effect: float, units: np.ndarray) -> None:
        error = units.std(ddof=1) / chains**0.5
        score = effect / error if error > 0 and np.isfinite(effect) else math.inf
        rows.append(Row(target.name, name, statistic, estimate, truth, float(effect), float(score), limit))

    averages = z.mean(1)
    with np.errstate(all="ignore"):
        for i, name in enumerate(target.quantities):
            mean, sd = target.mean[i], target.sd[i]
            add(name, "mean", mean + sd * shift[i], mean, shift[i], averages[:, i])
            ratio = covariance[i, i]
            add(name, "variance", sd**2 * ratio, sd**2, ratio - 1, products[:, i, i])
        for i, j in itertools.combinations(range(count), 2):
            truth = target.covariance[i, j] / (target.sd[i] * target.sd[j])
            scale = (covariance[i, i] * covariance[j, j]) ** 0.5
            correlation = covariance[i, j] / scale
            squares = products[:, i, i] / covariance[i, i] + products[:, j, j] / covariance[j, j]
            pair = f"{target.quantities[i]}, {target.quantities[j]}"
            add(
                pair,
                "correlation",
                correlation,
                truth,
                correlation - truth,
                products[:, i, j] / scale - correlation / 2 * squares,
            )
    if target.cdf is not None:
        uniform = np.sort(target.cdf(values[:, -1].astype(np.float64)), axis=0)
        steps = np.arange(chains)[:, None] / chains
        distances = np.maximum(uniform - steps, steps + 1 / chains - uniform).max(0)
        distance_limit = float(stats.kstwo.isf(level, chains)) * chains**0.5
        for name, distance in zip(target.quantities, distances, strict=True):
            score = float(distance) * chains**0.5
            rows.append(
                Row(target.name, name, "distribution", float(distance), 0.0, float(distance), score, distance_limit)
            )
    return rows


def _num_tests(target: Target) -> int:
    count = len(target.quantities)
    return 2 * count + count * (count - 1) // 2 + count * (target.cdf is not None)


def _next_test_draws(num_tested: int, draws: int) -> int:
    """Return the number of draws after which the statistics are tested next.

    This number is 1.5 times the number at the previous test, and at most `draws`.
    """
    return min(draws, num_tested * 3 // 2 or _FIRST_TEST_DRAWS)


def _resolution(rows: list[Row]) -> float:
    """Return the largest `Row.resolution` of the means and variances; infinite before the first test."""
    resolutions = [row.resolution for row in rows if row.statistic in ("mean", "variance")]
    return max(resolutions, default=math.inf)
