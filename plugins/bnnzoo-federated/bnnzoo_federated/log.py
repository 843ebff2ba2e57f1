"""The record of all answers of a party.

Each answer is one line of JSON. The line is written to disk before the answer is sent, and is never changed.
"""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, NonNegativeInt

from bnnzoo.errors import BnnzooWarning, DamagedError, UsageError
from bnnzoo.files.atomic import sync_folder
from bnnzoo.testing.table import aligned
from bnnzoo_federated.messages import Words, printable

FILE = "sent.jsonl"
_BLOCK = 4096


class _Sent(BaseModel):
    """An array in an answer."""

    shape: list[NonNegativeInt]
    values: Any


class _Line(BaseModel):
    """A line of the log: one answer."""

    at: str
    question: str
    step: int | None = None
    sent: dict[str, _Sent]
    kept: str = ""


class Log:
    """The append-only file `sent.jsonl` in a party's folder."""

    def __init__(self, folder: Path):
        self.path = folder / FILE
        self.path.touch()
        sync_folder(folder)

    def add(self, question: str, answer: Words, *, step: Any, private_error: str = "") -> None:
        """Append an answer. Nothing is sent before it is in the file.

        Args:
            question: the question.
            answer: the answer.
            step: the step of the chains, if the question has one.
            private_error: text of an error, which is logged and not sent.

        Raises:
            OSError: if the line cannot be written; the file is then unchanged.
        """
        step_field = {"step": step} if isinstance(step, int) else {}
        sent = {name: {"shape": list(np.shape(value)), "values": value} for name, value in answer.items()}
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "question": question,
            **step_field,
            "sent": sent,
        }
        try:
            self._append(json.dumps(line | ({"kept": private_error} if private_error else {})) + "\n")
        except OSError as error:
            warnings.warn(
                f"{self.path}: cannot be written: {error.strerror or error}; the answer was not sent; free disk space",
                BnnzooWarning,
                stacklevel=3,
            )
            raise

    def _append(self, text: str) -> None:
        # Unbuffered, because a buffer would still be written when the file is closed after an error.
        with self.path.open("r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another process may serve the same folder
            end = _end(file)
            file.truncate(end)
            file.seek(end)
            remaining = memoryview(text.encode())
            try:
                while remaining:
                    remaining = remaining[file.write(remaining) :]
                os.fsync(file.fileno())
            except BaseException:
                file.truncate(end)
                raise


def _end(file: FileIO) -> int:
    """Return the end of the last complete line. A line that a kill left incomplete was not sent."""
    position = file.seek(0, os.SEEK_END)
    while position:
        start = max(0, position - _BLOCK)
        file.seek(start)
        if (newline := file.read(position - start).rfind(b"\n")) >= 0:
            return start + newline + 1
        position = start
    return 0


def read_log(folder: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a party's log as mappings with the keys `at`, `question`, `step` and `sent`.

    `sent` maps names to shapes and values. An incomplete last line is omitted, because its answer was not sent. The key
    `kept` has the reason of a refusal, which was not sent either.

    Raises:
        UsageError: if there is no log, or a line is damaged.
    """
    path = Path(folder) / FILE
    if not path.exists():
        raise UsageError(f"{path}: no such log; use the folder of a party")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield _read(path, number, line)


def _read(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        return _Line.model_validate(json.loads(line)).model_dump(exclude_unset=True)
    except (ValueError, RecursionError):
        raise DamagedError(f"{path}: line {number} is damaged; remove it to read the rest") from None


def show_log(folder: str | Path) -> str:
    """Return a table of what a party has sent: for each question the number of answers and their contents.

    The table ends with the last error that prevented an answer.

    Raises:
        UsageError: if there is no log, or a line of it is damaged.
    """
    counts: dict[tuple[str, str, str], list[int]] = {}
    answers: dict[str, int] = {}
    error_lines = []
    for line in read_log(folder):
        answers[line["question"]] = answers.get(line["question"], 0) + 1
        if "kept" in line:
            error_text = " ".join(map(printable, (line["at"], f"{line['question']}:", line["kept"])))
            error_lines = [f"last error (not sent): {error_text}"]
        for name, value in line["sent"].items():
            row = (printable(line["question"]), printable(name), str(value["shape"]))
            totals = counts.setdefault(row, [0, 0])
            totals[0] += 1
            totals[1] += int(np.prod(value["shape"], dtype=int))
    rows = [("question", "sent", "shape", "answers", "numbers or texts")]
    rows += [(*key, str(num_answers), str(numbers)) for key, (num_answers, numbers) in counts.items()]
    return "\n".join([*aligned(rows), f"{sum(answers.values())} answers left {folder}", *error_lines])
