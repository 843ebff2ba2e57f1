"""Runs of several seeds as one: which may be joined, what is in it, what is said of it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tiny

import bnnzoo
from bnnzoo import zoo
from bnnzoo.errors import UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three seeds of one recipe, one of them shorter."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        zoo.run_recipe(tiny.recipe("random-walk", seed=seed), out=folder / f"{seed}.nc")
    zoo.run_recipe(tiny.recipe("random-walk", seed=2, chains=2, draws=15), out=folder / "2.nc")
    return folder


def test_chains_lie_side_by_side(folder, tmp_path):
    runs = [bnnzoo.open(folder / f"{seed}.nc") for seed in range(3)]
    both = bnnzoo.concat(runs)
    for group in ("posterior", "sample_stats"):
        for name, values in both.posterior[group].data_vars.items():
            parts = [run.posterior[group][name].values[:, -15:] for run in runs]
            np.testing.assert_array_equal(values, np.concatenate(parts))
            assert values.coords["chain"].values.tolist() == list(range(10))
            assert values.coords["draw"].values.tolist() == list(range(15))
    about = both.attributes
    assert json.loads(about["seeds"]) == [0, 1, 2]
    assert about["draws_done"] == 15
    assert about["target_evaluations"] == sum(run.attributes["target_evaluations"] for run in runs)
    assert about["rhat"] == both.diagnose()["rhat"]
    assert about["rhat"] not in [run.attributes["rhat"] for run in runs]

    both.save(tmp_path / "both.nc")
    again = bnnzoo.open(tmp_path / "both.nc")
    assert again.attributes == about
    assert again.evaluate(save=False) == both.evaluate(save=False)
    with pytest.raises(UsageError, match="exists"):
        both.save(tmp_path / "both.nc")


def test_what_cannot_be_joined(folder, tmp_path):
    with pytest.raises(UsageError, match="one run; give two"):
        bnnzoo.concat([folder / "0.nc"])
    with pytest.raises(UsageError, match="two runs of one seed"):
        bnnzoo.concat([folder / "0.nc", folder / "0.nc"])
    other = zoo.run_recipe(tiny.recipe("random-walk", seed=3, thin=2), out=tmp_path / "other.nc")
    with pytest.raises(UsageError, match=r"other.nc: not of the recipe of .*0.nc: thin"):
        bnnzoo.concat([folder / "0.nc", other])
    rows = zoo.run_recipe(tiny.recipe("random-walk", seed=3, data="mdn-sine"), out=tmp_path / "rows.nc")
    with pytest.raises(UsageError, match=r"rows.nc: not of the recipe of .*0.nc: data"):
        bnnzoo.concat([folder / "0.nc", rows])
    fixed = [
        zoo.run_recipe(
            tiny.recipe("random-walk", "mlp", seed=seed, stochastic="last", start_steps=250, init="map"),
            out=tmp_path / f"fixed{seed}.nc",
        )
        for seed in (0, 1)
    ]
    with pytest.raises(UsageError, match=r"fixed1.nc: what is not sampled was trained anew"):
        bnnzoo.concat(fixed)
