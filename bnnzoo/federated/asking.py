"""Asking all parties, and those again that did not answer: a restart or a late answer changes no bit of a chain."""

from __future__ import annotations

import time
from collections.abc import Mapping

from bnnzoo.errors import BnnzooError
from bnnzoo.federated.lines import Line, Wait
from bnnzoo.federated.messages import REFUSED, Words

_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class Asking:
    """The lines to all parties, by name.

    `again` counts how often each was asked anew.
    """

    def __init__(self, lines: Mapping[str, Line], *, patience: float, limit: float):
        """Ask nobody yet.

        Args:
            patience: seconds after which an answer is late, and the question is asked again.
            limit: seconds after which a party that has not answered ends the run.
        """
        self.lines, self.patience, self.limit = dict(lines), patience, limit
        self.again = dict.fromkeys(lines, 0)

    def all(self, question: str, words: Words) -> dict[str, Words]:
        """The answers of all parties to one question.

        Raises:
            BnnzooError: where one refuses, or does not answer within the limit.
        """
        answers: dict[str, Words] = {}
        until, pause = time.monotonic() + self.limit, _PAUSE
        while True:
            waiting = {name: line.begin(question, words) for name, line in self.lines.items() if name not in answers}
            late = {name: why for name, wait in waiting.items() if (why := self._take(name, wait, answers))}
            if not late:
                return {name: answers[name] for name in self.lines}
            name, why = next(iter(late.items()))
            if time.monotonic() > until:
                raise BnnzooError(f"party {name}: no answer for {self.limit:g} s ({why}); start it again, and the run")
            for name in late:
                self.again[name] += 1
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def one(self, name: str, question: str, words: Words) -> Words:
        """The answer of one party, likewise."""
        alone = Asking({name: self.lines[name]}, patience=self.patience, limit=self.limit)
        answer = alone.all(question, words)[name]
        self.again[name] += alone.again[name]
        return answer

    def _take(self, name: str, wait: Wait, answers: dict[str, Words]) -> str:
        """Put an answer among the others; or say why there is none."""
        try:
            answer = wait(self.patience)
        except OSError as error:
            return str(error) or type(error).__name__
        if REFUSED in answer:
            raise BnnzooError(f"party {name}: {answer[REFUSED]}")
        answers[name] = answer
        return ""
