"""`bnnzoo distill`: listed without JAX, typed from the rows to the student."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from bnnzoo_distill import load
from conftest import gap_rows

from bnnzoo import cli

QUICK = ("--inputs", "300", "--steps", "20", "--width", "8")


def call(*words: Any) -> int:
    return cli.run([str(word) for word in words])


def test_help_lists_distill_and_imports_no_jax():
    code = (
        "import sys\nfrom bnnzoo import cli\n"
        "codes = cli.run(['--help']), cli.run(['distill', '--help'])\n"
        "print(codes, [name for name in ('jax', 'equinox') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "distill" in result.stdout
    assert "bnnzoo distill run.nc --test test.csv -o student.nc" in result.stdout
    assert result.stdout.splitlines()[-1] == "(0, 0) []"


@pytest.mark.filterwarnings("ignore")
def test_from_rows_to_a_student(tmp_path, capsys):
    x, y = gap_rows(60, 0)
    np.savetxt(tmp_path / "rows.csv", np.hstack([x, y]), delimiter=",", header="x,y", comments="")
    short = ("--warmup", 20, "--draws", 20, "--chains", 2, "--start-steps", 250)
    assert call("sample", "linear", "nuts", "--data", "rows.csv", *short, "-o", "run.nc", "-q") == 0
    capsys.readouterr()
    assert call("distill", "run.nc", "--test", "rows.csv", "-o", "student.nc", *QUICK) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].split()[:3] == ["inputs", "rows", "rmse_mean"]
    assert [line.split()[:2] for line in lines[1:4]] == [["test", "60"], ["shifted", "60"], ["generated", "30"]]
    assert lines[-1] == "student.nc: one network instead of 40 draws"
    assert "bnnzoo: training 20/20" in captured.err
    assert "--steps 60" in captured.err
    student = load("student.nc")
    assert student.mean([100.0]).shape == (1,)

    assert call("distill", "run.nc", "-o", "student.nc", *QUICK) == 2
    assert "student.nc: exists; use" in capsys.readouterr().err
    assert call("distill", "run.nc", "-o", "student.nc", "--force", "--json", "-q", "--seed", 1, *QUICK) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["seed"] == 1
    assert values["test"]["nll_gap"] == load("student.nc").report["test"]["nll_gap"]


def test_wrong_usage_is_one_line(gap_file, capsys):
    for words, message in [
        (("missing.nc", "-o", "student.nc"), "no such run"),
        ((gap_file, "-o", "student.txt"), "must end in .nc or .onnx"),
        ((gap_file, "-o", gap_file, "--force"), "is read by this command"),
        ((gap_file, "-o", "student.nc", "--data", "missing.csv"), "missing.csv"),
        ((gap_file, "-o", "student.nc", "--inputs", 5), "--inputs"),
    ]:
        assert call("distill", *words) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
