"""Chains can begin at the draws of an earlier run (`init: run.nc`)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import xarray as xr

import bnnzoo
from bnnzoo import cli
from bnnzoo.assembly import Problem
from bnnzoo.errors import UsageError
from bnnzoo.recipe import resolve
from bnnzoo.sampling.initial import run_start

pytestmark = pytest.mark.filterwarnings("ignore:the sampler's own check", "ignore:the convergence")


@pytest.fixture(scope="module")
def first_run(tmp_path_factory) -> Path:
    """A short run of a network with a learned noise scale."""
    path = tmp_path_factory.mktemp("start") / "first.nc"
    assert cli.run([*_command("random-walk"), "--chains", "3", "--draws", "10", "-o", str(path)]) == 0
    return path


def _command(sampler: str, *more: str) -> list[str]:
    return ["sample", "mlp", sampler, "--quiet", *(w for pair in _options().items() for w in pair), *more]


def _options() -> dict[str, str]:
    return {"--data": "tutorial-sine", "--model.hidden": "3", "--init": "prior", "--warmup": "5", "--thin": "1"}


def problem(path: Path, **options: Any) -> Problem:
    words = {"data": "tutorial-sine", "model.hidden": "3", "chains": 3, "init": str(path), **options}
    return Problem.from_recipe(resolve("mlp", "random-walk", [], words))


def draws(path: Path) -> xr.Dataset:
    return xr.open_dataset(path, group="posterior").load()


def test_each_chain_begins_at_the_last_draw_of_its_chain(first_run):
    posterior = problem(first_run)
    positions = run_start.last_draws(posterior, first_run)
    values = posterior.posterior.natural(positions)
    for name, expected in draws(first_run).data_vars.items():
        np.testing.assert_allclose(values[str(name)], expected.to_numpy()[:, -1], rtol=1e-5, err_msg=str(name))


def test_more_chains_begin_at_earlier_draws(first_run):
    posterior = problem(first_run, chains=7)
    values = posterior.posterior.natural(run_start.last_draws(posterior, first_run))["layers_0_bias"]
    stored = draws(first_run)["layers_0_bias"].to_numpy()
    expected = [stored[chain % 3, 9 - 3 * (chain // 3)] for chain in range(7)]  # three rounds, 10 // 3 draws apart
    np.testing.assert_allclose(values, np.stack(expected), rtol=1e-5)


def test_a_chain_that_cannot_move_stays_at_its_start(first_run, tmp_path):
    out = tmp_path / "run.nc"
    arguments = _command("random-walk", "--chains", "3", "--draws", "1", "-o", str(out))
    arguments[arguments.index("--init") + 1] = str(first_run)
    arguments[arguments.index("--warmup") + 1] = "0"
    assert cli.run([*arguments, "--sampler.step-size", "1e-9"]) == 0
    for name, expected in draws(first_run).data_vars.items():
        np.testing.assert_allclose(draws(out)[name].to_numpy()[:, 0], expected.to_numpy()[:, -1], rtol=1e-4)


@pytest.mark.long
def test_fixed_parameters_are_those_of_the_best_draw_and_can_start_a_third_run(first_run, tmp_path):
    out = tmp_path / "last.nc"
    arguments = _command("random-walk", "--stochastic", "last", "--draws", "4", "-o", str(out))
    arguments[arguments.index("--init") + 1] = str(first_run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cli.run(arguments) == 0
    best = xr.open_dataset(first_run, group="sample_stats")["lp"].to_numpy()
    chain, draw = np.unravel_index(np.argmax(best), best.shape)
    fixed = xr.open_dataset(out, group="constant_data")["fixed_layers_0_weight"].to_numpy()
    np.testing.assert_allclose(fixed, draws(first_run)["layers_0_weight"].to_numpy()[chain, draw], rtol=1e-5)

    whole = problem(out)
    values = whole.posterior.natural(run_start.last_draws(whole, out))
    np.testing.assert_array_equal(values["layers_0_weight"], np.broadcast_to(fixed, (3, *fixed.shape)))
    np.testing.assert_allclose(values["layers_1_bias"], draws(out)["layers_1_bias"].to_numpy()[:3, -1], rtol=1e-5)


@pytest.mark.long
def test_parameters_that_the_run_did_not_sample_begin_at_their_usual_values(first_run, tmp_path):
    out = tmp_path / "known.nc"
    assert cli.run([*_command("random-walk", "--likelihood.scale", "0.3", "--draws", "4"), "-o", str(out)]) == 0
    learned = problem(out)
    values = learned.posterior.natural(run_start.last_draws(learned, out))
    assert values["likelihood_scale"].shape == (3,)
    assert (values["likelihood_scale"] > 0).all()
    np.testing.assert_allclose(values["layers_0_bias"], draws(out)["layers_0_bias"].to_numpy()[:3, -1], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model.hidden": "4"}, "layers_0_weight has shape [3, 1] in the run, but [4, 1] in mlp"),
        ({"model.hidden": "3,3"}, "layers_1_weight has shape [1, 3] in the run, but [3, 3] in mlp"),
    ],
)
def test_another_network_is_refused(options, message, first_run):
    other = problem(first_run, **options)
    with pytest.raises(UsageError) as error:
        run_start.last_draws(other, first_run)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("mpa", "--init: must be map, prior, given, the .nc file of a run, or the .eqx file of a network (got 'mpa')"),
        ("none.nc", "none.nc: no such run"),
    ],
)
def test_a_wrong_start_is_one_line(init, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = _command("random-walk", "-o", "run.nc")
    arguments[arguments.index("--init") + 1] = init
    assert cli.run(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_parameter_that_the_run_does_not_have_is_named(tmp_path):
    out = tmp_path / "linear.nc"
    bnnzoo.sample("linear", "random-walk", data="diabetes", out=out, progress=False, **_short()).posterior.close()
    other = Problem.from_recipe(tiny.recipe("random-walk", "mlp", init=str(out), **{"model.hidden": "4"}))
    with pytest.raises(UsageError, match="the run has no parameter layers_0_weight, which mlp needs"):
        run_start.last_draws(other, out)


@pytest.mark.long
def test_a_run_of_directions_cannot_give_positions(tmp_path):
    out, model = tmp_path / "directions.nc", {"name": "mlp", "hidden": (2,)}
    options: dict[str, Any] = {"data": "diabetes", "stochastic": "identified:1", "start_steps": 250, "init": "map"}
    bnnzoo.sample(model, "random-walk", out=out, progress=False, **_short() | options)
    other = Problem.from_recipe(tiny.recipe("random-walk", "mlp", init=str(out), **{"model.hidden": "2"}))
    with pytest.raises(UsageError, match=r'sampled directions of the parameters, .*; use a run with stochastic="all"'):
        run_start.last_draws(other, out)


def _short() -> dict[str, Any]:
    return {"chains": 2, "warmup": 5, "draws": 5, "init": "prior"}
