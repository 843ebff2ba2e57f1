"""Tables as agencies and laboratories send them: remarks, units, codes, several targets, limits of detection."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def _without_remarks(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith("#")]


def test_c22_remarks_and_a_row_of_widths_are_named_with_their_cure(type_command):
    refusal = type_command("bnnzoo sample --data c22_gauge.tsv --target 01_00060", code=2)
    assert "--skip-rows" in refusal.err
    lines = _without_remarks(Path("c22_gauge.tsv").read_text().splitlines())
    Path("g1.tsv").write_text("\n".join(lines) + "\n")
    refusal = type_command("bnnzoo sample --data g1.tsv --target 01_00060", code=2)
    assert "14n" in refusal.err
    assert "--skip-rows" in refusal.err


def test_c22_a_code_among_the_targets_is_questioned_and_made_missing(type_command):
    lines = _without_remarks(Path("c22_gauge.tsv").read_text().splitlines())
    Path("g2.tsv").write_text("\n".join([lines[0], *lines[2:]]) + "\n")
    quiet = "--target 01_00060 --columns 02_00065 --warmup 50 --draws 50"
    output = type_command(f"bnnzoo sample linear nuts --data g2.tsv {quiet} -o c22s.nc")
    assert "-999999" in output.err
    assert "--missing-code" in output.err
    output = type_command(
        f"bnnzoo sample linear nuts --data g2.tsv {quiet} --missing-code -999999 --missing drop --json -o c22m.nc"
    )
    assert output.json()["rows"] == int(304 * 0.9)


def test_c22_discharge_is_predicted_within_four_percent(type_command):
    lines = _without_remarks(Path("c22_gauge.tsv").read_text().splitlines())
    rows = [lines[0], *(line for line in lines[2:] if line.split("\t")[4] != "-999999")]
    Path("g3.tsv").write_text("\n".join(rows) + "\n")
    type_command("bnnzoo sample --data g3.tsv --target 01_00060 --columns 02_00065 -o c22.nc")
    table = type_command("bnnzoo predict c22.nc --data c22_new.csv").table()
    np.testing.assert_allclose(table["mean"], [25.0, 161.8, 322.4], rtol=0.04)
    ratio = table["aleatoric_sd"] / np.array([1.25, 8.1, 16])
    assert ((ratio > 1 / 1.5) & (ratio < 1.5)).all(), ratio
    assert 0.8 <= type_command("bnnzoo evaluate c22.nc --json").json()["coverage_90"] <= 1


def test_s1_text_and_missing_targets_are_one_message_and_two_targets_are_learned(type_command):
    targets = '--target "yield strength" --target "tensile strength"'
    refusal = type_command(f"bnnzoo sample --data s1_steel_strength.csv {targets} --target elongation", code=2)
    for phrase in ("312", "--drop formula", "elongation", "--missing drop"):
        assert phrase in refusal.err
    type_command(f"bnnzoo sample --data s1_steel_strength.csv {targets} --drop formula,elongation -o s1.nc")
    scores = type_command("bnnzoo evaluate s1.nc --json").json()
    assert scores["yield strength_rmse"] < 301
    assert scores["tensile strength_rmse"] < 346


def test_s3_dots_are_missing_and_limits_of_detection_are_censored(type_command):
    refusal = type_command("bnnzoo sample --data s3_pk.csv --target DV", code=2)
    for phrase in ("AMT", "DV", "<0.5", "--censored"):
        assert phrase in refusal.err
    output = type_command(
        "bnnzoo sample linear nuts --data s3_pk.csv --target DV --columns TIME --censored --missing drop "
        "--likelihood gaussian --warmup 200 --draws 200 -o s3.nc"
    )
    assert "ensored" in output.out + output.err
    type_command("bnnzoo evaluate s3.nc")


def test_s5_a_log_file_has_neither_returns_nor_escapes(type_command):
    output = type_command("bnnzoo sample mlp nuts --data s7_hundred.csv --budget 20s -o s5.nc")
    assert "\r" not in output.err
    assert "\x1b" not in output.err
    assert 1 <= len(output.err.splitlines()) < 80
    assert "%" in output.err or "draw" in output.err


@pytest.mark.parametrize(
    "options",
    ["mlp hmc --sampler.step-size 10 --warmup 0 --draws 200", "mlp nuts --model.hidden 1 --model.activation relu"],
)
def test_s7_a_chain_that_stands_still_fails_the_gate_in_valid_json(type_command, options):
    still = "hmc" in options
    type_command(
        f"bnnzoo sample {options} --data s7_hundred.csv --budget 30s -o s7.nc".replace(
            " --budget 30s", "" if still else " --budget 30s"
        )
    )
    report = type_command("bnnzoo diagnose s7.nc --json").json()
    if still:
        assert report["acceptance_rate"] == 0
        type_command("bnnzoo diagnose s7.nc --gate", code=3)
    type_command("bnnzoo report s7.nc -o s7.html")
