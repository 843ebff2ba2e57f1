"""One run in two processes: equal draws to one process, one file, and a state that can be resumed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tiny

import bnnzoo
from bnnzoo import store
from bnnzoo.api import entrances
from bnnzoo.errors import BnnzooError, InterruptedRunError, UsageError
from bnnzoo.sampling import launch
from bnnzoo.sampling.devices import processes
from bnnzoo.sampling.devices.processes import SINGLE_PROCESS, LostProcessError, Processes

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
SHORT = ("--start-steps", "250", "--quiet")
LONG = ("--warmup", "20", "--draws", "4000000", "--checkpoint-every", "0.1", *SHORT)


def begun(arguments: Sequence[str], *own: Sequence[str]) -> list[subprocess.Popen[str]]:
    """Two processes that share a run; `own_part` is what each of them is told beside the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "bnnzoo", *arguments, "--coordinator", f"127.0.0.1:{port}", "--processes", "2"]
    pipe = subprocess.PIPE
    return [
        subprocess.Popen([*command, "--rank", str(rank), *more], stdout=pipe, stderr=pipe, text=True)
        for rank, more in enumerate(own or ((), ()))
    ]


def ended(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Return exit code, stdout and stderr of each process; none may outlive the test."""
    try:
        spoken = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *outputs) for process, outputs in zip(processes, spoken, strict=True)]


def alone(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "bnnzoo", *arguments], check=True, capture_output=True, timeout=200)


def draws_of(path: Path, group: str = "posterior") -> dict[str, np.ndarray]:
    result = bnnzoo.open(path).posterior[group]
    return {str(name): result[name].values for name in result.data_vars}


def assert_same(path: Path, other_path: Path) -> None:
    for group in ("posterior", "sample_stats"):
        first, second = draws_of(path, group), draws_of(other_path, group)
        assert set(first) == set(second)
        for name in first:
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def has_draws(out: Path) -> Callable[[], bool]:
    def enough() -> bool:
        with contextlib.suppress(Exception):
            return store.resumable(out, None)[1].next_step > 100
        return False

    return enough


def test_a_process_has_its_share_and_alone_has_all():
    tree = {"a": np.arange(12).reshape(6, 2), "b": np.arange(6)}
    shares = [Processes(3, rank).own_part(tree) for rank in range(3)]
    np.testing.assert_array_equal(np.concatenate([share["b"] for share in shares]), tree["b"])
    np.testing.assert_array_equal(shares[1]["a"], tree["a"][2:4])
    np.testing.assert_array_equal(Processes(2, 1).own_part(np.zeros((5, 4, 3)), 1), np.zeros((5, 2, 3)))
    assert SINGLE_PROCESS.own_part(tree) is tree
    assert SINGLE_PROCESS.gather(tree) is tree
    assert SINGLE_PROCESS.agree_on_rows(7) == 7
    assert SINGLE_PROCESS.largest(3) == 3
    with SINGLE_PROCESS.share_first_error(), SINGLE_PROCESS.announce_close(None):
        pass


def side_by_side(monkeypatch: pytest.MonkeyPatch, *functions: Callable[[Processes], Any]) -> list[Any]:
    """Return the results or errors of threads that exchange arrays like processes."""
    thread_local, arrays = threading.local(), [np.zeros(0)] * len(functions)
    barrier = threading.Barrier(len(functions), timeout=20)

    def gathered(piece: np.ndarray) -> np.ndarray:
        arrays[thread_local.rank] = piece
        barrier.wait()
        result = np.stack(arrays)  # unequal sizes are an error here, and undefined elsewhere
        barrier.wait()
        return result

    def run(rank: int) -> Any:
        thread_local.rank = rank
        try:
            return functions[rank](Processes(len(functions), rank))
        except LostProcessError as error:
            return error

    monkeypatch.setattr(processes.multihost_utils, "process_allgather", gathered)
    with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, range(len(functions))))


def outcome_of(act: Callable[[], Any]) -> Any:
    """Return the result of a function, or the error that it raises."""
    try:
        return act()
    except BnnzooError as error:
        return f"{type(error).__name__} {error.exit_code}: {error}"


def test_a_tree_of_many_kinds_is_exchanged_leaf_by_leaf(monkeypatch):
    trees = [
        {
            "bytes": np.array([[True, False, True]]) ^ bool(rank),
            "key": jax.random.split(jax.random.key(rank, impl="threefry2x32"), 1),
            "number": np.array([[rank + 0.5]]),
            "part": (np.full((1, 2, 3), rank, np.int32), np.full((1, 0), 7.0)),
        }
        for rank in (0, 1)
    ]
    for gathered in side_by_side(monkeypatch, *(lambda own, tree=tree: own.gather(tree) for tree in trees)):
        for leaf, *each in zip(*map(jax.tree.leaves, (gathered, *trees)), strict=True):
            is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            leaves = [np.asarray(jax.random.key_data(item) if is_key else item) for item in (leaf, *each)]
            assert leaves[0].dtype == leaves[1].dtype
            np.testing.assert_array_equal(leaves[0], np.concatenate(leaves[1:]))
    firsts = side_by_side(
        monkeypatch, *(lambda own, n=n: own.broadcast_first((n, n / 4, np.full(2, n))) for n in (3, 5))
    )
    for count, share, array in firsts:
        assert (count, share, type(count), type(share)) == (3, 0.75, int, float)
        assert array.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("requests", "result"),
    [
        ([(5, 0), (9, 0)], [5, 5]),  # the first's word
        ([(5, 0), (9, 15)], ["InterruptedRunError 143: a process of this run was stopped"] * 2),
        ([(5, 2), (9, 0)], ["InterruptedRunError 130: a process of this run was stopped"] * 2),
        ([(-1, 0), (9, 15)], [0, 0]),  # nothing is left to stop
    ],
)
def test_processes_agree_on_the_length_of_a_chunk(requests, result, monkeypatch):
    acts = [lambda own, a=a: outcome_of(lambda: own.agree_on_rows(a[0], stop_signal=a[1])) for a in requests]
    assert side_by_side(monkeypatch, *acts) == result


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (UsageError("wrong"), "UsageError 2: the first process of this run has ended"),
        (BnnzooError("broken"), "BnnzooError 1: the first process of this run has ended"),
        (InterruptedRunError("stopped", 15), "InterruptedRunError 143: the first process of this run has ended"),
    ],
)
def test_an_error_in_the_first_process_ends_all(error, result, monkeypatch):
    def act(own: Processes) -> Any:
        def body() -> str:
            with own.share_first_error():
                if own.is_first:
                    raise error
            return "went on"

        return outcome_of(body)

    first, other = side_by_side(monkeypatch, act, act)
    assert str(error) in first
    assert other.startswith(result)


def test_processes_with_different_recipes_are_refused(monkeypatch, tmp_path):
    same, out = tiny.problem("mala"), tmp_path / "run.nc"
    store.parts_folder(out).mkdir()
    recipe = dataclasses.replace(same.recipe, seed=9)
    rows = dataclasses.replace(same.train, y=same.train.y + 1)
    differ = "UsageError 2: the processes of this run have different recipes, data or checkpoints"
    for other, place, step, message in (
        (same, out, 3, ""),
        (dataclasses.replace(same, recipe=recipe), out, 3, differ),
        (dataclasses.replace(same, train=rows), out, 3, differ),
        (same, out, 4, differ),
        (same, tmp_path / "else.nc", 3, "the process with rank 1 cannot see the folder of this run"),
    ):
        each = ((same, out, 3), (other, place, step))
        acts = [
            lambda own, a=a: outcome_of(lambda: launch._same_everywhere(a[0], a[1], own, step=a[2]) or "") for a in each
        ]
        for item in side_by_side(monkeypatch, *acts):
            assert message in item if message else item == ""


@pytest.mark.parametrize("size", [1, 2000, 5000, 3_000_000])
def test_every_process_receives_all_values(size, monkeypatch):
    """In pieces, whatever the size."""
    shares = [np.random.default_rng(rank).normal(size=(1, size)) for rank in (0, 1)]
    result = side_by_side(monkeypatch, *(lambda own, share=share: own.gather({"a": share}) for share in shares))
    for item in result:
        np.testing.assert_array_equal(item["a"], np.concatenate(shares))


@pytest.mark.parametrize("draws", [1, 1000, 100_000])
@pytest.mark.parametrize("fails", [0, 1])
def test_a_failing_process_is_an_error_in_the_others(fails, draws, monkeypatch):
    """A process that fails with an error of Python's parts; the others are in the middle of a chunk."""
    ways = [lambda own: own.gather(np.ones((1, draws))), lambda own: own.gather(np.ones((1, draws)))]
    ways[fails] = lambda own: own.wait_for_all()
    result = side_by_side(monkeypatch, *ways)
    assert result[fails] is None
    assert isinstance(result[1 - fails], LostProcessError)
    assert side_by_side(monkeypatch, *[lambda own: own.wait_for_all()] * 2) == [None, None]


def test_exchanging_different_values_is_an_error(monkeypatch):
    """The first says that it is well where another says how many rows it has."""
    ways = (lambda own: own.broadcast_first(0), lambda own: own.gather(np.ones((1, 3))))
    assert all(isinstance(item, LostProcessError) for item in side_by_side(monkeypatch, *ways))


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        "mala --warmup 60 --draws 60 --keep-warmup",
        slow("penalty --warmup 100 --draws 60"),
        slow("nuts --warmup 60 --draws 20"),
        slow("mala --stochastic last --warmup 40 --draws 30"),
        slow("penalty --init prior --warmup 100 --draws 30"),
        slow("sgld --precision float64 --draws 30"),
        slow("gibbs --chains 4 --mesh chains=4 --warmup 20 --draws 20"),
        slow("bbb --draws 20 --keep predictions"),
    ],
)
def test_two_processes_draw_what_one_draws(arguments, tmp_path):
    single, double = tmp_path / "one.nc", tmp_path / "two.nc"
    arguments_given = ("sample", "mlp", *arguments.split(), *SHORT)
    alone(*arguments_given, "-o", str(single))
    first, other = ended(begun([*arguments_given, "--json", "-o", str(double)]))
    assert (first[0], other[0]) == (0, 0), (first[2], other[2])
    # The first speaks, and its output is what was asked for alone.
    assert json.loads(first[1])["complete"] == 1
    assert other[1] == ""
    assert_same(single, double)
    of_one, of_two = bnnzoo.open(single).attributes, bnnzoo.open(double).attributes
    clock = {name for name in of_one if name.startswith("seconds_")} | {"created_at"}
    assert {k: v for k, v in of_one.items() if k not in clock} == {k: v for k, v in of_two.items() if k not in clock}


@pytest.mark.slow
def test_processes_share_the_passes_of_a_cluster(tmp_path):
    """The first process asks the workers for the anchor. Both sample the subspace that one process finds."""
    distributed = pytest.importorskip("distributed")
    single, double = tmp_path / "one.nc", tmp_path / "two.nc"
    arguments = "sample mlp penalty --stochastic identified:20 --model.hidden [3] --sampler.control-variate second"
    shared = (*arguments.split(), "--init", "map", "--chains", "2", "--warmup", "40", "--draws", "20", *SHORT)
    workers = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "protocol": "tcp"}
    with distributed.LocalCluster(**workers, dashboard_address=":0") as cluster:
        command = (*shared, "--scheduler", cluster.scheduler_address)
        alone(*command, "-o", str(single))
        first, other = ended(begun([*command, "--json", "-o", str(double)]))
    assert (first[0], other[0]) == (0, 0), (first[2], other[2])
    assert json.loads(first[1])["complete"] == 1
    assert other[1] == ""
    runs = [bnnzoo.open(path) for path in (single, double)]
    assert [run.attributes["row_shards"] for run in runs] == [2, 2]
    for name in ("fixed_mode", "fixed_basis"):
        expected, actual = (run.posterior["constant_data"][name].values for run in runs)
        np.testing.assert_array_equal(actual, expected)
    assert draws_of(double)["z"].shape == draws_of(single)["z"].shape


@pytest.mark.slow
def test_a_process_that_dies_leaves_a_run_that_goes_on_in_one(tmp_path):
    out, reference = tmp_path / "run.nc", tmp_path / "whole.nc"
    arguments = ("sample", "mlp", "random-walk", *LONG)
    processes = begun([*arguments, "-o", str(out)])
    try:
        wait_for(has_draws(out))
        processes[1].kill()
    finally:
        (code, _, stderr), _ = ended(processes)
    assert code == 1, stderr
    assert f"continue: bnnzoo resume {out}" in stderr
    draws_done = bnnzoo.open(out).attributes["draws_done"]
    assert draws_done > 0
    # The existing draws equal those of one process.
    alone("sample", "mlp", "random-walk", "--warmup", "20", "--draws", str(draws_done), *SHORT, "-o", str(reference))
    for name, values in draws_of(reference).items():
        np.testing.assert_array_equal(values, draws_of(out)[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("dies", [0, 1])
def test_two_processes_resume_a_run_of_one(dies, tmp_path):
    out, reference = tmp_path / "run.nc", tmp_path / "whole.nc"
    arguments = ("sample", "mlp", "penalty", "--warmup", "60", "--draws", "3000", "--checkpoint-every", "0", *SHORT)
    processes = begun([*arguments, "-o", str(out)])
    try:
        wait_for(has_draws(out))
        processes[dies].kill()
    finally:
        ended(processes)
    outcomes = ended(begun(["resume", str(out), "--quiet"]))
    assert [code for code, _, _ in outcomes] == [0, 0], outcomes
    alone(*arguments, "-o", str(reference))
    assert_same(reference, out)


@pytest.mark.slow
def test_two_processes_add_draws_to_a_finished_run(tmp_path):
    out, reference, log = tmp_path / "run.nc", tmp_path / "whole.nc", tmp_path / "log.jsonl"
    arguments = ("sample", "mlp", "penalty", "--warmup", "60", *SHORT)
    for words in ([*arguments, "--draws", "20", "-o", str(out)], ["resume", str(out), "--draws", "50", "--quiet"]):
        outcomes = ended(begun([*words, "--log-to", f"jsonl:{log}"]))
        assert [code for code, _, _ in outcomes] == [0, 0], outcomes
    # Only the first process writes the log.
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["draws"] for line in lines if line["event"] == "start"] == [20, 50]
    chunks = [line for line in lines if line["event"] == "chunk"]
    assert [line["steps"] for line in chunks] == sorted({line["steps"] for line in chunks})
    assert len(chunks[-1]["log_density"]) == 4
    alone(*arguments, "--draws", "50", "-o", str(reference))
    assert_same(reference, out)
    outcomes = ended(begun(["resume", str(out), "--draws", "50", "--quiet"]))
    assert [code for code, _, _ in outcomes] == [2, 2], outcomes
    assert "so --draws, the new total per chain, must be larger (got 50)" in outcomes[0][2]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [0, 1])
def test_a_signal_to_one_stops_all(arguments, tmp_path):
    out = tmp_path / "run.nc"
    processes = begun(["sample", "mlp", "random-walk", *LONG, "-o", str(out)])
    try:
        wait_for(has_draws(out))
        os.kill(processes[arguments].pid, signal.SIGTERM)
    finally:
        outcomes = ended(processes)
    assert [code for code, _, _ in outcomes] == [143, 143], outcomes
    assert f"continue: bnnzoo resume {out}" in outcomes[0][2]


def test_a_signal_to_one_of_those_that_train_the_same_stops_all(tmp_path, monkeypatch):
    """The part that is not sampled is trained in each process, as if it were alone."""
    processes = Processes()
    monkeypatch.setattr(Processes, "current", staticmethod(lambda: processes))
    monkeypatch.setattr(Processes, "largest", lambda self, number: 15 if self is processes else number)
    with pytest.raises(InterruptedRunError, match="stopped while training the parameters that are not sampled"):
        entrances.run_recipe(tiny.recipe("mala", "mlp", stochastic="last", start_steps=250), out=tmp_path / "run.nc")


@pytest.mark.slow
def test_a_budget_ends_all_at_the_same_draw(tmp_path):
    out = tmp_path / "run.nc"
    outcomes = ended(begun(["sample", "mlp", "mala", "--budget", "5s", "--until", "budget", "--quiet", "-o", str(out)]))
    assert [code for code, _, _ in outcomes] == [0, 0], outcomes
    assert bnnzoo.open(out).attributes["ended"] in ("budget", "draws")


@pytest.mark.slow
def test_an_error_of_the_first_process_is_raised_by_all(tmp_path):
    out = tmp_path / "run.nc"
    out.write_bytes(b"mine")
    outcomes = ended(begun(["sample", "mlp", "mala", *SHORT, "-o", str(out)]))
    assert [code for code, _, _ in outcomes] == [2, 2], outcomes
    assert "--force" in outcomes[0][2]
    assert out.read_bytes() == b"mine"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        ([], ["--seed", "1"], "have different recipes, data or checkpoints"),
        (["--chains", "3"], ["--chains", "3"], "2 processes cannot share 3 chains equally"),
        (["--mesh", "chains=1,data=2"], ["--mesh", "chains=1,data=2"], "a multiple of 2, the number of processes"),
    ],
)
def test_inconsistent_processes_are_refused(arguments, more, message, tmp_path):
    outcomes = ended(begun(["sample", "mlp", "mala", *SHORT, "-o", str(tmp_path / "run.nc")], arguments, more))
    assert [code for code, _, _ in outcomes] == [2, 2], outcomes
    assert message in outcomes[0][2]


def test_a_rank_without_address_and_count_is_refused():
    process = subprocess.run(
        [sys.executable, "-m", "bnnzoo", "sample", "mlp", "mala", "--rank", "1"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert process.returncode == 2
    assert "--coordinator" in process.stderr
