"""Advice and findings of samplers, and the sizes and steps that warm-up selects."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_posteriors import linear_posterior

from bnnzoo.finding import spell_settings
from bnnzoo.samplers import Swag
from bnnzoo.samplers.mcmc.metric import Metric, rescale_step_size, share_metric
from bnnzoo.samplers.subsampled import regime
from bnnzoo.samplers.subsampled.batch_sizes import Sizes, WarmupMeans, initial_sizes, resize_batches
from bnnzoo.samplers.subsampled.noise_penalty import Difference

MEANS = {
    "sigma2": 0.2,
    "step_size": 0.1,
    "regime_dof": 0.0,
    "regime_skew": 0.0,
    "skew_bias": 0.0,
    "acceptance_rate": 0.5,
}


def advice(means: dict[str, float], sizes: Sizes, **more: Any) -> str:
    arguments = {"num_data": 100_000, "budget": 10_000, "tuned": False, "target_sigma2": 1.5, "pooled": True}
    rest = {"langevin": False, "importance": False}
    (finding,) = regime.regime(MEANS | means, sizes, **arguments | rest | more)
    return spell_settings(finding.advice, "options")


def test_advised_batch_sizes_are_just_large_enough():
    sizes = Sizes(50, 20, False)
    noisy = {"sigma2": 6.0}
    assert advice(noisy, sizes) == "use --sampler.num-batches 80, or --sampler.step-size 0.05"
    assert advice({"sigma2": 2.25}, sizes).startswith("use --sampler.num-batches 30, or")
    assert advice(noisy, sizes, langevin=True) == "use --sampler.num-batches 80, or --sampler.step-size 0.025"
    # Without repeated rows, 4000 of 100 000 rows would reduce the noise to less than a quarter.
    assert advice(noisy, Sizes(50, 20, True)).startswith("use --sampler.num-batches 78, or")
    assert advice(noisy, sizes, num_data=8000, budget=0).startswith("use --sampler.num-batches 80, or")
    assert advice(noisy, sizes, num_data=7999, budget=0) == "use --sampler.step-size 0.05"
    every = "use --sampler.sampling disjoint --sampler.batch-size 350 --sampler.num-batches 20, which removes the noise"
    assert advice(noisy, sizes, num_data=7000, budget=7000) == f"{every}; or use --sampler.step-size 0.05"
    assert advice(noisy, sizes, num_data=7000, budget=6999) == "use --sampler.step-size 0.05"
    assert advice(noisy, sizes, tuned=True, num_data=7000) == every
    assert advice(noisy, sizes, tuned=True) == "use --sampler.target-sigma2 0.38"
    skewed = {"skew_bias": 0.02}
    assert advice(skewed, sizes, num_data=4000, budget=0) == "use --sampler.batch-size 100 --sampler.num-batches 20"
    assert "use --warmup 500, which chooses the step size, or --sampler.step-size 0.01" in advice(
        skewed, sizes, num_data=3999, budget=0
    )
    unseen = {"unseen": 0.2}
    assert advice(unseen, sizes, tuned=True).startswith("use --sampler.sampling importance")
    assert advice(unseen, sizes).startswith("use --sampler.batch-size 100")
    assert advice(unseen, sizes, tuned=True, importance=True).startswith("use --sampler.batch-size 100")
    assert "use --sampler.variance pooled" in advice({"regime_dof": 0.02}, sizes, pooled=False)
    for rows, batch_size, num_batches in ((7, 1, 7), (410, 41, 10), (101, 101, 1)):
        expected = f"batch-size {batch_size} --sampler.num-batches {num_batches}"
        assert expected in spell_settings(regime._all_data_setting(rows), "options")


def test_values_at_the_limit_are_within_the_regime():
    at = {"sigma2": 2.0, "regime_dof": 0.01, "regime_skew": 0.5, "skew_bias": 0.015, "acceptance_rate": 0.01}
    more = {"num_data": 10_000, "budget": 0, "tuned": False, "target_sigma2": 1.5, "pooled": True}
    options: Any = {**more, "langevin": False, "importance": False}
    assert regime.regime(MEANS | at | {"unseen": 0.09}, Sizes(50, 20, False), **options) == ()
    (still,) = regime.regime(MEANS | {"acceptance_rate": 0.009}, Sizes(50, 20, False), **options)
    assert (still.kind, still.value, still.limit) == ("acceptance", 0.009, 0.01)
    (most,) = regime.regime(MEANS | {"regime_skew": 0.6}, Sizes(50, 20, False), **options)
    assert most.limit == 0.5
    (not_finite,) = regime.regime(MEANS | at | {"sigma2": float("nan")}, Sizes(50, 20, False), **options)
    assert spell_settings(not_finite.advice, "options").startswith(
        "a step was not finite: use --warmup 500, which chooses the step size"
    )


def test_a_step_reports_the_bias_from_skewed_noise():
    """The bias is |skewness| sigma^3 / 6, a biased step if above 1/20; its mean is weighted by acceptance."""

    def statistics_of(sigma2: float, skewness: float) -> Any:
        difference = Difference(jnp.asarray(0.3), jnp.asarray(sigma2), 16, jnp.asarray(skewness))
        return regime.noise_statistics(difference, jnp.asarray(0.7), jnp.asarray(0.5))

    cases = ((4.0, -0.03, 0.04, False), (4.0, -0.045, 0.06, True), (0.25, 2.1, 0.04375, False))
    for sigma2, skewness, bias, biased in cases:
        result = statistics_of(sigma2, skewness)
        assert float(result["skew_bias"]) == pytest.approx(0.5 * bias, rel=1e-5)
        assert bool(result["regime_skew"]) is biased
    for sigma2, beyond in ((4.0, False), (4.1, True)):
        assert bool(statistics_of(sigma2, 0.0)["regime_dof"]) is beyond
    expected = {"delta": 0.3, "sigma2": 4.0, "penalty": 0.7, "var_dof": 16.0, "delta_skew": -0.03}
    assert {name: float(statistics_of(4.0, -0.03)[name]) for name in expected} == pytest.approx(expected)


def test_a_window_of_warm_up_weighs_its_steps_by_their_number():
    means = WarmupMeans.empty(jnp.zeros(3))
    for sigma2 in (1.0, 4.0, 100.0, float("nan")):
        stats = {
            "sigma2": jnp.asarray(sigma2),
            "acceptance_rate": jnp.asarray(sigma2 > 2),
            "skew_bias": jnp.asarray(0.5),
        }
        means = means.with_step(stats, jnp.asarray(10.0))
    assert float(means.count) == 4
    assert float(means.sigma2) == pytest.approx((1 + 2 * 4 + 3 * 10 + 4 * 10) / 10)
    assert float(means.acceptance) == pytest.approx((2 + 3) / 10)
    assert float(means.skew_bias) == pytest.approx(0.5)
    stats = {"sigma2": jnp.asarray(1.0), "acceptance_rate": jnp.asarray(0.0), "skew_bias": jnp.asarray(jnp.nan)}
    assert float(means.with_step(stats, jnp.asarray(10.0)).skew_bias) == pytest.approx(0.5 * (1 - 2 / 6))


def test_sizes_at_the_start_fit_into_the_data():
    assert initial_sizes("auto", "auto", "disjoint", 1000) == Sizes(50, 20, True)
    assert initial_sizes("auto", "auto", "disjoint", 999) == Sizes(49, 20, True)
    assert initial_sizes("auto", "auto", "disjoint", 7) == Sizes(1, 7, True)
    assert initial_sizes("auto", 30, "disjoint", 7) == Sizes(1, 30, True)
    assert initial_sizes("auto", 30, "importance", 7) == Sizes(50, 30, False)
    assert initial_sizes(60, "auto", "disjoint", 50) == Sizes(60, 1, True)
    assert initial_sizes(60, "auto", "auto", 200) == Sizes(60, 20, False)
    assert initial_sizes(60, 5, "disjoint", 200) == Sizes(60, 5, True)


class _State(NamedTuple):
    metric: Any
    step_size: Any


def test_chains_share_the_mean_of_their_metrics_and_the_median_step():
    old = jnp.asarray([[1.0, 4.0], [3.0, 4.0], [5.0, 1.0]])
    none = jnp.zeros_like(old)
    metrics = jax.vmap(lambda mass, rest: Metric(mass, jnp.zeros(()), rest, rest))(old, none)
    result = share_metric(_State(metrics, jnp.asarray([1.0, 2.0, 30.0])))
    np.testing.assert_allclose(result.metric.inverse_mass, 3.0)
    steps = np.array([1.0, 2.0, 30.0]) * (np.prod(old, 1) / 9) ** 0.25
    np.testing.assert_allclose(result.step_size, np.median(steps), rtol=1e-6)
    assert float(
        rescale_step_size(jnp.asarray(0.5), jnp.asarray([1.0, 4.0]), jnp.asarray([4.0, 16.0]))
    ) == pytest.approx(0.25)
    assert float(
        rescale_step_size(jnp.asarray(0.5), jnp.asarray([1.0, 4.0]), jnp.asarray([4.0, 1.0]))
    ) == pytest.approx(0.5)
    metric = Metric.identity(jnp.zeros(1))
    for value in (1.0, -1.0) * 25:
        metric = metric.with_position(jnp.asarray([value]))
    assert float(metric.updated().inverse_mass[0]) == pytest.approx(50 / 55 + 5 / 55 * 1e-3)


def test_swag_asks_for_as_many_snapshots_as_it_keeps_and_never_takes_all_rows():
    posterior, sampler = linear_posterior(10), Swag(rank=5, interval=3)
    assert sampler.findings(posterior, {"snapshots": 5.0}) == ()
    (finding,) = sampler.findings(posterior, {"snapshots": 4.0})
    assert "at least --warmup 30" in spell_settings(finding.advice, "options")
    assert sampler.evaluations(posterior, {}, warmup=True) == 5
    assert sampler.evaluations(linear_posterior(1), {}, warmup=True) == 1


@pytest.mark.parametrize("fields", [{"size": 128}, {"batches": 50}])
@pytest.mark.parametrize("sampling", ["auto", "disjoint"])
def test_batches_never_hold_more_distinct_data_than_there_are(fields, sampling):
    """With 20 rows and a batch of 128, or 50 batches, some rows repeat or the sizes stay the same."""
    at_first = initial_sizes(fields.get("size", "auto"), fields.get("batches", "auto"), "auto", 20)
    means = jax.tree.map(lambda a: a[None], WarmupMeans(*(jnp.asarray(value) for value in (1.0, 5.0, 0.3, 0.0))))
    expected = {"num_data": 20, "target_acceptance": 0.6, "target_sigma2": 1.5, "least_factor": 1.0, "budget": 1000}
    result = resize_batches(at_first, means, sampling=sampling, **expected, **fields)
    assert result.num_used <= 20 or not result.disjoint or result == at_first
    if sampling == "auto":
        assert result.num_used <= 20 or not result.disjoint
