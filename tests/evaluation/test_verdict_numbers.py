"""The limits of verdicts, tested on both sides."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from bnnzoo.data import Scaler
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.convergence import diagnostics, findings, outcome, sampler_statistics
from bnnzoo.evaluation.convergence.probing import Probes
from bnnzoo.evaluation.formulas import calibration_distance, metrics, weight_tail
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.evaluation.formulas.rhat import between_chains, convergence, rhats
from bnnzoo.evaluation.predictions import loo
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.finding import sentence


def test_the_numbers_of_a_calibration_of_intervals():
    """Four rows are compared with the bound of Dvoretzky, Kiefer and Wolfowitz for two curves per target."""
    pit = np.array([0.1, 0.2, 0.3, 0.6])[:, None]
    result = calibration_distance.of_intervals(pit)
    half = np.sqrt(np.log(2 * 2 / 0.01) / 8)
    # The distribution function is 3/4 at 0.3. Central intervals of 0.2, 0.4, 0.6 and 0.8 hold 1/4, 2/4, 3/4 and all.
    assert result.gap == pytest.approx(0.45)
    assert (result.low, result.high) == (0.0, 1.0)
    assert result.direction == "predictions too high: 75 % of the targets lie below the predicted 30 % quantile"
    many = calibration_distance.of_intervals(np.repeat(pit, 100, 0))
    assert (many.low, many.high) == (pytest.approx(0.45 - half / 10), pytest.approx(0.45 + half / 10))
    both = calibration_distance.of_intervals(np.repeat(np.hstack([pit, pit]), 100, 0))
    assert both.high - both.gap == pytest.approx(np.sqrt(np.log(2 * 4 / 0.01) / 800))
    assert both.direction.startswith("predictions of target 1 too high")
    low = calibration_distance.of_intervals(1 - pit)
    assert low.direction == "predictions too low: 25 % of the targets lie below the predicted 70 % quantile"
    wide = calibration_distance.of_intervals(np.array([0.4, 0.45, 0.55, 0.6])[:, None])
    assert wide.direction == "intervals too wide: 20 % intervals contain 100 % of the targets"
    narrow = calibration_distance.of_intervals(np.array([0.1, 0.1, 0.9, 0.95])[:, None])
    assert narrow.direction == "intervals too narrow: 80 % intervals contain 0 % of the targets"
    assert (low.gap, wide.gap, narrow.gap) == (pytest.approx(0.45), pytest.approx(0.8), pytest.approx(0.8))
    # If both curves have the same deviation, the width is named.
    last = calibration_distance.of_intervals(np.ones((3, 1)))
    assert last.direction == "intervals too narrow: 100 % intervals contain 0 % of the targets"


@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 1.3), (1.3, 1), (0.8, 0.8), (1.3, 1.3), (5, 1), (1, 5)])
def test_the_largest_distance_from_the_uniform_distribution_is_kolmogorovs(a, b):
    for seed in range(5):
        values = np.random.default_rng(seed).beta(a, b, 60)
        expected = stats.kstest(values, "uniform")
        size, at = calibration_distance._largest_deviation(values)
        assert size == pytest.approx(expected.statistic * expected.statistic_sign)
        assert at == expected.statistic_location
    assert calibration_distance._largest_deviation(np.array([0.5])) == (0.5, 0.5)  # equal deviations above and below


def test_of_several_curves_the_interval_holds_them_all_and_the_surest_is_named():
    """The largest gap is not significant, and a smaller gap is."""
    curves = [
        calibration_distance.Calibration(0.10, 0.0, 0.3, "chance"),
        calibration_distance.Calibration(0.09, 0.05, 0.13, "sure"),
    ]
    for some in (curves, curves[::-1]):
        assert calibration_distance._combine_curves(some) == calibration_distance.Calibration(0.10, 0.05, 0.3, "sure")
    # If no deviation is significant, the largest gap is named.
    none = [calibration_distance.Calibration(0.05, 0.0, 0.2, "less"), curves[0]]
    assert calibration_distance._combine_curves(none).direction == "chance"


def test_rare_claims_and_changes_of_direction_are_worded():
    """For rare events the spread is that of the claims.

    If cumulative sums change their direction, both directions are named.
    """
    none = calibration_distance._Cumulative.from_claims(np.full(100, 0.02), np.zeros(100, bool))
    assert none.spread == pytest.approx(np.sqrt(100 * 0.02 * 0.98) / 100)  # not the observed spread, 100 * 0.02^2
    assert none.gap == pytest.approx(0.02)

    def direction(*counts: int) -> str:
        """Return the text for claims of 64 rows each, of which the given counts happen."""
        claimed = np.repeat(0.5 + 0.125 * np.arange(len(counts)), 64)
        happened = np.concatenate([np.arange(64) < count for count in counts])
        return calibration_distance._Cumulative.from_claims(claimed, happened).direction(
            "under", "over", "p", "{:.2f} {:.2f}"
        )

    # 32 and 40 of 64 are claimed. First 16 fewer, then 9 or 8 more; the reverse; then both in one direction.
    assert direction(16, 49) == "over where p is at most 0.50, under where it is larger"
    assert direction(16, 48) == "over: 0.56 0.50"
    assert direction(48, 31) == "under where p is at most 0.50, over where it is larger"
    assert direction(48, 32) == "under: 0.56 0.62"
    assert direction(16, 24) == "over: 0.56 0.31"
    assert direction(64, 64) == "under: 0.56 1.00"
    # 32, 40 and 48 are claimed. The sum is largest after two groups, and the third group halves it.
    assert direction(16, 24, 64) == "over: 0.62 0.54"
    assert direction(16, 24, 47) == "over: 0.62 0.45"


def test_the_numbers_of_a_calibration_of_classes():
    labels, confidence = np.array([0] * 60 + [1] * 40), np.array([0.7, 0.9] * 50)
    result = calibration_distance.of_classes(labels, np.stack([confidence, 1 - confidence], 1))
    # 30 of 50 are correct at 0.7 and at 0.9, so the sums are -5 and -20 of 100 rows. Two classes have two curves.
    assert result.gap == pytest.approx(0.2)
    observed, claimed = np.sum(((labels == 0) - confidence) ** 2), np.sum(confidence * (1 - confidence))
    spread = np.sqrt(max(observed, claimed)) / 100
    supremum = stats.norm.isf(0.01 / 8)
    assert result.high - result.gap == pytest.approx(supremum * spread + supremum**2 / 200)
    assert result.low == max(0.0, 2 * result.gap - result.high)
    assert result.direction == "overconfident: 80.0% confident on average, correct in 60.0%"
    three = np.stack([confidence, (1 - confidence) / 2, (1 - confidence) / 2], 1)
    of_three = calibration_distance.of_classes(labels, three)
    assert (of_three.high - of_three.gap) / spread >= stats.norm.isf(0.01 / 16) * (1 - 1e-6)
    twice = calibration_distance.of_classes(
        np.tile(labels, 2), np.tile(np.stack([confidence, 1 - confidence], 1), (2, 1))
    )
    assert twice.low == pytest.approx(2 * twice.gap - twice.high)
    # If the deviations above and below are equal, both are named. If one is half of the other, the larger is named.
    confidence = np.repeat([0.6, 0.8], 50)
    for correct_counts, message in (((20, 48), "overconfident where"), ((20, 44), "overconfident: 70")):
        labels = np.r_[np.arange(50) >= correct_counts[0], np.arange(50) >= correct_counts[1]].astype(int)
        result = calibration_distance.of_classes(labels, np.stack([confidence, 1 - confidence], 1))
        assert result.direction.startswith(message), result


def test_four_draws_a_chain_are_enough_to_say_something():
    values = np.random.default_rng(0).normal(size=(4, 4, 1))
    assert np.isfinite(convergence(values)["rhat"])
    assert convergence(values[:, :3])["rhat"] == np.inf
    assert np.isfinite(convergence(np.random.default_rng(0).normal(size=(1, 8, 1)))["rhat"])


def test_a_constant_quantity_has_effective_sample_size_zero():
    nothing = {"rhat": np.inf, "ess_bulk": 0.0, "ess_tail": 0.0, "mcse": np.inf, "mcse_over_sd": np.inf}
    assert convergence(np.ones((4, 20, 2))) == nothing
    assert convergence(np.random.default_rng(0).normal(size=(4, 3, 2))) == nothing
    broken = np.random.default_rng(0).normal(size=(4, 20, 2))
    broken[1, 3, 0] = np.nan
    assert convergence(broken) == nothing
    np.testing.assert_array_equal(rhats(np.random.default_rng(0).normal(size=(4, 3, 2))), [np.inf, np.inf])


def test_numbers_of_float32_are_computed_in_float64():
    values = (1e4 + np.random.default_rng(0).normal(size=(4, 50, 2))).astype(np.float32)
    assert convergence(values) == convergence(values.astype(np.float64))


def test_groups_of_chains_are_by_their_distance_and_through_one_another():
    """Draws have sd 1. The third chain is near the second alone and still belongs to the group."""
    draws = np.tile([-1.0, 1.0], 10)
    at = lambda *means: np.stack([draws + mean for mean in means])[..., None]  # noqa: E731
    assert between_chains(at(0.0, 1.0))["modes"] == 1
    assert between_chains(at(0.0, 1.01))["modes"] == 2
    assert between_chains(at(0.0, 0.9, 1.8))["modes"] == 1
    assert between_chains(at(0.0, 5.0, 0.9, 5.9, 1.8))["modes"] == 2
    assert between_chains(at(0.0, 2.0))["between_share"] == pytest.approx(0.5)
    assert between_chains(np.ones((3, 5, 2))) == {"between_share": 0.0, "modes": 1}
    # A quantity that is constant within chains separates them. A quantity that is constant everywhere is ignored.
    still = np.broadcast_to(np.array([0.0, 0.0, 3.0])[:, None, None], (3, 5, 1))
    assert between_chains(still) == {"between_share": 1.0, "modes": 2}
    both = np.concatenate([at(0.0, 2.0), np.ones((2, 20, 1))], 2)
    assert between_chains(both)["between_share"] == pytest.approx(0.5)
    # A quantity with equal distribution in all chains reduces the mean share. Units do not matter.
    half = np.concatenate([at(0.0, 2.0), at(0.0, 0.0)], 2)
    for scale in (1e-10, 1.0, 1e10):
        assert between_chains(scale * half)["between_share"] == pytest.approx(0.25)
        assert between_chains(scale * still) == {"between_share": pytest.approx(1.0), "modes": 2}
        # The distance is a root mean square over predictions: 0.99 for 1.4 and 0, and 1.004 for 1.42 and 0.
        apart = [between_chains(scale * np.concatenate([at(0.0, far), at(0.0, 0.0)], 2)) for far in (1.4, 1.42)]
        assert [item["modes"] for item in apart] == [1, 2]


def test_the_final_inspection_is_summarised_by_mean_or_half_of_the_worst():
    attributes = '{"unseen": [0.1, 0.1, 0.5, 0.1], "unseen_shift": [0.2, 0.3], "variance_ratio": [1.1, 1.3, 1.2], '
    inspection = sampler_statistics.of_inspection(attributes + '"variance_ratio_se": [0.3, 0.4, 1.2]}')
    expected = {"unseen": 0.25, "unseen_shift": 0.25, "variance_ratio": 1.2, "variance_ratio_se": 1.3 / 3}
    assert inspection == pytest.approx(expected)
    assert sampler_statistics.of_inspection("{}") == {}
    alone = sampler_statistics.of_inspection('{"variance_ratio": [1.0, 2.0]}')
    assert alone == {"variance_ratio": 1.5}
    assert "direction is 1.5 times the posterior variance, as estimated" in outcome.bias(alone)


def test_convergence_is_tested_on_means_spreads_densities_and_parameters(monkeypatch):
    """Means are in units of the data. A row with a spread that is not finite is left out."""
    means = np.arange(24.0).reshape(2, 3, 2, 2)
    scales = means.copy()
    scales[1, 2, 0, 1] = np.inf
    each = np.arange(12.0).reshape(2, 3, 2).astype(np.float32)
    own = {"likelihood_scale": np.ones((2, 3)), "bias": np.zeros((2, 3, 1)), "prior_scale": np.zeros((2, 3))}
    calls: list[Any] = []

    def judge(classifies: bool = False, **about: Any) -> dict[str, np.ndarray]:
        arguments = {"exactness": "exact", "rows": True, "training": True} | about
        monkeypatch.setattr(Predictor, "classifies", classifies)
        monkeypatch.setattr(Predictor, "blocks", list(own))
        monkeypatch.setattr(Predictor, "has_rows", arguments["rows"])
        monkeypatch.setattr(Predictor, "scaler", Scaler(*(np.array(v, np.float32) for v in ([0], [1], [9, 7], [2, 5]))))
        monkeypatch.setattr(diagnostics.thinning, "density_rows", lambda predictor, probes: 10 * probes)
        monkeypatch.setattr(diagnostics, "probe_rows", lambda record, count: Probes([], np.zeros((count, 1))))
        predictor: Any = Predictor.__new__(Predictor)
        predictor.functions, predictor.log_scales = lambda x: means, lambda x: scales
        predictor.log_likelihoods = lambda *of: calls.append(of) or each
        predictor.some_parameters = lambda: (np.arange(2), means[..., 0])
        predictor.record = types.SimpleNamespace(
            has_training_rows=arguments["training"],
            attributes={"exactness": arguments["exactness"]},
            shape=(2, 3),
            training_rows=lambda most: (np.full((most, 1), 3.0), np.full((most, 1), 4.0)),
            array=lambda group, name: own[name],
        )
        return diagnostics.quantities(predictor, 4)

    result = judge()
    expected = {
        "predictive means": means * [2, 5],
        "predictive log sds": scales[:, :, 1:],
        "the log-likelihood of the training rows": each.astype(float).sum(2),
        "likelihood_scale": own["likelihood_scale"],
        "prior_scale": own["prior_scale"],
    }
    assert list(result) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(result[name], values, err_msg=name)
    ((x, y, indices),) = calls
    assert (len(x), x[0, 0], y[0, 0], indices.tolist()) == (40, 3, 4, [0, 1, 2])
    classes = judge(classifies=True, exactness="biased")
    names = ["class probabilities", "the log-likelihood of the training rows", "likelihood_scale", "prior_scale"]
    assert list(classes) == names
    np.testing.assert_array_equal(classes["class probabilities"], means)
    assert list(judge(training=False)) == ["predictive means", "predictive log sds", "likelihood_scale", "prior_scale"]
    assert list(judge(exactness="approximate")) == ["predictive means"]
    assert list(judge(exactness="noise-corrected")) == list(expected)
    np.testing.assert_array_equal(judge(rows=False)["the parameters"], means[..., 0])


def test_a_diagnosis_uses_some_draws_and_all_steps(monkeypatch):
    """Ten thinned draws, of which five are tested. E-BFMI needs successive steps and is left out."""
    energy = np.random.default_rng(0).normal(size=(2, 10))
    diverging = np.zeros((2, 10))
    diverging[0, 1] = 1.0
    about = {"exactness": "exact", "complete": 1, "draws_requested": 12, "regime_ok": 1, "regime": "fine"}
    about["draws_done"] = 11
    inspected = {"inspected": '{"unseen": [0.5]}'}

    def predictor(count: int, **more: Any) -> Any:
        result: Any = Predictor.__new__(Predictor)
        stats = {"energy": energy, "diverging": diverging, "sigma2": energy**2}
        expected = {"shape": (2, count), "attributes": about | inspected, "statistics": stats, "averaged": ["sigma2"]}
        result.record = types.SimpleNamespace(
            **expected | {"thin": 2, "draw_weights": None, "keeps_predictions": False, "is_extensible": True} | more
        )
        return result

    all_draws, looked = predictor(10), predictor(5, draw_weights=np.array([0.5, 0.5] + [0.0] * 8))
    rows = [{"rhat": 1.1}, {"rhat": 1.3}, {"rhat": 1.2}]
    changes = np.full((2, 1), 2, np.uint8)
    looked.weights = types.SimpleNamespace(rows=lambda: rows, still_chains=lambda: 1, changes=changes)
    monkeypatch.setattr(Predictor, "blocks", ["weight"])
    monkeypatch.setattr(diagnostics.identified, "identified_weights", lambda predictor: None)
    values = np.random.default_rng(1).normal(size=(2, 5, 3))
    monkeypatch.setattr(diagnostics.thinning, "for_diagnosis", lambda predictor, probes: looked)
    monkeypatch.setattr(diagnostics, "quantities", lambda predictor, probes: {"f": values})
    against = lambda predictor, draws_judged, probes: {"remoteness": float(predictor is looked)}  # noqa: E731
    monkeypatch.setattr(diagnostics, "distance_from_data", against)
    result = diagnostics.of_run(all_draws)
    assert (result["draws"], result["draws_judged"], result["draws_requested"], result["chains"]) == (11, 5, 12, 2)
    assert (result["rhat"], result["weights_ess"]) == (convergence(values)["rhat"], 2)
    assert (result["weights_rhat"], result["still_chains"], result["remoteness"]) == (1.3, 1, 1)
    assert result["diverging"] == 1 / 20
    assert result["sigma2"] == pytest.approx(np.mean(energy**2))
    assert "ebfmi" not in result
    assert (result["unseen"], result["regime_ok"], result["regime"]) == (0.5, 1, "fine")
    all_draws.record.thin = 1
    assert diagnostics.of_run(all_draws)["ebfmi"] > 1


def test_weights_are_judged_by_their_tail():
    """Weights exp(k E) with exponential E have a tail of shape k."""
    rng = np.random.default_rng(0)
    exponential = rng.exponential(size=4000)
    assert weight_tail.of_weights(0.3 * exponential) == ()
    assert weight_tail.pareto_k(0.3 * exponential) == pytest.approx(0.3, abs=0.15)
    (heavy,) = weight_tail.of_weights(1.2 * exponential)
    assert (heavy.kind, heavy.limit) == ("weights", 0.7)
    assert heavy.value == pytest.approx(1.2, abs=0.3)
    shares = np.exp(1.2 * exponential)
    assert f"weights is only {shares.sum() ** 2 / (shares**2).sum():.1f} for 4000 draws: use more" in heavy.advice
    (large,) = weight_tail.of_weights(1.2 * exponential - 400)
    assert large.advice == heavy.advice
    (some,) = weight_tail.of_weights(np.r_[1.2 * exponential, -np.inf])
    assert some.advice == heavy.advice.replace("4000", "4001")
    # The limit is lower for few draws: 1 - 1 / log10(100) for a hundred.
    (few,) = weight_tail.of_weights(1.2 * exponential[:100])
    assert few.limit == pytest.approx(0.5)
    assert not np.isnan(weight_tail.pareto_k(exponential[:25]))
    assert weight_tail.pareto_k(exponential[:36]) < np.inf
    assert weight_tail.pareto_k(exponential[:24]) == np.inf
    assert weight_tail.pareto_k(np.r_[exponential[:40], np.full(10, -np.inf)]) < np.inf
    assert weight_tail.pareto_k(np.zeros(100)) == weight_tail.pareto_k(np.zeros(25)) == 0.0
    assert weight_tail.pareto_k(np.zeros(24)) == np.inf
    # The tail has S / 5 draws, or 3 sqrt(S) of many. If it starts a factor of e^700 away, its shape is undefined.
    for count, length in ((100, 20), (103, 21), (10_000, 300)):
        rising = np.linspace(0.0, 600.0, length)
        for at_the_next, finite in ((-1.0, True), (-200.0, False)):
            values = np.r_[np.full(count - length - 1, -1e4), at_the_next, rising]
            assert np.isfinite(weight_tail.pareto_k(values)) == finite, (count, at_the_next)
    # A light tail has a shape even if it is short, unless its weights are almost equal.
    assert weight_tail.pareto_k(0.02 * exponential) == pytest.approx(0.02, abs=0.15)
    assert weight_tail.pareto_k(0.02 * exponential) > 0 == weight_tail.pareto_k(1e-4 * exponential)
    assert weight_tail.pareto_k(np.r_[np.zeros(99), -np.inf]) == np.inf
    for span, finite in ((690.0, True), (710.0, False)):
        result = weight_tail.pareto_k(np.r_[np.full(79, -1.0), np.linspace(0, span, 21)])
        assert np.isfinite(result) == finite
    (none,) = weight_tail.of_weights(np.full(100, -np.inf))
    assert "only 0.0 for 100 draws" in none.advice


def test_statistics_of_steps_are_averaged_or_tested():
    rates = np.array([[0.2, 0.4], [0.6, 0.8]])
    lp = np.random.default_rng(0).normal(size=(4, 400))
    result = sampler_statistics.of_statistics(
        {"acceptance_rate": rates, "sigma2": rates, "lp": lp}, averaged=["acceptance_rate"]
    )
    assert result["acceptance_rate"] == pytest.approx(0.5)
    assert result["acceptance_rate_min"] == pytest.approx(0.3)
    assert "sigma2" not in result
    assert result["lp_ess"] == convergence(lp[:, :, None])["ess_bulk"]
    assert sampler_statistics.of_statistics({"diverging": rates > 0.5})["diverging"] == 0.5
    energy = np.array([[0.0, 1.0, 3.0, 2.0], [0.0, 2.0, 0.0, 2.0]])
    expected = min(np.mean(np.diff(row) ** 2) / np.var(row) for row in energy)
    assert sampler_statistics.of_statistics({"energy": energy})["ebfmi"] == pytest.approx(expected)


def test_answers_change_at_their_limits():
    def knows(area: float) -> str:
        scores = {"ood_auroc_entropy": Estimate(area), "ood_entropy": Estimate(1.5), "test_entropy": Estimate(0.3)}
        return findings.answer_knows(scores).outcome

    assert [knows(area) for area in (0.599, 0.6, 0.799, 0.8)] == ["no", "unsure", "unsure", "yes"]
    first = {"ood_auroc_nll": Estimate(0.9), "ood_auroc_epistemic_sd": Estimate(0.5)}
    rest = {f"{of}_{name}": Estimate(1.0) for of in ("ood", "test") for name in ("nll", "epistemic_sd")}
    expected = "The epistemic sd is on average 1 for random inputs and 1 for test rows"
    assert findings.answer_knows(first | rest).text.startswith(expected)


GOOD: dict[str, Any] = {
    "exactness": "exact",
    "chains": 4,
    "rhat_of": "predictive means",
    "ess_bulk_of": "predictive means",
    "ess_tail_of": "predictive means",
    "draws": 500,
    "draws_requested": 500,
    "rhat": 1.01,
    "ess_bulk": 400.0,
    "ess_tail": 400.0,
    "modes": 1,
    "still_chains": 0,
}


def test_values_at_their_limit_pass_and_messages_state_the_numbers():
    at = {"ebfmi": 0.3, "diverging": 0.01, "remoteness": 100.0, "surprise": 100.0, "lp_rhat": 1.01}
    assert findings.gate_findings({**GOOD, **at}) == ()
    (two,) = findings.gate_findings({**GOOD, "rhat": 1.2, "modes": 2})
    expected = "the chains are in 2 groups that predict differently; run longer ([[draws]], [[warmup]])"
    assert two.advice == expected == findings.gate_findings({**GOOD, "lp_rhat": 1.2, "modes": 2})[0].advice
    (first,) = findings.gate_findings({key: value for key, value in GOOD.items() if key != "modes"} | {"rhat": 1.2})
    assert "groups" not in first.advice
    for count, is_said in ((99, True), (100, False)):
        diagnosis = {**GOOD, "rhat": 1.2, "draws": count, "draws_requested": count}
        expected = findings.answer_converged(diagnosis, findings.gate_findings(diagnosis)).text
        assert ("draws per chain" in expected) == is_said
    answer = findings.answer_ran({**GOOD, "diverging": 0.0}, ()).text
    assert answer == "Finished, every chain moved, no divergent transition."
    laplace = {**GOOD, "exactness": "approximate", "diverging": 0.0}
    assert findings.answer_ran(laplace, ()).text.startswith("Finished, no divergent transition; ")
    (none,) = findings.gate_findings({**GOOD, "ebfmi": np.nan})
    assert sentence(none) == "E-BFMI is not a number (limit 0.3); the energy mixes slowly: reparametrise the model"
    assert "0.50% divergent transitions" in findings.answer_ran({**GOOD, "diverging": 0.005}, ()).text
    assert "acceptance 0.70" in findings.answer_ran({**GOOD, "acceptance_rate": 0.7}, ()).text
    variance = "mean noise variance σ² 1.5."
    for held, expected in ((1, f"moved, the sampler's assumptions hold, {variance}"), (0, f"moved, {variance}")):
        assert findings.answer_ran({**GOOD, "sigma2": 1.5, "regime_ok": held}, ()).text.endswith(expected)
    biased = {**GOOD, "exactness": "biased"}
    assert "and no diagnostic of bnnzoo measures this bias" in findings.answer_ran(biased, ()).text
    partial = {**GOOD, "variance_fraction": 0.8, "other_directions": "fixed"}
    assert findings.answer_ran(partial, ()).outcome == "unsure"
    assert "contribute 80% of the variance" in findings.answer_ran(partial, ()).text
    assert "so the epistemic uncertainty is too small" in findings.answer_ran(partial, ()).text
    others = findings.answer_ran({**partial, "other_directions": "linearised"}, ()).text
    assert "no diagnostic of bnnzoo measures its error" in others
    assert findings.answer_ran({**partial, "variance_fraction": 1.0}, ()).outcome == "yes"
    measured = findings.answer_ran({**biased, "variance_ratio": 1.25, "variance_ratio_se": 0.1}, ()).text
    assert "direction is 1.25 ± 0.1 times the posterior variance" in measured
    assert "the variance of the draws in an average direction is 1.5 times" in outcome.verdict(
        {"exactness": "biased", "variance_ratio": 1.5}, ()
    )
    assert outcome.verdict({"exactness": "biased"}, ()).endswith("the distribution of a biased sampler")
    assert findings._join_words(["a", "b", "c"]) == "a, b and c"
    assert findings._join_words(["a"]) == "a"


def test_calibration_of_a_few_rows_depends_on_its_interval():
    def answer(low: float, high: float) -> str:
        return findings.answer_calibrated(findings.Calibration(0.1, low, high, "too sure"), 10).outcome

    assert [answer(0.02, 0.15), answer(0.021, 0.15), answer(0.02, 0.151), answer(0.021, 0.3)] == [
        "yes",
        "no",
        "unsure",
        "no",
    ]


def test_the_limit_of_pareto_k_grows_with_the_number_of_draws():
    values = np.random.default_rng(0).normal(size=(2, 5000, 1))
    for count, expected in ((10, 0.0), (12, 1 - 1 / np.log10(12)), (200, 1 - 1 / np.log10(200)), (10_000, 0.7)):
        assert loo.leave_one_out(values[:, : count // 2]).good_k == pytest.approx(expected)


def test_leave_one_out_of_a_run_is_of_at_most_two_thousand_rows_and_ten_draws_or_more():
    """Rows are spaced evenly through the data, and the weights of the first row have a heavy tail."""
    calls: list[Any] = []

    def looked(chains: int, count: int, rows: int, power: float = 1.0, exactness: str = "exact") -> dict[str, Any]:
        x = np.arange(float(rows))[:, None]
        groups = {
            "posterior": {"theta": (("chain", "draw"), np.zeros((chains, count)))},
            "constant_data": {"x": (("row", "feature"), x)},
            "observed_data": {"y": (("row", "target"), -x)},
        }
        tree = xr.DataTree.from_dict({f"/{name}": xr.Dataset(variables) for name, variables in groups.items()})
        tree.attrs.update({"exactness": exactness, "likelihood_power": power})
        values = np.random.default_rng(0).normal(size=(chains, count, min(rows, 2000)))
        values[..., :1] = -1.5 * np.random.default_rng(1).exponential(size=(chains, count, 1))
        predictor: Any = Predictor(Record(tree, None))
        predictor.log_likelihoods = lambda *of: calls.append(of) or values
        result = loo.estimates(predictor)
        if result:
            expected = loo.leave_one_out(values, power=power)
            assert result["loo_nll"].value == pytest.approx(-expected.log_density.mean())
            assert result["loo_pareto_k"].value == expected.pareto_k.max()
            assert result["loo_pareto_k_bad"].value == pytest.approx((expected.pareto_k > expected.good_k).mean())
        return {name: item.value for name, item in result.items()}

    first, half = looked(4, 250, 5), looked(4, 250, 5, power=0.5)
    assert (first["loo_rows"], first["loo_pareto_k_bad"]) == (5, 0.2)
    assert half["loo_nll"] != first["loo_nll"]
    assert looked(2, 5, 2001)["loo_rows"] == 2000
    x, y, indices = calls[-1]
    np.testing.assert_array_equal(y, -x)
    assert (x[0], x[-1], len(indices)) == (0, 2000, 5)
    assert looked(2, 4, 5) == looked(4, 250, 5, exactness="approximate") == looked(4, 250, 0) == {}


def test_smoothing_trusts_draws_that_repeat_less():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 500, 3))
    slow = np.repeat(rng.normal(size=(4, 100, 3)), 5, 1)
    assert loo._relative_ess(draws) == pytest.approx(1.0, abs=0.15)
    assert loo._relative_ess(slow) == pytest.approx(0.2, abs=0.06)
    assert loo._relative_ess(slow[:, :3]) == 1.0
    assert loo._relative_ess(np.zeros((4, 50, 2))) == 1.0
    assert loo._relative_ess(np.stack([draws[..., 0], slow[..., 0]], 2)) == pytest.approx(0.6, abs=0.1)


def test_the_likelihood_of_fifty_rows_says_how_much_draws_repeat():
    """Fifty of 101 rows, spaced evenly, have correlated draws; the others have independent draws."""
    rng = np.random.default_rng(0)
    draws, slow = rng.normal(size=(4, 500, 101)), np.repeat(rng.normal(size=(4, 100, 101)), 5, 1)
    looked = np.linspace(0, 100, 50).round().astype(int)
    mixed = draws.copy()
    mixed[..., looked] = slow[..., looked]
    assert loo._relative_ess(mixed) == pytest.approx(0.2, abs=0.06)
    # For two chains of four draws it is at most log10(8), ArviZ's bound. For shorter chains it is set to 1.
    assert loo._relative_ess(draws[:2, :4]) < 1.0 == loo._relative_ess(draws[:2, :3])


def test_two_rows_have_an_error_and_ties_count_as_inside():
    assert Estimate(1.0, np.array([1.0, -1.0])).se == pytest.approx(1.0)
    assert Estimate(np.inf, np.array([1.0, -1.0])).se is None
    assert metrics.false_positive_rate(np.arange(20.0), np.array([18.0, 18.5, 19.0, 3.0])) == 0.5
    nothing = metrics.auroc(np.arange(3.0), np.zeros(3, bool))
    assert np.isnan(nothing.value)
    rng = np.random.default_rng(0)
    pit = np.column_stack([rng.uniform(size=50), rng.uniform(size=50) ** 1.3])
    worst = max(stats.kstest(column, "uniform").statistic for column in pit.T)
    assert metrics.pit_distance(pit) == pytest.approx(worst)
    assert metrics.pit_distance(np.linspace(0.01, 0.99, 50)[:, None]) < 0.02
    assert metrics.root_mean(np.zeros(3)).value == 0
    assert metrics.root_mean(np.full(3, 0.04)).value == pytest.approx(0.2)
    np.testing.assert_array_equal(
        metrics.quantiles(np.arange(4.0)[:, None, None], (0.0, 0.5, 1.0))[:, 0, 0], [0, 1.5, 3]
    )


def test_perfect_predictions_of_few_rows_are_not_proof():
    """One correct prediction at 99.9 % says little about other rows, and its interval contains the truth."""
    assert (
        findings.answer_calibrated(
            calibration_distance.of_classes(np.array([1]), np.array([[0.001, 0.999]])), 1
        ).outcome
        == "unsure"
    )
    rng, misses, settled_count = np.random.default_rng(0), 0, 0
    for _ in range(300):
        labels = (rng.uniform(size=20) < 0.9).astype(int)  # the claimed probability is 0.999
        result = calibration_distance.of_classes(labels, np.tile([0.001, 0.999], (20, 1)))
        misses += not result.low <= 0.099 <= result.high
        settled_count += findings.answer_calibrated(result, 20).outcome == "yes"
    assert misses <= 9  # 1 % of 300 is 3; more than 9 happens once in 1000 tries
    assert settled_count == 0


def test_weights_that_are_all_alike_are_the_best_there_are():
    assert weight_tail.of_weights(np.zeros(4000)) == ()
    rng = np.random.default_rng(0)
    certain = np.log1p(-1e-9 * rng.uniform(size=(4, 500, 3)))
    loo_result = loo.leave_one_out(certain)
    np.testing.assert_array_equal(loo_result.pareto_k, 0.0)
    np.testing.assert_allclose(loo_result.log_density, 0.0, atol=1e-8)


def test_unfamiliar_rows_are_told_apart_beyond_their_error():
    def answer(area: float, spread: float) -> str:
        influence = spread * np.array([1.0, -1.0] * 50)
        scores = {
            "ood_auroc_entropy": Estimate(area, influence),
            "ood_entropy": Estimate(1.5),
            "test_entropy": Estimate(1),
        }
        return findings.answer_knows(scores).outcome

    assert [answer(0.9, 0.1), answer(0.9, 1.0), answer(0.5, 0.1), answer(0.5, 1.0)] == ["yes", "unsure", "no", "unsure"]


def test_a_perfect_separation_of_few_rows_settles_nothing():
    for rows, message in ((1, "unsure"), (10, "unsure"), (30, "yes")):
        scores = np.r_[np.zeros(rows), np.ones(rows)]
        area = metrics.auroc(scores, scores > 0)
        assert area.value == 1
        estimates = {"ood_auroc_entropy": area, "ood_entropy": Estimate(1.5), "test_entropy": Estimate(0.3)}
        assert findings.answer_knows(estimates).outcome == message


def test_one_draw_and_chains_that_stand_still_are_not_trusted():
    assert weight_tail.pareto_k(np.zeros(1)) == np.inf
    assert (loo.leave_one_out(np.zeros((2, 50, 3)) - 1).pareto_k == np.inf).all()
