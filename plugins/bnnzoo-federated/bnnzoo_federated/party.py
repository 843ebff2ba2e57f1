"""A party. Its rows never leave it; it sends only sums over them."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bnnzoo.assembly import Problem
from bnnzoo.data import Dataset, load
from bnnzoo.errors import UsageError
from bnnzoo.files.atomic import replacing
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.backend import arithmetic
from bnnzoo_federated.log import Log
from bnnzoo_federated.messages import REFUSED, UNKNOWN, Agreement, Request, Terms, Words, printable
from bnnzoo_federated.scaling import moments
from bnnzoo_federated.strata import power_sums

_SECRET, _SECRET_BYTES = "secret", 32


class _Refusal(UsageError):
    """The text that a party sends to its coordinator on refusal: names and sizes, and nothing about a row."""


class Party:
    """A holder of rows. It answers three questions about them, each with a fixed set of numbers, and logs every answer.

    The question `offer` returns the number of rows, their columns, sums and sums of squares of the columns, and the
    party's terms. `agree` receives the model and the scaling. `sums` draws a new batch and returns, for two positions
    of each chain, the sums of d, d^2 and d^3, where d_i is the difference of row i's log-likelihood between the two
    positions. The party, not the request, chooses the batch size and the added noise.
    """

    def __init__(
        self,
        data: Any,
        folder: str | Path,
        *,
        batch_size: int,
        sampling: Literal["replacement", "disjoint"] = "replacement",
        noise_sd: float = 0.0,
        target: Sequence[str] = (),
        task: str | None = None,
        secret: bytes | None = None,
    ):
        """Open the folder and read the rows.

        Args:
            data: arrays `(x, y)`, a data frame, or a value of `--data`; all rows are training rows.
            folder: folder of the log and of the secret that determines batches and noise, kept for restarts.
            batch_size: rows per step, K.
            sampling: `replacement`, or `disjoint` to use no row twice in a step.
            noise_sd: standard deviation of normal noise added to the sum of d, in units of the log-likelihood.
            target: as in `bnnzoo sample`.
            task: as in `bnnzoo sample`.
            secret: 32 bytes that replace the folder's secret.

        Raises:
            UsageError: if the rows cannot be used, the batch size is not possible, or the secret is invalid.
        """
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._rows = load(data, target=target, task=task)
        count = self._rows.num_data
        if not batch_size >= 2 or (sampling == "disjoint" and batch_size > count):
            limits = f"between 2 and {count}, the number of rows" if sampling == "disjoint" else ">= 2"
            raise UsageError(f"{self.folder}: batch_size: must be {limits} (got {batch_size})")
        if not (np.isfinite(noise_sd) and noise_sd >= 0):
            raise UsageError(f"{self.folder}: noise_sd: must be >= 0 (got {noise_sd})")
        self._secret = _load_secret(self.folder / _SECRET) if secret is None else secret
        if len(self._secret) != _SECRET_BYTES:
            raise UsageError(
                f"{self.folder / _SECRET if secret is None else 'secret'}: must have {_SECRET_BYTES} bytes "
                f"(got {len(self._secret)}); restore it, or remove it to create a new one, which ends current runs"
            )
        self._terms = Terms(count, int(batch_size), sampling, float(noise_sd), _fingerprint(self._rows, self._secret))
        self._log = Log(self.folder)
        self._agreed: dict[str, AbstractPosterior] = {}

    def answer(self, question: str, words: Words) -> Words:
        """Return the answer to a coordinator's question. The answer is logged before it is returned.

        Raises:
            OSError: if the log cannot be written; no answer is then returned.
        """
        answers = {"offer": self._offer, "agree": self._agree, "sums": self._sums}
        private_error = ""
        try:
            answer = answers[question](words)
        except _Refusal as error:
            answer = {REFUSED: f"{question}: {error}"}
        # No message may end the process. The text of an error may contain a row, so it is only logged here.
        except Exception as error:
            private_error = f"{type(error).__name__}: {error}"
            answer = {REFUSED: f"{printable(question)}: {type(error).__name__}; the reason is in the party's log"}
        self._log.add(
            printable(question),
            answer,
            step=words.get("step") if isinstance(words, dict) else None,
            private_error=private_error,
        )
        return answer

    def _offer(self, words: Words) -> Words:
        del words
        rows = self._rows
        return {
            **self._terms._asdict(),
            "signature": rows.signature.to_json(),
            **moments(rows),
        }

    def _agree(self, words: Words) -> Words:
        agreement = Agreement(**words)
        if agreement.signature != self._rows.signature.to_json():
            raise _Refusal("the columns of the run differ from the columns of this party")
        pairs = zip(Terms._fields, agreement.terms, self._terms, strict=True)
        if changed_terms := [name for name, agreed, current in pairs if agreed != current]:
            raise _Refusal(
                f"{', '.join(changed_terms)}: changed since the offer; start the party with the offered "
                "options, or start the run again"
            )
        scaling = {name: np.asarray(values, np.float32) for name, values in agreement.scaling.items()}
        problem = Problem.restored(
            {"recipe": agreement.recipe, "signature": agreement.signature},
            {**scaling, "x": self._rows.x},
            {"y": self._rows.y},
        )
        self._agreed[agreement.name] = problem.posterior
        return {"agreed": agreement.name}

    def _sums(self, words: Words) -> Words:
        request, terms = Request.from_message(words), self._terms
        posterior = self._agreed.get(request.agreement)
        if posterior is None:
            return {UNKNOWN: request.agreement}
        if request.here.shape[1] != posterior.layout.dim:
            raise _Refusal(f"positions must have {posterior.layout.dim} numbers (got {request.here.shape[1]})")
        key = jnp.asarray(request.digest(self._secret), jnp.uint32)
        with arithmetic("float32"):
            d, noise = _differences(
                posterior, request.here, request.there, key, terms.batch_size, terms.sampling == "disjoint"
            )
        sums = power_sums(np.asarray(d), terms.noise_sd * np.asarray(noise, np.float64))
        return {"used": terms.batch_size, "sums": sums.tolist()}


@eqx.filter_jit
def _differences(
    posterior: AbstractPosterior,
    here: Float[Array | np.ndarray, "chain dim"],
    there: Float[Array | np.ndarray, "chain dim"],
    words: Array,
    size: int,
    disjoint: bool,
) -> tuple[Float[Array, "chain used"], Float[Array, " chain"]]:
    """Return d of every row of each chain's batch, and a standard normal number for each chain."""
    root = jax.random.wrap_key_data(words, impl="threefry2x32")

    def chain_differences(chain: Array, here: Array, there: Array) -> tuple[Array, Array]:
        key_batch, key_noise = jax.random.split(jax.random.fold_in(root, chain))
        batch = posterior.minibatch(size, replace=not disjoint, key=key_batch)
        d = posterior.log_likelihood(there, batch) - posterior.log_likelihood(here, batch)
        return d, jax.random.normal(key_noise)

    return jax.vmap(chain_differences)(jnp.arange(len(here), dtype=jnp.uint32), jnp.asarray(here), jnp.asarray(there))


def _fingerprint(rows: Dataset, secret: bytes) -> str:
    """Return a digest of the rows, keyed by the secret, so that guesses of the rows cannot be tested without it."""
    digest = hmac.new(secret, rows.signature.to_json().encode(), "sha256")
    for values in (rows.x, rows.y):
        digest.update(np.ascontiguousarray(values).reshape(-1).data)
    return digest.hexdigest()


def _load_secret(path: Path) -> bytes:
    """Return the secret of a folder. It is created at first use, and only the party's user can read the file."""
    if not path.exists():
        with replacing(path) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(secrets.token_bytes(_SECRET_BYTES))
    return path.read_bytes()
