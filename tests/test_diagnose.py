"""diagnose: planted faults are seen, the gate has an exit code, and a file says what it is asked."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tiny

from bnnzoo import cli, zoo
from bnnzoo.diagnostics import Limits, convergence, failures, still_chains

GOOD = {"rhat": 1.0, "ess_bulk": 500.0, "still_chains": 0, "regime_ok": 1, "regime": "", "complete": 1}


def draws(**shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(4, 400, 3))


def test_independent_draws_pass_and_count_in_full():
    found = convergence(draws())
    assert found["rhat"] < 1.02
    assert 1000 < found["ess_bulk"] < 2500
    assert found["mcse_over_sd"] == pytest.approx(found["ess_bulk"] ** -0.5)


def test_a_shifted_a_stuck_and_a_bimodal_chain_are_seen():
    shifted, stuck, modes = draws(), draws(), draws()
    shifted[1, :, 2] += 2.0
    stuck[2] = stuck[2, :1]
    modes[2:, :, 0] += 5.0
    for bad in (shifted, stuck, modes):
        assert convergence(bad)["rhat"] > 1.1
    assert still_chains(stuck) == 1
    assert still_chains(shifted) == 0
    constant = draws()
    constant[..., 1] = 3.0
    assert convergence(constant)["rhat"] == np.inf


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rhat": 1.2}, "R-hat"),
        ({"rhat": float("nan")}, "R-hat"),
        ({"ess_bulk": 20.0}, "ESS"),
        ({"diverging": 0.2}, "diverging"),
        ({"still_chains": 1}, "never moved"),
        ({"regime_ok": 0, "regime": "mean sigma2 6"}, "mean sigma2 6"),
        ({"complete": 0}, "resume"),
    ],
)
def test_a_limit_that_is_not_held_is_a_sentence(change, word):
    assert failures(GOOD, Limits()) == []
    (said,) = failures({**GOOD, **change}, Limits())
    assert word in said


def test_the_command_and_its_gate(tmp_path, capsys):
    path = tmp_path / "run.nc"
    zoo.run_recipe(tiny.recipe("penalty", warmup=200, draws=60, **{"sampler.batch_size": 40}), out=path)
    assert cli.run(["diagnose", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"rhat", "ess_bulk", "acceptance_rate", "sigma2", "skew_bias", "regime_ok", "weights_rhat"} <= set(found)
    assert found["draws"] == 60
    assert cli.run(["diagnose", str(path), "--gate", "--rhat", "1e9", "--ess", "0", "--diverging", "1"]) == 0
    assert cli.run(["diagnose", str(path), "--gate", "--ess", "1e9"]) == 3
    assert "bulk ESS of predictions" in capsys.readouterr().err
