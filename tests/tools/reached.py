"""Measure which tests reach which line, and their times, so that a mutant first meets a test that may detect it.

This is a pytest plugin (`-p tools.reached`): `--reached FILE` writes the result as JSON; `--first FILE` runs the
tests that FILE names first.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import coverage
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("which tests reach which line")
    group.addoption("--reached", type=Path, metavar="FILE", help="write the tests of each line, and their seconds")
    group.addoption("--first", type=Path, metavar="FILE", help="begin with these tests, a JSON list of their names")


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("reached"):
        config.pluginmanager.register(Reached(file, config.rootpath))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if file := config.getoption("first"):
        place = {name: number for number, name in enumerate(json.loads(file.read_text()))}
        items.sort(key=lambda item: place.get(item.nodeid, len(place)))


class Reached:
    """A line of a compiled function counts as reached when JAX traces it."""

    def __init__(self, file: Path, root: Path) -> None:
        self.file, self.package = file, root / "bnnzoo"
        self.seconds: dict[str, float] = {}
        self.coverage = coverage.Coverage(data_file=None, source=[str(self.package)], config_file=False, messages=False)

    def pytest_sessionstart(self) -> None:
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.coverage.switch_context(item.nodeid)
        began = time.monotonic()
        result = yield
        self.seconds[item.nodeid] = time.monotonic() - began
        return result

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        lines = {}
        data = self.coverage.get_data() if self.seconds else None  # which is refused where nothing ran
        for path in map(Path, data.measured_files() if data else ()):
            text, tests = path.read_text().splitlines(), defaultdict[str, set[str]](set)
            for number, names in data.contexts_by_lineno(str(path)).items():
                tests[text[number - 1].strip()].update(name for name in names if name)
            module = path.relative_to(self.package).with_suffix("").as_posix()
            lines[module] = {line: sorted(names) for line, names in tests.items() if names}
        self.file.write_text(json.dumps({"seconds": self.seconds, "lines": lines}))
