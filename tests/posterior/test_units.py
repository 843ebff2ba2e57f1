"""Units of the noise scale: given in units of the data or of the target's sd, and reported in both."""

from __future__ import annotations

import json
from typing import Annotated

import numpy as np
import pandas as pd
import pytest
import tiny

import bnnzoo
from bnnzoo import cli
from bnnzoo.assembly.units import fields_in_target_units, in_network_units, sentences
from bnnzoo.data import Scaler
from bnnzoo.errors import UsageError
from bnnzoo.posterior.censored import Censored
from bnnzoo.posterior.likelihoods import Gaussian, Heteroscedastic, Poisson, StudentT
from bnnzoo.recipe import TargetUnits, resolve

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2)).astype(np.float32)
Y = (3 * X + 0.5 * RNG.normal(size=(40, 2))).astype(np.float32) * np.float32([1.0, 1000.0])
SHORT = {"chains": 2, "warmup": 0, "draws": 5, "init": "prior", "seed": 3, "test_fraction": 0.0}


def sampled(y, **more):
    return bnnzoo.sample("linear", "random-walk", data=(X, y), **{"likelihood": "gaussian", **SHORT, **more})


def draws(run):
    return {str(name): values.to_numpy() for name, values in run.posterior["posterior"].data_vars.items()}


def noise(run):
    return run.predict(X[:3]).filter(like="aleatoric_sd").to_numpy()[0]


def gaussian(scale):
    return {"name": "gaussian", "scale": scale}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_a_scale_is_of_the_targets_sd_unless_units_are_the_datas():
    sd = Y[:, 0].std(dtype=np.float64)
    as_before, of_data = (
        sampled(Y[:, 0], likelihood=gaussian(0.3)),
        sampled(Y[:, 0], likelihood=gaussian(0.3), units="data"),
    )
    np.testing.assert_allclose(noise(as_before), 0.3 * sd, rtol=1e-5)
    np.testing.assert_allclose(noise(of_data), 0.3, rtol=1e-5)
    assert as_before.summary()["noise_scale"] == pytest.approx(0.3 * sd)
    assert of_data.summary()["noise_scale"] == pytest.approx(0.3)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_each_of_several_targets_has_its_own_sd():
    run = sampled(Y, likelihood={"name": "student-t", "df": 4.0, "scale": 0.3}, units="data")
    np.testing.assert_allclose(noise(run), 0.3 * np.sqrt([2, 2]), rtol=1e-5)
    assert run.summary()["noise_scale"] == pytest.approx([0.3, 0.3])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_the_stored_recipe_repeats_a_run_in_units_of_the_data_bit_for_bit(tmp_path):
    table, out, recipe = tmp_path / "t.csv", tmp_path / "run.nc", tmp_path / "recipe.yaml"
    pd.DataFrame(np.c_[X, Y], columns=["a", "b", "small", "large"]).to_csv(table, index=False)
    arguments = ["linear", "random-walk", "--data", table, "--target", "small", "--target", "large", "--likelihood"]
    arguments += [
        "gaussian",
        "--likelihood.scale",
        0.3,
        "--units",
        "data",
        "--warmup",
        0,
        "--draws",
        5,
        "--init",
        "prior",
    ]
    assert cli.run(["sample", *map(str, arguments), "-o", str(out), "-q"]) == 0
    text = bnnzoo.open(out).attributes["recipe"]
    assert "units: data" in text
    assert "scale: 0.3\n" in text
    recipe.write_text(text)
    assert cli.run(["sample", "--config", str(recipe), "-o", str(tmp_path / "again.nc"), "-q"]) == 0
    tiny.assert_same_bits(draws(bnnzoo.open(tmp_path / "again.nc")), draws(bnnzoo.open(out)))
    np.testing.assert_allclose(noise(bnnzoo.open(out)), [0.3, 0.3], rtol=1e-5)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
@pytest.mark.parametrize("units", [[], ["--units", "data"]])
def test_a_note_states_the_scale_in_other_units(units, tmp_path, capsys):
    table = tmp_path / "t.csv"
    pd.DataFrame({"a": X[:, 0], "y": 4 * X[:, 0] + 2}).to_csv(table, index=False)
    arguments = ["linear", "random-walk", "--data", str(table), "--likelihood", "gaussian", "--likelihood.scale", "0.3"]
    arguments += [
        "--test-fraction",
        "0",
        "--warmup",
        "0",
        "--draws",
        "5",
        "--init",
        "prior",
        "-o",
        str(tmp_path / "r.nc"),
    ]
    assert cli.run(["sample", *arguments, *units]) == 0
    captured = capsys.readouterr()
    sd = np.std(4 * X[:, 0].astype(np.float64) + 2)
    if units:
        assert (
            f"--likelihood.scale 0.3 is in the data's units; it is {0.3 / sd:.4g} times the standard dev"
            in captured.err
        )
        assert "noise_scale       0.3\n" in captured.out
    else:
        assert (
            f"a multiple of the target's standard deviation ({0.3 * sd:.4g} in the data's units); if 0.3 is in the"
            in captured.err
        )
        assert "use --units data" in captured.err


def test_help_and_info_state_the_units(capsys):
    assert cli.run(["info", "likelihood", "gaussian"]) == 0
    assert "with --units data, in the units of the data" in capsys.readouterr().out
    assert cli.run(["sample", "linear", "nuts", "--help"]) == 0
    assert "--units" in capsys.readouterr().out


def test_fields_in_the_targets_units_are_marked():
    names = {cls: [field.name for field in fields_in_target_units(cls)] for cls in (Gaussian, StudentT)}
    assert names == {Gaussian: ["scale"], StudentT: ["scale"]}
    assert not fields_in_target_units(Heteroscedastic)
    assert not fields_in_target_units(Poisson)


def test_a_learned_scale_and_targets_that_are_not_scaled_stay_as_they_are():
    zero, first, four = (np.array([v], np.float32) for v in (0, 1, 4))
    learned = Gaussian()
    assert in_network_units(learned, Scaler(zero, first, zero, four), "data").scale == "learned"
    fixed = Gaussian(0.5)
    assert in_network_units(fixed, Scaler(zero, first, zero, first), "data") is fixed
    assert in_network_units(fixed, Scaler(zero, first, zero, four), "data").scale == np.float32(0.125)


def test_the_scale_of_a_censored_likelihood_is_converted():
    zero, one, four = (np.array([v], np.float32) for v in (0, 1, 4))
    scaler, censored = Scaler(zero, one, zero, four), Censored(Gaussian(0.5))
    assert in_network_units(censored, scaler, "data") == Censored(Gaussian(np.float32(0.125)))
    recipe = resolve("linear", "nuts", [], {"units": "data", "data": "t.csv"})
    assert sentences(censored, scaler, recipe, ["y"]) == sentences(Gaussian(0.5), scaler, recipe, ["y"])
    assert len(sentences(censored, scaler, recipe, ["y"])) == 1


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
@pytest.mark.parametrize("factor", [2.0**-20, 32.0])
def test_a_target_times_a_power_of_two_multiplies_predictions_exactly(factor):
    """Standardised targets and draws are the same bits, and scaling back multiplies by a power of two."""
    original, scaled = sampled(Y[:, 0]), sampled(Y[:, 0] * np.float32(factor))
    tiny.assert_same_bits(draws(scaled), draws(original))
    pd.testing.assert_frame_equal(scaled.predict(X[:5]), original.predict(X[:5]) * np.float32(factor), check_exact=True)


@pytest.mark.long
def test_regime_ok_is_shown_only_where_a_sampler_has_a_guard(tmp_path, capsys):
    arguments = ["sample", "linear", "random-walk", "--data", "diabetes", "--init", "prior", "--warmup", "0", "--draws"]
    out = str(tmp_path / "r.nc")
    assert cli.run([*arguments, "5", "-q", "-o", out]) == 0
    assert "\nregime_ok" not in capsys.readouterr().out
    assert cli.run([*arguments, "5", "-q", "-o", out, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["regime_ok"] == "not-applicable"
    assert cli.run(["diagnose", out]) == 0
    assert "\nregime_ok" not in capsys.readouterr().out


class WithFields(Gaussian):
    floor: Annotated[float | None, TargetUnits()] = None
    levels: Annotated[tuple[float, ...] | None, TargetUnits()] = None


def test_fields_without_a_number_are_not_converted_and_lists_are_refused():
    zero, one, four = (np.array([v], np.float32) for v in (0, 1, 4))
    scaler, recipe = Scaler(zero, one, zero, four), resolve("linear", "nuts", [], {"data": "t.csv"})
    assert in_network_units(WithFields(0.5), scaler, "data") == WithFields(np.float32(0.125))
    assert in_network_units(WithFields(0.5, floor=2.0), scaler, "data").floor == 0.5
    assert len(sentences(WithFields(0.5), scaler, recipe, ["y"])) == 1
    with pytest.raises(UsageError, match=r"levels: a field that is marked with TargetUnits must be a number"):
        in_network_units(WithFields(levels=(1.0, 2.0)), scaler, "data")
