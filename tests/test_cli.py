"""The command line end to end: files, exit codes, signals, kills, a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny
import xarray as xr

import bnnzoo
from bnnzoo import cli, store

LONG = {"warmup": 400, "draws": 300, "thin": 100, "checkpoint_every": 0}
"""A run of a second or two of sampling, in parts."""


def call(*arguments: object) -> int:
    return cli.run([str(argument) for argument in arguments])


def draws(path: Path) -> dict[str, np.ndarray]:
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        groups = ("posterior", "sample_stats")
        return {f"{group}/{n}": v.values for group in groups for n, v in tree[group].data_vars.items()}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("table") / "houses.csv"
    frame = pd.DataFrame(rng.normal(size=(40, 2)), columns=["size", "age"])
    frame.assign(price=3 * frame["size"] - frame["age"] + 0.1 * rng.normal(size=40)).to_csv(path, index=False)
    return path


def test_from_a_table_to_predictions(table, tmp_path, capsys):
    out, recipe = tmp_path / "run.nc", tmp_path / "recipe.yaml"
    words = ["linear", "random-walk", "--data", table, "--warmup", 20, "--draws", 20, "--chains", 2]
    assert call("sample", *words, "-o", out, "--json", "--quiet") == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert (summary["draws"], summary["rows"], summary["task"]) == (20, 36, "regression")
    assert summary["likelihood"] == "gaussian"
    # Twenty draws of a random walk: the run says itself, in its file too, that they are nothing to rely on.
    assert summary["verdict"].startswith("not converged: ")
    assert summary["rhat"] > 1.05 or summary["ess_bulk"] < 100
    assert captured.err == f"bnnzoo: warning: {out}: {summary['verdict']}\n"
    with xr.open_datatree(out, engine="h5netcdf") as tree:
        assert (tree.attrs["converged"], tree.attrs["verdict"]) == (0, summary["verdict"])

    assert call("sample", *words, "-o", out) == 2
    assert "exists" in capsys.readouterr().err

    assert call("show", *words) == 0
    recipe.write_text(capsys.readouterr().out)
    assert call("sample", "--config", recipe, "-o", tmp_path / "again.nc", "--quiet") == 0
    tiny.assert_same_bits(draws(tmp_path / "again.nc"), draws(out))
    with xr.open_datatree(out, engine="h5netcdf") as tree:
        recipe.write_text(tree.attrs["recipe"])
    assert call("sample", "--config", recipe, "-o", out, "--force", "--quiet") == 0
    tiny.assert_same_bits(draws(tmp_path / "again.nc"), draws(out))
    capsys.readouterr()

    assert call("evaluate", out, "--json", "--quiet") == 0
    captured = capsys.readouterr()
    scores = json.loads(captured.out)
    assert "not converged" in captured.err
    assert {"nll", "rmse", "coverage_90"} <= set(scores)
    # So few draws repeat too often for a Pareto k.
    assert [name for name, value in scores.items() if not isinstance(value, int | float)] in ([], ["loo_pareto_k"])

    assert call("predict", out, "--data", table, "-o", tmp_path / "p.csv") == 0
    assert "not converged" in capsys.readouterr().err
    assert list(pd.read_csv(tmp_path / "p.csv").columns)[:2] == ["mean", "sd"]
    assert call("predict", out, "--data", table, "-o", tmp_path / "p.csv") == 2
    assert call("resume", out) == 2
    assert "nothing to resume" in capsys.readouterr().err


def test_no_test_rows(table, tmp_path, capsys):
    out = tmp_path / "run.nc"
    words = ["linear", "random-walk", "--data", table, "--warmup", 20, "--draws", 20, "--chains", 2]
    assert call("sample", *words, "--init", "prior", "--test-fraction", 0, "-o", out, "--quiet") == 0
    assert call("evaluate", out, "--quiet") == 2
    assert "--data" in capsys.readouterr().err
    assert call("evaluate", out, "--data", table, "--json", "--quiet") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 40


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--data", "gone.csv"], "gone.csv"),
        (["--data", "diabetes", "--likelihood", "poisson", "--chains", "0"], "--chains"),
        (
            ["--data", "digits", "--task", "classification", "--likelihood", "gaussian"],
            "gaussian is for regression",
        ),
        (["--data", "diabetes", "--prior.scale", "-1"], "--prior.scale"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(more, said, tmp_path, capsys):
    assert call("sample", "linear", "mala", *more, "-o", tmp_path / "run.nc", "--quiet") == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.startswith("bnnzoo: ")
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["evaluate", "resume"])
def test_what_is_no_run(command, tmp_path, capsys):
    assert call(command, tmp_path / "gone.nc") == 2
    (tmp_path / "text.nc").write_text("text")
    assert call(command, tmp_path / "text.nc") == 2
    assert "Traceback" not in capsys.readouterr().err


# ---- signals, kills, a full disk -----------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run.nc"
    assert call(*tiny.words("random-walk", **LONG), "-o", out) == 0
    return draws(out)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}


def start(out: Path, environment: dict[str, str], *prefix: str) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, "-m", "bnnzoo", *tiny.words("random-walk", **LONG), "-o", str(out)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for(done, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 90
    while not done():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.01)


def sampling(out: Path) -> bool:
    folder = store.parts_folder(out)
    return (folder / "checkpoint.npz").exists() and (folder / "p000-000001.npz").exists()


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), pytest.param("SIGTERM", 143, marks=pytest.mark.slow)])
def test_a_signal_stops_where_it_can_be_resumed(name, code, whole, environment, tmp_path):
    out = tmp_path / "run.nc"
    process = start(out, environment)
    wait_for(lambda: sampling(out), process)
    process.send_signal(getattr(signal, name))
    _, said = process.communicate(timeout=30)
    assert process.returncode == code, said
    assert f"{name}: stopped after" in said
    assert f"go on with: bnnzoo resume {out}" in said
    assert "Traceback" not in said
    part = draws(out)
    count = part["posterior/weight"].shape[1]
    assert 0 < count < LONG["draws"]
    tiny.assert_same_bits(part, {n: v[:, :count] for n, v in whole.items()})
    assert call("resume", out, "--quiet") == 0
    tiny.assert_same_bits(draws(out), whole)


def _killed_and_resumed(out: Path, environment: dict[str, str], whole: dict[str, np.ndarray], after) -> None:
    process = start(out, environment)
    after(process)
    process.kill()
    process.communicate()
    if out.exists():
        found = draws(out)
        assert all(np.isfinite(v).all() for n, v in found.items() if n.startswith("posterior"))
    if not (store.parts_folder(out) / "header.json").exists():
        if not out.exists():  # it held the name, and had not begun: the same words begin again
            assert call(*tiny.words("random-walk", **LONG), "-o", out) == 0
        tiny.assert_same_bits(draws(out), whole)
        return
    tree = bnnzoo.open(out).posterior
    if "posterior" in tree.children:
        assert tree["posterior"].sizes["draw"] == tree.attrs["draws_done"]
        assert np.isfinite(tree["posterior"]["weight"].values).all()
    resumable = (store.parts_folder(out) / "checkpoint.npz").exists()
    code = (
        call("resume", out, "--quiet") if resumable else call(*tiny.words("random-walk", **LONG), "-o", out, "--force")
    )
    assert code == 0
    tiny.assert_same_bits(draws(out), whole)


def test_a_killed_run_resumes_to_the_same_bits(whole, environment, tmp_path):
    out = tmp_path / "run.nc"
    _killed_and_resumed(out, environment, whole, lambda process: wait_for(lambda: sampling(out), process))


@pytest.mark.slow
def test_a_run_killed_at_any_time_resumes_to_the_same_bits(whole, environment, tmp_path):
    """Twenty random times between the start and the end."""
    out = tmp_path / "first.nc"
    began = time.monotonic()
    process = start(out, environment)
    process.communicate()
    longest = time.monotonic() - began
    for number, share in enumerate(np.random.default_rng(0).uniform(0.2, 1, 20)):
        out = tmp_path / f"run-{number}.nc"

        def wait(process: subprocess.Popen[str], seconds: float = share * longest) -> None:
            time.sleep(seconds)

        _killed_and_resumed(out, environment, whole, wait)


def test_a_full_disk_is_a_message_and_loses_nothing(whole, environment, tmp_path):
    """No file may grow beyond 64 KiB; the parts fit, the file built from them does not."""
    out = tmp_path / "run.nc"
    quiet = {**environment, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    process = start(out, quiet, "bash", "-c", 'ulimit -f 64 && exec "$@"', "bash")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1, said
    assert str(out) in said
    assert "cannot be written" in said
    assert "Traceback" not in said
    assert bnnzoo.open(out).posterior["posterior"].sizes["draw"] == LONG["draws"]
    assert call("resume", out, "--quiet") == 0
    tiny.assert_same_bits(draws(out), whole)
