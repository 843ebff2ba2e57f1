"""Messages between a coordinator and a party: text and numbers of agreed shapes, nothing executable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

Words = dict[str, Any]
"""The arguments of a question, or an answer: text, numbers, None, bytes, and lists and mappings of these."""

REFUSED, UNKNOWN = "refused", "unknown"
"""Keys of answers without a result.

The value for `REFUSED` is the reason of a refusal. The value for `UNKNOWN` is the name of an agreement that the party
does not know, for example after a restart.
"""

POWERS = 3
"""Number of sums that a party sends for each chain: the sums of d, d^2 and d^3 over rows.

d is the difference of a row's log-likelihood between two positions.

Under differential privacy a party sends only the first sum.
"""

FINGERPRINT_LENGTH = 64
"""Number of hexadecimal digits of a fingerprint, which is a SHA-256 digest."""


class Terms(NamedTuple):
    """The terms under which a party answers: its numbers of rows, its added noise and its differential privacy.

    The sums depend on the terms, so the terms are part of the agreement between coordinator and party.
    """

    rows: int
    batch_size: int
    sampling: str
    noise_sd: float
    epsilon: float | None
    """Epsilon of the differential privacy. Without this promise, `epsilon`, `delta` and `clip` are None."""
    delta: float | None
    clip: float | None
    fingerprint: str
    """Digest of the rows, keyed by the party's secret. Without the secret, it reveals nothing about the rows."""

    @classmethod
    def from_message(cls, words: Words) -> Terms:
        """Return the terms in an offer."""
        return cls(*(words[name] for name in cls._fields))

    @property
    def is_private(self) -> bool:
        """Whether the party promises differential privacy."""
        return self.epsilon is not None

    @property
    def powers(self) -> int:
        """Number of sums that the party sends for each chain."""
        return 1 if self.is_private else POWERS


class Agreement(NamedTuple):
    """The basis of a party's computations: the recipe of the model, the common scaling, and the party's terms."""

    recipe: str
    signature: str
    scaling: Mapping[str, list[Any]]
    """Means and standard deviations by which all parties scale inputs and targets: x_mean, x_sd, y_mean and y_sd."""
    terms: Terms
    run: str
    """Result of `digest_run`. Two runs with the same agreement send the same requests."""

    @property
    def name(self) -> str:
        """Digest that identifies the agreement in requests.

        The digest is not shortened, because the noise of an answer depends on the agreement only through the digest. An
        attacker who could make two agreements with the same digest could get two sums with the same noise.
        """
        return hashlib.sha256(json.dumps(self._asdict(), sort_keys=True).encode()).hexdigest()


def digest_run(terms: Iterable[Terms], starts: Float[Any, "chain dim"] | None) -> str:
    """Return a digest of the terms of all parties, in their order, and of the initial positions.

    The terms and the initial positions, together with the recipe and the scaling, determine all requests of a run.
    """
    digest = hashlib.sha256(json.dumps([list(party_terms) for party_terms in terms]).encode())
    if starts is not None:
        digest.update(np.ascontiguousarray(starts, "<f4").tobytes())
    return digest.hexdigest()


def printable(text: object) -> str:
    """Return the first 500 characters of a received text, without characters that could control a terminal."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:500])


class Request(NamedTuple):
    """A request for `sums`: two positions of each chain. The same request always gets the same answer, bit by bit."""

    agreement: str
    step: int
    key: tuple[int, int]
    here: Float[np.ndarray, "chain dim"]
    there: Float[np.ndarray, "chain dim"]

    def words(self) -> Words:
        """Return the request as a message."""
        positions = {name: np.ascontiguousarray(getattr(self, name), "<f4").tobytes() for name in ("here", "there")}
        return {
            "agreement": self.agreement,
            "step": self.step,
            "key": list(self.key),
            "chains": len(self.here),
            **positions,
        }

    @classmethod
    def from_message(cls, words: Words) -> Request:
        """Read a request from a message.

        Raises:
            ValueError, LookupError, TypeError: if the message is not a request.
        """
        shape = (int(words["chains"]), -1)
        here, there = (np.frombuffer(words[name], "<f4").reshape(shape) for name in ("here", "there"))
        if here.shape != there.shape:
            raise ValueError("the two positions must have equal lengths")
        first, second = (int(word) for word in words["key"])
        return cls(str(words["agreement"]), int(words["step"]), (first, second), here, there)

    def to_bytes(self) -> bytes:
        """Return the complete request as bytes. Different requests have different bytes."""
        words = self.words()
        text = json.dumps([words[name] for name in ("agreement", "step", "key", "chains")]).encode()
        return text + words["here"] + words["there"]

    def digest(self, secret: bytes) -> tuple[int, int]:
        """Return a 64-bit key that differs between requests and cannot be computed without the secret."""
        digest = hashlib.sha256(secret + self.to_bytes()).digest()
        return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")
