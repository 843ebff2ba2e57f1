"""The part of the long tests that a commit runs (`share.py`), on a suite of twenty passing tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import pytest

@pytest.mark.parametrize("number", range(20))
def test_one(number):
    assert number != {wrong}
"""


def _run(folder: Path, *arguments: str, wrong: int = 20) -> tuple[int, set[str], str]:
    """Return the exit code, the started tests, and the line `share:`."""
    suite = folder / "tests"
    suite.mkdir(exist_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = tests")
    (suite / "conftest.py").write_text('pytest_plugins = ["share"]')
    (suite / "test_suite.py").write_text(SUITE.format(wrong=wrong))
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-p", "xdist", *arguments],
        cwd=folder,
        env={**outside, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = re.findall("^share: .*", process.stdout, re.MULTILINE)
    return process.returncode, set(re.findall(r"^(?:PASSED|FAILED) (\S+)", process.stdout, re.MULTILINE)), line


def test_a_commit_has_a_fifth_of_the_tests_and_another_commit_another(tmp_path):
    code, first, line = _run(tmp_path, "--share", "a")
    assert (code, len(first), line) == (0, 4, "share: 4 of 4 tests ran, 0 not begun in time")
    assert _run(tmp_path, "--share", "a")[1] == first
    assert _run(tmp_path, "--share", "b")[1] != first


def test_a_failure_in_the_share_fails_the_run(tmp_path):
    some = sorted(_run(tmp_path, "--share", "a")[1])[0]
    code, begun, line = _run(tmp_path, "--share", "a", wrong=int(re.findall(r"\[(\d+)\]", some)[0]))
    assert (code, len(begun), line) == (1, 4, "share: 4 of 4 tests ran, 0 not begun in time")


@pytest.mark.parametrize("workers", [0, 2])
def test_when_the_time_is_over_no_more_tests_begin_and_nothing_fails(workers, tmp_path):
    """Each worker starts at least one test."""
    arguments = ("-n", str(workers), "--dist", "load", "--maxschedchunk", "1", "--share-seconds", "0")
    code, begun, line = _run(tmp_path, "--share", "a", *arguments)
    ran = max(workers, 1)
    assert (code, len(begun), line) == (0, ran, f"share: {ran} of 4 tests ran, {4 - ran} not begun in time")
