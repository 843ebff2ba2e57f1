"""The evidence's arithmetic, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from bnnzoo.evaluation import evidence
from bnnzoo.evaluation.convergence import convergence


def test_what_speaks_against_a_run_of_a_path():
    right = {"converged": 1, "regime_ok": 1, "exactness": "noise-corrected"}
    assert evidence._against(right) == ""
    assert evidence._against({"regime_ok": "not-applicable", "exactness": "exact"}) == ""
    assert evidence._against(right | {"converged": 0, "regime_ok": 0}) == "has not converged"
    assert evidence._against(right | {"regime_ok": 0}) == "left its sampler's regime"
    assert evidence._against(right | {"exactness": "biased"}) == "is by a biased sampler"


def test_the_numbers_of_each_estimate_of_the_evidence():
    weights = np.array([[1.0, 2.0], [3.0, 6.0]])
    value, se = evidence._log_mean_exp(np.log(weights).reshape(-1) + 800)
    assert value == pytest.approx(np.log(3) + 800)
    assert se == pytest.approx(np.std([1, 2, 3, 6], ddof=1) / 3 / 2)
    value, se = evidence._log_mean_exp(np.array([1.5]))
    assert (value, np.isnan(se)) == (1.5, True)
    value, se = evidence._log_mean_exp(np.full(3, -np.inf))
    assert (value, np.isnan(se)) == (-np.inf, True)
    assert np.isfinite(evidence._log_mean_exp(np.array([0.0, 1.0]))[1])
    # Two chains whose bound rose on the way; a half and a quarter of the proposals were accepted.
    bound, tries = np.array([[1.0, 3.0], [1.0, 5.0]]), np.array([[1.0, 3.0], [4.0, 4.0]])
    found = evidence.of_acceptance(bound, tries, -7.0)
    assert found.log_evidence == pytest.approx((3 + np.log(0.5) + 5 + np.log(0.25)) / 2 - 7)
    assert found.se == pytest.approx(np.sqrt(0.5 / 2 + 0.75 / 2) / 2)
    assert "the share of 12 proposals" in found.meaning
    modes = evidence._of_modes([1.0, 4.0, 2.0], -7.0, trusted=True)
    assert (modes.log_evidence, np.isnan(modes.se), modes.trusted) == (-3.0, True, True)
    assert "do not trust it" not in modes.meaning
    assert evidence.of_weights(np.log(weights), 7.0).log_evidence == pytest.approx(np.log(3) + 7)


def test_a_path_by_hand():
    """Powers 0, 0.2, 0.5 and 1; every second run is the first, the third and the last."""
    powers = np.array([0.0, 0.2, 0.5, 1.0])
    values = [np.random.default_rng(i).normal(i, 1 + i, size=(2, 50)) for i in range(4)]
    mean, variance = (np.array([f(v) for v in values]) for f in (np.mean, np.var))

    def rule(chosen: list[int]) -> float:
        b, e, v = powers[chosen], mean[chosen], variance[chosen]
        return float(np.sum(np.diff(b) * (e[1:] + e[:-1]) / 2 - np.diff(b) ** 2 / 12 * np.diff(v)))

    found = evidence.integrated(powers, values)
    assert found.log_evidence == pytest.approx(rule([0, 1, 2, 3]))
    assert found.discretisation == pytest.approx(abs(rule([0, 1, 2, 3]) - rule([0, 2, 3])))
    gaps = np.diff(powers)
    linear = np.append(gaps / 2, 0) + np.insert(gaps / 2, 0, 0)
    quadratic = np.append(gaps**2 / 12, 0) - np.insert(gaps**2 / 12, 0, 0)
    errors = [
        convergence((p * v + q * (v - v.mean()) ** 2)[..., None])["mcse"]
        for p, q, v in zip(linear, quadratic, values, strict=True)
    ]
    assert found.se == pytest.approx(np.sqrt(np.sum(np.square(errors))))
    assert evidence._every_second(4).tolist() == [0, 2, 3]
    assert evidence._every_second(5).tolist() == [0, 2, 4]


def test_a_scale_that_is_sampled_is_integrated_by_stepping_stones():
    """y ~ N(0, s^2) of 100 rows, s ~ HalfNormal(1): under the prior log L has no variance, its integral no error."""
    rng = np.random.default_rng(1)
    squares = float(np.sum(rng.normal(0, 0.5, 100) ** 2))
    scales = np.linspace(1e-4, 6, 400_001)
    logs = -50 * np.log(2 * np.pi) - 100 * np.log(scales) - squares / 2 / scales**2
    prior = np.log(2) - 0.5 * np.log(2 * np.pi) - scales**2 / 2
    known = float(special.logsumexp(logs + prior) + np.log(scales[1] - scales[0]))
    powers = (np.arange(11) / 10) ** 5
    values = []
    for power in powers:
        weights = special.softmax(prior + power * logs)
        drawn = rng.choice(scales, (4, 1000), p=weights)
        values.append(-50 * np.log(2 * np.pi) - 100 * np.log(drawn) - squares / 2 / drawn**2)
    integral, stones = evidence.integrated(powers, values), evidence.by_stepping_stones(powers, values)
    assert integral.discretisation > max(1, 5 * integral.se)
    assert stones.trusted
    assert 0.001 < stones.se < 0.1
    assert abs(stones.log_evidence - known) < 4 * stones.se
    few = evidence.by_stepping_stones(powers[[0, 10]], [1000 * rng.normal(size=(4, 1000)), values[10]])
    assert not few.trusted
    assert "do not trust it, give more powers" in few.meaning
