"""Counts: different exposures (c01) and more spread than Poisson's (c24)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def test_c01_a_log_exposure_column_is_an_input_like_any_other(type_command):
    type_command(
        "bnnzoo sample linear nuts --data c01_log_exposure.csv --likelihood poisson --test-fraction 0 "
        "--warmup 500 --draws 1000 -o c01.nc"
    )
    means = type_command("bnnzoo predict c01.nc --data c01_new.csv").table()["mean"]
    np.testing.assert_allclose(means, [15.25, 60.14, 33.87], rtol=0.03)
    assert means[1] / means[0] == pytest.approx(3.94, abs=0.08)


def test_c01_the_logarithm_predicts_better_than_the_raw_exposure_and_they_are_not_compared(type_command):
    scores = {}
    for name, data in (("c01b", "c01_log_exposure.csv"), ("c01raw", "c01_exposure.csv")):
        type_command(
            f"bnnzoo sample linear nuts --data {data} --likelihood poisson --warmup 500 --draws 1000 -o {name}.nc"
        )
        scores[name] = type_command(f"bnnzoo evaluate {name}.nc --json").json()["nll"]
    assert scores["c01raw"] - scores["c01b"] > 0.2
    refusal = type_command("bnnzoo compare c01b.nc c01raw.nc", code=2)
    assert len(refusal.err.strip().splitlines()) == 1


def test_c01_an_exposure_has_coefficient_one_also_in_predictions(type_command):
    type_command(
        "bnnzoo sample linear nuts --data c01_exposure.csv --likelihood poisson --exposure exposure "
        "--test-fraction 0 --warmup 500 --draws 1000 -o c01e.nc"
    )
    Path("new.csv").write_text("x,exposure\n0,10\n0,40\n1,10\n")
    means = type_command("bnnzoo predict c01e.nc --data new.csv").table()["mean"]
    np.testing.assert_allclose(means, [14.92, 59.67, 33.20], rtol=0.03)
    assert means[1] / means[0] == pytest.approx(4.0, rel=1e-4)


def test_c01_the_default_says_that_the_target_is_whole_numbers(type_command):
    output = type_command("bnnzoo sample --data c01_exposure.csv --budget 20s -o c01auto.nc")
    assert "whole numbers" in output.out + output.err
    assert "poisson" in output.out + output.err


def test_c24_overdispersed_counts_are_called_so(type_command):
    type_command(
        "bnnzoo sample linear nuts --data c24_crab.csv --target sat --columns width --likelihood poisson "
        "--test-fraction 0 --warmup 500 --draws 1000 -o c24.nc"
    )
    Path("w.csv").write_text("width\n22\n26.3\n30\n")
    means = type_command("bnnzoo predict c24.nc --data w.csv").table()["mean"]
    np.testing.assert_allclose(means, [1.356, 2.745, 5.036], rtol=0.02)
    scores = type_command("bnnzoo evaluate c24.nc --data c24_crab.csv --json").json()
    assert scores["coverage_90"] == pytest.approx(0.62, abs=0.03)
    assert scores["coverage_50"] == pytest.approx(0.22, abs=0.03)
    assert scores["nll"] == pytest.approx(2.67, abs=0.02)
    text = type_command("bnnzoo evaluate c24.nc --data c24_crab.csv")
    assert "negative-binomial" in text.out + text.err


def test_c24_a_negative_binomial_covers_what_poisson_does_not(type_command):
    type_command(
        "bnnzoo sample linear nuts --data c24_crab.csv --target sat --columns width --likelihood negative-binomial "
        "--test-fraction 0 --warmup 500 --draws 1000 -o nb.nc"
    )
    scores = type_command("bnnzoo evaluate nb.nc --data c24_crab.csv --json").json()
    assert scores["nll"] < 2.67 - 0.2
    assert 0.83 < scores["coverage_90"] < 0.99


def test_c24_an_index_column_and_quoted_commas_are_read_as_what_they_are(type_command):
    output = type_command("bnnzoo sample --data c24_crab.csv --target sat --budget 15s -o c24a.nc")
    warnings = [line for line in output.err.splitlines() if "crab" in line and "c24_crab" not in line.split(":")[2]]
    assert any("different in every row" in line or "identifier" in line for line in output.err.splitlines()), warnings
    type_command(
        "bnnzoo sample linear nuts --data c24_crab.csv --target sat --drop crab,y,width_C --categories color,spine "
        "--likelihood poisson --warmup 500 --draws 500 -o c24b.nc"
    )
    type_command("bnnzoo report c24b.nc -o c24.html")
    assert Path("c24.html").stat().st_size > 10_000
