"""The file of results: one JSON line per fit, appended atomically, so that an interrupted benchmark can continue."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bnnzoo.errors import UsageError

FILE = "results.jsonl"

Line = dict[str, Any]
"""The result of one fit, as a line of the file of results."""

Key = tuple[str, int, str]
"""Problem, fold and method of a fit."""


class ProblemData(NamedTuple):
    """Checksums and target of the data of a problem, as stored in each result line."""

    sha256: str
    """SHA-256 of the file with the rows."""
    mask_sha256: str
    """SHA-256 of the file with the fixed folds, "" for a problem without one."""
    target: str | None

    def agrees(self, line: Mapping[str, Any]) -> bool:
        """Whether a line was computed with these data. Folds are compared only if the line has their SHA-256."""
        mask_sha256 = line.get("mask_sha256", self.mask_sha256)
        return (line["sha256"], mask_sha256, line["target"]) == self


def key_of(line: Mapping[str, Any]) -> Key:
    """Return the problem, the fold and the method of a result."""
    return line["problem"], line["fold"], line["method"]


def read_results(folder: Path | str) -> list[Line]:
    """Return the last result of each fit, in the order of the file. A truncated or corrupted last line is ignored.

    Raises:
        UsageError: if the folder has no file of results, or a line other than the last is corrupted.
    """
    return _read(Path(folder) / FILE)[0]


def _read(path: Path) -> tuple[list[Line], int]:
    """Return the last result of each fit, and the number of bytes of all complete lines."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}); bnnzoo bench run -o {path.parent} writes this file"
        ) from error
    lines: dict[Key, Line] = {}
    size = 0
    for number, text in enumerate(content.splitlines(keepends=True), 1):
        try:
            if not text.endswith(b"\n"):
                raise ValueError("the line does not end")
            line = json.loads(text)
            key = key_of(line)
        except (ValueError, KeyError, TypeError) as error:
            if size + len(text) < len(content):
                raise UsageError(f"{path}: line {number}: corrupted ({error}); remove this line") from error
            break
        size += len(text)
        lines.pop(key, None)  # a repeated fit replaces the earlier one
        lines[key] = line
    return list(lines.values()), size


class Results:
    """The results of a folder, open for appending."""

    def __init__(self, path: Path):
        self._path = path
        self.lines, size = _read(path) if path.exists() else ([], 0)
        self.truncated_bytes = path.stat().st_size - size if path.exists() else 0
        if self.truncated_bytes:
            os.truncate(path, size)

    def append(self, line: Line) -> None:
        """Append a line to the file, and wait until the line is on disk."""
        text = json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"
        # One write call to a file opened for appending is atomic with respect to other writers.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, text.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.lines = [other for other in self.lines if key_of(other) != key_of(line)] + [line]

    def refuse_changes(
        self,
        settings: Mapping[str, Any],
        problems: Mapping[str, ProblemData],
        sources: Mapping[str, tuple[str, str]],
        *,
        has_references: bool,
    ) -> None:
        """Check that settings, data, recipes and own classes are those with which the stored lines were written.

        A budget that a recipe sets is part of the recipe, and not a setting.

        Args:
            settings: values that all lines share, with the name of the option as key.
            problems: the data of each problem.
            sources: the kind and the SHA-256 of each method, see `Method`.
            has_references: whether the problems are reference posteriors, whose lines have other metrics.

        Raises:
            UsageError: if a setting, a data set, a recipe or the source of an own class has changed, or if the lines
                are of references and the problems are tables, or vice versa; the message names the options to use
                instead.
        """
        another = f"use another folder: -o {self._path.parent}"
        for line in self.lines:
            problem, method = line["problem"], line["method"]
            if (line["kind"] == "sampler") != has_references:
                contents, others = ("tables", "references") if has_references else ("references", "tables")
                raise UsageError(
                    f"{self._path}: contains results of {contents}, so {others} cannot be added; {another}-{others}"
                )
            for name, value in settings.items():
                if line[name] != value and not (name == "budget" and line.get("own_budget")):
                    before, now = _spell(name, line[name]), _spell(name, value)
                    raise UsageError(
                        f"{self._path}: was written with --{name} {before} (got {now}); "
                        f"use --{name} {before}, or {another}-{now}"
                    )
            if problem in problems and not problems[problem].agrees(line):
                raise UsageError(
                    f"{self._path}: the data, the folds or the target of {problem} have changed since the first fit; "
                    f"{another}-2"
                )
            if line["status"] == "done" and method in sources and has_changed(line, *sources[method]):
                recipe = f"the recipe {method} has changed since the first fit; rename the recipe file"
                source = f"the source of the method {method} has changed since the first fit; remove its lines"
                raise UsageError(f"{self._path}: {source if line['kind'] == 'peer' else recipe}, or {another}-2")


def has_changed(line: Line, kind: str, sha256: str) -> bool:
    """Return whether the file that defines a method differs from the file with which a line was computed.

    The files of own classes are not compared if the line does not have their SHA-256, as in older results.
    """
    is_unknown = kind == line["kind"] == "peer" and not line["recipe_sha256"]
    return not is_unknown and sha256 != line["recipe_sha256"]


def _spell(name: str, value: Any) -> str:
    return f"{value:g}s" if name == "budget" else str(value)


@contextmanager
def open_results(folder: Path) -> Iterator[Results]:
    """Open the results of a folder. The folder is created if it does not exist.

    Raises:
        UsageError: if another process writes to the folder, or if it cannot be created.
    """
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be created ({error.strerror}); use another folder with -o") from error
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield Results(folder / FILE)
    except Timeout as error:
        raise UsageError(
            f"{folder}: another bnnzoo bench run is writing to this folder; wait for its end, or use another folder"
        ) from error


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return the values without repetitions, in the order of their first occurrence."""
    return list(dict.fromkeys(values))
