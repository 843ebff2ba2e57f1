"""The mutation gate: every known mistake fails the test that is assigned to it (`tools/mutants.py` makes them)."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


def _failures(mutant: Mutant | None, tests: tuple[str, ...]) -> list[str]:
    """Return the tests that fail by an assertion with a mistake; any other failure is an error."""
    quiet = ["-q", "-n", "0", "-p", "no:cacheprovider", "-p", "tools.mutants", "--tb=line"]
    process = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, "-m", "", *tests],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
            "COLUMNS": "1000",
            "BNNZOO_MUTANT": mutant.name if mutant else "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^FAILED tests/\S+?::(.+?) - (.*)$", process.stdout, re.MULTILINE)
    assert process.returncode == bool(failed), process.stdout + process.stderr
    assert all(re.match(r"assert|AssertionError", reason) for _, reason in failed), process.stdout
    return [test for test, _ in failed]


class _CheckedPatch(pytest.MonkeyPatch):
    """Refuses a replacement that cannot be called as the function it replaces.

    Such a mistake would fail its tests by a TypeError, whatever they assert.
    """

    def setattr(self, target: Any, name: Any, value: Any = None, raising: bool = True) -> None:
        original = getattr(target, name)
        if inspect.isroutine(original) and inspect.isroutine(value):
            parameters = inspect.signature(original).parameters.values()
            positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            keywords = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
            inspect.signature(value).bind(*positional, **keywords)
        super().setattr(target, name, value, raising)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mistake_can_be_made(mutant):
    """The functions that mistakes replace exist and take the same arguments."""
    with _CheckedPatch.context() as patch:
        mutant.make(patch)


@pytest.mark.mutation
def test_without_a_mistake_all_pass():
    assert _failures(None, tuple(dict.fromkeys(test for mutant in MUTANTS for test in mutant.tests))) == []


@pytest.mark.mutation
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_dies(mutant, capsys):
    killed = _failures(mutant, mutant.tests)
    with capsys.disabled():
        first, *rest = killed or ["SURVIVED"]
        print(f"\n{mutant.name:<46}{first}" + (f" and {len(rest)} more" if rest else ""), end="")
    assert killed
