"""A party: rows that do not leave it, and the sums that do."""

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
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.backend import arithmetic
from bnnzoo.store.atomic import replacing
from bnnzoo_federated.log import Log
from bnnzoo_federated.messages import REFUSED, UNKNOWN, Agreement, Request, Terms, Words, printable
from bnnzoo_federated.scaling import moments
from bnnzoo_federated.strata import power_sums

_SECRET, _SECRET_BYTES = "secret", 32


class _Refusal(UsageError):
    """What a party tells its coordinator: names and sizes, and nothing of a row."""


class Party:
    """Answers three questions about its rows, each with a fixed set of numbers, and logs what it answers.

    `offer`: how many rows there are, what a row looks like, sums and sums of squares of the columns, and how the party
    will answer. `agree`: takes the model and the scaling. `sums`: of a fresh batch, for two positions of each chain,
    the sums of d, d^2 and d^3, with d_i the difference of row i's log-likelihood. How many rows a batch has and what
    noise is added is the party's own choice, and not the request's.
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
        """Open the folder, and read the rows.

        Args:
            data: arrays `(x, y)`, a data frame, or what `--data` takes; all rows train.
            folder: of the log and of the secret that batches and noise are drawn by, kept for a restart.
            batch_size: rows a step, K.
            sampling: rows alike, each drawn anew, or none twice in a step.
            noise_sd: of a normal number added to the sum of d, in units of the log-likelihood.
            target, task: as of `bnnzoo sample`.
            secret: 32 bytes, instead of the folder's.

        Raises:
            UsageError: for rows that cannot be used, a batch that they do not make, or a secret that is none.
        """
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._rows = load(data, target=target, task=task)
        count = self._rows.num_data
        if not batch_size >= 2 or (sampling == "disjoint" and batch_size > count):
            most = f" and {count}, its rows" if sampling == "disjoint" else ""
            raise UsageError(f"{self.folder}: batch_size: must be from 2{most} (got {batch_size})")
        if not (np.isfinite(noise_sd) and noise_sd >= 0):
            raise UsageError(f"{self.folder}: noise_sd: must be >= 0 (got {noise_sd})")
        self._secret = _kept_secret(self.folder / _SECRET) if secret is None else secret
        if len(self._secret) != _SECRET_BYTES:
            raise UsageError(
                f"{self.folder / _SECRET if secret is None else 'secret'}: holds {len(self._secret)} bytes, a secret "
                f"{_SECRET_BYTES}; put back what was there, or leave it out for a new one, which ends runs under way"
            )
        self._terms = Terms(count, int(batch_size), sampling, float(noise_sd), _fingerprint(self._rows, self._secret))
        self._log = Log(self.folder)
        self._agreed: dict[str, AbstractPosterior] = {}

    def answer(self, question: str, words: Words) -> Words:
        """The answer to a question of a coordinator; what it says is in the log before it is returned.

        Raises:
            OSError: where the log cannot be written: there is no answer then.
        """
        answers = {"offer": self._offer, "agree": self._agree, "sums": self._sums}
        kept = ""
        try:
            found = answers[question](words)
        except _Refusal as error:
            found = {REFUSED: f"{question}: {error}"}
        # Whatever comes over a line is no reason to end. What an error says may hold a row, and stays here.
        except Exception as error:
            kept = f"{type(error).__name__}: {error}"
            found = {REFUSED: f"{printable(question)}: {type(error).__name__}; the party's own log says why"}
        self._log.add(
            printable(question), found, step=words.get("step") if isinstance(words, dict) else None, kept=kept
        )
        return found

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
            raise _Refusal("it is about other columns than this party has")
        pairs = zip(Terms._fields, agreement.terms, self._terms, strict=True)
        if changed := [name for name, then, now in pairs if then != now]:
            raise _Refusal(
                f"{', '.join(changed)}: not as in its offer; start the party as it was then, or start the run again"
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
        request, terms = Request.of(words), self._terms
        posterior = self._agreed.get(request.agreement)
        if posterior is None:
            return {UNKNOWN: request.agreement}
        if request.here.shape[1] != posterior.layout.dim:
            raise _Refusal(f"positions have {request.here.shape[1]} numbers, the model {posterior.layout.dim}")
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
    """d of every row of each chain's batch, and a standard normal number a chain."""
    root = jax.random.wrap_key_data(words, impl="threefry2x32")

    def one(chain: Array, here: Array, there: Array) -> tuple[Array, Array]:
        key_batch, key_noise = jax.random.split(jax.random.fold_in(root, chain))
        batch = posterior.minibatch(size, replace=not disjoint, key=key_batch)
        d = posterior.log_likelihood(there, batch) - posterior.log_likelihood(here, batch)
        return d, jax.random.normal(key_noise)

    return jax.vmap(one)(jnp.arange(len(here), dtype=jnp.uint32), jnp.asarray(here), jnp.asarray(there))


def _fingerprint(rows: Dataset, secret: bytes) -> str:
    """The same for the same rows; whoever has not the secret cannot try by it which rows they are."""
    found = hmac.new(secret, rows.signature.to_json().encode(), "sha256")
    for values in (rows.x, rows.y):
        found.update(np.ascontiguousarray(values).reshape(-1).data)
    return found.hexdigest()


def _kept_secret(path: Path) -> bytes:
    """The secret of a folder, made when it is first asked for; only the party may read it."""
    if not path.exists():
        with replacing(path) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(secrets.token_bytes(_SECRET_BYTES))
    return path.read_bytes()
