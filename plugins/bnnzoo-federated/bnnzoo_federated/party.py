"""A party. Rows never leave the party; only sums over rows are sent."""

from __future__ import annotations

import contextlib
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
from bnnzoo.data import Dataset, load, load_like
from bnnzoo.errors import UsageError
from bnnzoo.files.atomic import replacing
from bnnzoo.finding import setting
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.backend import arithmetic
from bnnzoo_federated.account import check_folder
from bnnzoo_federated.log import Log
from bnnzoo_federated.messages import REFUSED, UNKNOWN, Agreement, Request, Terms, Words, printable
from bnnzoo_federated.privacy import Privacy
from bnnzoo_federated.private import PrivateAnswers, Reply, SpentError, restore_posterior
from bnnzoo_federated.scaling import moments
from bnnzoo_federated.strata import power_sums

_SECRET, _SECRET_BYTES = "secret", 32


class _Refusal(UsageError):
    """Error whose text a party sends to the coordinator. The text has only names and sizes, never values of rows."""


class Party:
    """A holder of rows that answers four questions and logs every answer. Each answer has a fixed set of numbers.

    The question `offer` returns the number of rows, their columns, sums and sums of squares of the columns, and the
    party's terms. `agree` receives and confirms the model and the scaling. `sums` draws a new batch and returns the
    sums of d, d^2 and d^3 for each chain, where d_i is the difference of row i's log-likelihood between two positions
    of the chain. The party, not the request, chooses the batch size and the added noise.

    With `privacy`, the answers are differentially private. The sums and the columns in an offer are those of public
    rows. `sums` then uses all rows and returns the sum of the clipped d with noise, and `clipped` returns the fraction
    of clipped d with noise. The party answers only as often as `privacy` allows.
    """

    def __init__(
        self,
        data: Any,
        folder: str | Path,
        *,
        batch_size: int | None = None,
        sampling: Literal["replacement", "disjoint"] | None = None,
        noise_sd: float = 0.0,
        privacy: Privacy | None = None,
        public: Any = None,
        target: Sequence[str] = (),
        task: str | None = None,
        secret: bytes | None = None,
    ):
        """Open the folder of a party and read the rows.

        Args:
            data: arrays `(x, y)`, a data frame, or a value of `--data`; all rows are training rows.
            folder: folder of the log and of the secret, which determines batches and noise. A restarted party needs the
                same folder.
            batch_size: rows per step, K. Without `privacy` a number is required. With `privacy` all rows are used, and
                the value must be None.
            sampling: `replacement` (the default), or `disjoint` to use no row twice in a step. With `privacy` all rows
                are used, and the value must be None.
            noise_sd: standard deviation of normal noise added to the sum of d, in units of the log-likelihood. With
                `privacy` the value must be above 0.
            privacy: the limits of differential privacy; None for a party without differential privacy.
            public: rows with the same columns that are not confidential, in any of the forms of `data`. With `privacy`
                these rows are required, and determine the columns, the classes and the scaling. Two rows with the
                limits of each column are enough.
            target: as in `bnnzoo sample`.
            task: as in `bnnzoo sample`.
            secret: 32 bytes that replace the folder's secret.

        Raises:
            UsageError: if the rows cannot be used, the batch size is out of range, the secret is invalid, the folder
                cannot be created or does not match `privacy`, or an option is missing or conflicts with `privacy`.
            DamagedError: if the log of a private party is damaged.
        """
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder}: cannot create the folder ({error.strerror}); use another folder") from error
        check_folder(self.folder, is_private=privacy is not None)
        if privacy is None:
            if public is not None:
                raise UsageError(f"{self.folder}: [[public]]: requires [[epsilon]], [[delta]] and [[clip]]; add them")
            public_rows = self._rows = load(data, target=target, task=task)
            sampling = sampling or "replacement"
            batch_size = _checked_size(self.folder, batch_size, sampling, self._rows.num_data)
            if not (np.isfinite(noise_sd) and noise_sd >= 0):
                raise UsageError(f"{self.folder}: [[noise_sd]]: must be >= 0 (got {noise_sd})")
        else:
            _refuse_batches(self.folder, batch_size=batch_size, sampling=sampling)
            public_rows, self._rows = _private_rows(self.folder, data, public, target, task)
            privacy.check(str(self.folder), noise_sd)
            batch_size, sampling = self._rows.num_data, "disjoint"
        self._secret = _load_secret(self.folder / _SECRET) if secret is None else secret
        if len(self._secret) != _SECRET_BYTES:
            place, remedy = "secret", "use the secret of the earlier runs, or remove the argument"
            if secret is None:
                place = str(self.folder / _SECRET)
                remedy = "restore the file, or remove it to create a new secret (current runs then fail)"
            raise UsageError(f"{place}: must have {_SECRET_BYTES} bytes (got {len(self._secret)}); {remedy}")
        epsilon, delta, clip = (None, None, None) if privacy is None else map(float, privacy)
        fingerprint = _fingerprint(self._rows, self._secret)
        self._terms = Terms(
            self._rows.num_data, int(batch_size), sampling, float(noise_sd), epsilon, delta, clip, fingerprint
        )
        self._moments = moments(public_rows, self._rows.num_data)
        self._log = Log(self.folder)
        self._agreed: dict[str, AbstractPosterior] = {}
        self._private = None if privacy is None else PrivateAnswers(self.folder, self._terms, privacy, self._secret)

    @property
    def releases_left(self) -> int | None:
        """Number of releases that the limits still allow, one per chain and step; None without differential privacy."""
        if self._private is None:
            return None
        with self._private.account.exclusive():  # also reads answers that other processes have logged
            return self._private.account.left

    def answer(self, question: str, words: Words) -> Words:
        """Return the answer to a coordinator's question. The answer is logged before it is returned.

        Raises:
            OSError: if the log cannot be written; no answer is then returned.
        """
        with self._private.account.exclusive() if self._private else contextlib.nullcontext():
            reply = self._reply(question, words)
            self._log.add(
                printable(question),
                reply.answer,
                step=words.get("step") if isinstance(words, dict) else None,
                private_error=reply.private_error,
                charge=reply.charge,
            )
        return reply.answer

    def _reply(self, question: str, words: Words) -> Reply:
        answers = {"offer": self._offer, "agree": self._agree, "sums": self._sums, "clipped": self._clipped}
        try:
            return answers[question](words)
        except _Refusal as error:
            return Reply({REFUSED: f"{question}: {error}"})
        # No message may end the process. The text of an error may contain a row, so it is only logged, not sent.
        except Exception as error:
            text = f"{printable(question)}: {type(error).__name__}; the reason is in the party's log"
            return Reply({REFUSED: text}, private_error=f"{type(error).__name__}: {error}")

    def _offer(self, words: Words) -> Reply:
        del words
        return Reply({**self._terms._asdict(), "signature": self._rows.signature.to_json(), **self._moments})

    def _agree(self, words: Words) -> Reply:
        agreement = Agreement(**words)
        if agreement.signature != self._rows.signature.to_json():
            raise _Refusal("the columns of the run differ from the columns of this party")
        pairs = zip(Terms._fields, agreement.terms, self._terms, strict=True)
        if changed_terms := [name for name, agreed, current in pairs if agreed != current]:
            raise _Refusal(
                f"{', '.join(changed_terms)}: changed since the offer; start the party with the offered "
                "options, or start the coordinator's run again"
            )
        attributes = {"recipe": agreement.recipe, "signature": agreement.signature}
        scaling = {name: np.asarray(values, np.float32) for name, values in agreement.scaling.items()}
        answer: Words = {"agreed": agreement.name}
        error_text = ""
        if self._private is None:
            observed = {"y": self._rows.y}
            posterior = Problem.restored(attributes, {**scaling, "x": self._rows.x}, observed).posterior
        else:
            posterior, error_text = restore_posterior(attributes, scaling, self._rows)
            answer["releases"] = self._private.account.available(agreement.name)
        self._agreed[agreement.name] = posterior
        return Reply(answer, private_error=error_text)

    def _sums(self, words: Words) -> Reply:
        request, terms = Request.from_message(words), self._terms
        posterior = self._agreed.get(request.agreement)
        if posterior is None:
            return Reply({UNKNOWN: request.agreement})
        if request.here.shape[1] != posterior.layout.dim:
            raise _Refusal(f"positions must have {posterior.layout.dim} numbers (got {request.here.shape[1]})")
        if self._private is not None:
            try:
                return self._private.sums(posterior, request)
            except SpentError:
                raise _Refusal(
                    f"the limits of differential privacy, epsilon {terms.epsilon:g} and delta {terms.delta:g}, are "
                    f"reached; {self._private.account.left} releases are left and {len(request.here)} are needed; ask "
                    "the party for a larger epsilon"
                ) from None
        key = jnp.asarray(request.digest(self._secret), jnp.uint32)
        with arithmetic("float32"):
            d, noise = _differences(
                posterior, request.here, request.there, key, terms.batch_size, terms.sampling == "disjoint"
            )
        sums = power_sums(np.asarray(d), terms.noise_sd * np.asarray(noise, np.float64))
        return Reply({"used": terms.batch_size, "sums": sums.tolist()})

    def _clipped(self, words: Words) -> Reply:
        agreement, first_step = str(words["agreement"]), int(words["first"])
        if self._private is None:
            raise _Refusal("this party has no differential privacy, so it clips no differences")
        if agreement not in self._agreed:
            return Reply({UNKNOWN: agreement})
        return self._private.clipped(agreement, first_step)


@eqx.filter_jit
def _differences(
    posterior: AbstractPosterior,
    here: Float[Array | np.ndarray, "chain dim"],
    there: Float[Array | np.ndarray, "chain dim"],
    words: Array,
    size: int,
    disjoint: bool,
) -> tuple[Float[Array, "chain used"], Float[Array, " chain"]]:
    """Return d (see `Party`) for every row of the batch of each chain, and a standard normal number for each chain."""
    root = jax.random.wrap_key_data(words, impl="threefry2x32")

    def chain_differences(chain: Array, here: Array, there: Array) -> tuple[Array, Array]:
        key_batch, key_noise = jax.random.split(jax.random.fold_in(root, chain))
        batch = posterior.minibatch(size, replace=not disjoint, key=key_batch)
        d = posterior.log_likelihood(there, batch) - posterior.log_likelihood(here, batch)
        return d, jax.random.normal(key_noise)

    return jax.vmap(chain_differences)(jnp.arange(len(here), dtype=jnp.uint32), jnp.asarray(here), jnp.asarray(there))


def _checked_size(folder: Path, batch_size: int | None, sampling: str, num_rows: int) -> int:
    """Return the batch size of a party without differential privacy.

    Raises:
        UsageError: if the batch size is missing or out of range.
    """
    if batch_size is None:
        raise UsageError(f"{folder}: [[batch_size]]: missing; add it, or use differential privacy ([[epsilon]])")
    if not batch_size >= 2 or (sampling == "disjoint" and batch_size > num_rows):
        limits = f"between 2 and {num_rows}, the number of rows" if sampling == "disjoint" else ">= 2"
        raise UsageError(f"{folder}: [[batch_size]]: must be {limits} (got {batch_size})")
    return batch_size


def _refuse_batches(folder: Path, **settings: int | str | None) -> None:
    """Raise an error if a setting of batches is given together with differential privacy.

    Raises:
        UsageError: if a value of `settings` is not None.
    """
    for name, value in settings.items():
        if value is not None:
            raise UsageError(
                f"{folder}: {setting(name)}: conflicts with differential privacy, which uses all rows; remove it"
            )


def _private_rows(
    folder: Path, data: Any, public: Any, target: Sequence[str], task: str | None
) -> tuple[Dataset, Dataset]:
    """Return the public rows and the party's rows, which have the columns and classes of the public rows.

    Raises:
        UsageError: if `public` is None, or if the rows cannot be used.
    """
    if public is None:
        raise UsageError(
            f"{folder}: [[public]]: missing; give a table with the same columns that is not confidential, for "
            "example two rows with the limits of each column"
        )
    public_rows = load(public, target=target, task=task)
    rows = load_like(data, public_rows.signature)
    if rows.num_data < 2:
        raise UsageError(f"{folder}: [[data]]: must have at least 2 rows (got {rows.num_data})")
    return public_rows, rows


def _fingerprint(rows: Dataset, secret: bytes) -> str:
    """Return a digest of the rows, keyed by the secret. Without the secret, nobody can test guesses of the rows."""
    digest = hmac.new(secret, rows.signature.to_json().encode(), "sha256")
    for values in (rows.x, rows.y):
        digest.update(np.ascontiguousarray(values).reshape(-1).data)
    return digest.hexdigest()


def _load_secret(path: Path) -> bytes:
    """Return the secret in a file. The file is created at first use, and only the user of the party can read it."""
    if not path.exists():
        with replacing(path) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(secrets.token_bytes(_SECRET_BYTES))
    return path.read_bytes()
