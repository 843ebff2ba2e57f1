"""A run with stuck chains, or with predictions that contradict the data, reports this everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tiny
from test_arrival import Spiked

import bnnzoo
from bnnzoo.api import entrances
from bnnzoo.cli.output import warn_of_convergence
from bnnzoo.errors import BnnzooError, BnnzooWarning
from bnnzoo.samplers import RandomWalk


def sample_run(tmp_path, sampler: str, name: str = "run.nc", **more: Any) -> bnnzoo.Run:
    return entrances.run_recipe(tiny.recipe(sampler, **more), out=tmp_path / name, force=True)


def kinds(run: bnnzoo.Run) -> set[str]:
    return {finding.kind for finding in run.findings()}


@pytest.mark.long
@pytest.mark.parametrize(("sampler", "step_size"), [("sgld", 1e6), pytest.param("sghmc", 1.0, marks=pytest.mark.slow)])
def test_a_regression_that_left_the_data_says_so(sampler, step_size, tmp_path, capsys):
    run = sample_run(tmp_path, sampler, **{"sampler.step_size": step_size})
    assert run.attributes["complete"] == 1
    assert "distance of predictions from the data" in run.attributes["absurd"]
    assert {"remoteness", "still_chains"} & kinds(run)
    warn_of_convergence(run)
    assert "distance of predictions" in capsys.readouterr().err


@pytest.mark.long
def test_a_classification_that_is_sure_of_the_wrong_labels_says_so(tmp_path):
    more = {"data": "breast-cancer", "likelihood": "categorical", "likelihood.scale": None}
    run = sample_run(tmp_path, "sgld", **more, **{"sampler.step_size": 1.0})
    assert "surprise" in kinds(run)
    assert "negative log probability of the labels" in run.attributes["absurd"]


@pytest.mark.long
def test_a_plausible_run_has_no_finding_of_implausibility(tmp_path):
    """Control: a plausible run has no such finding."""
    run = sample_run(tmp_path, "sgld", init="map")
    assert not {"remoteness", "surprise", "still_chains"} & kinds(run)
    assert run.attributes["absurd"] == ""


@pytest.mark.slow
def test_targets_far_from_zero_are_not_far_from_their_predictions(tmp_path):
    """An air pressure has a mean of about 600 standard deviations."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 1))
    y = 1013 + 1.5 * x + 0.5 * rng.normal(size=x.shape)
    run = bnnzoo.sample("linear", "mala", data=(x, y), chains=2, warmup=100, draws=50, chain_method="vectorized")
    assert run.diagnose()["remoteness"] < 2
    assert run.attributes["absurd"] == ""


@pytest.mark.long
def test_findings_of_a_replaced_file_are_not_shown(tmp_path):
    sample_run(tmp_path, "sgld", init="map")
    run = sample_run(tmp_path, "sgld", **{"sampler.step_size": 1e6})
    assert run.attributes["absurd"]
    assert not run.attributes["rhat"] < 1000


def test_a_single_chain_stuck_at_its_last_draw_is_kept_and_named(tmp_path):
    start = np.array([[100.0]], np.float32)
    arguments: dict[str, Any] = {"chains": 1, "warmup": 0, "init": start, "chain_method": "vectorized"}
    with pytest.warns(BnnzooWarning, match="chain 0 accepted no proposal for 1000 steps"):
        run = bnnzoo.sample(Spiked(), RandomWalk(step_size=2.0), out=tmp_path / "run.nc", draws=1000, **arguments)
    assert run.attributes["complete"] == 1
    assert run.posterior["posterior"].sizes["draw"] == 1000
    assert json.loads(run.attributes["stuck_chains"]) == [0]
    assert run.summary()["stuck_chains"] == "[0]"
    assert "stuck" in kinds(run)
    with pytest.raises(BnnzooError, match="no proposal accepted for"):
        bnnzoo.sample(Spiked(), RandomWalk(step_size=2.0), out=tmp_path / "more.nc", draws=100_000, **arguments)


@pytest.mark.slow
def test_the_command_reports_stuck_chains_and_exits_with_0(tmp_path):
    out = tmp_path / "run.nc"
    arguments = tiny.arguments("random-walk", chains=1, warmup=0, draws=1000, **{"sampler.step_size": 1e8})
    process = subprocess.run(
        [sys.executable, "-m", "bnnzoo", *arguments, "-o", str(out)], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert "chain 0 accepted no proposal for 1000 steps" in process.stderr
    assert "Traceback" not in process.stderr
    assert json.loads(bnnzoo.open(out).attributes["stuck_chains"]) == [0]
