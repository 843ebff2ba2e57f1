"""Checks of the parties' answers. No answer is used in a computation before it is checked."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np
from jaxtyping import Float

from bnnzoo.data import Signature
from bnnzoo_federated.messages import FINGERPRINT_LENGTH, POWERS, UNKNOWN, Terms, Words
from bnnzoo_federated.scaling import moment_shapes


def check_offer(answer: Words) -> Words:
    """Return a valid offer.

    Raises:
        ValueError: if it is invalid; the message says why.
    """
    text = answer.get("signature")
    try:
        shapes = moment_shapes(Signature.from_json(text if isinstance(text, str) else ""))
    except ValueError:
        raise ValueError("signature: unreadable, or without columns") from None
    _check_names(answer, {*Terms._fields, "signature", *shapes})
    terms = Terms.from_message(answer)
    max_batch = terms.rows if terms.sampling == "disjoint" else np.inf
    is_valid = {
        "rows": type(terms.rows) is int and terms.rows >= 1,
        "sampling": terms.sampling in ("replacement", "disjoint"),
        "batch_size": type(terms.batch_size) is int and type(terms.rows) is int and 2 <= terms.batch_size <= max_batch,
        "noise_sd": type(terms.noise_sd) is float and 0 <= terms.noise_sd < np.inf,
        "fingerprint": isinstance(terms.fingerprint, str) and len(terms.fingerprint) == FINGERPRINT_LENGTH,
    }
    if invalid := [name for name, is_right in is_valid.items() if not is_right]:
        raise ValueError(f"{', '.join(invalid)}: invalid values in the offer")
    for name, shape in shapes.items():
        if not np.isfinite(_numbers(name, answer[name], shape)).all():
            raise ValueError(f"{name}: must be finite")
    return answer


def check_agreement(answer: Words, agreement: str) -> None:
    """Check that an answer confirms the agreement.

    Raises:
        ValueError: if it does not.
    """
    if answer != {"agreed": agreement}:
        raise ValueError("expected a confirmation of the agreement")


def check_sums(answer: Words, agreement: str, chains: int, used: int) -> Float[np.ndarray, "chain power"] | None:
    """Return the sums; None if the party does not know the agreement.

    The sums need not be finite. If a position has no likelihood, they are not finite, and the step is rejected.

    Raises:
        ValueError: if the answer is invalid; the message says why.
    """
    if answer == {UNKNOWN: agreement}:
        return None
    _check_names(answer, {"used", "sums"})
    if type(answer["used"]) is not int or answer["used"] != used:
        raise ValueError(f"used: must be {used}, as offered")
    return _numbers("sums", answer["sums"], (chains, POWERS))


def _check_names(answer: Words, names: Set[str]) -> None:
    if set(answer) != names:
        raise ValueError(f"must contain exactly {', '.join(sorted(names))}")


def _numbers(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    try:
        array = np.array(value)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in "iuf" or array.shape != shape:
        raise ValueError(f"{name}: must be {' x '.join(map(str, shape)) or 'a'} number{'s' if shape else ''}")
    return array.astype(float)
