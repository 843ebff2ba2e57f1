"""What left a party: a line of JSON for each answer, written before it is sent, never changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bnnzoo.errors import UsageError
from bnnzoo.federated.messages import Words
from bnnzoo.testing.table import aligned

FILE = "sent.jsonl"


class Log:
    """The file `sent.jsonl` of a party's folder, which only grows."""

    def __init__(self, folder: Path):
        self.path = folder / FILE
        if self.path.exists() and _is_torn(self.path):
            self._append("\n")  # by a kill: what was half written was not sent

    def add(self, question: str, answer: Words, *, step: Any) -> None:
        """Write down an answer. What is not in the file has not left."""
        about = {"step": step} if isinstance(step, int) else {}
        sent = {name: {"shape": list(np.shape(value)), "values": value} for name, value in answer.items()}
        line = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "question": question, **about, "sent": sent}
        self._append(json.dumps(line) + "\n")

    def _append(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)


def _is_torn(path: Path) -> bool:
    """Whether its last line has no end; a log that grew for weeks is not read for that."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def read_log(folder: str | Path) -> Iterator[dict[str, Any]]:
    """The lines of a party's log: at, question, what it was about, and `sent`: name to shape and values.

    Raises:
        UsageError: if there is none. A line torn by a kill is left out: its answer was not sent.
    """
    path = Path(folder) / FILE
    if not path.exists():
        raise UsageError(f"{path}: no such log; give the folder of a party")
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue


def show_log(folder: str | Path) -> str:
    """What left a party, as a table: for each question how often it was answered and what each answer held.

    Raises:
        UsageError: if there is no log.
    """
    counts: dict[tuple[str, str, str], list[int]] = {}
    answers: dict[str, int] = {}
    for line in read_log(folder):
        answers[line["question"]] = answers.get(line["question"], 0) + 1
        for name, value in line["sent"].items():
            found = counts.setdefault((line["question"], name, str(value["shape"])), [0, 0])
            found[0] += 1
            found[1] += int(np.prod(value["shape"], dtype=int))
    rows = [("question", "sent", "shape", "answers", "numbers or texts")]
    rows += [(*key, str(times), str(numbers)) for key, (times, numbers) in counts.items()]
    return "\n".join([*aligned(rows), f"{sum(answers.values())} answers left {folder}"])
