"""The test within chains: stationary chains pass whether or not they agree; drifting chains do not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import signal, stats

from bnnzoo.cli import output
from bnnzoo.evaluation.convergence import findings, outcome
from bnnzoo.evaluation.formulas import settling
from bnnzoo.evaluation.formulas.settling import measure_settling

GOOD = {
    **{"exactness": "exact", "chains": 4, "draws": 500, "draws_requested": 500, "modes": 3, "between_share": 0.64},
    **{"rhat": 1.8, "rhat_of": "predictive means", "ess_bulk": 7.0, "ess_bulk_of": "predictive means"},
    **{"ess_tail": 30.0, "ess_tail_of": "predictive means", "drift_p": 0.5, "drift_of": "f", "within_ess": 140.0},
}


def chains_of(rng, *, chains=4, draws=1000, effective=200, size=5):
    """Return stationary first-order autoregressions."""
    keep = (draws - effective) / (draws + effective)
    noise = rng.normal(size=(chains, draws, size)) * (1 - keep**2) ** 0.5
    noise[:, 0] = rng.normal(size=(chains, size))
    return signal.lfilter([1], [1, -keep], noise, axis=1)


def test_stationary_chains_are_called_drifting_as_rarely_as_stated():
    """100 independent runs at level 0.01, in separate modes; more than 5 alarms have probability 5e-4."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(100):
        values = chains_of(rng) + 5 * rng.normal(size=(4, 1, 5))
        result = measure_settling({"f": values})
        assert result is not None
        alarms += result.drift_p < settling.LEVEL
    assert alarms <= stats.binom.isf(1e-3, 100, settling.LEVEL)


@pytest.mark.parametrize(("moving", "sds"), [(4, 1.5), (1, 3.0)])
def test_a_drift_of_all_chains_or_of_one_is_found_and_named(moving, sds):
    """Positive control of the test above: 20 of 20 runs."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        values = chains_of(rng)
        drifting = values.copy()
        drifting[:moving] += sds * np.linspace(-0.5, 0.5, 1000)[None, :, None]
        result = measure_settling({"still": values, "moving": drifting})
        assert result is not None
        assert result.drift_p < settling.LEVEL
        assert result.drift_of == "moving"


def test_effective_draws_per_chain_are_measured_within_chains():
    rng = np.random.default_rng(2)
    values = chains_of(rng, chains=10, effective=100) + 9 * rng.normal(size=(10, 1, 5))
    result = measure_settling({"fast": rng.normal(size=(10, 1000)), "slow": values})
    assert result is not None
    assert 60 < result.within_ess < 140
    assert result.within_ess_of == "slow"


def test_too_few_constant_or_infinite_draws_have_no_test():
    rng = np.random.default_rng(3)
    assert measure_settling({"f": rng.normal(size=(4, settling.MIN_DRAWS - 1))}) is None
    assert measure_settling({"f": np.ones((4, 200))}) is None
    assert measure_settling({"f": np.full((4, 200), np.inf)}) is None


def test_a_verdict_of_chains_in_different_modes_says_so_and_what_more_chains_would_add():
    verdict = outcome.verdict(GOOD, findings.gate_findings(GOOD))
    assert verdict.startswith("settled in 3 modes: every chain has mixed within itself, but the chains disagree")
    assert "the Monte Carlo error over chains is 0.4 times the epistemic sd, and would be 0.2 with 16 chains" in verdict
    answer = findings.answer_converged(GOOD, findings.gate_findings(GOOD))
    assert answer.outcome == "unsure"
    assert answer.text.startswith("Settled in 3 modes")


def test_chains_of_a_biased_sampler_in_different_modes_say_that_it_is_biased():
    biased = GOOD | {"exactness": "biased", "variance_ratio": 1.05}
    verdict = outcome.verdict(biased, findings.gate_findings(biased))
    assert verdict.startswith("settled in 3 modes: ")
    assert "; the draws follow the distribution of a biased sampler: the variance of the draws" in verdict


@pytest.mark.parametrize(
    ("change", "need"),
    [
        ({"drift_p": 1e-4}, "the chains still drift (f) and need about 2 times as many draws, so use --draws 1000; "),
        ({"within_ess": 20.0}, "the chains need about 5 times as many draws, so use --draws 2500; "),
        (
            {"within_ess": 20.0, "budget": "2m"},
            "the chains need about 5 times as many draws, so use --budget 10m; the chains are in 3 groups that",
        ),
        ({"within_ess": 99.0}, "the chains need about 1.2 times as many draws, so use --draws 600; "),
        (
            {"modes": 1, "rhat": 1.04, "ess_bulk": 300.0},
            "the chains need about 13 times as many draws, so use --draws 6500; R-hat of predictive means 1.04",
        ),
        (
            {"modes": 1, "rhat": 1.025, "ess_bulk": 300.0, "ess_tail": 900.0},
            "the chains need about 2.5 times as many draws, so use --draws 1250; R-hat of predictive means 1.02",
        ),
        (
            {"within_ess": 20.0, "still_chains": 1},
            "number of stuck chains (no move in half of the draws) 1, trusted up to 0; use a smaller step size, or a "
            "longer --warmup; the chains need about 5 times",
        ),
        (
            {"modes": 1},
            "the chains disagree too much to estimate how many draws they need, so first draw 2 times as many: use "
            "--draws 1000; R-hat of predictive means 1.8, trusted",
        ),
        ({"ebfmi": 0.1}, "E-BFMI 0.1, must be at least 0.3; the energy mixes slowly"),
        ({"still_chains": 1}, "number of stuck chains"),
        ({"diverging": 0.2}, "fraction of divergent steps"),
        (
            {"unmoving": 1, "unmoving_of": "likelihood_scale"},
            "number of sampled parameters that move at most once in a chain (likelihood_scale)",
        ),
    ],
)
def test_other_chains_have_not_settled(change, need):
    diagnosis = GOOD | change
    problems = findings.gate_findings(diagnosis)
    verdict = outcome.verdict(diagnosis, problems)
    assert verdict.startswith("not settled: ")
    assert verdict.startswith(f"not settled: {need}")
    assert ("times as many draws" in verdict) == ("need about" in need)
    assert findings.answer_converged(diagnosis, problems).outcome == "no"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"within_ess": 20.0}, {"draws": 2500}),
        ({"within_ess": 20.0, "budget": "2m"}, {"budget": "8m"}),
        ({"within_ess": 20.0, "extensible": False}, {}),
        ({"within_ess": 20.0, "still_chains": 1}, {}),  # more draws do not help stuck chains
        ({"modes": 1}, {"draws": 1000}),  # the chains disagree, so the number is unknown; twice as many draws
        ({"modes": 1, "budget": "2m"}, {"budget": "2m"}),
        ({}, {}),  # settled
        ({"modes": 1, "rhat": 1.001, "ess_bulk": 900.0, "ess_tail": 900.0, "rhat_combination": 1.0}, {}),  # converged
    ],
)
def test_the_continuation_of_a_run_adds_the_missing_draws(change, field):
    diagnosis = GOOD | {"extensible": True} | change
    problems = findings.gate_findings(diagnosis)
    assert outcome.continuation(diagnosis, problems) == field
    if field:
        (name, value), verdict = *field.items(), outcome.verdict(diagnosis, problems)
        assert f"continue with bnnzoo resume and --{name} {value}; " in verdict


@pytest.mark.parametrize(
    ("continuation", "verdict", "tested", "expected"),
    [
        ('{"budget": "3m"}', "not settled: R-hat", True, "bnnzoo resume 'a b.nc' --budget 3m"),
        ('{"budget": "3m; ls"}', "not settled: R-hat", True, "bnnzoo resume 'a b.nc' --budget '3m; ls'"),
        ("{}", "not settled: sigma2 is too large", True, "bnnzoo diagnose 'a b.nc'"),
        ("{}", "converged", True, "bnnzoo evaluate 'a b.nc'; bnnzoo report 'a b.nc' -o report.html"),
        ("{}", "converged", False, "bnnzoo report 'a b.nc' -o report.html"),
    ],
)
def test_the_summary_ends_with_the_command_that_comes_next(continuation, verdict, tested, expected):
    record = SimpleNamespace(attributes={"continuation": continuation, "verdict": verdict}, has_test_rows=tested)
    run = SimpleNamespace(predictor=SimpleNamespace(record=record))
    assert output._next_commands(run, "'a b.nc'") == expected
