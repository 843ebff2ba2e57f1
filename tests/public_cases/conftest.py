"""A copy of the public cases' data, and a function that types commands in this folder and returns their output."""

from __future__ import annotations

import csv
import io
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from bnnzoo import cli

DATA = Path(__file__).parents[3] / "shared" / "data" / "cases"
"""Folder of the public cases beside a checkout; it need not exist."""


class Output(NamedTuple):
    """Exit code, standard output and standard error of one command."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """Parse standard output as JSON, and reject NaN and infinity, which JSON does not allow."""

        def refuse(literal: str) -> None:
            raise AssertionError(f"{literal} is no JSON")

        return json.loads(self.out, parse_constant=refuse)

    def table(self) -> dict[str, np.ndarray]:
        """Parse standard output as CSV; columns are numbers if possible, otherwise text."""
        rows = list(csv.DictReader(io.StringIO(self.out)))
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        for name, values in columns.items():
            try:
                columns[name] = values.astype(float)
            except ValueError:
                continue
        return columns


Type = Callable[..., Output]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every case as slow, and skip it if the data are missing."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            if not DATA.is_dir():
                item.add_marker(pytest.mark.skip(reason="the public cases' data are not on this machine"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that holds a copy of the data."""
    shutil.copytree(DATA, tmp_path, dirs_exist_ok=True, copy_function=shutil.copyfile)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def type_command(folder: Path, capfd: pytest.CaptureFixture[str]) -> Type:
    """Run a command line in the folder and return its output; its exit code must be `code`."""
    del folder

    def run(line: str, *, code: int = 0) -> Output:
        capfd.readouterr()
        arguments = shlex.split(line)
        assert arguments[0] == "bnnzoo"
        returned = cli.run(arguments[1:])
        captured = capfd.readouterr()
        output = Output(returned, captured.out, captured.err)
        assert returned == code, f"{line}\n{output.err}"
        return output

    return run
