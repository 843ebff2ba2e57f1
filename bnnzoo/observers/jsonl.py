"""A log in a file with one JSON object per line."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bnnzoo.errors import UsageError
from bnnzoo.files.user_paths import checked_path
from bnnzoo.observers.base import AbstractObserver, Report


class Jsonl(AbstractObserver):
    """Observer that appends a line with `event`, `time` and the fields of each report to a file."""

    def __init__(self, argument: str):
        if not argument:
            raise UsageError("requires a file, such as jsonl:log.jsonl")
        self._path = checked_path(os.path.expanduser(argument))
        _check_log_file(self._path)

    def observe(self, report: Report) -> None:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        values = _plain({"event": report.event, "time": time, **dataclasses.asdict(report)})
        # The file is opened for each line, so that it can be moved away during the run.
        with open(self._path, "ab") as file:
            file.write(json.dumps(values, ensure_ascii=False, allow_nan=False, default=str).encode() + b"\n")


def _check_log_file(path: Path) -> None:
    """Check that a file can be written, and that it is not a file with other content, such as data or a run."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"the folder {folder} does not exist; create it, or use another file")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError("cannot be written; use another file")
    if path.suffix == ".nc" or (path.exists() and not _is_log(path)):
        raise UsageError("is not a log of JSON lines; use another file, such as log.jsonl")


def _is_log(path: Path) -> bool:
    """Whether an existing file is empty or begins like a JSON object."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(1) in (b"", b"{")


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent: NaN and infinities become None."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
