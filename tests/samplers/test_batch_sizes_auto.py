"""Warm-up selects the number of rows in a step of the penalty."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from gaussian_mean import GaussianMean
from scipy.special import ndtr, ndtri

from bnnzoo.api import entrances, resuming
from bnnzoo.errors import InterruptedRunError, UsageError
from bnnzoo.samplers import Penalty
from bnnzoo.samplers.subsampled.batch_sizes import START, Sizes, WarmupMeans, full_batch, resize_batches, split_batches
from bnnzoo.sampling.devices import jax_settings

AUTO = {"sampler.batch_size": "auto", "sampler.num_batches": "auto"}


def warmup_means(sigma2: float, acceptance: float, skew_bias: float = 0.0) -> WarmupMeans:
    first = WarmupMeans(*(jnp.asarray(value, jnp.float32) for value in (100.0, sigma2, acceptance, skew_bias)))
    return jax.tree.map(lambda value: jnp.broadcast_to(value, (4,)), first)


def resize(used: int, result: WarmupMeans, limit: int = 10_000, least_factor: float = 0.0, **more: Any) -> int:
    arguments: dict[str, Any] = {"num_data": 10**9, "sampling": "replacement", "budget": limit, **more}
    sizes = split_batches(used, disjoint=arguments["sampling"] == "disjoint")
    return resize_batches(
        sizes, result, target_acceptance=0.45, target_sigma2=1.5, least_factor=least_factor, **arguments
    ).num_used


def test_both_limits_met_change_nothing():
    assert resize(1280, warmup_means(1.5, 0.45)) == 1280


def test_noise_that_stops_the_step_size_asks_for_more_data():
    assert resize(640, warmup_means(1.5, 0.53)) == 2560
    assert resize(640, warmup_means(1.5, 0.53), limit=1000) == 1000
    assert resize(640, warmup_means(1.5, 0.53), num_data=900) == 900


def test_batch_sizes_are_chosen_from_the_mean_of_all_chains():
    """Sizes are of all of them: chains that differ count as their mean."""

    def chains(sigma2: list[float], acceptance: list[float], skew_bias: list[float]) -> WarmupMeans:
        return jax.vmap(WarmupMeans)(*(jnp.asarray(value) for value in ([100.0] * 4, sigma2, acceptance, skew_bias)))

    mixed = chains([0.5, 3.0, 1.0, 1.5], [0.43, 0.63, 0.5, 0.56], [0.0] * 4)
    assert resize(640, mixed) == resize(640, jax.tree.map(lambda v: v[::-1], mixed)) == 2560
    for one_of_four, used in ((0.021, 160), (0.019, 40)):
        assert resize(80, chains([0.0] * 4, [0.45] * 4, [0.0, 0.0, 0.0, one_of_four])) == used


def test_noise_that_is_not_used_asks_for_fewer_data():
    assert resize(1280, warmup_means(0.01, 0.45)) == 80
    assert resize(80, warmup_means(0.0, 0.45)) == 40


def test_disjoint_batches_need_few_more_rows_to_reduce_noise():
    """sigma2 goes with 1 / K - 1 / N: a quarter of it at K = 320 of 400 is at 376, of 1000 at 653; 16 times that of
    640 of 1000 is at 100. K itself is the power of two that is near, of 40."""
    for used, num_data, factor, disjoint, replacement in (
        (320, 400, 1 / 4, 320, 400),
        (320, 1000, 1 / 4, 640, 1000),
        (640, 1000, 16, 160, 40),
    ):
        noise = (1 / used - 1 / num_data) * factor
        assert 2**-0.75 <= disjoint * (noise + 1 / num_data) <= 2**0.75
        result = warmup_means(1.5, 0.53) if factor < 1 else warmup_means(0.0, 0.45)
        assert resize(used, result, num_data=num_data, sampling="disjoint") == disjoint
        assert resize(used, result, num_data=num_data) == replacement


def test_batch_sizes_assume_a_moving_proposal_if_only_noise_rejects():
    """The acceptance is higher than the noise alone allows: l^2 is taken as 0.05, and K grows by 0.1 x 0.78 / 0.05."""
    assert (2 * ndtri(0.85 / 2)) ** 2 < 0.15
    assert resize(640, warmup_means(0.15, 0.85)) == 1280


def test_skewed_differences_and_plain_gradients_ask_for_more_data():
    assert resize(640, warmup_means(0.1, 0.45)) < 640
    assert resize(640, warmup_means(0.1, 0.45, skew_bias=0.015)) == 1280
    assert resize(640, warmup_means(0.1, 0.45), least_factor=2.0) == 1280


def test_batch_sizes_converge_where_both_limits_are_met():
    """A proposal whose sigma2 is c l^q / K, its step size at the first limit that it meets."""
    for power in (2, 4, 6):
        for c in (300.0, 3e4):
            used = 1000
            for _ in range(10):
                ell = np.linspace(1e-3, 1.6, 20_000)
                sigma2 = c * ell**power / used
                accepted = 2 * ndtr(-np.sqrt(ell**2 + sigma2) / 2)
                best = np.flatnonzero((accepted >= 0.45) & (sigma2 <= 1.5))[-1]
                used = resize(used, warmup_means(sigma2[best], accepted[best]), limit=10**9)
            expected = c * ((2 * ndtri(0.225)) ** 2 - 1.5) ** (power / 2) / 1.5
            assert 0.4 < used / max(expected, 40) < 3


def test_auto_samples_disjointly_from_half_of_the_rows():
    """Beyond this size a step uses all data, if the budget allows it."""
    asks = {"target_acceptance": 0.45, "target_sigma2": 1.5, "least_factor": 0.0, "sampling": "auto"}

    def resized(used: int, num_data: int, budget: int = 10_000) -> Sizes:
        return resize_batches(
            split_batches(used, disjoint=False), warmup_means(1.5, 0.53), num_data=num_data, budget=budget, **asks
        )

    assert resized(640, 10_000) == Sizes(128, 20, False)
    assert resized(640, 5000) == Sizes(250, 20, True)
    assert resized(640, 4000, budget=3000) == Sizes(128, 20, True)
    assert resized(640, 2003) == Sizes(2003, 1, True)


def test_small_data_sets_start_with_batches_of_all_rows():
    for num_data in (2, 97, 308, 1500, 2000):
        n, m = Penalty().plan(num_data)[:2]
        assert n * m == num_data
        assert Penalty().resolved_proposal(num_data) == "hmc"
    assert Penalty().resolved_proposal(2001) == "random-walk"
    assert Penalty(control_variate="second").plan(1500)[:2] == START
    assert Penalty(batch_size=50, num_batches=28).plan(308) == Sizes(50, 28, False)


def test_a_size_is_cut_into_twenty_batches():
    assert split_batches(1000, disjoint=False) == Sizes(50, 20, False)
    assert split_batches(7, disjoint=False) == Sizes(1, 7, False)
    assert split_batches(442, disjoint=True).num_used <= 442
    assert full_batch(442) == Sizes(26, 17, True)
    assert full_batch(1900) == Sizes(95, 20, True)
    assert full_batch(1907) == Sizes(1907, 1, True)
    assert full_batch(21 * 19) == Sizes(21, 19, True)
    assert full_batch(21 * 22) == Sizes(21 * 22 // 14, 14, True)


def test_a_given_size_stays_and_the_other_is_tuned():
    """And of data that leave no room for two batches, none twice, two that may share some."""
    asks: dict[str, Any] = {"target_acceptance": 0.45, "target_sigma2": 1.5, "least_factor": 0.0, "budget": 10_000}

    def resized(sizes: Sizes, num_data: int, sampling: str = "replacement", **fixed: int) -> Sizes:
        return resize_batches(sizes, warmup_means(1.5, 0.53), num_data=num_data, sampling=sampling, **asks, **fixed)

    assert resized(Sizes(32, 20, False), 10**6) == Sizes(128, 20, False)
    assert resized(Sizes(32, 20, False), 10**6, size=32) == Sizes(32, 80, False)
    assert resized(Sizes(64, 10, False), 10**6, batches=10) == Sizes(256, 10, False)
    assert resized(Sizes(400, 2, False), 10**6, size=4000) == Sizes(4000, 1, False)
    assert resized(Sizes(400, 2, False), 10**6, size=4000, fewest=2) == Sizes(4000, 2, False)
    assert resized(Sizes(32, 20, False), 3000, "auto", size=300) == Sizes(300, 10, True)
    assert resized(Sizes(32, 20, False), 3001, "auto", size=300) == Sizes(300, 10, True)
    assert resized(Sizes(32, 20, False), 3000, "auto", batches=7) == Sizes(428, 7, True)
    assert resized(Sizes(32, 20, True), 3000, "disjoint", size=3000, fewest=2) == Sizes(3000, 1, True)
    assert resized(Sizes(32, 20, False), 3000, "auto", size=1600, fewest=2) == Sizes(1600, 2, False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "value"), [("batch_size", 30), pytest.param("num_batches", 7, marks=pytest.mark.slow)]
)
def test_warm_up_keeps_the_size_that_is_given(name, value):
    sampler = Penalty(sampling="replacement", **{name: value})
    run_chunks = tiny.run("penalty", sampler_object=sampler, num_warmup=200, num_draws=20)
    other = "num_batches" if name == "batch_size" else "batch_size"
    assert {getattr(chunk.sampler, name) for chunk in run_chunks} == {value}
    assert getattr(run_chunks[-1].sampler, other) not in ("auto", *START)
    used = {int(np.prod(chunk.sampler.plan(tiny.problem("penalty").posterior.num_data)[:2])) for chunk in run_chunks}
    assert len(used) > 1


def test_one_batch_of_all_data_is_not_made_smaller():
    """41 to 47 data: of one batch of 40 of them nothing is known of the variance, and every step would be refused."""
    for num_data in (41, 45, 47):
        sizes = Sizes(num_data, 1, True)
        asks: Any = {"num_data": num_data, "sampling": "disjoint", "budget": 10_000, "batches": 1, "fewest": 2}
        asks |= {"target_acceptance": 0.45, "target_sigma2": 1.5, "least_factor": 0.0}
        assert resize_batches(sizes, warmup_means(0.0, 0.5), **asks) == sizes


def test_batch_means_of_all_data_move_whatever_their_number():
    """23 data are one batch: its variance over batches is not a number, and its noise is none."""
    posterior = GaussianMean.of(23)
    sampler = Penalty(variance="batch-means", step_size=0.1)
    assert sampler.plan(23) == Sizes(23, 1, True)
    sampler.check(posterior)
    state = sampler.init(posterior, jnp.zeros(1), num_warmup=0, key=jax.random.key(0))
    step = jax.jit(jax.vmap(lambda key: sampler.step(posterior, state, key=key)[1]))
    stats = step(jax.random.split(jax.random.key(1), 50))
    assert (stats["sigma2"] == 0).all()
    assert (stats["skew_bias"] == 0).all()
    assert stats["accepted"].mean() > 0.2
    sampler_after, _ = sampler.tune(
        posterior,
        jax.tree.map(lambda leaf: leaf[None], state),
        final=True,
        key=jax.random.key(2),
        num_steps=1,
    )
    assert (sampler_after.batch_size, sampler_after.num_batches, sampler_after.sampling) == (23, 1, "disjoint")
    sampler_after.check(posterior)
    for fields in ({"num_batches": 1}, {"num_batches": 1, "batch_size": 20, "sampling": "disjoint"}):
        with pytest.raises(UsageError, match="must be at least 2 for variance"):
            Penalty(variance="batch-means", **fields).check(posterior)


def test_sizes_without_warm_up_are_the_start():
    assert Penalty().plan(10**6)[:2] == START == (50, 20)
    assert Penalty(sampling="disjoint").plan(200)[:2] == (10, 20)
    assert Penalty(batch_size=7).plan(10**6)[:2] == (7, 20)
    assert Penalty(batch_size=60, sampling="disjoint").plan(200)[:2] == (60, 3)
    run_chunks = tiny.run("penalty", sampler_object=Penalty(step_size=0.01, sampling="replacement"), num_warmup=0)
    assert run_chunks[-1].sampler.plan(400)[:2] == START


@pytest.fixture(scope="module")
def tuned_run():
    with jax_settings.arithmetic("float32"):
        sampler = Penalty(sampling="replacement")
        return tiny.run("penalty", sampler_object=sampler, num_warmup=600, num_draws=200)


def test_warm_up_chooses_sizes_and_then_freezes_them(tuned_run):
    after = {
        chunk.sampler.plan(tiny.problem("penalty").posterior.num_data)[:2]
        for chunk in tuned_run
        if chunk.next_step >= 300
    }
    assert len(after) == 1
    assert isinstance(tuned_run[-1].sampler.batch_size, int)
    assert isinstance(tuned_run[-1].sampler.num_batches, int)
    values = tiny.joined(tuned_run)
    assert 0.2 < values["sigma2"].mean() < 2.0
    assert 0.3 < values["acceptance_rate"].mean() < 0.8
    assert len(np.unique(values["step_size"])) == 1


@pytest.mark.slow
def test_control_variates_need_fewer_data(tuned_run):
    posterior = tiny.problem("penalty").posterior
    sampler = Penalty(control_variate="second", proposal="langevin")
    run_chunks = tiny.run("penalty", sampler_object=sampler, num_warmup=400, num_draws=20)
    few, many = (int(np.prod(run[-1].sampler.plan(posterior.num_data)[:2])) for run in (run_chunks, tuned_run))
    assert few == 40 < many


@pytest.mark.slow
def test_chosen_sizes_are_stored_and_survive_an_interruption(tmp_path):
    options = {**AUTO, "warmup": 60, "draws": 10}
    uninterrupted = entrances.run_recipe(tiny.recipe("penalty", **options), out=tmp_path / "whole.nc")
    tuned = json.loads(uninterrupted.attributes["tuned"])
    assert tuned["batch_size"] * tuned["num_batches"] != START[0] * START[1]
    assert "batch_size: auto" in uninterrupted.attributes["recipe"]

    recipe = tiny.recipe("penalty", **options)
    with pytest.raises(InterruptedRunError):
        entrances.run_recipe(recipe, out=tmp_path / "cut.nc", **tiny.stopped(4))
    resumed = resuming.resume(tmp_path / "cut.nc")
    assert json.loads(resumed.attributes["tuned"]) == tuned
    for name, values in uninterrupted.posterior["posterior"].data_vars.items():
        np.testing.assert_array_equal(values, resumed.posterior["posterior"][name])
