"""`bnnzoo bench run`: fits in child processes, one line each, continued after any interruption."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from bnnzoo_bench import read_results
from bnnzoo_bench.page import to_markdown
from bnnzoo_bench.results import Results, key_of
from bnnzoo_bench.tables import sections
from conftest import make_table

PEERS = """
import os, signal, time
from bnnzoo_bench import Normal

class Slow:
    def fit(self, x, y, seconds, seed):
        open(f"pid-{os.getpid()}", "w").close()
        time.sleep(60)

    def predict(self, x): ...

class Crash(Slow):
    def fit(self, x, y, seconds, seed):
        os.kill(os.getpid(), signal.SIGSEGV)

class Refusing(Slow):
    def fit(self, x, y, seconds, seed):
        if not os.path.exists("mended"):
            raise ValueError("too\\nmany rows")
        self.sd = y.std()

    def predict(self, x):
        return Normal(0 * x[:, 0], self.sd)
"""


@pytest.fixture
def table(tmp_path):
    (tmp_path / "own_peers.py").write_text(PEERS)
    (tmp_path / "swept.yaml").write_text("model: linear\nsampler: nuts\nsweep: {seed: [0, 1]}\n")
    (tmp_path / "timed.yaml").write_text("model: linear\nsampler: nuts\nbudget: soon\n")
    return make_table(tmp_path / "t.csv")


def metrics(folder):
    return {key_of(line): line["metrics"] for line in read_results(folder)}


def run(call, *words):
    return call("run", "--problems", "t.csv", "--budget", "5s", "-o", "out", *words)


def test_every_fit_has_one_line_that_describes_it(call, table, capsys):
    assert run(call, "--methods", "mean,linear", "--folds", "0-1", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "folder": "out",
        "fits": 4,
        "new": 4,
        "failed": 0,
        "next": "bnnzoo bench table out",
    }
    assert "bnnzoo: 3 of 4: t, fold 1, mean; about 0 s left" in captured.err
    assert [key_of(line) for line in read_results("out")] == [
        ("t", 0, "mean"), ("t", 0, "linear"), ("t", 1, "mean"), ("t", 1, "linear"),
    ]  # fmt: skip
    line = read_results("out")[1]
    assert (line["status"], line["rows"], line["test_rows"], line["features"]) == ("done", 36, 4, 2)
    assert set(line["metrics"]) == {"crps", "nll", "rmse", "interval_score_90", "coverage_90"}
    assert {"bnnzoo", "numpy", "python"} <= set(line["versions"])
    assert line["peak_memory_mb"] > 20
    assert line["hardware"]["cores"] >= 1
    assert len(line["sha256"]) == 64


def test_the_same_command_continues_after_a_truncated_line(call, table, capsys):
    assert run(call, "--methods", "mean,linear", "--folds", "0-1", "--quiet") == 0
    whole = metrics("out")
    path = table.parent / "out" / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    capsys.readouterr()
    assert run(call, "--methods", "mean,linear", "--folds", "0-1", "--json") == 0
    captured = capsys.readouterr()
    assert "the last line of the results was incomplete and is removed; its fit is repeated" in captured.err
    assert json.loads(captured.out)["new"] == 1
    assert metrics("out") == whole
    assert len(path.read_text().splitlines()) == 4


def test_a_corrupted_line_in_the_middle_is_refused(call, table, capsys):
    assert run(call, "--methods", "mean", "--folds", "0-1", "--quiet") == 0
    path = table.parent / "out" / "results.jsonl"
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text("{" + first + second)
    assert run(call, "--methods", "mean") == 2
    assert "results.jsonl: line 1: corrupted" in capsys.readouterr().err


def test_a_killed_benchmark_continues_and_its_child_ends(call, table):
    methods = "mean,linear,own_peers:Slow"
    words = ["run", "--problems", "t.csv", "--budget", "5s", "--methods", methods, "--folds", "0", "-o", "out"]
    process = subprocess.Popen([sys.executable, "-m", "bnnzoo", "bench", *words], stderr=subprocess.DEVNULL)
    pids = _wait_for(lambda: [int(path.name[4:]) for path in table.parent.glob("pid-*")])
    process.send_signal(signal.SIGKILL)
    process.wait()
    _wait_for(lambda: not _is_alive(pids[0]))
    assert [line["method"] for line in read_results("out")] == ["mean", "linear"]
    assert run(call, "--methods", "mean,linear", "--folds", "0-1", "--quiet") == 0
    assert call("run", "--problems", "t.csv", "--budget", "5s", "-o", "whole", "--methods", "mean,linear",
                "--folds", "0-1", "--quiet") == 0  # fmt: skip
    assert metrics("out") == metrics("whole")


def _wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return value


def _is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--budget", "7s"],
            "was written with --budget 5s (got 7s); use --budget 5s, or use another folder: -o out-7s",
        ),
        (["--seed", "3"], "was written with --seed 0 (got 3); use --seed 0, or use another folder: -o out-3"),
        (["--target", "a"], "the data, the folds or the target of t have changed since the first fit"),
    ],
)
def test_changed_settings_are_refused_with_what_to_type(call, table, capsys, words, message):
    assert run(call, "--methods", "mean", "--folds", "0", "--quiet") == 0
    assert run(call, "--methods", "mean", *words) == 2
    assert message in capsys.readouterr().err
    assert len(read_results("out")) == 1


def test_changed_data_are_refused(call, table, capsys):
    assert run(call, "--methods", "mean", "--folds", "0", "--quiet") == 0
    make_table(table, seed=1)
    assert run(call, "--methods", "linear") == 2
    assert "the data, the folds or the target of t have changed" in capsys.readouterr().err


def test_an_own_method_whose_source_has_changed_is_refused(call, table, capsys):
    """By `run` and by `verify`. Older lines have no checksum of the source, and are accepted."""
    source = table.parent / "edited_peer.py"
    source.write_text("from bnnzoo_bench.peers import Mean\n\nclass own(Mean): ...\n")
    words = ["--methods", "edited_peer:own,mean", "--quiet", "--folds"]
    assert run(call, *words, "0") == 0
    assert run(call, *words, "0-1") == 0
    assert call("verify", "out", "--rows", 4, "--quiet") == 0
    lines = read_results("out")
    assert {line["method"]: (line["kind"], len(line["recipe_sha256"])) for line in lines} == {
        "edited_peer:own": ("peer", 64), "mean": ("peer", 0),
    }  # fmt: skip
    source.write_text(source.read_text() + "# new\n")
    capsys.readouterr()
    assert run(call, *words, "0-2") == 2
    assert capsys.readouterr().err == (
        "bnnzoo: out/results.jsonl: the source of the method edited_peer:own has changed since the first fit; remove "
        "its lines, or use another folder: -o out-2\n"
    )
    assert call("verify", "out", "--rows", 4) == 2
    assert "edited_peer:own: the source of the method has changed since the fit; restore" in capsys.readouterr().err
    assert call("verify", "out", "--methods", "mean", "--quiet") == 0
    older = [json.dumps(line | {"recipe_sha256": ""}) for line in lines]
    (table.parent / "out" / "results.jsonl").write_text("\n".join([*older, ""]))
    assert run(call, *words, "0-2") == 0
    assert call("verify", "out", "--quiet") == 0


def test_the_checksum_is_that_of_the_source_that_was_fitted(call, table, monkeypatch):
    """The user edits the file after the start of the benchmark and before the fit."""
    source = table.parent / "late_peer.py"
    source.write_text("from bnnzoo_bench.peers import Mean\n\nclass Own(Mean): ...\n")
    monkeypatch.setattr(Results, "refuse_changes", lambda *_, **__: source.write_text(source.read_text() + "# new\n"))
    assert run(call, "--methods", "late_peer:Own", "--folds", "0", "--quiet") == 0
    assert read_results("out")[0]["recipe_sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()


def test_a_failed_fit_names_the_method_and_the_wrong_shape(call, table):
    (table.parent / "scalar_peer.py").write_text(
        "from bnnzoo_bench import Normal\n\nclass Own:\n"
        "    def fit(self, x, y, seconds, seed): ...\n"
        "    def predict(self, x): return Normal(0.5, 1.0)\n"
    )
    assert run(call, "--methods", "scalar_peer:Own", "--folds", "0", "--quiet") == 0
    assert read_results("out")[0]["reason"] == (
        "scalar_peer:Own: mean of the result of predict: expected an array of shape (4,), got shape ()"
    )


def test_the_budget_of_a_recipe_replaces_that_of_the_command(call, table, monkeypatch):
    """Also for the time limit of the fit and in the results; a recipe with another budget is another recipe."""
    (table.parent / "own.yaml").write_text("model: linear\nsampler: nuts\nbudget: 2m\n")
    budgets = []

    def fit(problem, fold, method, budget, seed):
        budgets.append(budget)
        return {"status": "failed", "reason": "not fitted"}

    monkeypatch.setattr("bnnzoo_bench.running.fit_in_child", fit)
    assert run(call, "--methods", "own.yaml,mean", "--folds", "0", "--quiet") == 0
    assert budgets == [120.0, 5.0]
    assert [(line["budget"], line["own_budget"]) for line in read_results("out")] == [(120.0, True), (5.0, False)]
    assert run(call, "--methods", "own.yaml,mean", "--folds", "0-1", "--quiet") == 0
    assert budgets[2:] == [120.0, 5.0]
    assert "budget 120 or 5 s per fit" in to_markdown(sections(read_results("out")))


def test_failed_fits_are_recorded_and_repeated_on_request(call, table, capsys):
    words = ["--methods", "own_peers:Crash,own_peers:Refusing,mean", "--folds", "0"]
    assert run(call, *words) == 0
    assert "bnnzoo: warning: out: 2 of 3 fits failed; --retry-failed repeats them" in capsys.readouterr().err
    crash, refusing, mean = read_results("out")
    assert (crash["status"], crash["reason"][:36]) == ("failed", "the process was ended by SIGSEGV")
    assert (refusing["status"], refusing["reason"]) == ("failed", "ValueError: too many rows")
    assert mean["status"] == "done"
    assert call("table", "out") == 0
    assert "ValueError: too many rows" in capsys.readouterr().out
    (table.parent / "mended").touch()
    assert run(call, *words, "--json", "--quiet") == 0
    assert json.loads(capsys.readouterr().out)["new"] == 0
    assert run(call, *words, "--json", "--quiet", "--retry-failed") == 0
    assert json.loads(capsys.readouterr().out)["new"] == 2
    assert {line["method"]: line["status"] for line in read_results("out")} == {
        "own_peers:Crash": "failed", "own_peers:Refusing": "done", "mean": "done",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "mlp:nutz"], "bnnzoo: --methods: mlp:nutz: unknown sampler 'nutz'; use one of random-walk"),
        (["--methods", "lost_peer:own"], "bnnzoo: --methods: lost_peer:own: unknown model 'lost_peer'; use one of "),
        (
            ["--methods", "own_peers:own"],
            "bnnzoo: --methods: own_peers:own: cannot be imported (module 'own_peers' has no attribute 'own'); install "
            "the package of the class, run the command in the folder of its module, or write MODEL:SAMPLER",
        ),
        (["--methods", "nothing.here:Peer"], "bnnzoo: --methods: nothing.here:Peer: cannot be imported"),
        (["--methods", "swept.yaml"], "bnnzoo: swept.yaml: sweep: defines several runs, but a method is one run"),
        (["--methods", "timed.yaml"], "bnnzoo: timed.yaml: budget: expected a time such as 90s, 5m or 2h, got 'soon'"),
        (["--folds", "10", "--methods", "mean"], "bnnzoo: --folds: no problem has any of these folds; use"),
    ],
)
def test_wrong_usage_is_one_line_and_writes_nothing(call, table, capsys, words, message):
    assert run(call, *words) == 2
    err = capsys.readouterr().err
    assert err.startswith(message)
    assert err.count("\n") == 1
    assert not (table.parent / "out").exists()


def test_a_missing_package_is_named_with_the_command_that_installs_it(call, table, capsys, monkeypatch):
    monkeypatch.setattr("bnnzoo_bench.peers.CatBoost.requires", "no-such-package")
    assert run(call, "--methods", "catboost") == 2
    assert capsys.readouterr().err == (
        "bnnzoo: --methods: catboost requires the package no-such-package, which is not installed: "
        "pip install no-such-package\n"
    )


def test_help_imports_neither_jax_nor_numpy():
    code = (
        "import sys\nfrom bnnzoo import cli\n"
        "codes = [cli.run(words) for words in (['--help'], ['bench', '--help'], ['bench', 'run', '--help'])]\n"
        "print(codes, sorted({'jax', 'numpy', 'scipy'} & set(sys.modules)), file=sys.stderr)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stderr.splitlines() == ["[0, 0, 0] []"]
    assert "Compare methods on the same problems and splits." in process.stdout
