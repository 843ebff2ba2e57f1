"""kill -9, a hundred times: before and during warm-up, in sampling, in the final write, and after a resume.

pytest -m kills -n 0 tests/store/test_kills.py                                       a hundred
BNNZOO_KILLS=2 pytest -m kills -n 0 tests/store/test_kills.py -k "mdn"               two of one run
"""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tiny

import bnnzoo
from bnnzoo import cli, store
from bnnzoo.store import run_parts

pytestmark = [pytest.mark.slow, pytest.mark.kills]

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
KILLS = 25
"""Kills of each run, unless the environment variable BNNZOO_KILLS sets fewer."""
IN_A_ROW = 3
"""Kills of one run before it may finish; all but the first kill a resume."""

_TRAINED = ["--start-steps", "250", "--chains", "2", "--test-fraction", "0.5", "--checkpoint-every", "0", "--quiet"]
RUNS = {
    "mdn penalty": [
        *("--data", "mdn-sine", "--sampler.batch-size", "20", "--sampler.num-batches", "5"),
        *("--draws", "200", "--thin", "20"),
    ],
    "mlp nuts": ["--sampler.max-tree-depth", "4", "--draws", "200", "--thin", "5"],
    "cnn sgld": ["--sampler.batch-size", "10", "--model.channels", "2,2", "--draws", "200", "--thin", "5"],
    "mlp bbb": ["--draws", "20000"],
}
"""One or two seconds of warm-up and of sampling, in many parts, with a checkpoint after each."""


class Zoo:
    """Starts processes of the command line that a kill ends, and nothing but it: forked where JAX is imported."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["bnnzoo.api.entrances", "numpyro", "xarray"])

    def start(self, *arguments: str) -> Any:
        """A process; what it says is in `said`."""
        process = self._context.Process(target=_run, args=(self.folder, arguments))
        process.start()
        return process

    def output(self) -> str:
        return (self.folder / "output").read_text()


def _run(folder: Path, arguments: tuple[str, ...]) -> None:
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # Python's own end would wait for threads.
    os._exit(cli.run(arguments))


class FinishedRun(NamedTuple):
    """A run that nothing stopped."""

    arguments: tuple[str, ...]
    seconds: float
    draws: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory) -> Iterator[Zoo]:
    # The cache of the processes' own: the first run compiles, the others read.
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield Zoo(tmp_path_factory.mktemp("output"))
    os.environ.pop("XDG_CACHE_HOME")
    if before is not None:
        os.environ["XDG_CACHE_HOME"] = before


def uninterrupted(zoo: Zoo, out: Path, name: str) -> FinishedRun:
    """Twice: the first compiles, the second says how long it takes."""
    arguments = ("sample", *name.split(), *_TRAINED, "--warmup", "100", *RUNS[name])
    results = []
    for number in range(2):
        path, began = out.with_name(f"{number}-{out.name}"), time.monotonic()
        process = zoo.start(*arguments, "-o", str(path))
        process.join()
        assert process.exitcode == 0, zoo.output()
        results.append(FinishedRun(arguments, time.monotonic() - began, draws(path)))
    tiny.assert_same_bits(results[0].draws, results[1].draws)
    return results[1]


def draws(path: Path) -> dict[str, np.ndarray]:
    tree = bnnzoo.open(path).posterior
    groups = [group for group in ("posterior", "sample_stats") if group in tree.children]
    return {f"{group}/{n}": v.values for group in groups for n, v in tree[group].data_vars.items()}


def at(seconds: float) -> Callable[[Path], bool]:
    """Whether so much time has passed since now."""
    began = time.monotonic()
    return lambda out: time.monotonic() - began >= seconds


def in_the_final_write(out: Path) -> bool:
    return any(out.parent.glob(f".{out.name}.*.tmp"))


def in_warm_up(out: Path) -> bool:
    folder = store.parts_folder(out)
    return (folder / "checkpoint.npz").exists() and not (folder / "p000-000000.npz").exists()


def killed(process: Any, out: Path, moment: Callable[[Path], bool]) -> bool:
    """Whether there still was anything to kill."""
    while process.exitcode is None and not moment(out):
        time.sleep(0.0005)
    alive = process.exitcode is None
    process.kill()
    process.join()
    return alive


def continuing_arguments(out: Path, reference: FinishedRun) -> tuple[str, ...]:
    """Type the command that a user types after a kill."""
    folder = store.parts_folder(out)
    if (folder / "checkpoint.npz").exists():
        return ("resume", str(out), "--quiet")
    force = ("--force",) if folder.exists() else ()
    return (*reference.arguments, "-o", str(out), *force)


def check_what_is_there(out: Path, reference: FinishedRun) -> None:
    """All draws that can be seen are those of the run that nothing stopped."""
    if not run_parts.holds_run(store.parts_folder(out)) and not out.exists():
        return
    result = draws(out)
    counts = {values.shape[1] for values in result.values()}
    assert len(counts) <= 1
    for name, values in result.items():
        np.testing.assert_array_equal(values, reference.draws[name][:, : values.shape[1]], err_msg=name)


def check_end(process: Any, zoo: Zoo, out: Path) -> None:
    """Done; or, where the kill before came after the last rename, nothing to do."""
    output = zoo.output()
    assert process.exitcode == 0 or "nothing to resume" in output or f"{out}: exists" in output, output
    assert store.run_state(out) == "complete"


@pytest.mark.parametrize("name", RUNS)
def test_a_hundred_kills_change_no_bit(name, zoo, tmp_path):
    """Twenty-five of each run, at times drawn uniformly over its length; every fifth in warm-up or the final write."""
    reference = uninterrupted(zoo, tmp_path / "whole.nc", name)
    rng = np.random.default_rng(0)
    kills = number = 0
    while kills < int(os.environ.get("BNNZOO_KILLS", KILLS)):
        out = tmp_path / f"run-{number}.nc"
        arguments, number = (*reference.arguments, "-o", str(out)), number + 1
        for turn in range(IN_A_ROW):
            special = {0: in_warm_up, 5: in_the_final_write}.get((kills + turn) % 10)
            process = zoo.start(*arguments)
            if not killed(process, out, special or at(rng.uniform(0.02, 1.0) * reference.seconds)):
                check_end(process, zoo, out)
                break
            kills += 1
            check_what_is_there(out, reference)
            was_resumed, arguments = arguments[0] == "resume", continuing_arguments(out, reference)
            assert not was_resumed or arguments[0] == "resume" or out.exists(), "a killed resume lost its checkpoint"
        else:
            process = zoo.start(*arguments)
            process.join()
            check_end(process, zoo, out)
        tiny.assert_same_bits(draws(out), reference.draws)
        assert sorted(p.name for p in out.parent.glob(f".{out.name}*")) == []
        assert not run_parts.holds_run(store.parts_folder(out))
    print(f"{name}: {kills} kills of {number} runs, {reference.seconds:.1f} s each")


def test_the_page_counts_the_kills():
    row = re.search(r"^\| the process is killed: [^|]*\| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert row is not None
    assert row[1] == str(KILLS * len(RUNS))
