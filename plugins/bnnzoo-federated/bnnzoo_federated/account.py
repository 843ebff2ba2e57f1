"""A party's account of differential privacy: the answers so far and their cost, in the party's folder.

The account is computed from the party's log. Each answer that has a cost is written to the log together with the cost,
before the answer is sent. The account therefore survives a restart, and covers all runs that have used the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bnnzoo.errors import DamagedError, UsageError
from bnnzoo.files.atomic import replacing
from bnnzoo_federated.accountant import epsilon_at, mu_within
from bnnzoo_federated.log import FILE, read_lines, read_log
from bnnzoo_federated.messages import POWERS, Words
from bnnzoo_federated.privacy import NEIGHBOURS, Privacy

_LIMITS, _LOCK = "privacy.json", "lock"


class _Charged(NamedTuple):
    """An answer to the question `sums`: its step and the number of clipped differences of each chain."""

    step: int
    clipped: list[int]


class Account:
    """The answers of a party that have a cost, and the number of releases that the party's limits still allow."""

    def __init__(self, folder: Path, privacy: Privacy, noise_sd: float):
        """Read the log in the folder, and store the limits (epsilon and delta) in the folder.

        Raises:
            UsageError: if the log has answers without differential privacy.
            DamagedError: if the log is damaged, so that the cost of the answers is uncertain.
        """
        self._path, self._lock = folder / FILE, folder / _LOCK
        self._budget, self.mu = mu_within(privacy.epsilon, privacy.delta) ** 2, privacy.mu(noise_sd)
        self._releases: dict[float, int] = defaultdict(int)
        self._answers: dict[str, Words] = {}
        self._charged: dict[str, list[_Charged]] = defaultdict(list)
        self._releases_of: dict[str, int] = defaultdict(int)
        self._position = self._num_lines = 0
        with self.exclusive():
            pass  # `exclusive` reads the log
        limits = {"epsilon": privacy.epsilon, "delta": privacy.delta}
        with replacing(folder / _LIMITS) as file:
            file.write(json.dumps(limits).encode())

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the account for one answer, and read the new lines of the log.

        Other processes that serve the same folder wait until the lock is released.

        Raises:
            UsageError: if a new line of the log is an answer without differential privacy.
            DamagedError: if a new line of the log is damaged.
        """
        with self._lock.open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._read_new_lines()
            yield

    @property
    def left(self) -> int:
        """Number of releases, with the present clip and noise, that the limits still allow."""
        spent = math.fsum(count * mu**2 for mu, count in self._releases.items())
        return max(0, math.floor((self._budget - spent) / self.mu**2))

    def available(self, agreement: str) -> int:
        """Return the number of releases that a run with this agreement can use.

        The number includes the releases that earlier answers under the agreement have used, because a repeated run
        sends the same requests and receives the same answers at no cost.
        """
        return self.left + self._releases_of[agreement]

    def earlier_answer(self, request: str) -> Words | None:
        """Return the logged answer to a request with this digest; None if there is none."""
        return self._answers.get(request)

    def clipped_fraction(self, agreement: str, first_step: int, rows: int) -> float:
        """Return the fraction of clipped differences in all answers to `sums` since `first_step`; 0 if there are none.

        `rows` is the number of the party's rows. Each answer has one difference for each row and chain.
        """
        counts = [charged.clipped for charged in self._charged[agreement] if charged.step >= first_step]
        return float(np.mean(np.concatenate(counts))) / rows if counts else 0.0

    def _read_new_lines(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._position)
            try:
                for line in read_lines(self._path, file, self._num_lines):
                    self._num_lines += 1
                    if "charge" in line:
                        self._add(line)
                    elif _is_exact(line):
                        raise UsageError(
                            f"{self._path}: line {self._num_lines}: is an answer without differential privacy, so "
                            "this folder cannot have privacy limits; use another folder"
                        )
            except DamagedError as error:
                place = str(error).rpartition(";")[0]
                raise DamagedError(
                    f"{place}, so the cost of the answers is uncertain; restore the file, or use another folder"
                ) from error
            self._position = file.tell()

    def _add(self, line: dict[str, Any]) -> None:
        charge = line["charge"]
        self._releases[charge["mu"]] += charge["releases"]
        self._releases_of[charge["agreement"]] += charge["releases"]
        self._answers[charge["request"]] = {name: value["values"] for name, value in line["sent"].items()}
        if line["question"] == "sums":
            self._charged[charge["agreement"]].append(_Charged(charge["step"], charge["clipped"]))


def _is_exact(line: dict[str, Any]) -> bool:
    """Whether a line without a cost is an answer of a party without differential privacy.

    A private party also logs answers without a cost: offers, which contain an epsilon, and repeated answers to `sums`,
    which contain only one sum for each chain.
    """
    sent = line["sent"]
    if "sums" in sent:
        return sent["sums"]["shape"][-1:] == [POWERS]
    return "x_sum" in sent and ("epsilon" not in sent or sent["epsilon"]["values"] is None)


def check_folder(folder: Path, *, is_private: bool) -> None:
    """Check that a folder can be used with or without differential privacy.

    Raises:
        UsageError: if the folder was used with differential privacy, and `is_private` is false or the log is missing.
    """
    if not (folder / _LIMITS).exists():
        return
    if not is_private:
        raise UsageError(
            f"{folder}: the party has answered under differential privacy; give its [[epsilon]], [[delta]] and "
            "[[clip]], or use another folder"
        )
    if not (folder / FILE).exists():
        raise UsageError(
            f"{folder / FILE}: missing, so the cost of the answers is unknown; restore the file, or use another folder"
        )


def spending(folder: str | Path) -> list[str]:
    """Return lines of text with the spent epsilon and the percentage of clipped differences of a party.

    There are no lines if the party has no differential privacy.

    Raises:
        UsageError: if there is no log.
        DamagedError: if a line of the log is damaged.
    """
    limits_file = Path(folder) / _LIMITS
    if not limits_file.exists():
        return []
    limits = json.loads(limits_file.read_text(encoding="utf-8"))
    lines = [line for line in read_log(folder) if "charge" in line]
    charges = [line["charge"] for line in lines]
    mu = math.fsum(charge["releases"] * charge["mu"] ** 2 for charge in charges) ** 0.5
    clipped = sum(sum(charge["clipped"]) for charge in charges)
    differences = sum(
        line["sent"]["used"]["values"] * line["charge"]["releases"] for line in lines if line["question"] == "sums"
    )
    return [
        f"privacy: {sum(charge['releases'] for charge in charges)} releases spent epsilon "
        f"{epsilon_at(mu, limits['delta']):.3g} of {limits['epsilon']:g}, at delta {limits['delta']:g} ({NEIGHBOURS})",
        f"clipped (confidential): {100 * clipped / max(differences, 1):.3g} % of the differences, warm-up included",
    ]
