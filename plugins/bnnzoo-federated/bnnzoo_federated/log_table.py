"""A table of the answers that a party has sent, from the party's log."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bnnzoo.testing.table import aligned
from bnnzoo_federated.account import spending
from bnnzoo_federated.log import read_log
from bnnzoo_federated.messages import printable


def show_log(folder: str | Path) -> str:
    """Return a table of the answers that a party has sent, with one row for each question, value and shape.

    Lines below the table show the number of answers, the spent epsilon of a private party, and the text of the last
    error, which was logged but not sent.

    Raises:
        UsageError: if there is no log.
        DamagedError: if a line of the log is damaged.
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
    count = f"{sum(answers.values())} answers sent from {folder}"
    return "\n".join([*aligned(rows), count, *spending(folder), *error_lines])
