"""Thousands of damaged and hostile files through the commands that open them: one line, no crash, no hang, no bomb.

Hypothesis says what is done to which honest file (`mutations.py`), a process of its own does it and runs the command
(`fuzz_worker.py`). What was found so stays below as a case with a name.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz_worker import COMMANDS, LONGEST, MEMORY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import ARRAYS, NASTY

Case = dict[str, Any]


def of(door: str, *changes: Any, command: int = 0) -> Case:
    return {"door": door, "changes": changes, "command": command}


FOUND: dict[str, Case] = {
    "draws that are not finite": of("run", ("array", "posterior/weight", 5)),
    "draws of another shape": of("run", ("array", "posterior/weight", 7)),
    "draws of infinite numbers": of("run", ("array", "posterior/bias", 5), command=1),
    "inputs without a column": of("run", ("array", "constant_data/x", 2), command=1),
    "a scale that is a cube": of("run", ("array", "constant_data/x_sd", 5), command=1),
    "a group that is gone": of("run", ("gone", "constant_data")),
    "statistics of other lengths": of("run", ("array", "sample_stats/lp", 11)),
    "a parameter too many": of("run", ("twin", "posterior/weight")),
    "a flipped bit that is a surrogate": of("run", ("attribute", "/", "verdict", "\ud800"), command=2),
    "a verdict that clears the terminal": of("run", ("attribute", "/", "verdict", "\x1b[2J\x1b]0;mine\x07"), command=0),
    "a recipe with two mistakes": of("run", ("recipe", 1, None)),
    "a recipe that is a tag of Python's": of("run", ("recipe", 4, "!!python/object/apply:os.system [ls]")),
    "a recipe that names a module's class": of("run", ("recipe", 1, "os:system"), command=1),
    "a recipe that names a file": of("run", ("recipe", 1, "../secret"), command=1),
    "a signature of brackets": of("run", ("attribute", "/", "signature", "[" * 60_000)),
    "a signature of no classes": of("run", ("json", "signature", ["task"], "classification")),
    "a table's own words damaged": of("parquet", ("flip", 0.6596630553941264, 3)),
    "an array without its scale": of("run", ("attribute", 10, 0, "")),
    "plugins that are nothing": of("parts", ("inner", 1, [0], None), ("seal",)),
    "a word of ten thousand letters": of("recipe", ("line", 1, "a" * 10_000)),
    "test targets that are gone": of("run", ("gone", 11), command=15),
    "a statistic that is one number, in a report": of("run", ("array", "sample_stats/acceptance_rate", 1), command=5),
    "a dimension's number that is a list": of("run", ("attribute", 212, 0, [2**62]), command=3),
    "a dimension's number that is a word": of("run", ("attribute", 212, 0, None), command=3),
    "a network larger than the machine": of("recipe", ("line", 1, "mlp\n  hidden: [1000000, 1000000]")),
}
"""What the fuzzer has found, or what its reader thought of."""
HARMLESS = ("a verdict that clears the terminal", "a table's own words damaged")
"""What is no reason to refuse a file: it is shown with its escapes written out; pandas' own words are not read."""

MANY = {"run": 1500, "parts": 1000, "recipe": 800, "csv": 800, "parquet": 300, "idx": 300, "npz": 300}
"""How many cases of each kind the slow suite tries."""
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"

PLACE = st.integers(0, 400)
SPOT = st.floats(0, 1)
VALUE = st.sampled_from(NASTY)
PATH = st.lists(st.integers(0, 12), min_size=1, max_size=4)
ARRAY = st.integers(0, len(ARRAYS) - 1)
BYTES = st.one_of(
    st.tuples(st.just("flip"), SPOT, st.integers(0, 7)),
    st.tuples(st.just("cut"), SPOT),
    st.tuples(st.just("drop"), SPOT, st.integers(1, 64)),
    st.tuples(st.just("again"), SPOT, st.integers(1, 512), st.integers(2, 50)),
    st.tuples(
        st.sampled_from(["put", "insert"]),
        SPOT,
        st.one_of(
            st.sampled_from(["00" * 8, "ff" * 8, "7fffffff", "ffffff7f", "ffffffffffffff7f", "22", "0a", "2c", "5c"]),
            st.binary(min_size=1, max_size=16).map(bytes.hex),
        ),
    ),
)
RUN = st.one_of(
    st.tuples(st.just("attribute"), PLACE, PLACE, VALUE),
    st.tuples(st.just("attribute"), st.just("/"), PLACE, VALUE),
    st.tuples(st.just("json"), PLACE, PATH, VALUE),
    st.tuples(st.just("recipe"), st.integers(-50, 50), VALUE),
    st.tuples(st.just("array"), PLACE, ARRAY),
    st.tuples(st.sampled_from(["gone", "twin"]), PLACE),
    BYTES,
)
PARTS = st.one_of(
    st.tuples(st.just("words"), st.integers(0, 1), PATH, VALUE),
    st.tuples(st.just("inner"), PLACE, PATH, VALUE),
    st.tuples(st.just("recipe"), st.integers(-50, 50), VALUE),
    st.tuples(st.just("npz"), PLACE, PLACE, st.integers(-1, len(ARRAYS) - 1)),
    st.tuples(st.just("gone"), PLACE),
    st.tuples(st.just("bytes"), PLACE, BYTES),
)
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "run": st.lists(RUN, min_size=1, max_size=3),
    "parts": st.tuples(st.lists(PARTS, min_size=1, max_size=3), st.booleans()).map(
        lambda pair: [*pair[0], *([("seal",)] if pair[1] else [])]
    ),
    "recipe": st.lists(
        st.one_of(st.tuples(st.just("line"), st.integers(-50, 50), VALUE), BYTES), min_size=1, max_size=3
    ),
    "csv": st.lists(st.one_of(st.tuples(st.just("cell"), PLACE, PLACE, VALUE), BYTES), min_size=1, max_size=3),
    "parquet": st.lists(BYTES, min_size=1, max_size=3),
    "idx": st.lists(BYTES, min_size=1, max_size=3),
    "npz": st.lists(st.one_of(st.tuples(st.just("array"), PLACE, ARRAY), BYTES), min_size=1, max_size=3),
}


class Worker:
    """The process that takes cases; a new one where the last has died."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None
        self.heard = ""

    def __call__(self, case: Case) -> dict[str, Any]:
        """Return the outcome of a case; for one that killed the process, the signal."""
        if self.process is None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        return self._answer(4 * LONGEST)

    def _start(self) -> None:
        folder = Path(__file__).parents[1]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder.parent), str(folder)]),
            "JAX_NUM_CPU_DEVICES": "2",
        }
        self.errors = self.folder.with_suffix(".errors")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(folder / "fuzz_worker.py"), str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        assert self._answer(120) == {"ready": True}, self.errors.read_text()

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        code = self.close()
        return {"died": "it hung" if not ready else f"exit {code}", "errors": self.errors.read_text()[-3000:]}

    def close(self) -> int:
        """End the process; how it ended."""
        if self.process is None:
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        self.process.kill()
        self.process.communicate()
        code, self.process = self.process.returncode, None
        return code


@pytest.fixture(scope="module")
def worker(tmp_path_factory) -> Iterator[Worker]:
    started_worker = Worker(tmp_path_factory.mktemp("fuzz"))
    yield started_worker
    started_worker.close()


def check(case: Case, result: dict[str, Any]) -> None:
    """Check the promises of every command for every file."""
    assert "died" not in result, result
    lines = result["err"].splitlines()
    assert result["code"] in (0, 1, 2, 3), result
    assert "internal error" not in result["err"], result
    assert "Traceback" not in result["err"] + result["out"], result
    assert all(line.startswith("bnnzoo: ") for line in lines), result
    assert (result["out"] + result["err"]).replace("\n", "").isprintable(), result
    if result["code"] in (1, 2):
        errors = [line for line in lines if not line.startswith("bnnzoo: warning: ")]
        # All columns of a table, and all keys of a recipe, are told of at once.
        assert len(errors) == 1 or (errors and case["door"] in ("csv", "parquet", "recipe")), result
        assert not result["written"], result
    assert all(name.startswith("case/") for name in result["written"]), result
    assert not result["secret"], result
    assert result["seconds"] < LONGEST, result
    assert result["grown"] < MEMORY, result


def cases(door: str) -> st.SearchStrategy[Case]:
    return st.fixed_dictionaries(
        {"door": st.just(door), "changes": CHANGES[door], "command": st.integers(0, 3 * len(COMMANDS[door]))}
    )


def fuzz(worker: Worker, door: str, number: int) -> None:
    @settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(door))
    def check_case(case: Case) -> None:
        check(case, worker(case))

    check_case()


@pytest.mark.long
@pytest.mark.parametrize("case", FOUND)
def test_files_of_earlier_findings_are_refused(case, worker):
    result = worker(FOUND[case])
    check(FOUND[case], result)
    assert (result["code"] == 2) != (case in HARMLESS), result


@pytest.mark.parametrize("door", COMMANDS)
def test_an_unchanged_file_is_accepted(door, worker):
    """The positive control."""
    result = worker(of(door))
    check(of(door), result)
    assert result["code"] == 0, result


@pytest.mark.slow
@pytest.mark.parametrize("door", COMMANDS)
def test_a_few_changed_files_are_refused_or_read_correctly(door, worker):
    fuzz(worker, door, {"run": 40}.get(door, 25))


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("door", COMMANDS)
def test_thousands_of_changed_files(door, worker):
    fuzz(worker, door, MANY[door])


def test_the_page_counts_the_cases():
    rows = re.findall(r"^\| changed files \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [str(sum(MANY.values()))]
