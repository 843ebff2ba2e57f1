"""Regressions with known predictions: branches, gaps, far clocks, noise levels, many targets, collinear inputs."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import bnnzoo
from bnnzoo.errors import BnnzooError


def test_c03_a_mixture_predicts_both_branches_and_a_gaussian_is_not_called_calibrated(type_command):
    type_command(
        "bnnzoo sample mdn nuts --data c03_train.csv --model.hidden 10 --model.components 2 --test-fraction 0 "
        "--warmup 1000 --draws 1000 -o c03.nc"
    )
    mixture = type_command("bnnzoo evaluate c03.nc --data c03_test.csv --json").json()
    assert mixture["nll"] <= 0.05
    assert mixture["coverage_50"] == pytest.approx(0.5, abs=0.06)
    type_command(
        "bnnzoo sample mlp nuts --data c03_train.csv --model.hidden 10 --likelihood gaussian --test-fraction 0 "
        "--warmup 700 --draws 700 -o c03g.nc"
    )
    gaussian = type_command("bnnzoo evaluate c03g.nc --data c03_test.csv --json").json()
    assert gaussian["nll"] >= 0.88
    assert gaussian["coverage_50"] < 0.25  # the central half lies between the branches
    assert gaussian["calibration_gap_low"] > 0.1


def test_c04_the_hole_in_the_inputs_is_uncertain_and_backprop_is_found_too_narrow(type_command):
    type_command(
        "bnnzoo sample mlp nuts --data c04_gap.csv --model.hidden 10 --model.activation tanh --likelihood gaussian "
        "--test-fraction 0 --warmup 1000 --draws 1000 -o c04.nc"
    )
    table = type_command("bnnzoo predict c04.nc --data c04_new.csv").table()
    mean = np.array([47, 32.9, 14.46, 3.94, 2.11, 4.13, 14.66, 33.29, 52])
    sd = np.array([3.6, 0.276, 0.126, 0.184, 0.356, 0.195, 0.120, 0.274, 3.6])
    edge = np.isin(np.arange(9), (0, 8))
    assert (np.abs(table["mean"] - mean) <= np.where(edge, 1.5, 0.06)).all(), table["mean"]
    assert (np.abs(table["epistemic_sd"] / sd - 1) <= np.where(edge, 0.2, 0.12)).all(), table["epistemic_sd"]
    np.testing.assert_allclose(table["aleatoric_sd"], 0.53, rtol=0.12)
    type_command('bnnzoo plot c04.nc -o c04.png --range -6,6 --truth "2 * x**2 + 2"')
    type_command(
        "bnnzoo sample mlp bbb --data c04_gap.csv --model.hidden 10 --likelihood gaussian --test-fraction 0 -o c04b.nc"
    )
    audit = type_command("bnnzoo audit c04b.nc --json").json()
    assert audit["outcome"] == "drifted"
    assert audit["bias_sd_lowest"] < 0  # too narrow in the hole, though too wide at the rows


def test_c07_a_clock_far_from_zero_predicts_as_one_near_zero(type_command):
    tables = []
    for name in ("far", "near"):
        output = type_command(
            f"bnnzoo sample mlp nuts --data c07_{name}.csv --model.hidden 12 --likelihood gaussian --test-fraction 0 "
            f"--warmup 800 --draws 500 --seed 1 -o {name}.nc"
        )
        if name == "far":
            assert "is subtracted, because float32" in output.out + output.err
        tables.append(type_command(f"bnnzoo predict {name}.nc --data c07_{name}_new.csv").table())
    far, near = tables
    np.testing.assert_allclose(far["mean"], near["mean"], atol=1e-4)
    np.testing.assert_allclose(far["mean"], [0, 0.598, -0.959, 0.938, -0.544], atol=0.15)
    with open("c07_far.csv", encoding="utf-8") as file:
        rows = np.array([[float(cell) for cell in row] for row in list(csv.reader(file))[1:]])
    with pytest.raises(BnnzooError, match="subtract"):
        bnnzoo.sample("mlp", "nuts", data=(rows[:, :1], rows[:, 1]))


@pytest.mark.parametrize("sampler", ["laplace", "swag", "bbb", "nuts"])
def test_c08_the_noise_level_is_learned_and_follows_the_units(type_command, sampler):
    tables = {}
    # With a budget, the number of draws depends on the speed of the machine.
    lengths = "--warmup 1000 --draws 1000" if sampler == "nuts" else ""
    rows = [line.split(",") for line in Path("c08_sine.csv").read_text().splitlines()]
    times32 = [rows[0], *([x, repr(32 * float(y))] for x, y in rows[1:])]  # the same inputs to the last digit
    Path("c08_sine32.csv").write_text("\n".join(",".join(row) for row in times32) + "\n")
    for name, factor in (("c08_sine", 1), ("c08_sine32", 32)):
        type_command(
            f"bnnzoo sample mlp {sampler} --data {name}.csv --model.hidden 50 --model.activation tanh "
            f"--likelihood gaussian --test-fraction 0 {lengths} -o {name}.nc"
        )
        tables[factor] = type_command(f"bnnzoo predict {name}.nc --data c08_new.csv").table()
    if sampler != "bbb":  # independent Gaussians for the weights take part of the signal for noise: 0.42
        assert (np.abs(tables[1]["aleatoric_sd"] - 0.30) <= 0.04).all()
    for column in ("mean", "sd", "aleatoric_sd", "epistemic_sd"):
        np.testing.assert_allclose(tables[32][column], 32 * tables[1][column], rtol=1e-5)
    if sampler in ("laplace", "nuts"):
        epistemic = tables[1]["epistemic_sd"]
        assert epistemic[3] >= 3 * epistemic[1]
        assert (epistemic[:3] < 0.2).all()


def test_c10_a_noise_level_by_row_is_chosen_where_the_spread_falls_with_age(type_command):
    output = type_command("bnnzoo sample --data c10_GAGurine.csv --budget 20s -o c10a.nc")
    assert "rownames" in output.err
    type_command("bnnzoo sample --data c10_GAGurine.csv --drop rownames --test-fraction 0.3 -o c10.nc")
    type_command(
        "bnnzoo sample mlp nuts --data c10_GAGurine.csv --drop rownames --test-fraction 0.3 --model.hidden 10 "
        "--likelihood gaussian --warmup 800 --draws 800 -o c10g.nc"
    )
    by_row = type_command("bnnzoo evaluate c10.nc --json").json()
    constant = type_command("bnnzoo evaluate c10g.nc --json").json()
    assert by_row["nll"] < min(2.85, constant["nll"] - 0.15)
    assert 0.83 <= by_row["coverage_90"] <= 0.97
    Path("ages.csv").write_text("Age\n0.5\n10\n")
    noise = type_command("bnnzoo predict c10.nc --data ages.csv").table()["aleatoric_sd"]
    assert noise[0] > 2.5 * noise[1]


def test_c11_weights_of_adults_are_exact_and_an_empty_target_column_is_ignored(type_command):
    rows = [line.split(";") for line in Path("c11_Howell1.csv").read_text().replace('"', "").splitlines()]
    age = rows[0].index("age")
    adults = [rows[0], *(row for row in rows[1:] if float(row[age]) >= 18)]
    Path("adults.csv").write_text("\n".join(",".join(row) for row in adults) + "\n")
    type_command(
        "bnnzoo sample linear nuts --data adults.csv --target weight --columns height --likelihood gaussian "
        "--test-fraction 0 --warmup 500 --draws 1000 -o c11.nc"
    )
    Path("n1.csv").write_text("height\n140\n160\n175\n")
    Path("n2.csv").write_text("weight,height\n,140\n,160\n,175\n")
    table = type_command("bnnzoo predict c11.nc --data n1.csv").table()
    np.testing.assert_allclose(table["mean"], [35.81, 48.39, 57.82], atol=0.05)
    np.testing.assert_allclose(table["epistemic_sd"], [0.485, 0.277, 0.640], rtol=0.08)
    np.testing.assert_allclose(table["aleatoric_sd"], 4.26, rtol=0.02)
    other = type_command("bnnzoo predict c11.nc --data n2.csv").table()
    for name, values in table.items():
        np.testing.assert_array_equal(values, other[name])


def test_c11_the_default_beats_a_line_on_all_ages(type_command):
    output = type_command("bnnzoo sample --data c11_Howell1.csv --target weight -o c11all.nc")
    assert "separator" in output.out + output.err  # the file has semicolons, and the run says that it took them
    assert type_command("bnnzoo evaluate c11all.nc --json").json()["rmse"] < 4.3


def test_c14_eight_targets_of_different_sizes_are_learned_alike(type_command):
    targets = " ".join(f"--target y{j}" for j in range(8))
    type_command(
        f"bnnzoo sample mlp nuts --data c14_train.csv {targets} --model.hidden 12 --likelihood gaussian "
        "--test-fraction 0 --budget 3m -o c14.nc"
    )
    scores = type_command("bnnzoo evaluate c14.nc --data c14_test.csv --json").json()
    sd = np.array([0.001475, 0.01547, 0.1093, 1.808, 17.35, 186.0, 903.3, 18361])
    least_squares = np.array([0.348, 0.457, 0.422, 0.357, 0.472, 0.350, 0.419, 0.313])
    errors = np.array([scores[f"y{j}_rmse"] for j in range(8)]) / sd
    assert (errors < least_squares).all(), errors
    assert errors.mean() < 0.28
    for j in range(8):
        assert 0.80 <= scores[f"y{j}_coverage_90"] <= 0.98
    assert "rmse" not in scores or scores["rmse"] < 1  # mixed units have no common error; standardised ones do
    type_command(
        f"bnnzoo sample mlp nuts --data c14_train.csv {targets} --model.hidden 30,30 --init prior --warmup 5 "
        "--draws 5 -o c14s.nc"
    )


def test_s8_collinear_inputs_are_sampled_exactly(type_command):
    output = type_command(
        "bnnzoo sample linear nuts --data s8_longley.csv --target Employed --drop rownames --likelihood gaussian "
        "--test-fraction 0 --warmup 1000 --draws 2500 --json -o s8.nc"
    )
    assert output.json()["verdict"].startswith("converged")
    with open("s8_expected.csv", encoding="utf-8") as file:
        expected = {name: [] for name in csv.DictReader(file).fieldnames or ()}
        file.seek(0)
        for row in csv.DictReader(file):
            for name, value in row.items():
                expected[name].append(float(value))
    table = type_command("bnnzoo predict s8.nc --data s8_longley.csv").table()
    np.testing.assert_allclose(table["mean"], expected["mean"], atol=0.03)
    np.testing.assert_allclose(table["epistemic_sd"], expected["epistemic_sd"], rtol=0.08)
    np.testing.assert_allclose(table["aleatoric_sd"], 0.383, rtol=0.05)
