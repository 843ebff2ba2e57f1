"""What goes between a coordinator and a party: words and numbers of agreed shapes, nothing that runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

Words = dict[str, Any]
"""A question's arguments, or an answer: text, numbers, lists of them, and bytes."""

REFUSED, UNKNOWN = "refused", "unknown"
"""Answers that are none: why a party does not answer; and that it has not heard of this agreement."""

POWERS = 3
"""A party sends the sums of d, d^2 and d^3."""


FINGERPRINT_LENGTH = 64
"""Hexadecimal digits of a SHA-256."""


class Terms(NamedTuple):
    """What a party answers by. A run is agreed on them: with others its sums would be taken for what they are not."""

    rows: int
    batch_size: int
    sampling: str
    noise_sd: float
    fingerprint: str
    """A digest of the rows, keyed by the party's secret: who has not that one learns nothing of the rows by it."""

    @classmethod
    def of(cls, words: Words) -> Terms:
        """Those of an offer."""
        return cls(*(words[name] for name in cls._fields))


class Agreement(NamedTuple):
    """What a party computes with: the model by name, the scaling of all parties' rows, and its own terms."""

    recipe: str
    signature: str
    scaling: Mapping[str, list[Any]]
    """x_mean, x_sd, y_mean, y_sd."""
    terms: Terms

    @property
    def name(self) -> str:
        """A digest, by which requests name it."""
        return hashlib.sha256(json.dumps(self._asdict(), sort_keys=True).encode()).hexdigest()[:16]


def printable(text: object) -> str:
    """What another process said, fit for a terminal."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:500])


class Request(NamedTuple):
    """Two positions of each chain. The same request is answered by the same bits, however often it is asked."""

    agreement: str
    step: int
    key: tuple[int, int]
    here: Float[np.ndarray, "chain dim"]
    there: Float[np.ndarray, "chain dim"]

    def words(self) -> Words:
        """As it is sent."""
        positions = {name: np.ascontiguousarray(getattr(self, name), "<f4").tobytes() for name in ("here", "there")}
        return {
            "agreement": self.agreement,
            "step": self.step,
            "key": list(self.key),
            "chains": len(self.here),
            **positions,
        }

    @classmethod
    def of(cls, words: Words) -> Request:
        """As it was sent.

        Raises:
            ValueError, LookupError, TypeError: for anything else.
        """
        shape = (int(words["chains"]), -1)
        here, there = (np.frombuffer(words[name], "<f4").reshape(shape) for name in ("here", "there"))
        if here.shape != there.shape:
            raise ValueError("the two positions differ in length")
        first, second = (int(word) for word in words["key"])
        return cls(str(words["agreement"]), int(words["step"]), (first, second), here, there)

    def digest(self, secret: bytes) -> tuple[int, int]:
        """A key of 64 bits that nobody without the secret can compute, another for every request."""
        words = self.words()
        text = json.dumps([words[name] for name in ("agreement", "step", "key", "chains")]).encode()
        found = hashlib.sha256(secret + text + words["here"] + words["there"]).digest()
        return int.from_bytes(found[:4], "little"), int.from_bytes(found[4:8], "little")
