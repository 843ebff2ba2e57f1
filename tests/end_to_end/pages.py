"""The blocks of the documentation in the order of the page, and a simulated reader who types them.

Commands run in this process, in a separate folder for each unit. Python blocks of a page share their names. A unit is a
page with Python blocks, or a section of any other page. `changes.py` lists the blocks that cannot be typed unchanged,
with reasons.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import io
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bnnzoo import cli
from bnnzoo.api import entrances
from bnnzoo.assembly import Problem
from bnnzoo.plugins import registry
from end_to_end import changes

ROOT = Path(__file__).parent.parent.parent
PATTERNS = ("README.md", "docs/*.md", "plugins/*/README.md", "plugins/*/docs/*.md")
PAGES = sorted(page for pattern in PATTERNS for page in ROOT.glob(pattern))
_FENCE = re.compile(
    r"^```(\w+)\n(.*?)^```$|((?:^    (?:bnnzoo|python) [^\n]*\n(?:^     [^\n]*\n)*)+)", re.MULTILINE | re.DOTALL
)
_FILE = re.compile(r"# ([\w.-]+\.yaml)\n")
SHORT = {"warmup": 5, "draws": 5, "chains": 2, "start_steps": 250, "thin": 1}
"""Largest lengths of a run from the documentation."""


class Block(NamedTuple):
    """A block of a page: Python, a recipe, or lines for the shell."""

    page: str
    line: int
    language: str
    text: str

    @property
    def lines(self) -> list[str]:
        """The commands; a line that ends with a backslash is continued."""
        text = self.text.replace("\\\n", " ")
        return [line.strip().removeprefix("$ ") for line in text.splitlines() if self._is_typed(line)]

    def _is_typed(self, line: str) -> bool:
        return bool(line.strip()) and (self.language != "console" or line.startswith("$ "))


class Unit(NamedTuple):
    """Blocks that are typed one after the other."""

    name: str
    blocks: list[Block]

    @property
    def plugin(self) -> str:
        """The package that the page describes; "" for the zoo itself."""
        folder, _, rest = self.name.partition("/")
        return rest.partition("/")[0] if folder == "plugins" else ""


def blocks(page: Path) -> Iterator[Block]:
    """Return the blocks of a page that a reader types, in order."""
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    for match in _FENCE.finditer(text):
        language, body, indented = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        if indented:
            yield Block(name, line, "sh", re.sub("^    ", "", indented, flags=re.MULTILINE))
        elif language in ("sh", "console", "python") or (language == "yaml" and _FILE.match(body)):
            yield Block(name, line, language, body)


def units() -> list[Unit]:
    """Return every page as a unit; a page without Python is divided into sections."""
    results: list[Unit] = []
    for page in PAGES:
        every = list(blocks(page))
        name = str(page.relative_to(ROOT))
        if name in changes.ELSEWHERE or not every:
            continue
        if any(block.language == "python" for block in every):
            results.append(Unit(name, every))
            continue
        lines = page.read_text(encoding="utf-8").splitlines()
        starts = [number for number, line in enumerate(lines, 1) if line.startswith("## ")] or [1]
        for start, end in zip([0, *starts], [*starts, len(lines) + 1], strict=True):
            if part := [block for block in every if start <= block.line < end]:
                title = lines[start - 1].removeprefix("## ").casefold() if start else "top"
                results.append(Unit(f"{name} {title}", part))
    return results


class Reader:
    """Types blocks in the working folder."""

    def __init__(self, unit: Unit, monkeypatch: pytest.MonkeyPatch, capfd: Any):
        self.unit, self.capfd, self.monkeypatch = unit, capfd, monkeypatch
        self.module = types.ModuleType(re.sub(r"\W", "_", unit.name))
        monkeypatch.setitem(sys.modules, self.module.__name__, self.module)

    def type_all(self) -> None:
        """Type every block of the unit. On the page of a plugin the plugin is loaded."""
        if plugin := self.unit.plugin:
            self.monkeypatch.setenv("BNNZOO_PLUGINS", plugin)
            registry.reset()
        for block in self.unit.blocks:
            where = f"{block.page}:{block.line}"
            if block.language == "python":
                if block.page in changes.FULL_LENGTH:
                    self._run_python(block, where)
                else:
                    with shortened(self.monkeypatch, changes.LONGER.get(block.page, {})):
                        self._run_python(block, where)
            elif block.language == "yaml":
                changes.prepare(block.page, block.text)
                Path(_FILE.match(block.text)[1]).write_text(block.text)  # type: ignore[index]
            else:
                with shortened(self.monkeypatch, changes.LONGER.get(block.page, {})):
                    for line in block.lines:
                        self._type(line, where)

    def _run_python(self, block: Block, where: str) -> None:
        first = block.text.strip().splitlines()[0]
        if (block.page, first) in changes.NOT_TYPED:
            return
        changes.prepare(block.page, block.text)
        text = changes.python(block.page, block.text)
        exec(compile(text, where, "exec"), vars(self.module))

    def _type(self, line: str, where: str) -> None:
        page = self.unit.blocks[0].page
        if (page, line) in changes.NOT_TYPED:
            return
        line = changes.INSTEAD.get((page, line), (line, ""))[0]
        for command in filter(None, line.split(" && ")):
            changes.prepare(page, command)
            code, allowed = self._run(command), changes.codes(page, command)
            assert code in allowed, f"{where}: {command}: exit code {code}\n{self.capfd.readouterr().err}"

    def _run(self, command: str) -> int:
        arguments = shlex.split(command, comments=True)
        if arguments[0] != "bnnzoo":
            command = re.sub(r"^python3? ", f"{shlex.quote(sys.executable)} ", command)
            return subprocess.run(command, shell=True, check=False).returncode
        arguments, out = (
            (arguments[: arguments.index(">")], arguments[arguments.index(">") + 1])
            if ">" in arguments
            else (arguments, "")
        )
        arguments = [
            name
            for word in arguments
            for name in (sorted(glob.glob(word)) if "*" in word and ".nc" in word else [word])
        ]
        _make_room(arguments)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed) if out else contextlib.nullcontext():
            code = cli.run(changes.shorter(arguments[1:]))
        if out:
            Path(out).write_text(printed.getvalue())
        return code


def _make_room(arguments: list[str]) -> None:
    """Remove the file or the pictures that a command will write, because a page may write them twice."""
    for option in ("-o", "--out"):
        if (
            option in arguments
            and arguments[1] not in ("zoo", "plot")
            and (path := Path(arguments[arguments.index(option) + 1])).is_file()
        ):
            path.unlink()
    if arguments[1] == "plot" and "-o" in arguments:
        for path in Path(arguments[arguments.index("-o") + 1]).glob("*.*"):
            path.unlink()
    if arguments[1] == "sample" and "-o" not in arguments:
        Path("run.nc").unlink(missing_ok=True)


@contextlib.contextmanager
def shortened(monkeypatch: pytest.MonkeyPatch, longer: Mapping[str, int]) -> Iterator[None]:
    """Replace the lengths of runs by a few short chains; `longer` has lengths that override `SHORT`."""
    launch, limits = entrances.launch, {**SHORT, **longer}

    def short(problem: Problem, *args: Any, **kwargs: Any) -> Any:
        recipe = problem.recipe
        lengths = {name: min(most, getattr(recipe, name)) for name, most in limits.items()}
        if problem.description is None:
            del lengths["chains"]  # initial positions may be given, one per chain
        recipe = dataclasses.replace(recipe, **lengths, budget=None)
        return launch(problem.with_lengths(recipe, problem.sampler), *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(entrances, "launch", short)
        yield
