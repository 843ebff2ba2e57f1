"""The audit's arithmetic, by hand."""

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
from bnnzoo.evaluation import audit, diagnostics, drift
from bnnzoo.evaluation.predictor import Predictor
from bnnzoo.models import Linear
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.samplers import Penalty
from bnnzoo.samplers.kernel import replace
from bnnzoo.testing.targets import regression as target_regression


def made(**more: Any) -> audit.Audit:
    numbers = {"p": 0.3, "score": 1.0, "bias_sd": 0.05, "bias_sd_se": 0.06, "bias_sd_seen": 0.2, "moved": 0.9}
    rest = {"chains": 64, "steps": 64, "acceptance": 0.8, "cost": 0.1, "seconds": 1.0}
    return audit.Audit(drifted="the log prior", **numbers | rest | more)


def test_a_verdict_says_which_way_and_how_much():
    assert made(p=audit.LEVEL).passed
    assert not made(p=audit.LEVEL / 1.01).passed
    assert "the log prior rose (p = 1e-05); predictions are 5% ± 6% too wide" in made(p=1e-5).verdict
    fell = made(p=1e-5, score=-3.0, bias_sd=-0.4).verdict
    assert "the log prior fell (p = 1e-05); predictions are 40% ± 6% too narrow" in fell
    assert "the log prior rose" in made(p=1e-5, score=0.5).verdict
    assert "the log prior fell" in made(p=1e-5, score=-0.5).verdict
    assert "predictions are 30% ± 6% too narrow: take more --chains" in made(bias_sd=-0.3).verdict
    assert "would have stood out" in made(bias_sd=1.9 * 0.06).verdict
    assert "take more --chains" in made(bias_sd=2.0 * 0.06).verdict
    assert "would have stood out" in made(bias_sd=-1.96 * 0.06).verdict
    assert "no drift found" in made(bias_sd=0.0, bias_sd_se=0.0, bias_sd_seen=0.0).verdict
    assert "too narrow" in made(bias_sd=0.0).verdict


def test_what_is_judged_is_in_its_own_units(monkeypatch):
    """A width that is e^0.5 times the posterior's, to 0.1; and seconds over those of the run."""
    monkeypatch.setattr(drift, "compared", lambda before, after, *, seed: drift.Drift(0.2, "f", -1.5))
    monkeypatch.setattr(drift, "width", lambda said, before, after: drift.Width(0.5, 0.1, 0.7))
    monkeypatch.setattr(audit, "time", types.SimpleNamespace(perf_counter=lambda: 107.0))
    values = {"predictive means": np.zeros((4, 2))}
    found = audit.judged(np.zeros((4, 2, 1)), values, values, 8, 0.6, 100.0, 14.0, seed=0)
    assert (found.p, found.drifted, found.score, found.moved) == (0.2, "f", -1.5, 0.7)
    assert found.bias_sd == pytest.approx(np.exp(0.5) - 1)
    assert found.bias_sd_se == pytest.approx(0.1 * np.exp(0.5))
    assert found.bias_sd_seen == pytest.approx((1.96 + 1.645) * 0.1)
    assert (found.chains, found.steps, found.acceptance, found.seconds, found.cost) == (4, 8, 0.6, 7.0, 0.5)
    assert audit.judged(np.zeros((4, 2, 1)), values, values, 8, 0.6, 100.0, 0.0, seed=0).cost == np.inf


@pytest.mark.parametrize(("allowed", "steps"), [(0.0, 8), (18.0, 16), (31.9, 16), (32.1, 32), (1e6, 256)])
def test_an_audit_takes_as_many_steps_as_there_is_time_for(allowed, steps, monkeypatch):
    """Two steps took two seconds, up to second 12; what compiled them is not counted."""
    asked: list[int] = []
    posterior, kernel = target_regression().posterior, drift.Kernel(Penalty(), None, 0.0)
    monkeypatch.setattr(drift, "moved", lambda kernel, posterior, starts, *, steps, key: asked.append(steps))
    monkeypatch.setattr(audit, "time", types.SimpleNamespace(perf_counter=iter([10.0, 12.0]).__next__))
    assert audit._steps(kernel, posterior, None, until=12.0 + allowed) == steps
    assert asked == [1, 2]


@pytest.mark.parametrize(("seconds", "until"), [(None, 107.0), (3.0, 103.0)])
def test_an_audit_takes_half_of_what_the_run_took(seconds, until, monkeypatch):
    """Of 4 + 10 seconds; or what it is given."""
    taken: list[float] = []

    def steps(kernel, posterior, starts, *, until):
        taken.append(until)
        raise InterruptedError

    predictor: Any = Predictor.__new__(Predictor)
    predictor.record = types.SimpleNamespace(
        names_a_model=True,
        keeps_predictions=False,
        weights=None,
        attributes={"seconds_compile": 4.0, "seconds_sampling": 10.0, "draws_done": 3.0, "precision": "float32"},
        probes=lambda count: ("test row", np.zeros((1, 1))),
        group=lambda name: {},
    )
    predictor.model, predictor.inputs = None, lambda x: x
    predictor.draws = predictor.thetas = np.zeros((2, 1), np.float32)
    posterior = types.SimpleNamespace(unconstrained=lambda draw: draw)
    predictor._known = types.SimpleNamespace(posterior=target_regression().posterior)
    restored = types.SimpleNamespace(restored=lambda *_: types.SimpleNamespace(network_posterior=posterior))
    monkeypatch.setattr(audit, "Problem", restored)
    monkeypatch.setattr(audit, "_chosen", lambda predictor, most: (np.arange(2), np.arange(2)))
    monkeypatch.setattr(audit.predictive, "functions", lambda *_: np.zeros((2, 1, 1)))
    monkeypatch.setattr(drift, "kernel_for", lambda *_, key: None)
    monkeypatch.setattr(audit, "_steps", steps)
    monkeypatch.setattr(audit, "time", types.SimpleNamespace(perf_counter=lambda: 100.0))
    with pytest.raises(InterruptedError):
        audit.of_run(predictor, seconds=seconds)
    assert taken == [until]


def test_an_audit_starts_from_the_draws_and_holds_against_them_what_the_run_says(monkeypatch):
    """Of a linearised network the run says what that predicts; chains and their ends are of the network itself."""
    told: dict[str, Any] = {}
    draws = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], np.float32)
    modes = np.full((4, 2), 50.0, np.float32)
    target = target_regression().posterior
    own = types.SimpleNamespace(unconstrained=lambda draw: draw + 100)
    predictor: Any = Predictor.__new__(Predictor)
    predictor.record = types.SimpleNamespace(
        names_a_model=True,
        keeps_predictions=False,
        weights=None,
        attributes={"seconds_sampling": 10.0, "precision": "float32"},
        probes=lambda count: ("test row", np.zeros((count, 1))),
        group=lambda name: {"group": name},
    )
    predictor.model, predictor.inputs = None, lambda x: x + 1
    predictor.draws, predictor.thetas = draws, np.concatenate([draws, modes], 1)
    predictor._known = types.SimpleNamespace(posterior=target)

    def predicted(posterior: Any, thetas: np.ndarray, x: np.ndarray) -> np.ndarray:
        assert posterior is target
        np.testing.assert_array_equal(x, np.ones((10, 1)))
        return thetas.sum(1)[:, None, None].astype(float)

    def functions(posterior: Any, predicting: Any, thetas: np.ndarray, x: Any, centre: np.ndarray) -> Any:
        assert (posterior, predicting) == (own, target)
        told["centre"] = centre
        return thetas

    def kernel_for(posterior: Any, pilots: np.ndarray, *, key: Any) -> str:
        told["pilots"], told["tune"] = pilots, key
        return "kernel"

    def moved(kernel: Any, posterior: Any, starts: np.ndarray, *, steps: int, key: Any) -> Any:
        assert (kernel, steps) == ("kernel", 16)
        told["move"] = key
        return -starts, 0.6

    monkeypatch.setattr(audit, "Problem", types.SimpleNamespace(restored=lambda *_: own_problem))
    own_problem = types.SimpleNamespace(network_posterior=own)
    monkeypatch.setattr(audit, "_chosen", lambda predictor, most: (np.array([0, 2]), np.array([1, 3])))
    monkeypatch.setattr(audit.predictive, "functions", predicted)
    monkeypatch.setattr(audit, "functions", functions)
    monkeypatch.setattr(audit, "_steps", lambda kernel, posterior, starts, *, until: 16)
    monkeypatch.setattr(drift, "kernel_for", kernel_for)
    monkeypatch.setattr(drift, "moved", moved)
    monkeypatch.setattr(audit, "judged", lambda *given, seed: told.update(given=(*given, seed)) or made())
    assert audit.of_run(predictor, chains=2, seed=3) == made()
    said, before, after, steps, acceptance, _, theirs, seed = told["given"]
    np.testing.assert_array_equal(said[:, 0, 0], [103, 111])
    np.testing.assert_array_equal(before, draws[[0, 2]] + 100)
    np.testing.assert_array_equal(after, -before)
    np.testing.assert_array_equal(told["pilots"], draws[[1, 3]] + 100)
    assert told["centre"].item() == (3 + 4 + 7 + 8) / 2
    assert (steps, acceptance, theirs, seed) == (16, 0.6, 10.0, 3)
    keys = [jax.random.key_data(told[name]).tolist() for name in ("tune", "move")]
    assert keys[0] != keys[1]


def test_starts_are_as_many_as_draws_are_worth_and_pilots_are_others(monkeypatch):
    def chosen(exactness: str, chains: int, count: int, most: int, *, moved: bool = True) -> tuple[Any, Any]:
        predictor: Any = Predictor.__new__(Predictor)
        predictor.record = types.SimpleNamespace(shape=(chains, count), attributes={"exactness": exactness})
        predictor.weights = types.SimpleNamespace(moved=np.full((chains, count - 1), moved))
        return audit._chosen(predictor, most)

    starts, pilots = chosen("approximate", 2, 50, 10)
    np.testing.assert_array_equal(starts, np.arange(5, 100, 10))
    assert len(pilots) == 16
    assert not set(starts) & set(pilots)
    assert (pilots[0], pilots[-1]) == (0, 99)
    starts, pilots = chosen("approximate", 2, 3, 128)
    np.testing.assert_array_equal(starts, np.arange(6))
    np.testing.assert_array_equal(pilots, starts)
    values = {"a": np.zeros((2, 50, 1)), "b": np.ones((2, 50, 1))}
    monkeypatch.setattr(diagnostics, "quantities", lambda predictor, probes: values)
    for worth, number in ((20.0, 10), (41.0, 20), (1.0, 2)):
        monkeypatch.setattr(audit, "convergence", lambda v, worth=worth: {"ess_bulk": worth + 50 * float(v.max())})
        assert len(chosen("exact", 2, 50, 128)[0]) == number
    starts, pilots = chosen("approximate", 4, 50, 3, moved=False)
    np.testing.assert_array_equal(starts, [0, 50, 100])
    np.testing.assert_array_equal(pilots, [0, 50, 100, 150])
    assert len(chosen("approximate", 2, 50, 3, moved=False)[0]) == 2
    with pytest.raises(UsageError, match="all draws are the same"):
        chosen("exact", 1, 50, 128, moved=False)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"names_a_model": False}, "made in Python"),
        ({"keeps_predictions": True}, "keeps predictions"),
        ({"weights": np.ones(2) / 2}, "weighted"),
    ],
)
def test_a_run_that_cannot_be_audited_says_why(change, why):
    predictor: Any = Predictor.__new__(Predictor)
    about = {"names_a_model": True, "keeps_predictions": False, "weights": None, "attributes": {}}
    predictor.record = types.SimpleNamespace(**about | change)
    with pytest.raises(UsageError, match=why):
        audit.of_run(predictor)


def test_what_is_watched_is_what_it_is_called():
    target = target_regression()
    posterior = target.posterior
    thetas = np.random.default_rng(0).multivariate_normal(target.mean, target.covariance, size=3).astype(np.float32)
    x = posterior.data.x[:4]
    found = audit.functions(posterior, posterior, thetas, x, np.full((4, 1), 0.5))
    means = np.stack([np.asarray(posterior.outputs(jnp.asarray(theta), jnp.asarray(x)))[:, 0] for theta in thetas])
    fit = [float(np.sum(np.asarray(posterior.log_likelihoods(jnp.asarray(theta)), float))) for theta in thetas]
    prior = [float(posterior.log_prior(jnp.asarray(theta))) for theta in thetas]
    wanted = {
        "predictive means": means,
        "the spread of predictive means": (means - 0.5) ** 2,
        "the training rows' log density": np.array(fit)[:, None],
        "the log prior": np.array(prior)[:, None],
        "the log posterior": np.array(fit)[:, None] + np.array(prior)[:, None],
    }
    assert list(found) == list(wanted)
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5, err_msg=name)


def test_the_noise_is_watched_where_it_is_learned():
    """By its logarithm, as it is sampled."""
    x = np.random.default_rng(1).normal(size=(4, 2)).astype(np.float32)
    line = Linear().build((2,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(line, Gaussian(), Normal(), x, x[:, :1])
    thetas = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    found = audit.functions(posterior, posterior, thetas, x, np.zeros((4, 1)))
    np.testing.assert_array_equal(found["the likelihood's own parameters"], thetas[:, 3:])
    fit = stats.norm.logpdf(x[:, 0], found["predictive means"], np.exp(thetas[:, 3:].astype(float))).sum(1)
    np.testing.assert_allclose(found["the training rows' log density"][:, 0], fit, rtol=1e-4)


def test_flipped_signs_judge_a_dozen_units_and_no_fewer():
    """All of them fall: of 12 no more than the flips can tell, of 11 what a t test says."""
    before = np.zeros((12, 3))
    after = -1 - 1e-3 * np.random.default_rng(0).random((12, 3))
    assert drift.compared({"f": before}, {"f": after}).p_value >= 1e-4
    few = drift.compared({"f": before[:11]}, {"f": after[:11]})
    assert few.p_value == pytest.approx(3 * stats.ttest_1samp(after[:11], 0.0).pvalue.min())
    assert few.p_value < 1e-10
    assert few.score == pytest.approx(-np.sum(np.arange(1, 12)) / np.sqrt(np.sum(np.arange(1, 12) ** 2)))
    # What is alone in its way is certain by chance alone: never more than one.
    mixed = np.array([[1.0, -1.0, 0.5], [-1.1, 0.9, -0.4], [0.2, 0.1, -0.1]])
    assert drift.compared({"f": np.zeros((3, 3))}, {"f": mixed}).p_value == 1


def test_signs_are_flipped_unit_by_unit_and_what_is_as_far_counts():
    """Against all 2^12 flips of a few functions, ties among them; the flips that are drawn have an error of 0.005."""
    rng = np.random.default_rng(0)
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=12)))

    def exact(difference: np.ndarray) -> tuple[float, int, float]:
        ranks = np.apply_along_axis(stats.rankdata, 0, np.abs(difference)) * np.sign(difference)
        sizes = np.abs(signs @ ranks) / np.linalg.norm(ranks, axis=0)
        scores = ranks.sum(0) / np.linalg.norm(ranks, axis=0)
        worst = int(np.abs(scores).argmax())
        return float(np.mean(sizes.max(1) >= np.abs(scores[worst]) - 1e-6)), worst, float(scores[worst])

    equal = np.r_[-np.ones(10), np.ones(2)][:, None]
    assert exact(equal)[0] == 2 * (1 + 12 + 66) / 4096  # at least ten alike of twelve
    rose, fell, none = (rng.normal(mean, 1, (12, size)) for mean, size in ((0.5, 3), (-0.7, 2), (0.0, 3)))
    fell[0, 1] = 0.0
    for difference in (equal, rose, fell, none):
        before = rng.normal(size=difference.shape)
        split = lambda values: {"a": values[:, :1], "b": values[:, 1:]}  # noqa: E731
        found = drift.compared(split(before), split(before + difference))
        p, worst, score = exact(before + difference - before)
        assert found.p_value == pytest.approx(p, abs=0.02)
        assert (found.function, found.score) == ("ab"[min(worst, 1)], pytest.approx(score))
    # What overflowed on the way moved farthest, and the way it went: ranks 11.5 twice against 5.5 ten times.
    for sign in (-1.0, 1.0):
        ends = -0.1 * sign * np.ones((12, 1))
        ends[:2] = sign * np.inf
        found = drift.compared({"a": np.zeros((12, 1))}, {"a": ends})
        assert found.score == pytest.approx(sign * (23 - 55) / np.sqrt(567))
    ends = np.r_[np.inf, -np.inf, -np.ones(10)][:, None]
    assert drift.compared({"a": np.zeros((12, 1))}, {"a": ends}).score == pytest.approx(-55 / np.sqrt(567))


@pytest.mark.parametrize("units", [1, 2, 8, 11])
def test_few_units_are_judged_by_t_times_the_functions_that_move(units):
    rng = np.random.default_rng(units)
    before, difference = rng.normal(size=(units, 3)), rng.normal([0.6, 0.3, 0.0], 1.0, (units, 3)) * [1, 1, 0]
    starts, ends = ({"a": values[:, 2:], "b": values[:, :2]} for values in (before, before + difference))
    found = drift.compared(starts, ends)
    p = 2 * stats.ttest_1samp(difference[:, :2], 0.0).pvalue.min() if units > 1 else 1.0
    assert found.function == "b"
    assert found.p_value == pytest.approx(min(1.0, p))
    assert drift.compared({"a": before}, {"a": before}) == drift.Drift(1.0, "nothing moved", 0.0)


@pytest.mark.parametrize("slope", [0.0, 0.6, 0.9])
def test_the_width_is_what_the_equation_of_the_variances_says(slope):
    """Var(after) = b^2 Var(before) + (1 - b^2) V, exactly: ends are b times the starts and what is orthogonal to them.

    Each function has a mean and a variance of its own.
    """
    basis = np.linalg.qr(np.column_stack([np.ones(9), np.random.default_rng(0).normal(size=(9, 6))]))[0][:, 1:]
    means, sds, v = np.array([50.0, -7.0, 3.0]), np.array([1.0, 3.0, 0.5]), 2.0
    before = means + basis[:, :3] * sds
    noise = np.sqrt((1 - slope**2) * v * np.sum(sds**2) / 3)
    after = -2 * means + slope * basis[:, :3] * sds + noise * basis[:, 3:]
    said = 1 + basis[:, 3:] * [4.0, 1.0, 2.0]
    found = drift.width(said, before, after)
    assert found.moved == pytest.approx(1 - slope)
    assert found.log_ratio == pytest.approx(np.log(21 / (v * np.sum(sds**2))) / 2)
    left = [drift.width(*(np.delete(of, i, 0) for of in (said, before, after))).log_ratio for i in range(9)]
    assert found.error == pytest.approx(np.sqrt(8 / 9 * np.sum((left - np.mean(left)) ** 2)))
    # In other units it is the same.
    other = drift.width(1e-3 * said, 1e-3 * before, 1e-3 * after)
    np.testing.assert_allclose(other, found, rtol=1e-6)


def test_of_chains_that_forgot_less_than_a_thousandth_the_width_is_taken_as_if_they_had():
    """Starts that do not move say that V is Var(before); ends that shrink, that it is a thousandth of theirs."""
    rng = np.random.default_rng(0)
    before = rng.normal(size=(20, 4))
    total = lambda values: float(np.var(values, 0, ddof=1).sum())  # noqa: E731
    assert drift.width(2 * before, before, before).log_ratio == pytest.approx(np.log(2))
    # Ends 1 % wider: the variance of V is 1 + 0.0201 / 0.001 times that of the starts.
    assert drift.width(before, before, 1.01 * before).log_ratio == pytest.approx(-np.log(1 + 20.1) / 2)
    narrow = drift.width(before, before, 0.5 * before)
    assert narrow.moved == pytest.approx(0.5)
    assert narrow.log_ratio == pytest.approx(np.log(total(before) / (1e-3 * total(before) / 4)) / 2)
    # What the run says of everything alike has no width to compare.
    assert np.isnan(drift.width(0 * before, before, -before).log_ratio)
    assert np.isnan(drift.width(before, before, 0 * before).log_ratio)


def test_the_width_of_chains_that_hardly_moved():
    rng = np.random.default_rng(0)
    before = rng.normal(size=(20, 4))
    still = drift.width(before, before, before)
    assert still.moved == 0
    assert still.log_ratio == pytest.approx(0, abs=1e-9)
    assert drift.width(before, before, -before).moved == 1
    assert drift.width(before, before, 3 * before).moved == 0
    assert drift.width(0 * before, 0 * before, before).moved == 0
    two = drift.width(before[:2], before[:2], rng.normal(size=(2, 4)))
    assert np.isnan([two.log_ratio, two.error]).all()
    assert drift.width(before[:2], before[:2], 0.25 * before[:2] + 5).moved == pytest.approx(0.75)
    three = drift.width(before[:3], before[:3], rng.normal(size=(3, 4)))
    assert np.isfinite([three.log_ratio, three.error]).all()


# ---- the chains ----------------------------------------------------------------------------------


class At(NamedTuple):
    position: Any
    step_size: Any = None


def tuned(monkeypatch, posterior: Any, *, rate: float = 0.9, sigma2: float = 0.0) -> tuple[drift.Kernel, np.ndarray]:
    """The kernel of pilots that accept so often with so much noise, and the step size of each round."""
    tried: list[float] = []

    def moved(sampler, posterior, states, positions, keys, steps):
        tried.append(float(states.step_size[0]))
        return positions, jnp.full(len(positions), rate), jnp.full(len(positions), sigma2)

    settled = lambda sampler, posterior, positions, states, key: At(positions, jnp.ones(len(positions)))  # noqa: E731
    monkeypatch.setattr(drift, "_settled", settled)
    monkeypatch.setattr(drift, "_moved", moved)
    pilots = np.zeros((3, posterior.layout.dim), np.float32)
    return drift.kernel_for(posterior, pilots, key=jax.random.key(0)), np.array(tried)


@pytest.mark.parametrize(("rows", "dim", "whole"), [(3, 9, True), (4, 9, False), (4, 500, False), (4, 501, True)])
def test_a_control_variate_takes_the_place_of_many_rows_for_up_to_500_parameters(rows, dim, whole, monkeypatch):
    monkeypatch.setattr(drift, "FULL_UP_TO", 3)
    layout = Layout((Block("theta", (dim,), 0),))
    kernel, _ = tuned(monkeypatch, GaussianMean(np.zeros(rows, np.float32), layout=layout))
    sampler = kernel.sampler
    wanted = (rows, 1, "none") if whole else (50, 20, "second")
    assert (sampler.batch_size, sampler.num_batches, sampler.control_variate) == wanted


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
    """By twice what is above 0.7, no more than 0.3, of its logarithm; from 0.3, and again after half of the rounds."""
    kernel, tried = tuned(monkeypatch, GaussianMean.of(10), rate=rate, sigma2=sigma2)
    number = np.arange(rounds)
    np.testing.assert_allclose(np.log(tried / 0.3), change * np.where(number < 8, number, number - 8), atol=1e-4)
    assert kernel.acceptance == pytest.approx(rate)


def test_the_shape_of_a_step_is_the_curvature_that_all_pilots_saw():
    """C = F F' is the inverse of the mean of sum_i g_i g_i' + 1, where a datum's gradient at theta is x_i - theta."""
    posterior, pilots = GaussianMean.of(10), np.array([[0.0], [0.5], [2.0]], np.float32)
    sampler = Penalty(proposal="hmc", batch_size=10, num_batches=1, sampling="disjoint", step_size=1.0)
    states = drift._settled(sampler, posterior, jnp.asarray(pilots), None, jax.random.key(0))
    fisher = [np.sum((posterior.data - theta) ** 2) + 1 for theta in pilots[:, 0]]
    np.testing.assert_allclose(states.preconditioner.factor, np.full((3, 1, 1), np.mean(fisher) ** -0.5), rtol=1e-5)
    np.testing.assert_array_equal(states.position, pilots)


def test_each_start_moves_from_where_it_is(monkeypatch):
    """So many steps, of one each."""
    told = {"acceptance_rate": jnp.asarray(0.25), "sigma2": jnp.asarray(0.0)}
    monkeypatch.setattr(Penalty, "step", lambda self, _, state, *, key: (replace(state, position=state[0] + 1), told))
    kernel = drift.Kernel(Penalty(), At(jnp.full(1, 50.0)), 0.0)
    starts = np.array([[1.0], [-3.0], [7.0]], np.float32)
    ends, acceptance = drift.moved(kernel, GaussianMean.of(10), starts, steps=4, key=jax.random.key(0))
    np.testing.assert_array_equal(ends, starts + 4)
    assert acceptance == 0.25


def test_as_many_chains_are_stepped_together_as_fit(monkeypatch):
    """Steps look at 10 rows of 2 parameters: three times 20 numbers fit into 60."""
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
            drift.moved(kernel, posterior, np.zeros((starts, 2), np.float32), steps=1, key=jax.random.key(0))
    assert together == [3, 2, 1]
