"""The command line end to end: files, exit codes, signals, kills, a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
import xarray as xr

import bnnzoo
from bnnzoo import cli, store
from bnnzoo.api import entrances, resuming
from bnnzoo.evaluation.convergence.findings import Limits
from bnnzoo.evaluation.formulas.metrics import Estimate

LONG = {"warmup": 400, "draws": 300, "thin": 100, "checkpoint_every": 0}
"""A run with one or two seconds of sampling, in parts."""


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


@pytest.mark.long
def test_from_a_table_to_predictions(table, tmp_path, capsys):
    out, recipe = tmp_path / "run.nc", tmp_path / "recipe.yaml"
    arguments = ["linear", "random-walk", "--data", table, "--warmup", 20, "--draws", 20, "--chains", 2]
    assert call("sample", *arguments, "-o", out, "--json", "--quiet") == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert (summary["draws"], summary["rows"], summary["task"]) == (20, 36, "regression")
    assert summary["likelihood"] == "gaussian"
    # Twenty draws of a random walk: the run and its file report that they are unreliable.
    assert summary["verdict"].startswith("not settled: ")
    assert summary["rhat"] > 1.05 or summary["ess_bulk"] < 100
    headline = summary["verdict"].partition("; ")[0]
    assert captured.err == f"bnnzoo: warning: {out}: {headline}; all reasons: bnnzoo diagnose {out}\n"
    with xr.open_datatree(out, engine="h5netcdf") as tree:
        assert (tree.attrs["converged"], tree.attrs["verdict"]) == (0, summary["verdict"])

    assert call("sample", *arguments, "-o", out) == 2
    assert "exists" in capsys.readouterr().err

    assert call("show", *arguments) == 0
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
    assert "not settled" in captured.err
    assert {"nll", "rmse", "coverage_90"} <= set(scores)
    # So few draws have too many repetitions for a Pareto k.
    assert [name for name, value in scores.items() if not isinstance(value, int | float)] in ([], ["loo_pareto_k"])

    assert call("predict", out, "--data", table, "-o", tmp_path / "p.csv") == 0
    assert "not settled" in capsys.readouterr().err
    assert list(pd.read_csv(tmp_path / "p.csv").columns)[:2] == ["mean", "sd"]
    assert call("predict", out, "--data", table, "-o", tmp_path / "p.csv") == 2
    assert call("resume", out) == 2
    assert "nothing to resume" in capsys.readouterr().err


@pytest.mark.long
def test_a_run_without_test_rows_is_not_evaluated(table, tmp_path, capsys):
    out = tmp_path / "run.nc"
    arguments = ["linear", "random-walk", "--data", table, "--warmup", 20, "--draws", 20, "--chains", 2]
    assert call("sample", *arguments, "--init", "prior", "--test-fraction", 0, "-o", out, "--quiet") == 0
    assert call("evaluate", out, "--quiet") == 2
    assert "--data" in capsys.readouterr().err
    assert call("evaluate", out, "--data", table, "--json", "--quiet") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 40


@pytest.mark.parametrize(
    ("more", "message"),
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
def test_bad_input_is_one_line_and_leaves_nothing(more, message, tmp_path, capsys):
    assert call("sample", "linear", "mala", *more, "-o", tmp_path / "run.nc", "--quiet") == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("bnnzoo: ")
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["evaluate", "resume"])
def test_a_file_that_is_no_run_is_refused(command, tmp_path, capsys):
    assert call(command, tmp_path / "gone.nc") == 2
    (tmp_path / "text.nc").write_text("text")
    assert call(command, tmp_path / "text.nc") == 2
    assert "Traceback" not in capsys.readouterr().err


# ---- what is told, and to whom --------------------------------------------------------------------

FOUND = {"exactness": "exact"}
ANSWERS: dict[str, Any] = {
    "audit": SimpleNamespace(record=dict, passed=True),
    "estimates": {},
    "predict": pd.DataFrame({"mean": [1.0]}),
    "predict_to": None,
    "report": None,
    "plot_to": [],
    "evidence": SimpleNamespace(record=dict),
    "diagnose": FOUND,
    "findings": (),
    "blocks": [],
    "summary": {},
}


class Asked:
    """A run that has not converged and records its calls."""

    path = "run.nc"
    predictor = SimpleNamespace(
        record=SimpleNamespace(doubt="not converged", attributes={}, has_test_rows=True),
        signature=SimpleNamespace(target_names=()),
    )

    def __init__(self) -> None:
        self.asked: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def caveats(self, estimates: Any) -> dict[str, str]:
        del estimates
        return {}

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any, **named: Any) -> Any:
            self.asked[name] = arguments, named
            return ANSWERS[name]

        return answer


PICTURES = "--format pdf --format svg --only band --range -1 2 --band function --truth --overlay --ood k.npz --force"


NO_INTERVAL = {"interval": None, "level": None, "calibration": None}


@pytest.mark.parametrize(
    ("command", "name", "arguments", "named"),
    [
        ("audit run.nc", "audit", (), {"chains": 128, "seconds": None, "tolerance": 0.2, "seed": 0}),
        (
            "audit run.nc --chains 40 --seconds 5 --seed 7",
            "audit",
            (),
            {"chains": 40, "seconds": 5.0, "tolerance": 0.2, "seed": 7},
        ),
        (
            "evaluate run.nc --data t.csv --ood noise --unseen zero --quiet",
            "estimates",
            ("t.csv",),
            {"ood": "noise", "unseen": "zero", "observer": None, "save": True, "scheduler": None, **NO_INTERVAL},
        ),
        (
            "predict run.nc --data t.csv --unseen zero --seed 3",
            "predict",
            ("t.csv",),
            {"draws": None, "seed": 3, "unseen": "zero", "observer": None, **NO_INTERVAL},
        ),
        (
            "predict run.nc --draws 5 --seed 3 --force -o p.csv",
            "predict_to",
            (None, Path("p.csv")),
            {"draws": 5, "seed": 3, "force": True, "unseen": None, "observer": None, **NO_INTERVAL},
        ),
        ("report run.nc --force -o r.html", "report", (Path("r.html"),), {"force": True}),
        (
            f"plot run.nc -o p {PICTURES}",
            "plot_to",
            (Path("p"),),
            {
                "others": [],
                "formats": ["pdf", "svg"],
                "names": ["band"],
                "ood": "k.npz",
                "force": True,
                "range": (-1.0, 2.0),
                "band": "function",
                "truth": "data",
                "overlay": True,
            },
        ),
        (
            "diagnose run.nc --rhat 2 --ess 3 --diverging 0.4 --ebfmi 0.5",
            "findings",
            (FOUND, Limits(rhat=2.0, ess=3.0, diverging=0.4, ebfmi=0.5)),
            {},
        ),
        ("diagnose run.nc", "findings", (FOUND, Limits()), {}),
        ("evidence run.nc", "evidence", (), {}),
    ],
)
def test_commands_call_the_run_with_their_options(command, name, arguments, named, monkeypatch, capsys):
    """All results from draws that have not converged come with a warning."""
    run = Asked()
    monkeypatch.setattr(entrances, "open", lambda path: run)
    monkeypatch.setattr(store.reading, "check", lambda path: None)
    assert call(*command.split()) == 0
    assert run.asked[name] == (arguments, named)
    says_so_itself = command.startswith(("audit", "diagnose"))
    assert (capsys.readouterr().err == "bnnzoo: warning: run.nc: not converged\n") != says_so_itself


def test_the_other_metrics_are_those_of_the_same_command(monkeypatch, capsys):
    monkeypatch.setitem(ANSWERS, "estimates", {"nll": Estimate(1.0), "log_score": Estimate(2.0)})
    monkeypatch.setattr(entrances, "open", lambda path: Asked())
    monkeypatch.setattr(store.reading, "check", lambda path: None)
    assert call("evaluate", "run.nc", "--data", "t.csv", "--quiet") == 0
    assert capsys.readouterr().err.endswith("bnnzoo: not shown: 1 of 2 metrics; use --all to print all\n")


def test_resume_and_merge_warn_and_pass_their_options(tmp_path, monkeypatch, capsys):
    run, messages = Asked(), list[Any]()
    monkeypatch.setattr(entrances, "open", lambda path: run)
    monkeypatch.setattr(store.reading, "check", lambda path: None)
    monkeypatch.setattr(store, "resumable", lambda path, part: messages.append((path, part)))
    monkeypatch.setattr(resuming, "resume", lambda path, *, observer, stop, **how: messages.append(how) or run)
    monkeypatch.setattr("bnnzoo.api.concat.concat", lambda runs: messages.append(runs) or run)
    monkeypatch.setitem(ANSWERS, "save", None)
    assert call("resume", "run.nc", "--from-part", 3, "--break-lock", "--quiet") == 0
    assert call("resume", "run.nc", "--allow-inexact-resume", "--quiet") == 0
    assert call("merge", "a.nc", "b.nc", "-o", tmp_path / "all.nc", "--force") == 0
    not_asked = {"draws": None, "budget": None, "log_to": None, "progress": False}
    how = {"allow_inexact": False, "from_part": 3, "break_lock": True, **not_asked}
    assert messages[:2] == [(Path("run.nc"), 3), how]
    assert messages[2] == (Path("run.nc"), None)
    assert messages[3] == {"allow_inexact": True, "from_part": None, "break_lock": False, **not_asked}
    assert messages[4] == [Path("a.nc"), Path("b.nc")]
    assert run.asked["save"] == ((tmp_path / "all.nc",), {"force": True})
    assert capsys.readouterr().err == 3 * "bnnzoo: warning: run.nc: not converged\n"


@pytest.mark.parametrize(
    ("arguments", "function", "named"),
    [
        (
            "check sampler mala --target skewed --chains 40 --warmup 7 --draws 11 --seed 5 --sampler.step-size 0.25",
            "check_sampler",
            {"targets": ("skewed",), "chains": 40, "warmup": 7, "draws": 11, "seed": 5},
        ),
        (
            "check model mlp --sbc --sampler mala --input 3 --replicates 40 --warmup 7 --thin 9 --seed 5",
            "check_calibration",
            {"input_shape": (3,), "replicates": 40, "warmup": 7, "thin": 9, "seed": 5},
        ),
        ("check model mlp --input 3 --input 2,4 --seed 5", "check_model", {"inputs": [(3,), (2, 4)], "seed": 5}),
    ],
)
def test_check_commands_pass_their_options(arguments, function, named, monkeypatch, capsys):
    calls: list[Any] = []
    report = SimpleNamespace(passed=False, verdict="biased")

    def check(*parts: Any, **options: Any) -> Any:
        calls.extend([[type(part).__name__ for part in parts], parts[0], options])
        return report

    monkeypatch.setattr(f"bnnzoo.testing.{function}", check)
    assert call(*arguments.split(), "--quiet") == 3
    kind, name = arguments.split()[1:3]
    assert capsys.readouterr().err == f"bnnzoo: {kind} {name}: biased\n"
    assert calls[0] == {"sampler": ["Mala"], "model": ["Mlp", "Mala"] if "--sbc" in arguments else ["Mlp"]}[kind]
    assert {name: value for name, value in calls[2].items() if name != "observer"} == named
    assert getattr(calls[1], "step_size", 0.25) == 0.25


# ---- signals, kills, a full disk -----------------------------------------------------------------


@pytest.fixture(scope="module")
def finished_draws(tmp_path_factory):
    """Return the draws of the uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run.nc"
    assert call(*tiny.arguments("random-walk", **LONG), "-o", out) == 0
    return draws(out)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}


def start(out: Path, environment: dict[str, str], *prefix: str) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, "-m", "bnnzoo", *tiny.arguments("random-walk", **LONG), "-o", str(out)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for(condition, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.01)


def sampling(out: Path) -> bool:
    folder = store.parts_folder(out)
    return (folder / "checkpoint.npz").exists() and (folder / "p000-000001.npz").exists()


@pytest.mark.long
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), pytest.param("SIGTERM", 143, marks=pytest.mark.slow)])
def test_a_signal_leaves_a_resumable_run(name, code, finished_draws, environment, tmp_path):
    out = tmp_path / "run.nc"
    process = start(out, environment)
    wait_for(lambda: sampling(out), process)
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    assert f"{name}: stopped after" in errors
    assert f"continue: bnnzoo resume {out}" in errors
    assert "Traceback" not in errors
    part = draws(out)
    count = part["posterior/weight"].shape[1]
    assert 0 < count < LONG["draws"]
    tiny.assert_same_bits(part, {n: v[:, :count] for n, v in finished_draws.items()})
    assert call("resume", out, "--quiet") == 0
    tiny.assert_same_bits(draws(out), finished_draws)


def _killed_and_resumed(out: Path, environment: dict[str, str], expected: dict[str, np.ndarray], after) -> None:
    process = start(out, environment)
    after(process)
    process.kill()
    process.communicate()
    if out.exists():
        result = draws(out)
        assert all(np.isfinite(v).all() for n, v in result.items() if n.startswith("posterior"))
    if not (store.parts_folder(out) / "header.json").exists():
        if not out.exists():  # it had claimed the name but not started, so the same command starts it
            assert call(*tiny.arguments("random-walk", **LONG), "-o", out) == 0
        tiny.assert_same_bits(draws(out), expected)
        return
    tree = bnnzoo.open(out).posterior
    if "posterior" in tree.children:
        assert tree["posterior"].sizes["draw"] == tree.attrs["draws_done"]
        assert np.isfinite(tree["posterior"]["weight"].values).all()
    resumable = (store.parts_folder(out) / "checkpoint.npz").exists()
    code = (
        call("resume", out, "--quiet")
        if resumable
        else call(*tiny.arguments("random-walk", **LONG), "-o", out, "--force")
    )
    assert code == 0
    tiny.assert_same_bits(draws(out), expected)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(finished_draws, environment, tmp_path):
    out = tmp_path / "run.nc"
    _killed_and_resumed(out, environment, finished_draws, lambda process: wait_for(lambda: sampling(out), process))


@pytest.mark.slow
def test_a_run_killed_at_any_time_resumes_to_the_same_bits(finished_draws, environment, tmp_path):
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

        _killed_and_resumed(out, environment, finished_draws, wait)


@pytest.mark.slow
def test_a_full_disk_is_a_message_and_loses_nothing(finished_draws, environment, tmp_path):
    """Files are limited to 64 KiB: the parts fit, but the file built from them does not."""
    out = tmp_path / "run.nc"
    quiet = {**environment, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    process = start(out, quiet, "bash", "-c", 'ulimit -f 64 && exec "$@"', "bash")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    assert str(out) in errors
    assert "cannot be written" in errors
    assert "Traceback" not in errors
    assert bnnzoo.open(out).posterior["posterior"].sizes["draw"] == LONG["draws"]
    assert call("resume", out, "--quiet") == 0
    tiny.assert_same_bits(draws(out), finished_draws)
