"""The log of all answers of a party.

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
from typing import Any, BinaryIO

import numpy as np
from pydantic import BaseModel, NonNegativeInt, PositiveFloat, PositiveInt

from bnnzoo.errors import BnnzooWarning, DamagedError, UsageError
from bnnzoo.files.atomic import sync_folder
from bnnzoo_federated.messages import Words

FILE = "sent.jsonl"
_BLOCK = 4096


class _Sent(BaseModel):
    """A value in an answer, with its shape."""

    shape: list[NonNegativeInt]
    values: Any


class Charge(BaseModel):
    """The cost of an answer under differential privacy. The cost is logged with the answer, but not sent."""

    request: str
    """Digest of the request. A repeated request gets the logged answer again, at no cost."""
    agreement: str
    step: int
    """The step of the chains for an answer to `sums`; the first counted step for an answer to `clipped`."""
    releases: PositiveInt
    mu: PositiveFloat
    """Parameter mu of Gaussian differential privacy of one release."""
    clipped: list[NonNegativeInt] = []
    """Number of clipped differences of each chain, for an answer to `sums`."""


class _Line(BaseModel):
    """A line of the log: one answer."""

    at: str
    question: str
    step: int | None = None
    sent: dict[str, _Sent]
    kept: str = ""
    charge: Charge | None = None


class Log:
    """The append-only file `sent.jsonl` in a party's folder."""

    def __init__(self, folder: Path):
        self.path = folder / FILE
        self.path.touch()
        sync_folder(folder)

    def add(
        self, question: str, answer: Words, *, step: Any, private_error: str = "", charge: Charge | None = None
    ) -> None:
        """Append an answer. The party sends no answer before this function has returned.

        Args:
            question: the name of the question.
            answer: the answer.
            step: the step of the chains, if the question has one.
            private_error: text of an error, which is logged and not sent.
            charge: cost of the answer under differential privacy, if it has one.

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
            **({"kept": private_error} if private_error else {}),
            **({"charge": charge.model_dump()} if charge else {}),
        }
        try:
            self._append(json.dumps(line) + "\n")
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
    """Return the position after the last complete line. An incomplete line, from a killed process, was not sent."""
    position = file.seek(0, os.SEEK_END)
    while position:
        start = max(0, position - _BLOCK)
        file.seek(start)
        if (newline := file.read(position - start).rfind(b"\n")) >= 0:
            return start + newline + 1
        position = start
    return 0


def read_log(folder: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a party's log as mappings with the keys `at`, `question` and `sent`.

    `sent` maps names to shapes and values. Some lines have more keys. `step` is the step of the chains, if the question
    has one. `kept` is the text of an error that was logged but not sent. `charge` is the cost of an answer under
    differential privacy, with the number of clipped differences of each chain. The cost was not sent, and is
    confidential. The last line is omitted if it is incomplete, because its answer was not sent.

    Raises:
        UsageError: if there is no log.
        DamagedError: if a line is damaged.
    """
    path = Path(folder) / FILE
    if not path.exists():
        raise UsageError(f"{path}: no such log; use the folder of a party")
    with path.open("rb") as file:
        yield from read_lines(path, file)


def read_lines(path: Path, file: BinaryIO, before: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of an open log from its present position on.

    At the end, the position of the file is after the last complete line.

    Args:
        path: the log, for messages.
        file: the open log.
        before: number of lines before the present position, for messages.

    Raises:
        DamagedError: if a line is damaged.
    """
    number, start = before, file.tell()
    while (line := file.readline()).endswith(b"\n"):
        number, start = number + 1, file.tell()
        yield _read(path, number, line)
    file.seek(start)


def _read(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        return _Line.model_validate(json.loads(line)).model_dump(exclude_unset=True)
    except (ValueError, RecursionError):
        raise DamagedError(f"{path}: line {number} is damaged; remove this line to read the others") from None
