"""A party's answers under differential privacy: sums of clipped differences over all rows, with noise.

The answers have no other part that depends on the rows. In particular, the rows are not checked when a coordinator
names a model. An answer that reported an invalid row would reveal this row.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.special import ndtri

from bnnzoo.assembly import Problem
from bnnzoo.data import Dataset
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.backend import arithmetic
from bnnzoo.posterior.base import Data
from bnnzoo_federated.account import Account
from bnnzoo_federated.log import Charge
from bnnzoo_federated.messages import Request, Terms, Words
from bnnzoo_federated.privacy import Privacy, clipped_sd


class Reply(NamedTuple):
    """An answer, with a cost and an error text that are logged but not sent.

    Only a new answer under differential privacy has a cost.
    """

    answer: Words
    charge: Charge | None = None
    private_error: str = ""


_Release = Callable[[], tuple[Words, list[int]]]
"""Function that returns a new answer, and the number of clipped differences of each chain."""


class SpentError(Exception):
    """Refusal of an answer that would exceed the limits of the party's differential privacy."""


class PrivateAnswers:
    """Answers with noise to the questions `sums` and `clipped`, within the limits of the party's account."""

    def __init__(self, folder: Path, terms: Terms, privacy: Privacy, secret: bytes):
        """Open the account of the folder.

        Args:
            folder: folder of the account.
            terms: the terms of the party.
            privacy: the limits, and the clip of the differences.
            secret: bytes that determine the noise.
        """
        self.account = Account(folder, privacy, terms.noise_sd)
        self._terms, self._clip, self._secret = terms, privacy.clip, secret

    def sums(self, posterior: AbstractPosterior, request: Request) -> Reply:
        """Return the answer to `sums`: the sum of the clipped differences of all rows plus noise, for each chain.

        Raises:
            SpentError: if the limits do not allow as many releases as there are chains.
        """
        digest = hashlib.sha256(b"sums" + request.to_bytes()).digest()
        chains = len(request.here)

        def release() -> tuple[Words, list[int]]:
            with arithmetic("float32"):
                d = np.asarray(_all_differences(posterior, request.here, request.there))
            sums, clipped = clipped_sums(d, self._clip)
            noise = self._terms.noise_sd * secret_normals(self._secret, digest, chains)
            return {"used": self._terms.rows, "sums": (sums + noise)[:, None].tolist()}, clipped.tolist()

        return self._charged(digest, request.agreement, request.step, chains, release)

    def clipped(self, agreement: str, first_step: int) -> Reply:
        """Return the answer to `clipped`: the fraction of clipped differences since `first_step`, plus noise.

        The fraction is the mean number of clipped differences over all answers and chains, divided by the number of
        rows N. Replacing a row changes the fraction by at most 1/N. The noise has the standard deviation
        noise_sd / (2 clip N), so the fraction costs as much as one sum. If the limits do not allow this cost, the
        fraction is None.
        """
        text = json.dumps([agreement, first_step]).encode()
        digest = hashlib.sha256(b"clipped" + text).digest()

        def release() -> tuple[Words, list[int]]:
            fraction = self.account.clipped_fraction(agreement, first_step, self._terms.rows)
            noise = clipped_sd(self._terms)
            return {"fraction": fraction + noise * float(secret_normals(self._secret, digest, 1)[0])}, []

        try:
            return self._charged(digest, agreement, first_step, 1, release)
        except SpentError:
            return Reply({"fraction": None})

    def _charged(self, digest: bytes, agreement: str, step: int, releases: int, release: _Release) -> Reply:
        """Return the logged answer to the request with this digest, or a new answer with its cost if there is none.

        Raises:
            SpentError: if a new answer would need more releases than the limits allow.
        """
        earlier = self.account.earlier_answer(digest.hex())
        if earlier is not None:
            return Reply(earlier)
        if releases > self.account.left:
            raise SpentError
        answer, clipped = release()
        charge = Charge(
            request=digest.hex(),
            agreement=agreement,
            step=step,
            releases=releases,
            mu=self.account.mu,
            clipped=clipped,
        )
        return Reply(answer, charge)


def restore_posterior(
    attributes: Mapping[str, Any], scaling: Mapping[str, np.ndarray], rows: Dataset
) -> tuple[AbstractPosterior, str]:
    """Return the posterior of an agreement for the rows, and the error text of a check of the rows.

    The text is "" if the model and the rows match. The text is for the party only, because it can depend on values of
    the rows. Whether this function raises an error does not depend on values of the rows.

    Args:
        attributes: the recipe and the signature of the agreement.
        scaling: the scaling of the agreement.
        rows: the rows, in original units.
    """
    problem = Problem.restored(attributes, scaling)
    description = problem.require_description()
    scaler, arrange = description.scaler, description.parts.model.arrange
    x = rows.x if rows.x.dtype == np.uint8 else _scale(rows.x, scaler.x_mean, scaler.x_sd)
    y = rows.y if rows.y.dtype.kind == "i" else _scale(rows.y, scaler.y_mean, scaler.y_sd)
    try:
        Problem.restored(attributes, {**scaling, "x": rows.x}, {"y": rows.y})
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        reason = ""
    return dataclasses.replace(problem.network_posterior, data=Data(arrange(x), y)), reason


def _scale(values: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return scaled values as float32. Unlike `Scaler`, do not raise an error for infinite values."""
    with np.errstate(all="ignore"):
        return ((values.astype(np.float64) - mean) / sd).astype(np.float32)


@eqx.filter_jit
def _all_differences(
    posterior: AbstractPosterior,
    here: Float[Array | np.ndarray, "chain dim"],
    there: Float[Array | np.ndarray, "chain dim"],
) -> Float[Array, "chain row"]:
    """Return d, the change of each row's log-likelihood from `here` to `there`, for each chain; d is never NaN.

    A log-likelihood of NaN counts as minus infinity. If the log-likelihood is minus infinity at both positions, d is 0.
    """

    def chain_differences(here: Array, there: Array) -> Array:
        def differences(batch: Any) -> Array:
            at_there, at_here = (
                jnp.nan_to_num(posterior.log_likelihood(theta, batch), nan=-jnp.inf, posinf=jnp.inf, neginf=-jnp.inf)
                for theta in (there, here)
            )
            return jnp.nan_to_num(at_there - at_here, nan=0.0, posinf=jnp.inf, neginf=-jnp.inf)

        return posterior.over_data(differences)

    return jax.vmap(chain_differences)(jnp.asarray(here), jnp.asarray(there))


def clipped_sums(
    d: Float[np.ndarray, "chain row"], clip: float
) -> tuple[Float[np.ndarray, " chain"], Int[np.ndarray, " chain"]]:
    """Return the sums of d clipped to [-clip, clip], and the numbers of clipped values, for each chain."""
    values = d.astype(np.float64)
    return np.clip(values, -clip, clip).sum(1), (np.abs(values) > clip).sum(1)


def secret_normals(secret: bytes, digest: bytes, count: int) -> Float[np.ndarray, " number"]:
    """Return standard normal numbers that are a function of the secret and of a request's digest.

    SHAKE-256 of the secret and the digest gives 53 random bits for each number. Without the secret, these bits
    cannot be distinguished from independent random bits, as far as is known. The inverse normal distribution function
    turns the bits into normal numbers, none beyond 8.3 standard deviations.
    """
    stream = hashlib.shake_256(b"bnnzoo noise" + secret + digest).digest(8 * count)
    uniform = ((np.frombuffer(stream, "<u8") >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return ndtri(uniform)
