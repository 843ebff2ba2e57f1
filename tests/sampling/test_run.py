"""The loop: chunks, stopping, resuming, thinning and placement change no bit; faults stop a run."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import signal
from types import SimpleNamespace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import xarray as xr
from jaxtyping import Array, Float

import bnnzoo
from bnnzoo import store
from bnnzoo.api import entrances, resuming
from bnnzoo.errors import BnnzooError, InterruptedRunError, UsageError
from bnnzoo.plugins import registry
from bnnzoo.posterior import AbstractPosterior, backend
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.progress import Progress
from bnnzoo.samplers import AbstractSampler, Mala, Penalty, RandomWalk, Sgld
from bnnzoo.samplers.statistics import ACCEPTANCE_RATE
from bnnzoo.sampling import chain_findings
from bnnzoo.sampling.devices.placement import Placement, host_devices, place_chains
from bnnzoo.sampling.devices.processes import Processes
from bnnzoo.sampling.initial import positions as initial
from bnnzoo.sampling.loop import carry, chunk, loop, pace
from bnnzoo.sampling.loop.loop import Carry, Keys, carry_template, chunks
from bnnzoo.sampling.loop.stuck_chains import STUCK_STEPS
from bnnzoo.sampling.loop.warmup import StepSize, windows
from bnnzoo.sampling.loop.worker import worker
from bnnzoo.sampling.tuned import refuse_lost_fields, tuned_fields
from bnnzoo.store import checkpoint
from bnnzoo.store.writer import Store

ONE_BY_ONE = 1e-9
"""Seconds per chunk for which every chunk is one draw."""


@functools.cache
def reference(sampler: str):
    """A run whose every chunk is one step."""
    return tiny.run(sampler, chunk_seconds=ONE_BY_ONE)


# ---- same seed, same bits ------------------------------------------------------------------------


@pytest.mark.long
@tiny.EACH
def test_a_run_is_as_long_as_asked_and_moves(sampler):
    run_chunks = reference(sampler)
    values = tiny.joined(run_chunks)
    assert values["theta"].shape == (tiny.CHAINS, tiny.DRAWS, 11)
    assert all(np.isfinite(value).all() for value in values.values())
    assert [chunk.next_step for chunk in run_chunks] == list(range(1, tiny.WARMUP + tiny.DRAWS + 1))
    assert all(chunk.draws.shape[1] == 0 for chunk in run_chunks if chunk.phase == "warm-up")
    path = np.stack([chunk.carry.states.position for chunk in run_chunks], 1)
    moved = (np.diff(path, axis=1) != 0).any(2)
    assert (moved.sum(1) > 5).all()
    if "accepted" in values:  # the statistics of a step agree with its effect
        np.testing.assert_array_equal(values["accepted"] > 0, moved[:, -tiny.DRAWS :])
    for first, other in itertools.combinations(values["theta"], 2):
        assert not np.array_equal(first, other)


@pytest.mark.long
@tiny.EACH
def test_the_same_seed_in_other_chunks_gives_the_same_bits(sampler):
    uninterrupted = tiny.run(sampler, chunk_seconds=1e9)
    assert len(uninterrupted) < len(reference(sampler)) / 3
    tiny.assert_same_bits(tiny.joined(uninterrupted), tiny.joined(reference(sampler)))
    tiny.assert_same_bits(tiny.joined(uninterrupted), tiny.joined(tiny.run(sampler, chunk_seconds=1e9)))


def _check_buffer(sampler: str, most_draws: int) -> None:
    run_chunks = tiny.run(sampler, most_draws=most_draws, chunk_seconds=1e9)
    assert max(chunk.draws.shape[1] for chunk in run_chunks) <= most_draws
    tiny.assert_same_bits(tiny.joined(run_chunks), tiny.joined(reference(sampler)))


def test_the_size_of_the_buffer_changes_no_bit():
    _check_buffer("random-walk", 7)


@pytest.mark.slow
@tiny.EACH
@pytest.mark.parametrize("most_draws", [1, 7, 100])
def test_the_size_of_the_buffer_changes_no_bit_of_any_sampler(sampler, most_draws):
    _check_buffer(sampler, most_draws)


@pytest.mark.long
@tiny.EACH
def test_another_seed_gives_other_draws(sampler):
    other = tiny.joined(tiny.run(sampler, seed=1))["theta"]
    # A dropped weight is 0 whatever the seed.
    assert not np.isin(other[other != 0], tiny.joined(reference(sampler))["theta"]).any()


# ---- resume --------------------------------------------------------------------------------------


@tiny.EACH
@pytest.mark.parametrize("stop", [1, 22, tiny.WARMUP - 1, tiny.WARMUP, tiny.WARMUP + 7, tiny.WARMUP + tiny.DRAWS - 1])
def test_a_resumed_run_is_the_uninterrupted_one(sampler, stop, tmp_path):
    uninterrupted = reference(sampler)
    at = next(chunk for chunk in uninterrupted if chunk.next_step == stop)
    path = tmp_path / "checkpoint.npz"
    checkpoint.save(tmp_path, checkpoint.Checkpoint(carry.flatten(at.carry), at.next_step, 0, {}, {}, {}), run="")
    with backend.arithmetic("float32"):
        posterior = tiny.problem(sampler).posterior
        template = carry_template(posterior, at.sampler, tiny.CHAINS, tiny.WARMUP)
        saved = checkpoint.load(path, run="")
        restored = carry.restore(saved.arrays, template)
    rest = tiny.run(sampler, sampler_object=at.sampler, resume=(restored, saved.next_step))
    assert rest[-1].next_step == tiny.WARMUP + tiny.DRAWS
    before = [chunk for chunk in uninterrupted if chunk.next_step <= stop]
    tiny.assert_same_bits(tiny.joined([*before, *rest]), tiny.joined(uninterrupted))
    same = jax.tree.map(lambda a, b: np.array_equal(_plain(a), _plain(b)), rest[-1].carry, uninterrupted[-1].carry)
    assert all(jax.tree.leaves(same))


def _plain(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


def _tune_to(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Let `tune` of mala return a sampler with these fields."""
    monkeypatch.setattr(Mala, "tune", lambda self, _, states, **__: (dataclasses.replace(self, **fields), states))


@pytest.mark.long
def test_a_resumed_run_has_the_numbers_that_tune_has_changed(monkeypatch, tmp_path):
    _tune_to(monkeypatch, target_acceptance=0.9)
    runs = [entrances.run_recipe(tiny.recipe("mala"), out=tmp_path / "whole.nc")]
    with pytest.raises(InterruptedRunError):
        entrances.run_recipe(tiny.recipe("mala"), out=tmp_path / "cut.nc", **tiny.stopped(1))
    runs.append(resuming.resume(tmp_path / "cut.nc", progress=False))
    xr.testing.assert_identical(*(run.posterior["posterior"].to_dataset() for run in runs))
    assert all('"target_acceptance": 0.9' in run.attributes["tuned"] for run in runs)


def test_a_tuned_field_that_no_checkpoint_can_hold_is_refused(monkeypatch, tmp_path):
    _tune_to(monkeypatch, step_size=(0.1, 0.2))
    with pytest.raises(BnnzooError, match=r"^sampler mala: choose or tune changed the field step_size; its new value"):
        entrances.run_recipe(tiny.recipe("mala"), out=tmp_path / "run.nc")


def test_tuned_fields_are_numbers_texts_and_booleans():
    requested = Mala(step_size=0.1)

    def fields(**after: Any) -> dict[str, Any]:
        return tuned_fields(requested, dataclasses.replace(requested, **after))

    assert fields() == fields(step_size=np.float32(0.1)) == {}
    assert fields(step_size=0.3, target_acceptance=jnp.float32(0.7)) == {"step_size": 0.3, "target_acceptance": 0.7}
    assert fields(target_acceptance=np.array(2)) == {"target_acceptance": 2}
    for lost in (None, (0.1,), np.inf, np.zeros(2)):
        assert fields(step_size=lost) == {}
        with pytest.raises(BnnzooError, match="the field step_size"):
            refuse_lost_fields(requested, dataclasses.replace(requested, step_size=lost))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the sampler's own check")  # its random walks sometimes do not move
def test_a_part_that_could_not_be_written_is_drawn_again(tmp_path, monkeypatch):
    recipe = tiny.recipe("random-walk", draws=5000)
    uninterrupted = entrances.run_recipe(recipe, out=tmp_path / "whole.nc")
    append, calls = Store.append, itertools.count()

    def full_once(self: Store, groups: Any) -> None:
        if next(calls) == 2:
            raise BnnzooError("no space left")
        append(self, groups)

    monkeypatch.setattr(Store, "append", full_once)
    with pytest.raises(BnnzooError, match="no space left"):
        entrances.run_recipe(recipe, out=tmp_path / "cut.nc")
    part = bnnzoo.open(tmp_path / "cut.nc")
    before = part.attributes["seconds_sampling"]
    part.posterior.close()
    cut = resuming.resume(tmp_path / "cut.nc")
    assert next(calls) > 3
    both = [run.posterior["posterior"].to_dataset() for run in (uninterrupted, cut)]
    xr.testing.assert_identical(*both)
    assert cut.attributes["seconds_sampling"] > before > 0


@pytest.mark.filterwarnings("ignore:the sampler's own check")
def test_a_failed_run_names_the_place_of_its_draws(tmp_path, monkeypatch):
    """The draws are in parts, beside the complete run that was to be replaced."""
    append, calls, out = Store.append, itertools.count(), tmp_path / "run.nc"
    recipe = tiny.recipe("random-walk", draws=1000)
    old = entrances.run_recipe(recipe, out=out).attributes

    def full(self: Store, groups: Any) -> None:
        if next(calls) == 2:
            raise BnnzooError("no space left")
        append(self, groups)

    monkeypatch.setattr(Store, "append", full)
    with pytest.raises(BnnzooError, match=r"no space left; the \d+ draws before the error are in .*/run\.nc\.parts$"):
        entrances.run_recipe(recipe, out=out, force=True)
    assert bnnzoo.open(out).attributes == old
    assert store.open_parts(out).attrs["draws_done"] > 0


def test_the_thread_of_the_loop_has_the_callers_settings_of_jax():
    current_settings = lambda: (jax.numpy.zeros(()).dtype, jax.numpy.zeros(()).devices())  # noqa: E731
    config: Any = jax.config
    with jax.threefry_partitionable(not config.jax_threefry_partitionable), worker() as submit:
        assert submit(lambda: config.jax_threefry_partitionable).result() == config.jax_threefry_partitionable
    with jax.enable_x64(True), jax.default_device(jax.devices()[1]), worker() as submit:
        assert submit(current_settings).result() == current_settings() == (np.float64, {jax.devices()[1]})
    with worker() as submit:
        assert submit(current_settings).result() == (np.float32, {jax.devices()[0]})
        with pytest.raises(ZeroDivisionError):
            submit(lambda: 1 // 0).result()


def _interrupt(progress: Progress) -> None:
    """Interrupt the process once it samples, as Ctrl-C does."""
    if progress.phase == "sampling":
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def _as_in_a_script():
    """SIGINT raises KeyboardInterrupt, as in a new Python; a command of another test may have changed this."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_as_in_a_script")
def test_a_run_of_a_posterior_made_in_python_names_no_command_that_continues_it(tmp_path):
    options: dict[str, Any] = {"chains": 2, "warmup": 0, "draws": 100_000, "observer": _interrupt}
    with pytest.raises(InterruptedRunError, match=r"^SIGINT: stopped after \d+ of 100000 draws$"):
        bnnzoo.sample(Toy(), RandomWalk(step_size=0.1), out=tmp_path / "run.nc", **options)


@pytest.mark.long
@pytest.mark.usefixtures("_as_in_a_script")
def test_the_command_that_continues_a_run_of_an_own_network_names_the_model(tmp_path):
    x, out = np.linspace(-1, 1, 30, dtype=np.float32)[:, None], tmp_path / "run.nc"
    options: dict[str, Any] = {"chains": 2, "warmup": 0, "draws": 20_000, "init": "prior", "likelihood": "gaussian"}
    network = eqx.nn.Linear(1, 1, key=jax.random.key(0))
    with pytest.raises(InterruptedRunError, match=r"; continue: bnnzoo\.resume\('.*run\.nc', model=\.\.\.\)$"):
        bnnzoo.sample(network, "random-walk", data=(x, x[:, 0]), out=out, observer=_interrupt, **options)
    assert bnnzoo.resume(out, model=network, progress=False).attributes["complete"] == 1


def test_given_positions_have_the_precision_of_the_run(tmp_path):
    start, posterior = np.full((2, 2), 0.1, np.float64), Toy()
    options: dict[str, Any] = {"chains": 2, "warmup": 0, "draws": 3, "progress": False}
    positions_given = []

    def record(_: Any, __: Any, thetas: Any) -> None:
        positions_given.append(thetas)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(initial, "check_start", record)
        bnnzoo.sample(posterior, RandomWalk(step_size=0.1), init=start, out=tmp_path / "run.nc", **options)
    assert [thetas.dtype for thetas in positions_given] == [np.float32]


def test_a_run_stopped_at_its_last_step_has_nothing_left_to_do():
    last = reference("random-walk")[-1]
    assert tiny.run("random-walk", resume=(last.carry, last.next_step)) == []


# ---- thinning, warm-up ---------------------------------------------------------------------------


@tiny.EACH
def test_thinned_draws_are_every_third_draw(sampler):
    every = tiny.joined(tiny.run(sampler, num_draws=30))
    third = tiny.joined(tiny.run(sampler, num_draws=10, thin=3))
    np.testing.assert_array_equal(third["theta"], every["theta"][:, 2::3])
    averaged = {"accepted", "acceptance_rate", "sigma2", "penalty", "regime_dof", "regime_skew", "skew_bias", "n_steps"}
    averaged |= {"tree_depth", "rows_seen", "grown", "test_error", "diverging"}
    for name, value in every.items():
        if name == "theta":
            continue
        steps = value.reshape(tiny.CHAINS, 10, 3)
        if name in averaged:
            np.testing.assert_allclose(third[name], steps.mean(2), rtol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(third[name], steps[:, :, -1], err_msg=name)


def test_kept_warm_up_needs_room_too(tmp_path, monkeypatch):
    """The draws alone would fit exactly: 11 parameters, and at most 16 statistics."""
    free = 2 * tiny.CHAINS * tiny.DRAWS * (11 + 16) * 4
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    store.check_room(tmp_path / "run.nc", free // 2)
    with pytest.raises(UsageError, match=r"writing needs .* but only .* are free"):
        entrances.run_recipe(tiny.recipe("random-walk", keep_warmup=True), out=tmp_path / "run.nc")


def test_keep_warmup_keeps_every_step_and_changes_none():
    chunks = tiny.run("random-walk", keep_warmup=True)
    warm = tiny.joined(chunks, "warm-up")
    assert warm["theta"].shape == (tiny.CHAINS, tiny.WARMUP, 11)
    last = next(chunk for chunk in chunks if chunk.next_step == tiny.WARMUP)
    np.testing.assert_array_equal(warm["theta"][:, -1], last.carry.states.position)
    tiny.assert_same_bits(tiny.joined(chunks), tiny.joined(reference("random-walk")))


@tiny.EACH
def test_nothing_of_the_kernel_changes_after_warm_up(sampler):
    """Step size, preconditioner, mass matrix and tuning equal those of the last warm-up step bit for bit."""
    run_chunks = reference(sampler)
    frozen = [_kernel(chunk.carry) for chunk in run_chunks if chunk.next_step >= tiny.WARMUP]
    for other in frozen[1:]:
        for first, two in zip(frozen[0], other, strict=True):
            np.testing.assert_array_equal(first, two)
    if sampler in ("random-walk", "mala", "penalty", "hmc", "nuts", "gibbs"):  # the others adapt nothing
        early = _kernel(run_chunks[0].carry)
        assert any(not np.array_equal(first, two) for first, two in zip(early, frozen[0], strict=True))


def _kernel(carry: Carry) -> list[np.ndarray]:
    states = carry.states
    adapted = ("step_size", "preconditioner", "scales", "rows", "anchor", "metric")
    parts = tuple(getattr(states, name, ()) for name in adapted)
    return [_plain(leaf) for leaf in jax.tree.leaves((parts, carry.tuning))]


def test_a_step_of_gibbs_adapts_nothing():
    """It adapts in its own warm-up steps, not by the loop's adaptation."""
    problem = tiny.problem("gibbs")
    theta = jnp.zeros(problem.posterior.layout.dim)
    state = problem.sampler.init(problem.posterior, theta, num_warmup=5, key=jax.random.key(0))
    moved, _ = eqx.filter_jit(problem.sampler.step)(problem.posterior, state, key=jax.random.key(1))
    learned, _ = eqx.filter_jit(problem.sampler.warmup_step)(problem.posterior, state, key=jax.random.key(1))
    np.testing.assert_array_equal(moved.scales, state.scales)
    assert not np.array_equal(learned.scales, state.scales)


def test_warm_up_of_length_zero_adapts_nothing():
    run_chunks = tiny.run("random-walk", num_warmup=0, num_draws=5)
    states = run_chunks[-1].carry.states
    assert [chunk.phase for chunk in run_chunks] == ["sampling"] * len(run_chunks)
    np.testing.assert_array_equal(states.step_size, np.full(tiny.CHAINS, 0.01, np.float32))
    assert states.preconditioner.factor.shape == (tiny.CHAINS,)


@pytest.mark.parametrize("num_warmup", [0, 1, 20, 39, 40, 45, 200, 1000])
def test_windows_end_where_warm_up_ends(num_warmup):
    ends = windows(num_warmup)
    assert list(ends) == sorted(set(ends))
    assert not ends or (ends[0] > 0 and ends[-1] == num_warmup)
    assert bool(ends) == bool(num_warmup)


def test_windows_are_ten_short_ones_and_a_long_last_one():
    assert windows(1000) == (50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 1000)
    assert windows(200) == (10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200)
    assert [windows(steps) for steps in (199, 40, 39, 1)] == [(99, 199), (20, 40), (39,), (1,)]


def test_windows_of_a_warm_up_that_ended_early_have_the_planned_length():
    assert windows(400, 1000) == (50, 100, 150, 200, 400)
    assert windows(1000, 1000) == windows(1000, None) == windows(1000)
    assert windows(900, 1000) == (50, 100, 150, 200, 250, 300, 350, 400, 450, 900)


class _Stepping(NamedTuple):
    step_size: Any


def test_the_step_size_follows_the_tightest_limit_and_ends_at_its_average():
    """The moves by hand: of the limit whose mean, which forgets after ten steps, is least; bounded by a factor e."""
    headrooms = np.random.default_rng(0).normal(size=(25, 2)) * [0.5, 0.3] + [0.1, -0.1]
    headrooms[0], headrooms[4] = (3.0, 2.0), (-30.0, 1.0)
    warmup, state = StepSize(gain=0.8), _Stepping(jnp.float32(0.05))
    tuning = warmup.init(state, 2)
    mean, path = np.zeros(2), [np.log(0.05)]
    for step, headroom in enumerate(headrooms, start=1):
        tuning, state = warmup.update(tuning, state, jnp.asarray(headroom, jnp.float32))
        mean = mean + (headroom - mean) * max(1 / step, 0.1)
        path.append(path[-1] + np.clip(0.8 * step**-0.6 * min(mean), -1, 1))
        np.testing.assert_allclose(np.log(state.step_size), path[-1], atol=1e-4)
    assert {-1.0, 1.0} <= set(np.diff(path).round(6))
    average = np.average(path[1:], weights=np.arange(1, 26))
    assert abs(average - path[-1]) > 0.1
    np.testing.assert_allclose(np.log(warmup.final(tuning, state).step_size), average, atol=1e-4)
    # Without limits nothing is adapted, and no step size is needed.
    still = warmup.init(_Breaks, 0)
    assert warmup.update(still, _Breaks, jnp.zeros(0)) == (still, _Breaks)
    assert warmup.final(still, _Breaks) is _Breaks


class _WitnessState(NamedTuple):
    position: Any
    step_size: Any
    begun: Any
    """Number of warm-up steps and the initial key."""
    settled: Any
    """Whether the window was the last, and the key, of the last time that it settled."""


class _Witness(AbstractSampler[Any]):
    """A sampler that records every call and its keys."""

    exactness = "biased"
    statistics = (ACCEPTANCE_RATE,)
    calls: Any = eqx.field(static=True, default=())

    def init(self, posterior: Any, theta: Any, *, num_warmup: int, key: Any) -> Any:
        began = jnp.append(jax.random.key_data(key), jnp.uint32(num_warmup))
        return _WitnessState(theta, jnp.float32(0.5), began, jnp.zeros(3, jnp.uint32))

    def step(self, posterior: Any, state: Any, *, key: Any) -> Any:
        first, second = jax.random.key_data(key)
        return state, {"key_0": first, "key_1": second, "acceptance_rate": jnp.ones(())}

    def settle(self, posterior: Any, state: Any, *, final: bool, key: Any) -> Any:
        return state._replace(settled=jnp.append(jax.random.key_data(key), jnp.uint32(final)))

    def tune(self, posterior: Any, states: Any, *, final: bool, key: Any, num_steps: int) -> Any:
        settled_flags = tuple(map(bool, states.settled[:, 2]))
        call = (num_steps, final, tuple(jax.random.key_data(key).tolist()), settled_flags)
        return dataclasses.replace(self, calls=(*self.calls, call)), states

    def headroom(self, stats: Any) -> Any:
        return stats["acceptance_rate"][None]


def _folded_key(key: Any, *numbers: int) -> tuple[int, ...]:
    """Return the words of the key after folding in the numbers, one after the other."""
    return tuple(jax.random.key_data(functools.reduce(jax.random.fold_in, numbers, key)).tolist())


def test_the_run_loop_calls_tune_and_settle_with_their_keys(monkeypatch):
    """All keys of a run, by hand: none is used twice. Tuning restarts at the ends of two windows."""
    behind, keys = list[Any](), Keys.from_seed(0)
    monkeypatch.setattr(loop, "restart_stragglers", lambda _, carry, *, key: behind.append(_folded_key(key)) or carry)
    how = {"num_warmup": 45, "num_draws": 3, "thin": 2, "keep_warmup": True, "chunk_seconds": ONE_BY_ONE}
    run_chunks = {chunk.next_step: chunk for chunk in _toy_run(Toy(), _Witness(), **how)}
    assert behind == [_folded_key(keys.restart, 22)]  # never at the end of the last window
    expected = tuple((end, end == 45, _folded_key(keys.tune, end), (end == 45,) * 2) for end in (22, 45))
    assert [run_chunks[step].sampler.calls for step in (21, 22, 44, 45, 51)] == [
        (),
        expected[:1],
        expected[:1],
        expected,
        expected,
    ]
    used = [*behind, *(item[2] for item in expected)]
    for chain in range(2):
        for end in (22, 45):
            settled_flags = run_chunks[end].carry.states.settled[chain].tolist()
            assert settled_flags == [*_folded_key(keys.settle, end, chain), end == 45]
        assert run_chunks[51].carry.states.begun[chain].tolist() == [*_folded_key(keys.states, chain), 45]
        words = [[chunk.stats[name][chain] for chunk in run_chunks.values()] for name in ("key_0", "key_1")]
        steps = np.stack([np.concatenate(values) for values in words], -1)
        # The last of the two steps of a draw counts.
        numbers = [*range(45), 46, 48, 50]
        np.testing.assert_array_equal(steps, [_folded_key(keys.chain, chain, number) for number in numbers])
        used += [_folded_key(keys.states, chain), *(_folded_key(keys.settle, end, chain) for end in (22, 45))]
        used += map(tuple, steps.tolist())
    assert len(set(used)) == len(used) == 1 + 2 + 2 * (1 + 2 + 48)
    for end, count in ((22, 21), (45, 22)):
        assert run_chunks[end - 1].carry.tuning.count.tolist() == [count] * 2
        assert run_chunks[end].carry.tuning.count.tolist() == [0, 0]
        states, tuning = run_chunks[end].carry.states, run_chunks[end].carry.tuning
        np.testing.assert_allclose(np.exp(tuning.log_step), states.step_size, rtol=1e-5)


def test_the_keys_of_a_seed_are_always_the_same_nine():
    """Other keys, or another generator, would change every run; no setting of JAX may cause this."""
    numbers = {"positions": 0, "states": 4, "tune": 1, "settle": 2, "chain": 3, "fixed": 5}
    numbers |= {"transport": 6, "restart": 7, "noise": 8}
    with jax.default_prng_impl("rbg"):
        result = Keys.from_seed(3)._asdict()
    root = jax.random.key(3, impl="threefry2x32")
    assert {name: _folded_key(key) for name, key in result.items()} == {
        n: _folded_key(root, i) for n, i in numbers.items()
    }


# ---- placement -----------------------------------------------------------------------------------


def _check_sequential(sampler: str, num_warmup: int) -> None:
    four, two = (
        tiny.joined(tiny.run(sampler, method="sequential", chains=chains, num_warmup=num_warmup)) for chains in (4, 2)
    )
    tiny.assert_same_bits({name: value[:2] for name, value in four.items()}, two)
    assert all(np.isfinite(value).all() for value in four.values())


def test_sequential_chains_do_not_depend_on_how_many_there_are():
    """There is no warm-up, because it tunes one step size and one preconditioner for all chains."""
    _check_sequential("random-walk", 0)


@pytest.mark.slow
@tiny.EACH
def test_sequential_chains_of_every_sampler(sampler):
    _check_sequential(sampler, 0)


@pytest.mark.slow
@tiny.EACH
def test_vectorized_chains_of_every_sampler(sampler):
    values = tiny.joined(tiny.run(sampler, method="vectorized"))
    assert all(np.isfinite(value).all() for value in values.values())
    assert values["theta"].shape == (tiny.CHAINS, tiny.DRAWS, 11)


@pytest.mark.parametrize(("chains", "devices"), [(1, 1), (2, 2), (3, 3), (4, 4), (6, 3), (8, 4), (7, 1)])
def test_parallel_takes_the_devices_that_divide_the_chains(chains, devices, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert place_chains("parallel", chains).axes == (devices, 1)
    recipe = tiny.recipe("mala", chains=chains)
    assert host_devices(recipe) == devices
    assert host_devices(dataclasses.replace(recipe, chain_method="vectorized")) == 1


# ---- nothing is compiled twice -------------------------------------------------------------------


class _Compilations:
    """The number of programs that XLA compiled inside the context."""

    count = 0
    listening = False

    def __enter__(self) -> _Compilations:
        if not _Compilations.listening:
            jax.monitoring.register_event_duration_secs_listener(self._hear)
            _Compilations.listening = True
        self.before = _Compilations.count
        return self

    def __exit__(self, *_: object) -> None:
        self.here = _Compilations.count - self.before

    @staticmethod
    def _hear(event: str, duration: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            _Compilations.count += 1


@pytest.mark.long
def test_programs_are_forgotten_before_they_fill_the_memory_maps(monkeypatch, tmp_path):
    double = jax.jit(lambda x: 2 * x)
    double(1.0)
    for most, compiled in ((1e9, 0), (30, 1)):
        (tmp_path / "most").write_text(f"{most:.0f}\n")
        monkeypatch.setattr(backend, "_MAX_MAPS", tmp_path / "most")
        backend.forget_programs()
        with _Compilations() as compilations:
            double(1.0)
        assert compilations.here == compiled
    monkeypatch.setattr(backend, "_MAPS", tmp_path / "not Linux")
    backend.forget_programs()


@pytest.mark.long
@tiny.EACH
def test_other_numbers_compile_nothing_new(sampler):
    reference(sampler)
    problem = tiny.problem(sampler)
    tiny.run(sampler)
    posterior = problem.posterior
    rows = posterior.data.x.shape[0]
    changed = eqx.tree_at(
        lambda p: (p.likelihood.scale, p.prior.scale, p.likelihood_power, p.data.y, p.data.x),
        posterior,
        (
            np.float32(1.3),
            np.float32(2.0),
            np.float32(0.9),
            np.random.default_rng(0).normal(size=(rows, 1)).astype(np.float32),
            posterior.data.x[::-1].copy(),
        ),
    )
    name = "step_size" if hasattr(problem.sampler, "step_size") else "learning_rate"
    other = dataclasses.replace(problem.sampler, **{name: getattr(problem.sampler, name) * 0.5})
    with _Compilations() as compilations:
        draws = tiny.run(sampler, seed=9, posterior=changed, sampler_object=other, num_draws=17, thin=2)
    assert compilations.here == 0
    assert np.isfinite(tiny.joined(draws)["theta"]).all()


def test_loops_of_a_known_length_give_the_same_draws(monkeypatch):
    """An accelerator runs the steps of a draw in a loop of a fixed length; the numbers of the steps are the same."""
    expected = tiny.joined(tiny.run("random-walk", num_draws=6, thin=3))
    monkeypatch.setattr(chunk, "on_accelerator", lambda: True)
    with _Compilations() as compilations:
        draws = tiny.joined(tiny.run("random-walk", num_draws=6, thin=3))
    assert compilations.here > 0
    np.testing.assert_array_equal(draws["theta"], expected["theta"])
    for name, values in expected.items():  # the mean over a known number of steps may differ by a rounding
        np.testing.assert_allclose(draws[name], values, rtol=1e-6, err_msg=name)


def test_a_run_like_another_traces_no_step_again():
    """If nothing is compiled, tracing every step for its statistics would take most of a short run's time."""

    class Counted(RandomWalk):
        def step(self, posterior, state, *, key):
            traced.append(1)
            return super().step(posterior, state, key=key)

    traced: list[int] = []
    tiny.run("random-walk", sampler_object=Counted())
    # Warm-up and sampling, each once for what it reports and once for its program.
    assert len(traced) <= 4
    del traced[:]
    tiny.run("random-walk", sampler_object=Counted(step_size=0.02), seed=5)
    assert not traced


def test_inspect_is_traced_once(monkeypatch):
    problem, traced = tiny.problem("penalty"), list[int]()
    inspect = type(problem.sampler).inspect
    monkeypatch.setattr(type(problem.sampler), "inspect", lambda *a, **k: traced.append(1) or inspect(*a, **k))
    thetas = np.zeros((2, problem.posterior.layout.dim), np.float32)
    start = lambda theta: problem.sampler.init(problem.posterior, theta, num_warmup=0, key=jax.random.key(0))  # noqa: E731
    states = jax.vmap(start)(thetas)
    for seed in (0, 1):
        looked = chain_findings.inspect_chains(problem.sampler, problem.posterior, states, key=jax.random.key(seed))
        assert {len(values) for values in looked.values()} == {2}
    assert len(traced) == 1


def test_the_count_of_compilations_counts():
    with _Compilations() as compilations:
        jax.jit(lambda a: a * 3.25 - 7)(jnp.arange(13.0))
    assert compilations.here >= 1


# ---- a toy posterior -----------------------------------------------------------------------------


class Toy(AbstractPosterior):
    """A prior N(0, I), and one datum whose log-likelihood is a function of theta."""

    data: Any
    kind: str = eqx.field(static=True, default="flat")
    dim: int = eqx.field(static=True, default=2)
    likelihood_power: Any = np.float32(1.0)

    def __init__(self, kind: str = "flat", dim: int = 2):
        self.data, self.kind, self.dim = np.zeros((1, 1), np.float32), kind, dim
        self.likelihood_power = np.float32(1.0)

    @property
    def layout(self) -> Layout:
        return Layout((Block("theta", (self.dim,), 0),))

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        return jnp.zeros((), theta.dtype) if self.kind == "constant" else -jnp.sum(theta**2) / 2

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        zeros = jnp.zeros(batch.shape[0], theta.dtype)
        if self.kind == "hole":
            return zeros + jnp.where(theta[0] > 0.5, jnp.nan, 0.0) * (1 + theta[0])
        return zeros


def _steps(sampler: Any, posterior: Any, *, steps: int, theta: Any, seed: int = 0) -> tuple[np.ndarray, dict]:
    """Return positions and statistics of one chain's steps, without warm-up."""
    keys = jax.random.split(jax.random.key(seed), steps)
    start = jnp.asarray(theta)

    @jax.jit
    def run(start):
        state = sampler.init(posterior, start, num_warmup=0, key=jax.random.key(1))

        def body(state, key):
            state, stats = sampler.step(posterior, state, key=key)
            return state, (state.position, stats)

        return jax.lax.scan(body, state, keys)[1]

    positions, stats = run(start)
    return np.asarray(positions), {name: np.asarray(value) for name, value in stats.items()}


STEP = {"random-walk": 1.0, "gibbs": 1.0, "penalty": 1.0, "batched": 1.0}
STEP |= dict.fromkeys(tiny.GROWING, 1.0)
STEP |= {"mala": 0.5, "hmc": 0.5, "nuts": 0.5}
# Without an accept step a chain that has fallen into the hole stays there: steps short enough to walk before.
STEP |= {"sgld": 0.01, "sghmc": 0.01, "psgld": 1e-4}


@pytest.mark.parametrize("sampler", [name for name in tiny.SAMPLERS if name not in tiny.APPROXIMATE])
def test_a_chain_never_keeps_a_position_without_density(sampler):
    """The log-likelihood is NaN for theta[0] > 0.5."""
    fields = {"step_size": STEP.get(sampler, 0.1), **tiny.SMALL.get(sampler, {})}
    if sampler == "sms-ubu":  # there is one datum
        fields["batch_size"] = 1
    sampler_object = registry.load("samplers", sampler)(**fields)
    positions, stats = _steps(sampler_object, Toy("hole"), steps=300, theta=np.zeros(2, np.float32))
    assert np.isfinite(positions).all()
    assert stats["diverging"].any()
    assert len(np.unique(positions[:, 0])) > 3
    if "acceptance_rate" in stats:
        assert positions[:, 0].max() <= 0.5
        assert not stats["diverging"].all()
        assert np.isfinite(stats["acceptance_rate"]).all()
    if sampler in tiny.METROPOLIS:
        assert not stats["accepted"][stats["diverging"]].any()
        assert (stats["acceptance_rate"][stats["diverging"]] == 0).all()


class _Breaks(AbstractSampler[Any]):
    """Counts up and turns to NaN after a while."""

    exactness = "biased"
    after: int = eqx.field(static=True, default=10)

    def init(self, posterior: Any, theta: Any, *, num_warmup: int, key: Any) -> Any:
        return _Position(theta, jnp.zeros((), theta.dtype))

    def step(self, posterior: Any, state: Any, *, key: Any) -> Any:
        count = state.count + 1
        value = jnp.where(count > self.after, jnp.nan, count)
        return _Position(jnp.full_like(state.position, value), count), {"lp": value}


class _Position(eqx.Module):
    position: Array
    count: Array


def _toy_run(posterior: Any, sampler: Any, **more: Any) -> Any:
    arguments: dict[str, Any] = {"num_warmup": 0, "num_draws": 50, **more}
    thetas = np.zeros((2, 2), np.float32)
    return chunks(
        posterior, sampler, thetas, keys=Keys.from_seed(0), placement=Placement("vectorized", None), **arguments
    )


@pytest.mark.parametrize("num_warmup", [0, 5])
def test_a_position_that_is_not_finite_ends_the_run(num_warmup):
    results = []
    with pytest.raises(BnnzooError, match=r"chain 0: theta\[0\] is not finite") as caught:
        results.extend(_toy_run(Toy(), _Breaks(), num_warmup=num_warmup, chunk_seconds=ONE_BY_ONE))
    assert caught.value.exit_code == 1
    positions = tiny.joined(results)["theta"]
    np.testing.assert_array_equal(positions[0, :, 0], np.arange(num_warmup + 1, 11))


def test_a_warm_up_that_is_not_finite_ends_the_run():
    with pytest.raises(BnnzooError, match="is not finite before step"):
        list(_toy_run(Toy(), _Breaks(after=3), num_warmup=20))


def test_a_sampler_without_statistics_runs():
    class Silent(_Breaks):
        def step(self, posterior: Any, state: Any, *, key: Any) -> Any:
            return super().step(posterior, state, key=key)[0], {}

    run_chunks = list(_toy_run(Toy(), Silent(after=100), num_warmup=5, num_draws=6))
    assert tiny.joined(run_chunks)["theta"][0, :, 0].tolist() == [6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("a/b", 0.0, "has the name 'a/b'"),
        ("draw", 0.0, "has the name draw, which bnnzoo needs for a dimension of the file"),
        ("", 0.0, "has no name"),
        ("phase", 1j, "is complex"),
        ("moments", [1.0, 2.0], r"is not one number per step \(got moments with the shape \[2\]\)"),
    ],
)
def test_a_statistic_that_no_file_can_hold_is_refused(name, value, message):
    class Odd(_Breaks):
        def step(self, posterior: Any, state: Any, *, key: Any) -> Any:
            return super().step(posterior, state, key=key)[0], {name: jnp.asarray(value)}

    with pytest.raises(BnnzooError, match=f"Odd.*: step returns a statistic that {message}"):
        list(_toy_run(Toy(), Odd(after=100), num_draws=6))


@pytest.mark.parametrize("thin", [1, 3])
def test_a_thousand_rejections_in_a_row_of_every_chain_end_the_run(thin):
    results = []
    with pytest.raises(BnnzooError, match="no proposal accepted") as caught:
        results.extend(_toy_run(Toy(), RandomWalk(step_size=1e8), num_draws=3000, most_draws=64, thin=thin))
    assert caught.value.exit_code == 1
    steps = results[-1].next_step
    assert STUCK_STEPS <= steps < STUCK_STEPS + 64 * thin


def test_rejections_are_counted_across_chunks_and_forgotten_after_a_move():
    """A chain that moves every 600 steps is slow but not stuck, for any chunks."""

    class Slow(_Breaks):
        def step(self, posterior: Any, state: Any, *, key: Any) -> Any:
            count = state.count + 1
            moved = count % 600 == 0
            return _Position(jnp.full_like(state.position, count // 600), count), {"accepted": moved}

    run_chunks = list(_toy_run(Toy(), Slow(), num_draws=2500, most_draws=128))
    assert run_chunks[-1].next_step == 2500


# ---- T14, T05: limits that are other samplers ----------------------------------------------------


@pytest.fixture
def data():
    rng = np.random.default_rng(5)
    return rng.normal(size=(40, 1))


class Mean(Toy):
    """theta ~ N(0, I), x_i ~ N(theta, I), or of equal density everywhere."""

    def __init__(self, data: Any, kind: str = "mean"):
        self.data, self.kind, self.dim = data, kind, 1
        self.likelihood_power = np.float32(1.0)

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        return -((batch[:, 0] - theta[0]) ** 2) / 2 if self.kind == "mean" else jnp.zeros(batch.shape[0])


def test_sgld_with_all_data_is_the_unadjusted_langevin_algorithm(data):
    with jax.enable_x64(True):
        posterior, eta = Mean(data), 3e-3
        sampler = Sgld(step_size=eta, batch_size=40, sampling="disjoint")
        theta = jnp.asarray([0.7])
        state = sampler.init(posterior, theta, num_warmup=0, key=jax.random.key(0))
        for seed in range(20):
            key = jax.random.key(seed)
            eps = jax.random.normal(jax.random.split(key)[1], (1,))
            gradient = jax.grad(posterior.log_density)(state.position)
            expected = state.position + np.float32(eta) * gradient + np.sqrt(2 * np.float32(eta)) * eps
            state, stats = sampler.step(posterior, state, key=key)
            np.testing.assert_allclose(state.position, expected, atol=1e-6)
            np.testing.assert_array_equal(stats["step_size"], np.float32(eta))


def test_mala_without_a_gradient_is_the_random_walk(data):
    with jax.enable_x64(True):
        flat = Mean(data, "constant")
        eta = 0.02
        walk, _ = _steps(RandomWalk(step_size=(2 * eta) ** 0.5), flat, steps=50, theta=np.array([0.3]))
        mala, stats = _steps(Mala(step_size=eta), flat, steps=50, theta=np.array([0.3]))
    np.testing.assert_allclose(mala, walk, atol=1e-6)
    assert stats["accepted"].all()


def test_the_penalty_with_all_data_is_metropolis(data):
    """Disjoint batches with K = N have no noise and no penalty; decisions are those of plain Metropolis."""
    with jax.enable_x64(True):
        posterior, steps, eta = Mean(data), 1000, 0.5
        sampler = Penalty(step_size=eta, batch_size=8, num_batches=5, sampling="disjoint", preconditioner="identity")
        positions, stats = _steps(sampler, posterior, steps=steps, theta=np.array([0.1]), seed=3)

        @jax.jit
        def plain(start, keys):
            def body(theta, key):
                key_propose, _, key_accept = jax.random.split(key, 3)
                eps = jax.random.normal(jax.random.split(key_propose)[0], (1,))
                proposal = theta + np.float32(eta) * eps
                log_ratio = posterior.log_density(proposal) - posterior.log_density(theta)
                accepted = jnp.log(jax.random.uniform(key_accept)) < log_ratio
                theta = jnp.where(accepted, proposal, theta)
                return theta, (theta, accepted)

            return jax.lax.scan(body, start, keys)[1]

        thetas, accepted = plain(jnp.array([0.1]), jax.random.split(jax.random.key(3), steps))
    np.testing.assert_array_equal(stats["penalty"], 0.0)
    np.testing.assert_array_equal(stats["sigma2"], 0.0)
    np.testing.assert_array_equal(stats["accepted"], accepted)
    np.testing.assert_allclose(positions, thetas, atol=1e-9)
    assert 0.1 < stats["accepted"].mean() < 0.9


def test_a_likelihood_power_scales_the_noise_of_the_penalty(data):
    with jax.enable_x64(True):
        sampler = Penalty(batch_size=4, num_batches=3)
        d = jnp.asarray(np.random.default_rng(0).normal(size=12))
        untempered = sampler.difference(Mean(data), d, jnp.zeros(()))
        half = eqx.tree_at(lambda p: p.likelihood_power, Mean(data), np.float32(0.5))
        tempered = sampler.difference(half, d, jnp.zeros(()))
    untempered, tempered = (jax.tree.map(np.asarray, difference) for difference in (untempered, tempered))
    np.testing.assert_allclose(tempered.delta, untempered.delta / 2)
    np.testing.assert_allclose(tempered.sigma2, untempered.sigma2 / 4)
    np.testing.assert_allclose(untempered.sigma2, 40**2 / 12 * np.var(np.asarray(d), ddof=1))


def test_a_cache_that_has_grown_too_large_loses_its_oldest_programs(tmp_path, monkeypatch):
    for age, name in enumerate(("new", "middle", "old")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(backend, "_CACHE_BYTES", 150)
    backend._limit_cache(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    backend._limit_cache(tmp_path / "nowhere")


def test_the_rows_of_a_chunk_follow_the_pace_of_the_last_one(monkeypatch):
    """A chunk takes half a second at first, and at most eight times the last one; later up to twenty times as long."""
    clock = [100.0]
    monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    chunk_pace = pace.Pace(0.5, 1000)

    def after(seconds: float, steps_left: int = 10**6) -> int:
        clock[0] += seconds
        chunk_pace.record(chunk_pace.last_rows)
        return chunk_pace.next_rows(steps_left)

    assert chunk_pace.next_rows(10**6) == 1
    assert after(0.001) == 8
    assert after(0.008) == 64
    assert after(0.64) == 50  # of 10 ms each
    assert after(0.5, steps_left=7) == 7
    assert after(7.0) == 1  # never zero rows
    clock[0] = chunk_pace.last_time = 100.0 + 499.99
    assert after(0.01) == 8
    assert after(0.08) == 64
    assert after(0.64) == 100
    clock[0] = chunk_pace.last_time = 100.0 + 500_000
    assert after(1.0) == 800
    assert after(8.0) == 1000
    assert after(5.0) == 1000  # at most the size of the buffer
    pace.max_rows = 10**6
    assert after(10.0) == 1000


class _Edged(Toy):
    """The fourth of five rows has no density where theta[0] > 1, and the prior no slope where theta[1] is 0."""

    def __init__(self) -> None:
        self.data, self.kind, self.dim = np.arange(5.0, dtype=np.float32), "edged", 2
        self.likelihood_power = np.float32(1.0)

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        return -jnp.sqrt(theta[1])

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        return jnp.where((batch == 3) & (theta[0] > 1), -jnp.inf, -(theta[0] ** 2))


def test_an_invalid_start_is_named_by_chain_and_row_or_parameter():
    placement, start = Placement("vectorized", None), [0.5, 1.0]
    initial.check_start(_Edged(), placement, np.array([start, start], np.float32))
    with pytest.raises(
        UsageError, match=r"^chain 2: the log density at the initial position is -inf because of training row 4; check"
    ):
        initial.check_start(_Edged(), placement, np.array([start, start, [2.0, 1.0]], np.float32))
    with pytest.raises(
        UsageError, match=r"^chain 1: the log density at the initial position is nan because of the prior; check"
    ):
        initial.check_start(_Edged(), placement, np.array([start, [0.5, -1.0]], np.float32))
    with pytest.raises(
        UsageError, match=r"^chain 1: the gradient .* theta\[1\] is not finite at the initial position; use"
    ):
        initial.check_start(_Edged(), placement, np.array([start, [0.5, 0.0], start], np.float32))


def test_a_run_that_ends_in_warm_up_draws_nothing(monkeypatch):
    """The first process tells the other processes that there is no further chunk, also before the draws."""
    counts = iter([4, 0])
    monkeypatch.setattr(Processes, "agree_on_rows", lambda self, count, *, stop_signal=0: next(counts))
    run_chunks = tiny.run("random-walk")
    assert [(chunk.phase, chunk.next_step) for chunk in run_chunks] == [("warm-up", 4)]
