"""Acceptance tests on growing batches: Barker's test with its correction, and two that decide on few rows."""

from __future__ import annotations

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bnnzoo_minibatch_tests import Austerity, Confidence, MinibatchBarker, correction
from bnnzoo_minibatch_tests.austerity import _tail
from bnnzoo_minibatch_tests.correction import ERROR, LOG_ODDS_ERROR, barker_rate
from bnnzoo_minibatch_tests.growing_batch import Estimate, Moments, estimate_ratio, grow_batch
from bnnzoo_minibatch_tests.sequential_test import AbstractSequentialTest, Verdict
from gaussian_mean import GaussianMean, Z, agrees, from_exact_draws, scores
from scipy import special, stats

from bnnzoo.sampling.devices import jax_settings

N = 200
PLACES = [0.0, 0.4, 1.5, 4.0, 8.0]


# ---- the correction variable ---------------------------------------------------------------------


def _normal_sum(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    return (special.ndtr(x[:, None] - table[:, 0]) + special.ndtr(x[:, None] + table[:, 0])) @ table[:, 1] / 2


def _off(x: np.ndarray, result: np.ndarray) -> tuple[float, float]:
    """Return the largest error of a probability, and of its log odds."""
    error = np.abs(result - special.expit(x))
    return float(error.max()), float((error / special.expit(x) / special.expit(-x)).max())


def test_the_correction_makes_a_normal_logistic_to_the_stated_error():
    x, table = -np.linspace(0, 12, 5001), correction._TABLE
    assert (table[:, 1] > 0).all()
    assert table[:, 1].sum() == pytest.approx(1, abs=1e-8)
    probability, log_odds = _off(x, _normal_sum(x, table))
    assert 0.8 * ERROR < probability <= ERROR
    assert 0.8 * LOG_ODDS_ERROR < log_odds <= LOG_ODDS_ERROR
    # Positive control: a normal correction with the correct variance.
    plain = special.ndtr(x * 3**0.5 / np.pi)
    assert _off(x, plain)[0] > 1000 * ERROR


@pytest.mark.parametrize(("precision", "bound"), [("float64", 2 * LOG_ODDS_ERROR), ("float32", 2e-4)])
@pytest.mark.parametrize("sigma2", [0.0, 0.3, 0.95])
def test_normal_noise_keeps_barkers_acceptance(precision, bound, sigma2):
    """E rate(D + noise) = 1 / (1 + e^-D), by Gauss and Hermite's quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(160)
    with jax_settings.arithmetic(precision):
        rate = jax.jit(jax.vmap(barker_rate, in_axes=(0, None)))

        def mean(place: float, assumed: float) -> float:
            values = np.asarray(rate(jnp.asarray(place + sigma2**0.5 * nodes), jnp.asarray(assumed)), float)
            return float(values @ weights / weights.sum())

        # Near sigma2 = 1 the rate is steep, so the quadrature uses a smoothed rate.
        for place in PLACES:
            expected = special.expit(-place)
            if sigma2 < 0.9:
                assert abs(mean(-place, sigma2) / expected - 1) <= bound
            if sigma2 > 0:
                assert abs(mean(-4.0, 0.0) / special.expit(-4.0) - 1) > 0.05  # noise that is not taken off


def test_noise_that_comes_on_top_of_barkers_is_noticed(monkeypatch):
    """Positive control of the test above."""
    wrong = lambda log_ratio, sigma2: correction.barker_rate(log_ratio, 0 * sigma2)  # noqa: E731
    monkeypatch.setitem(test_normal_noise_keeps_barkers_acceptance.__globals__, "barker_rate", wrong)
    with pytest.raises(AssertionError):
        test_normal_noise_keeps_barkers_acceptance("float32", 2e-4, 0.3)


def test_the_rate_is_a_step_function_of_the_table_where_the_noise_is_all_of_the_normal():
    table = correction._TABLE
    with jax_settings.arithmetic("float64"):
        for place in (-3.05, 0.11, 2.5):
            expected = np.sum(table[:, 1] * ((place > table[:, 0]) + (place > -table[:, 0]) * 1.0)) / 2
            assert float(barker_rate(jnp.asarray(place), jnp.asarray(1.0))) == pytest.approx(expected, abs=1e-12)


# ---- the growing batch ---------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "size"), [(1, 1), (7, 3), (50, 50), (64, 10), (130, 40)])
def test_a_batch_that_grows_to_the_end_has_seen_every_row_once(total, size):
    values = np.random.default_rng(0).gamma(2.0, size=total)
    posterior = GaussianMean(values)
    never = lambda moments, looks: jnp.asarray(False)  # noqa: E731
    look = jax.jit(lambda key: grow_batch(posterior, size, lambda rows: (rows, 2 * rows), never, key=key))
    result, mean, looks = look(jax.random.key(3))
    centred = values - values.mean()
    expected = (total, values.mean(), np.sum(centred**2), np.sum(centred**3), values.min(), values.max())
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    assert float(mean) == pytest.approx(2 * values.mean())
    assert int(looks) == -(-total // size)


def test_a_batch_stops_growing_once_it_decides():
    posterior = GaussianMean(np.arange(30.0))
    enough = lambda moments, looks: moments.count >= 15  # noqa: E731
    result, _, looks = grow_batch(posterior, 10, lambda rows: (rows, rows), enough, key=jax.random.key(0))
    assert (int(result.count), int(looks)) == (20, 2)


def test_the_estimate_and_its_variance_are_unbiased_over_all_batches():
    values, used, scale = np.array([0.3, -1.0, 2.0, 0.7, 5.0, -0.4, 1.1]), 4, 3.0
    with jax_settings.arithmetic("float64"):

        def estimate_batch(batch: np.ndarray) -> Estimate:
            moments = Moments.empty(float).with_block(jnp.asarray(batch), jnp.ones(used, bool))
            return estimate_ratio(
                moments, jnp.asarray(0.5), jnp.asarray(1), scale=jnp.asarray(scale), total=len(values)
            )

        result = [estimate_batch(np.array(batch)) for batch in itertools.combinations(values, used)]
    ratios, sigma2 = (np.array([float(getattr(e, name)) for e in result]) for name in ("log_ratio", "sigma2"))
    assert ratios.mean() == pytest.approx(0.5 + scale * values.mean())
    assert sigma2.mean() == pytest.approx(ratios.var())
    # Positive control: without the remaining rows.
    assert sigma2.mean() / (1 - used / len(values)) > 2 * ratios.var()


# ---- the law of the chain ------------------------------------------------------------------------


class Uncorrected(MinibatchBarker):
    """A wrong test, with a normal variable instead of a logistic one."""

    def decide(self, estimate: Estimate, u: Any) -> Verdict:
        rate = jax.scipy.special.ndtr(estimate.log_ratio / jnp.sqrt(1 - estimate.sigma2))
        return Verdict(u < rate, rate, rate)


def _law(sampler: type[AbstractSequentialTest], size: int, *, chains: int = 3000, **more: Any) -> tuple[Any, Any]:
    """Return scores of final positions of chains from exact draws, and the means of the statistics."""
    posterior = GaussianMean.of(N)
    coordinator = sampler(step_size=1.5 * posterior.sd, batch_size=size, preconditioner="identity", **more)
    values, means = from_exact_draws(coordinator, posterior, chains=chains, steps=20)
    return scores(values), means


LONG = [pytest.param(size, 30_000, marks=pytest.mark.slow) for size in (20, 60, 150)]


@pytest.mark.parametrize(("size", "chains"), [(60, 3000), *LONG])
def test_minibatch_barker_keeps_the_posterior(size, chains):
    result, means = _law(MinibatchBarker, size, chains=chains)
    assert agrees(result)
    assert 0 < means["sigma2"] < 1
    assert means["rows_seen"] < N
    assert means["grown"] == 1 if size < 50 else 0 < means["grown"] < 1
    assert not MinibatchBarker(batch_size=size).findings(GaussianMean.of(N), means)


def test_a_normal_variable_for_a_logistic_one_is_seen():
    """Positive control of the distribution; noise that is not subtracted is detected by the quadrature above."""
    result, _ = _law(Uncorrected, 60)
    assert result["variance"] < -2 * Z


@pytest.mark.slow
def test_austerity_widens_the_posterior_and_with_all_rows_it_does_not():
    wide, means = _law(Austerity, 50, error=0.3)
    assert wide["variance"] > 2 * Z
    assert means["rows_seen"] < N / 2
    reference, means = _law(Austerity, 50, error=1e-7)
    assert agrees(reference)
    assert means["rows_seen"] > N / 2


@pytest.mark.slow
def test_the_confidence_test_is_too_wide_if_its_bound_is_violated():
    reference, _ = _law(Confidence, 50)
    assert agrees(reference)
    wide, _ = _law(NoRange, 50, error=0.9)
    assert wide["variance"] > 2 * Z


class NoRange(Confidence):
    """A wrong bound, a tenth of the correct one."""

    def _bound(self, estimate: Estimate) -> Any:
        return super()._bound(estimate) / 10


# ---- when the tests stop -------------------------------------------------------------------------


def _looks(sampler: AbstractSequentialTest, posterior: GaussianMean, above: float, batches: int) -> Estimate:
    """Return the estimates at which tests stop, [batch], for a move whose log ratio is `above` the threshold."""
    state = sampler.init(posterior, jnp.asarray([posterior.mean]), num_warmup=0, key=jax.random.key(0))
    move = jnp.asarray([posterior.mean + 1.2 * posterior.sd])
    ratio = posterior.log_density(move) - posterior.log_density(state.position)
    u = jnp.exp(ratio - above)

    @eqx.filter_jit
    @jax.vmap
    def count_looks(key):
        return sampler.estimate_ratio(posterior, state, move, u, key=key)[0]._replace(
            total=jnp.asarray(posterior.num_data)
        )

    return count_looks(jax.random.split(jax.random.key(1), batches))


def test_a_t_test_of_no_difference_stops_at_its_first_look_as_often_as_it_says():
    """2 x error of batches, of which one half decides wrongly: half of the rows are seen, which halves the variance."""
    batches, error = 2000, 0.1
    result = _looks(Austerity(batch_size=500, error=error), GaussianMean.of(1000), 0.0, batches)
    stopped = int(np.sum(np.asarray(result.num_tests) == 1))
    assert stats.binomtest(stopped, batches, 2 * error).pvalue > 1e-6
    # Positive control: the variance for rows that may repeat.
    wrong = 2 * stats.t.sf(stats.t.isf(error, 499) * 2**0.5, 499)
    assert stats.binomtest(stopped, batches, wrong).pvalue < 1e-6


@pytest.mark.parametrize("kind", [Austerity, Confidence])
@pytest.mark.parametrize(("log_ratio", "u", "accepted"), [(-0.5, 0.7, False), (-0.5, 0.5, True), (0.2, 0.9, True)])
def test_a_proposal_is_accepted_where_its_log_ratio_is_above_the_threshold(kind, log_ratio, u, accepted):
    """The estimate uses 50 of 100 rows; the error is that of a t test, or of the bound."""
    unit = jnp.ones(())
    estimate = Estimate(log_ratio * unit, 0.09 * unit, 0 * unit, unit, 50 * unit, 100, jnp.asarray(1))
    verdict = kind(error=0.3).decide(estimate, jnp.asarray(u))
    assert (bool(verdict.accepted), float(verdict.rate)) == (accepted, float(accepted))
    doubt = stats.t.sf(abs(log_ratio - np.log(u)) / 0.3, 49) if kind is Austerity else 0.3
    assert float(verdict.error) == pytest.approx(doubt, rel=1e-4)


@pytest.mark.parametrize("side", [1, -1])
def test_a_decision_is_made_where_the_threshold_is_out_of_the_bounds_reach(side):
    """The distance from the threshold on either side counts, not the distance of the log ratio from 0."""
    sampler, unit, u = Confidence(error=0.2), jnp.ones(()), 0.02
    reach = float(sampler._bound(Estimate(unit, 0.04 * unit, unit, unit, 50 * unit, 100, jnp.asarray(2))))
    assert 0.5 < reach < 2
    for times, enough in ((1.02, True), (0.98, False)):
        log_ratio = jnp.asarray(np.log(u) + side * times * reach, jnp.float32)
        estimate = Estimate(log_ratio, 0.04 * unit, unit, unit, 50 * unit, 100, jnp.asarray(2))
        assert bool(sampler.is_enough(estimate, jnp.asarray(u))) is enough


def test_the_bound_is_bernsteins_and_serflings():
    rows, error, total = np.random.default_rng(0).gamma(1.0, size=30), 0.2, 100
    sampler = Confidence(error=error)
    with jax_settings.arithmetic("float64"):
        moments = Moments.empty(float).with_block(jnp.asarray(rows), jnp.ones(30, bool))
        estimate = estimate_ratio(moments, jnp.zeros(()), jnp.asarray(3), scale=jnp.asarray(100.0), total=total)
        result = float(sampler._bound(estimate))
    level = np.log(5 * 3 * 4 / np.float32(error))
    spread = rows.std() * np.sqrt(2 * (1 - 29 / 100) * level / 30)
    expected = 100 * (spread + (7 / 3 + 3 / 2**0.5) * np.ptp(rows) * level / 30)
    assert result == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_the_bound_holds_as_often_as_it_says():
    """D is just above the threshold, so a decision before all rows are used is wrong half of the time."""
    result = _looks(Confidence(batch_size=40, error=0.1), GaussianMean.of(400), 1e-4, 500)
    early = np.mean(np.asarray(result.num_seen) < 400)
    assert early < 0.02
    result = _looks(NoRange(batch_size=40, error=0.1), GaussianMean.of(400), 1e-4, 500)
    assert np.mean(np.asarray(result.num_seen) < 400) > 0.1


# ---- what a run is told --------------------------------------------------------------------------


def test_barkers_test_reports_the_error_of_skewed_noise():
    """The noise has a gamma distribution: at D = 0 the error of the acceptance is the reported one, elsewhere less."""
    shape, sigma2 = 400.0, 0.8
    noise = np.linspace(-8, 9, 4001)
    weights = stats.gamma.pdf(shape + noise * shape**0.5, shape)
    noise, weights = noise * sigma2**0.5, weights / weights.sum()
    zero, unit = jnp.zeros(()), jnp.ones(())
    estimate = Estimate(zero, sigma2 * unit, 2 / shape**0.5 * unit, unit, unit, 2, jnp.asarray(1))
    error = float(MinibatchBarker().decide(estimate, unit / 2).error)
    with jax_settings.arithmetic("float64"):
        rate = jax.jit(jax.vmap(lambda x: barker_rate(x, jnp.asarray(sigma2))))
        places = np.linspace(-6, 6, 25)
        off = np.array([np.asarray(rate(jnp.asarray(d + noise))) @ weights - special.expit(d) for d in places])
    assert np.abs(off).max() <= 1.05 * error
    assert abs(off[12]) == pytest.approx(error, rel=0.1)


def test_barkers_findings():
    sampler, posterior = MinibatchBarker(), GaussianMean.of(N)
    means = {"test_error": 0.001, "acceptance_rate": 0.3, "step_size": 0.1}
    assert sampler.findings(posterior, means) == ()
    for name, value, kind in (("test_error", 0.01, "skewness"), ("acceptance_rate", 0.001, "acceptance")):
        (finding,) = sampler.findings(posterior, {**means, name: value})
        assert finding.kind == kind
    assert sampler.findings(posterior, {**means, "test_error": float("nan")})


def test_barkers_test_accepts_nothing_that_has_no_probability():
    """This also holds if the uniform number is 0, once in eight million."""
    zero, unit = jnp.zeros(()), jnp.ones(())
    for log_ratio, accepted in ((-1e4, False), (-3.0, True)):
        estimate = Estimate(log_ratio * unit, unit / 2, zero, unit, 100 * unit, 100, jnp.asarray(1))
        verdict = MinibatchBarker().decide(estimate, zero)
        assert (float(verdict.rate) > 0) == accepted
        assert bool(verdict.accepted) == accepted


@pytest.mark.parametrize("order", ["first", "second"])
def test_a_control_variate_takes_the_noise_off(order):
    """The differences of a Gaussian mean are linear in theta up to a constant, so first order leaves no noise."""
    posterior = GaussianMean.of(N)
    sampler = MinibatchBarker(step_size=posterior.sd, control_variate=order)
    state = sampler.init(posterior, jnp.asarray([0.1]), num_warmup=0, key=jax.random.key(0))
    _, stats_ = eqx.filter_jit(sampler.step)(posterior, state, key=jax.random.key(1))
    assert float(stats_["sigma2"]) < 1e-4
    assert float(stats_["rows_seen"]) == 50


@pytest.mark.parametrize(
    ("rows_read", "total", "enough"), [(6, 100, False), (49, 100, False), (50, 100, True), (8, 8, True)]
)
def test_barkers_test_waits_for_a_variance_estimate(rows_read, total, enough):
    """Stopping at the first small estimate of sigma2 would select batches with a smaller spread than the data."""
    unit = jnp.ones(())
    estimate = Estimate(unit, unit / 10, unit, unit, rows_read * unit, total, jnp.asarray(3))
    assert bool(MinibatchBarker(batch_size=2).is_enough(estimate, unit / 2)) is enough


@pytest.mark.parametrize("dof", [1, 3, 400, 600, 10**4, 10**5, 10**6])
def test_the_tail_of_students_t_is_right_for_any_number_of_rows(dof):
    for t in (0.0, 0.5, 1.645, 3.0):
        unit = jnp.ones(())
        estimate = Estimate(jnp.float32(2 * t), 4 * unit, unit, unit, (dof + 1) * unit, 10**7, jnp.asarray(1))
        assert float(jax.jit(_tail)(estimate, unit)) == pytest.approx(stats.t.sf(t, dof), rel=2e-3)
    # The decision is certain without noise, or if the uniform number is 0.
    assert float(jax.jit(_tail)(estimate._replace(sigma2=0 * unit), unit)) == 0
    assert float(jax.jit(_tail)(estimate, 0 * unit)) == 0
