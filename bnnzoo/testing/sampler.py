"""Tests of a sampler on posteriors with exact answers, with many independent chains that run as in any run.

On each target, the chains start far away, warm up, and continue until a bias would be detected. Only the later half of
the draws is used. The tests compare chains, which are independent: t tests of the chains' averages for means, variances
and correlations, and a Kolmogorov-Smirnov test of their last states. No effective sample size is estimated.
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
from bnnzoo.progress import Observer, Progress
from bnnzoo.samplers import AbstractSampler
from bnnzoo.sampling import backend
from bnnzoo.sampling.keys import Keys
from bnnzoo.sampling.loop import chunks
from bnnzoo.sampling.placement import place
from bnnzoo.testing.chain_state import adaptation
from bnnzoo.testing.sampler_report import Outcome, Row, SamplerReport
from bnnzoo.testing.targets import TARGETS, Target

LEVEL = 1e-6
"""Probability of a false alarm of a whole check, divided among its statistics (Bonferroni)."""

RESOLUTION = 0.07
"""Bias that must be detectable before drawing ends: of a mean in standard deviations, of a variance relative."""

COARSEST = 0.1
"""Largest detectable bias of a conclusive check; a coarser one is undecided."""

PATIENCE = 3e7
"""Likelihood evaluations per chain after which `COARSEST` suffices.

Trajectories of fixed length can be periodic, and such chains do not mix in any affordable number of steps."""

_FIRST_LOOK = 128
_OTHER_KEYS = 32
_MOST_PASSES = 20
"""Largest number of passes over the data per step; a target that needs more is too small for the mini-batches."""


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
    """Test a sampler against the exact answers of all targets.

    Args:
        sampler: the sampler to test.
        targets: names of `TARGETS`, or your own targets.
        chains: number of independent chains.
        warmup: steps of warm-up; with 0 nothing is adapted.
        draws: largest number of draws per chain; fewer are made if they suffice to detect a bias.
        seed: seed of starts and chains.
        observer: called with a `Progress` whose phase is the target's name.

    Raises:
        UsageError: for an unknown target, or fewer than 32 chains.
    """
    if chains < 32:
        raise UsageError(f"chains: must be >= 32, because the tests compare chains (got {chains})")
    made = [target if isinstance(target, Target) else _named(target) for target in targets]
    able = {target.name: _not_applicable(sampler, target) for target in made}
    level = LEVEL / max(1, sum(_num_tests(target) for target in made if not able[target.name]))
    rows: list[Row] = []
    outcomes: list[Outcome] = []
    for index, target in enumerate(made):
        first = not any(outcome.state != "not applicable" for outcome in outcomes)
        if able[target.name]:
            outcomes.append(Outcome(target.name, "not applicable", able[target.name]))
            continue
        with backend.arithmetic("float32"):
            outcome, found = _check(sampler, target, chains, warmup, draws, (seed, index), level, observer, first)
        outcomes.append(outcome)
        rows += found
    return SamplerReport(type(sampler).__name__, sampler.stated_exactness, chains, tuple(rows), tuple(outcomes))


def assert_exact(sampler: AbstractSampler, *, targets: Sequence[str | Target] = tuple(TARGETS), seed: int = 0) -> None:
    """Fail with the table unless the sampler passes: a one-line test for plugins.

    Args:
        sampler: the sampler to test.
        targets: as for `check_sampler`.
        seed: as for `check_sampler`.

    Raises:
        AssertionError: with the report.
    """
    report = check_sampler(sampler, targets=targets, seed=seed)
    if not report.passed:
        raise AssertionError(f"{report.sampler}: {report.verdict}\n{report}")


def _named(name: str) -> Target:
    if name not in TARGETS:
        raise UsageError(f"no target named {name!r}; there are: {', '.join(TARGETS)}")
    return TARGETS[name]()


def _not_applicable(sampler: AbstractSampler, target: Target) -> str:
    """Return why the sampler cannot run on the target, or an empty string."""
    try:
        sampler.check(target.posterior)
    except UsageError as error:
        return str(error)
    looks, there = sampler.evaluations(target.posterior, {"n_steps": 1.0}), target.posterior.num_data
    if looks > _MOST_PASSES * there:
        return f"a step uses {looks:.0f} rows, but the target has only {there}, too few for mini-batches"
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
    first: bool,
) -> tuple[Outcome, list[Row]]:
    """Draw until a bias would be detected, and test the later half of the draws; also test the keys if `first`."""
    tell = observer or _silent
    started = time.perf_counter()
    keys = Keys(*(jax.random.fold_in(key, seed[1]) for key in Keys.of(seed[0])))
    thetas = target.start(np.random.default_rng(seed), chains).astype(np.float32)
    # Use one device, so that the report does not depend on the number of cores.
    placement = place("vectorized", chains)
    stream = chunks(
        target.posterior, sampler, thetas, keys=keys, num_warmup=warmup, num_draws=draws, placement=placement
    )
    values: list[np.ndarray] = []
    sums: dict[str, float] = {}
    rows: list[Row] = []
    taken, looked, stopped, enough = 0, 0, "", False
    used, states, first_states = sampler, None, None
    try:
        for chunk in stream:
            if chunk.phase == "warm-up":
                tell(Progress(f"{target.name}, warm-up", chunk.next_step, warmup))
                continue
            used, taken, states = chunk.sampler, taken + chunk.draws.shape[1], chunk.carry.states
            # The next chunk reuses the buffers, so copy the states.
            first_states = _on_host(states) if first_states is None else first_states
            values.append(target.look(chunk.draws))
            for name, value in chunk.stats.items():
                sums[name] = sums.get(name, 0.0) + float(np.sum(value, dtype=np.float64)) / chains
            rate = sums.get("acceptance_rate", math.nan) / taken
            tell(Progress(target.name, taken, 0, acceptance=rate, note=f"{taken} draws per chain"))
            # Test at fixed numbers of draws, because the ends of chunks depend on the clock.
            while not enough and (look := _next_look(looked, draws)) <= taken and look > looked:
                values = [np.concatenate(values, 1)]
                rows, looked = statistics(values[0][:, look // 2 : look], target, level), look
                means = {name: total / taken for name, total in sums.items()}
                spent = looked * used.evaluations(target.posterior, means)
                enough = _resolution(rows) <= (RESOLUTION if spent < PATIENCE else COARSEST)
            if enough:
                break
        if sums.get("accepted") == 0 == sums.get("acceptance_rate"):
            # The loop itself stops a stuck run only at the end of a chunk, which depends on the clock.
            stopped = f"no proposal was accepted in {taken} steps"
        else:
            stopped = adaptation(used, first_states, _on_host(states))
            if first and not stopped:
                stopped = _step_fault(used, target.posterior, states, keys.settle)
    except BnnzooError as error:
        stopped = str(error)
    means = {name: total / max(taken, 1) for name, total in sums.items()}
    acceptance = means.get("acceptance_rate", math.nan)
    seconds = time.perf_counter() - started
    if stopped:
        outcome = Outcome(target.name, "stopped", stopped, looked, acceptance, seconds)
    elif _resolution(rows) > COARSEST and all(row.passed for row in rows):
        reason = (
            f"after {looked} draws per chain a bias of {100 * _resolution(rows):.2g} % is detected with "
            "probability one half only, because the chains mix too slowly; use another step size, or more draws"
        )
        outcome = Outcome(target.name, "undecided", reason, looked, acceptance, seconds)
    else:
        said = "; ".join(map(sentence, used.findings(target.posterior, means)))
        outcome = Outcome(target.name, "tested", said, looked, acceptance, seconds)
    passed = outcome.state == "tested" and all(row.passed for row in rows)
    tell(Progress(target.name, looked, looked, acceptance, note="passed" if passed else "not passed"))
    return outcome, rows


def _on_host(states: Any) -> Any:
    """Copy the states, so that later chunks do not overwrite them."""
    return jax.tree.map(lambda leaf: jax.random.clone(leaf) if _is_key(leaf) else np.array(leaf), states)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def _step_fault(sampler: AbstractSampler, posterior: AbstractPosterior, states: Any, key: PRNGKeyArray) -> str:
    """Return the fault of a step: randomness that is not from its key, or adaptation after warm-up; otherwise empty.

    All chains take a step from their last states with many keys: a correct sampler accepts some proposal.
    """

    @eqx.filter_jit
    def stepped(sampler: Any, posterior: AbstractPosterior, states: Any) -> tuple[Any, Float[Array, "key chain dim"]]:
        def step(state: Any, key: PRNGKeyArray) -> Any:
            return sampler.step(posterior, state, key=key)[0]

        def all_chains(key: PRNGKeyArray) -> Any:
            return jax.vmap(step, in_axes=(0, None))(states, key)

        keys = jax.random.split(key, _OTHER_KEYS)
        return all_chains(keys[0]), jax.lax.map(lambda key: all_chains(key).position, keys)

    (after, once), (_, again) = (_on_host(stepped(sampler, posterior, states)) for _ in range(2))
    if fault := adaptation(sampler, _on_host(states), after):
        return fault
    if not np.array_equal(once, again, equal_nan=True):
        return "two steps from one state with one key differ; all randomness must come from the key"
    if sampler.stated_exactness != "approximate" and np.array_equal(once, np.broadcast_to(once[:1], once.shape)):
        return "steps with different keys are the same; all randomness must come from the key"
    return ""


def statistics(values: Float[np.ndarray, "chain draw quantity"], target: Target, level: float) -> list[Row]:
    """Return every statistic of a target, with its threshold at that two-sided level.

    Variances are about the mean of the draws, so that a shifted mean is reported only once. A correlation's spread over
    chains is that of its linearisation.
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
            found = covariance[i, j] / scale
            squares = products[:, i, i] / covariance[i, i] + products[:, j, j] / covariance[j, j]
            pair = f"{target.quantities[i]}, {target.quantities[j]}"
            add(pair, "correlation", found, truth, found - truth, products[:, i, j] / scale - found / 2 * squares)
    if target.cdf is not None:
        uniform = np.sort(target.cdf(values[:, -1].astype(np.float64)), axis=0)
        steps = np.arange(chains)[:, None] / chains
        distances = np.maximum(uniform - steps, steps + 1 / chains - uniform).max(0)
        largest = float(stats.kstwo.isf(level, chains)) * chains**0.5
        for name, distance in zip(target.quantities, distances, strict=True):
            score = float(distance) * chains**0.5
            rows.append(Row(target.name, name, "distribution", float(distance), 0.0, float(distance), score, largest))
    return rows


def _num_tests(target: Target) -> int:
    count = len(target.quantities)
    return 2 * count + count * (count - 1) // 2 + count * (target.cdf is not None)


def _next_look(looked: int, draws: int) -> int:
    """Return the draws of the next test, half as many again as the last; the final test is at the last draw."""
    return min(draws, looked * 3 // 2 or _FIRST_LOOK)


def _resolution(rows: list[Row]) -> float:
    """Return the largest detectable bias of the means and variances; infinite before the first test."""
    found = [row.resolution for row in rows if row.statistic in ("mean", "variance")]
    return max(found, default=math.inf)


def _silent(progress: Progress) -> None:
    del progress
