"""Questions to all parties, repeated until answered. A restarted party or a late answer does not change the chains."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from bnnzoo.errors import BnnzooError
from bnnzoo_federated.lines import Line
from bnnzoo_federated.messages import REFUSED, Words, printable

Answer = TypeVar("Answer")

_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class PartyQuestions:
    """The connections (lines) to all parties, with the names of the parties as keys.

    `again` contains, for each party, the number of repeated questions since the last `reset`.
    """

    def __init__(self, lines: Mapping[str, Line], *, patience: float, limit: float):
        """Store the lines; no question is sent yet.

        Args:
            lines: connection to each party.
            patience: seconds after which an answer is late, and the question is repeated.
            limit: seconds after which the run ends with an error if a party has not answered.
        """
        self.lines, self.patience, self.limit = dict(lines), patience, limit
        self.reset()

    def reset(self) -> None:
        """Set the numbers of repeated questions to 0 at the start of a run."""
        self.again = dict.fromkeys(self.lines, 0)

    def all(
        self, question: str, messages: Mapping[str, Words], read: Callable[[str, Words], Answer]
    ) -> dict[str, Answer]:
        """Ask all parties in `messages` the same question, and return the answers in the order of `messages`.

        Args:
            question: the name of the question.
            messages: arguments of the question for each party.
            read: function that converts a party's name and reply to the answer. It raises a ValueError if the reply is
                invalid.

        Raises:
            BnnzooError: if a party refuses, sends an invalid answer, or does not answer within the limit.
        """
        answers: dict[str, Answer] = {}
        deadline, pause = time.monotonic() + self.limit, _PAUSE
        while True:
            waiting = {
                name: self.lines[name].begin(question, message)
                for name, message in messages.items()
                if name not in answers
            }
            errors_by_party: dict[str, str] = {}
            for name, wait in waiting.items():
                try:
                    answers[name] = _read(name, question, wait(self.patience), read)
                except OSError as error:
                    errors_by_party[name] = str(error) or type(error).__name__
                except BnnzooError as error:
                    raise BnnzooError(f"party {name}: {error}") from error
            if not errors_by_party:
                return {name: answers[name] for name in messages}
            name, reason = next(iter(errors_by_party.items()))
            if time.monotonic() > deadline:
                raise BnnzooError(
                    f"party {name}: no answer for {self.limit:g} s ({reason}); restart the party, then start the run "
                    "again"
                )
            for name in errors_by_party:
                self.again[name] += 1
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _read(name: str, question: str, message: Words, read: Callable[[str, Words], Answer]) -> Answer:
    try:
        if REFUSED not in message:
            return read(name, message)
    except ValueError as error:
        raise BnnzooError(
            f"invalid reply to {question}: {error}; if you trust the party, start the party with the coordinator's "
            "version of bnnzoo"
        ) from error
    raise BnnzooError(printable(message[REFUSED]))
