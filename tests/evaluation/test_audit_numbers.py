"""The arithmetic of the audit, against calculations by hand."""

from __future__ import annotations

import itertools
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_mean import GaussianMean
from scipy import stats

from bnnzoo.errors import UsageError
from bnnzoo.evaluation.audit import audit, drift
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.finding import Finding
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.samplers import Penalty
from bnnzoo.samplers.kernel import replace


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"names_a_model": False}, "made in Python"),
        ({"keeps_predictions": True}, "keeps predictions"),
        ({"draw_weights": np.ones(2) / 2}, "weighted"),
    ],
)
def test_an_unsupported_audit_gives_its_reason(change, why):
    predictor: Any = Predictor.__new__(Predictor)
    about = {"names_a_model": True, "keeps_predictions": False, "draw_weights": None, "attributes": {}}
    predictor.record = types.SimpleNamespace(**about | change)
    with pytest.raises(UsageError, match=why):
        audit.of_run(predictor)


def test_sign_flips_are_used_from_twelve_units_on():
    """All units fall: with 12 units p is the smallest possible for sign flips; with 11 it is that of a t test."""
    before = np.zeros((12, 3))
    after = -1 - 1e-3 * np.random.default_rng(0).random((12, 3))
    assert drift.find_drift({"f": before}, {"f": after}).p_value >= 1e-4
    few = drift.find_drift({"f": before[:11]}, {"f": after[:11]})
    assert few.p_value == pytest.approx(3 * stats.ttest_1samp(after[:11], 0.0).pvalue.min())
    assert few.p_value < 1e-10
    assert few.score == pytest.approx(-np.sum(np.arange(1, 12)) / np.sqrt(np.sum(np.arange(1, 12) ** 2)))
    # A p value never exceeds 1.
    mixed = np.array([[1.0, -1.0, 0.5], [-1.1, 0.9, -0.4], [0.2, 0.1, -0.1]])
    assert drift.find_drift({"f": np.zeros((3, 3))}, {"f": mixed}).p_value == 1


def test_sign_flips_act_on_units_and_count_ties():
    """Compared with all 2^12 flips of a few functions with ties; the random flips have an error of 0.005."""
    rng = np.random.default_rng(0)
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=12)))

    def exact(difference: np.ndarray) -> tuple[float, int, float]:
        ranks = np.apply_along_axis(stats.rankdata, 0, np.abs(difference)) * np.sign(difference)
        sizes = np.abs(signs @ ranks) / np.linalg.norm(ranks, axis=0)
        scores = ranks.sum(0) / np.linalg.norm(ranks, axis=0)
        worst = int(np.abs(scores).argmax())
        return float(np.mean(sizes.max(1) >= np.abs(scores[worst]) - 1e-6)), worst, float(scores[worst])

    equal = np.r_[-np.ones(10), np.ones(2)][:, None]
    assert exact(equal)[0] == 2 * (1 + 12 + 66) / 4096  # at least ten of twelve with the same sign
    rose, fell, none = (rng.normal(mean, 1, (12, size)) for mean, size in ((0.5, 3), (-0.7, 2), (0.0, 3)))
    fell[0, 1] = 0.0
    for difference in (equal, rose, fell, none):
        before = rng.normal(size=difference.shape)
        split = lambda values: {"a": values[:, :1], "b": values[:, 1:]}  # noqa: E731
        drifts = drift.find_drift(split(before), split(before + difference))
        p, worst, score = exact(before + difference - before)
        assert drifts.p_value == pytest.approx(p, abs=0.02)
        assert (drifts.function, drifts.score) == ("ab"[min(worst, 1)], pytest.approx(score))
    # Values that overflowed have the largest ranks, with their sign: rank 11.5 twice against 5.5 ten times.
    for sign in (-1.0, 1.0):
        ends = -0.1 * sign * np.ones((12, 1))
        ends[:2] = sign * np.inf
        drifts = drift.find_drift({"a": np.zeros((12, 1))}, {"a": ends})
        assert drifts.score == pytest.approx(sign * (23 - 55) / np.sqrt(567))
    ends = np.r_[np.inf, -np.inf, -np.ones(10)][:, None]
    assert drift.find_drift({"a": np.zeros((12, 1))}, {"a": ends}).score == pytest.approx(-55 / np.sqrt(567))


@pytest.mark.parametrize("units", [1, 2, 8, 11])
def test_few_units_are_judged_by_t_times_the_functions_that_move(units):
    rng = np.random.default_rng(units)
    before, difference = rng.normal(size=(units, 3)), rng.normal([0.6, 0.3, 0.0], 1.0, (units, 3)) * [1, 1, 0]
    starts, ends = ({"a": values[:, 2:], "b": values[:, :2]} for values in (before, before + difference))
    drifts = drift.find_drift(starts, ends)
    p = 2 * stats.ttest_1samp(difference[:, :2], 0.0).pvalue.min() if units > 1 else 1.0
    assert drifts.function == "b"
    assert drifts.p_value == pytest.approx(min(1.0, p))
    assert drift.find_drift({"a": before}, {"a": before}) == drift.Drift(1.0, "nothing moved", 0.0)


# ---- the chains ----------------------------------------------------------------------------------


class At(NamedTuple):
    position: Any
    step_size: Any = None


def tuned(
    monkeypatch, posterior: Any, *, rate: float = 0.9, sigma2: float = 0.0, problems: Any = ()
) -> tuple[drift.Kernel, np.ndarray]:
    """Return the kernel for pilots with this acceptance and noise, and the step size of each round."""
    tried: list[float] = []

    def moved(sampler, posterior, state, positions, keys, steps):
        tried.append(float(state.step_size))
        return positions, jnp.full(len(positions), rate), jnp.full(len(positions), sigma2)

    settle = lambda sampler, posterior, positions, states, key: At(positions, jnp.ones(len(positions)))  # noqa: E731
    monkeypatch.setattr(drift, "_settle_pilots", settle)
    monkeypatch.setattr(drift, "_advance_all", moved)
    monkeypatch.setattr(drift, "problems_of", lambda *args, **more: problems)
    pilots = np.zeros((3, posterior.layout.dim), np.float32)
    return drift.kernel_for(posterior, pilots, key=jax.random.key(0)), np.array(tried)


@pytest.mark.parametrize(("rows", "dim", "is_full"), [(3, 9, True), (4, 9, False), (4, 500, False), (4, 501, True)])
def test_a_control_variate_takes_the_place_of_many_rows_for_up_to_500_parameters(rows, dim, is_full, monkeypatch):
    monkeypatch.setattr(drift, "FULL_UP_TO", 3)
    layout = Layout((Block("theta", (dim,), 0),))
    kernel, _ = tuned(monkeypatch, GaussianMean(np.zeros(rows, np.float32), layout=layout))
    sampler = kernel.sampler
    expected = (rows, 1, "disjoint", "none") if is_full else (50, 20, "importance", "second")
    assert (sampler.batch_size, sampler.num_batches, sampler.sampling, sampler.order) == expected


def test_all_rows_are_used_if_steps_on_mini_batches_have_a_problem(monkeypatch):
    monkeypatch.setattr(drift, "FULL_UP_TO", 9)
    finding = Finding("validity", "unseen", "rows that steps do not see", 0.5, 0.1, "")
    kernel, _ = tuned(monkeypatch, GaussianMean.of(10), problems=(finding,))
    assert (kernel.sampler.batch_size, kernel.sampler.sampling) == (10, "disjoint")


@pytest.mark.long
def test_the_steps_of_the_exact_chains_are_inspected_over_all_rows(monkeypatch):
    """The inspection uses the median step size; the value is the mean over pilots, or half of the largest value."""
    posterior = GaussianMean.of(50)
    sampler = Penalty(proposal="hmc", batch_size=10, num_batches=2, sampling="importance", control_variate="second")
    kernel, positions = drift._tuned(
        sampler, posterior, np.linspace(0.1, 0.5, 4, dtype=np.float32)[:, None], settled=4, key=jax.random.key(0)
    )
    assert drift.problems_of(kernel, posterior, positions, key=jax.random.key(1)) == ()
    inspected: dict[str, float] = {}

    def lost(self, posterior, state, *, key):
        return {"unseen": 0.4 * jax.random.uniform(key), "step": state.step_size}

    monkeypatch.setattr(Penalty, "inspect", lost)
    finding = Finding("validity", "unseen", "rows that steps do not see", 0.5, 0.1, "")
    monkeypatch.setattr(Penalty, "findings", lambda self, posterior, means: inspected.update(means) or (finding,))
    assert drift.problems_of(kernel, posterior, positions, key=jax.random.key(1)) == (finding,)
    assert 0 < inspected["unseen"] < 0.4
    assert (inspected["step"], inspected["step_size"]) == pytest.approx((float(kernel.state.step_size) / 8**0.5,) * 2)
    assert inspected["sigma2"] >= 0


@pytest.mark.parametrize(
    ("rate", "sigma2", "change", "rounds"),
    [
        (0.9, 0.0, 0.3, 16),
        (0.9, 1.0, 0.3, 16),
        (0.9, 1.1, -0.3, 16),
        (0.75, 0.0, 0.1, 16),
        (0.375, 0.0, -0.65, 16),
        (0.3, 0.0, -0.8, 32),
    ],
)
def test_a_step_grows_while_enough_is_accepted_and_its_noise_is_at_most_one(rate, sigma2, change, rounds, monkeypatch):
    """The log step grows by twice the excess of the rate over 0.7, at most by 0.3, and starts anew after half."""
    kernel, tried = tuned(monkeypatch, GaussianMean.of(10), rate=rate, sigma2=sigma2)
    number = np.arange(rounds)
    np.testing.assert_allclose(np.log(tried / 0.3), change * np.where(number < 8, number, number - 8), atol=1e-4)
    assert kernel.acceptance == pytest.approx(rate)


def test_the_preconditioner_averages_the_curvature_of_all_pilots():
    """C = F F' is the inverse of the mean of sum_i g_i g_i' + 1, where a datum's gradient at theta is x_i - theta."""
    posterior, pilots = GaussianMean.of(10), np.array([[0.0], [0.5], [2.0]], np.float32)
    sampler = Penalty(proposal="hmc", batch_size=10, num_batches=1, sampling="disjoint", step_size=1.0)
    states = drift._settle_pilots(sampler, posterior, jnp.asarray(pilots), None, jax.random.key(0))
    fisher = [np.sum((posterior.data - theta) ** 2) + 1 for theta in pilots[:, 0]]
    np.testing.assert_allclose(states.preconditioner.factor, np.full((3, 1, 1), np.mean(fisher) ** -0.5), rtol=1e-5)
    np.testing.assert_array_equal(states.position, pilots)


def test_exact_chains_start_at_their_own_positions(monkeypatch):
    """Each step moves by one, so the number of steps is visible."""
    step_stats = {"acceptance_rate": jnp.asarray(0.25), "sigma2": jnp.asarray(0.0)}
    monkeypatch.setattr(
        Penalty, "step", lambda self, _, state, *, key: (replace(state, position=state[0] + 1), step_stats)
    )
    kernel = drift.Kernel(Penalty(), At(jnp.full(1, 50.0), jnp.ones(())), 0.0)
    starts = np.array([[1.0], [-3.0], [7.0]], np.float32)
    ends, acceptance = drift.advance(kernel, GaussianMean.of(10), starts, steps=4, key=jax.random.key(0))
    np.testing.assert_array_equal(ends, starts + 4)
    assert acceptance == 0.25


def test_the_number_of_parallel_exact_chains_fits_into_memory(monkeypatch):
    """A step uses 10 rows of 2 parameters, so three chains of 20 numbers fit into 60."""
    together: list[int] = []

    def spied(function, xs, *, batch_size):
        together.append(batch_size)
        raise InterruptedError

    monkeypatch.setattr(drift.jax.lax, "map", spied)
    posterior = GaussianMean(np.zeros(10, np.float32), layout=Layout((Block("theta", (2,), 0),)))
    kernel = drift.Kernel(Penalty(batch_size=10, num_batches=1, sampling="disjoint"), At(jnp.zeros(2)), 0.0)
    for elements, starts in ((60, 7), (60, 2), (10, 7)):
        monkeypatch.setattr(drift, "_ELEMENTS", elements)
        with pytest.raises(InterruptedError):
            drift.advance(kernel, posterior, np.zeros((starts, 2), np.float32), steps=1, key=jax.random.key(0))
    assert together == [3, 2, 1]
