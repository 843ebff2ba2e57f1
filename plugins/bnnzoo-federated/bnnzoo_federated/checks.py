"""Checks of the parties' answers. The coordinator uses no answer in a computation before it has checked the answer."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np
from jaxtyping import Float

from bnnzoo.data import Signature
from bnnzoo_federated.messages import FINGERPRINT_LENGTH, POWERS, UNKNOWN, Agreement, Terms, Words
from bnnzoo_federated.scaling import moment_shapes


def check_offer(answer: Words) -> Words:
    """Return the answer to the question `offer` if it is valid.

    Raises:
        ValueError: if the answer is invalid; the message says why.
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
        "epsilon, delta, clip": _are_limits(terms),
        "fingerprint": isinstance(terms.fingerprint, str) and len(terms.fingerprint) == FINGERPRINT_LENGTH,
    }
    if invalid := [name for name, is_right in is_valid.items() if not is_right]:
        raise ValueError(f"{', '.join(invalid)}: invalid values in the offer")
    for name, shape in shapes.items():
        if not np.isfinite(_numbers(name, answer[name], shape)).all():
            raise ValueError(f"{name}: must be finite")
    return answer


def _are_limits(terms: Terms) -> bool:
    """Whether the terms promise no differential privacy, or promise it and all terms have valid values."""
    limits = (terms.epsilon, terms.delta, terms.clip)
    if limits == (None, None, None):
        return True
    if not all(type(limit) is float and 0 < limit < np.inf for limit in limits):
        return False
    uses_all_rows = terms.sampling == "disjoint" and terms.batch_size == terms.rows
    return terms.delta < 1 and uses_all_rows and bool(terms.noise_sd > 0)  # pyright: ignore[reportOptionalOperand]


def check_agreement(answer: Words, agreement: Agreement) -> int | None:
    """Return the number of releases that a private party allows for a run; None if the party is not private.

    Raises:
        ValueError: if the answer does not confirm the agreement.
    """
    is_private = agreement.terms.is_private
    if answer.get("agreed") != agreement.name or set(answer) != {"agreed", *(["releases"] if is_private else [])}:
        raise ValueError("expected a confirmation of the agreement")
    if is_private and type(answer["releases"]) is not int:
        raise ValueError("releases: must be a whole number")
    return answer.get("releases")


def check_sums(answer: Words, agreement: Agreement, chains: int) -> Float[np.ndarray, "chain power"] | None:
    """Return the sums in an answer to `sums`; None if the party does not know the agreement.

    A private party sends only one sum for each chain; the other sums are then 0. Sums need not be finite. If the
    log-likelihood at a position is not finite, the sums are not finite either, and the proposal is rejected.

    Raises:
        ValueError: if the answer is invalid; the message says why.
    """
    if answer == {UNKNOWN: agreement.name}:
        return None
    _check_names(answer, {"used", "sums"})
    used, powers = agreement.terms.batch_size, agreement.terms.powers
    if type(answer["used"]) is not int or answer["used"] != used:
        raise ValueError(f"used: must be {used}, the offered batch size")
    return np.pad(_numbers("sums", answer["sums"], (chains, powers)), ((0, 0), (0, POWERS - powers)))


def check_clipped(answer: Words, agreement: Agreement) -> float | None:
    """Return the fraction of clipped differences in an answer; None if the party does not know the agreement.

    The fraction is NaN if the limits of the party's differential privacy do not allow the party to send it.

    Raises:
        ValueError: if the answer is invalid; the message says why.
    """
    if answer == {UNKNOWN: agreement.name}:
        return None
    _check_names(answer, {"fraction"})
    return float("nan") if answer["fraction"] is None else float(_numbers("fraction", answer["fraction"], ()))


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
