"""The result file of a federated run: a file like that of any run, but without training rows."""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from bnnzoo import store
from bnnzoo.assembly import Problem
from bnnzoo.errors import BnnzooError, BnnzooWarning
from bnnzoo.finding import sentence, to_json
from bnnzoo.samplers import statistics
from bnnzoo.sampling import chain_findings, provenance, verdict
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.store.schema import row_dims, train_groups
from bnnzoo_federated import guard
from bnnzoo_federated.chains import Chains, Stats
from bnnzoo_federated.messages import Agreement
from bnnzoo_federated.privacy import NEIGHBOURS, clipped_sd
from bnnzoo_federated.scaling import empty_dataset
from bnnzoo_federated.strata import Stratum

_DRAWS, _SECONDS = 1000, 30.0
"""The draws so far are written after this number of draws, or after this number of seconds, whichever is earlier."""


class Recording:
    """A writer of draws: part files during the run, and the file `out` at the end of the run.

    As a context manager, the writer also writes the draws so far to `out` if an error ends the run.
    """

    def __init__(self, problem: Problem, agreements: Mapping[str, Agreement], out: Path, *, force: bool):
        self._problem, self._chains = problem, None
        self._terms = {name: agreement.terms for name, agreement in agreements.items()}
        self._draws: list[np.ndarray] = []
        self._stats: list[Stats] = []
        self._totals: chain_findings.Totals = {}
        self._reduce = statistics.reductions(problem.sampler)
        self._done, self._seconds = 0, {"compile": 0.0, "warmup": 0.0, "sampling": 0.0}
        self._began = self._written = time.perf_counter()
        self._writer = store.Store(out)
        self._writer.claim(force=force)

    def __enter__(self) -> Recording:
        problem, recipe = self._problem, self._problem.recipe
        description = problem.require_description()
        placement = place_chains("vectorized", recipe.chains)
        rows = sum(terms.rows for terms in self._terms.values())
        attributes = provenance.attributes(problem, placement) | {
            "task": description.signature.task,
            "rows": rows,
            "statistics": json.dumps(statistics.attributes(problem.sampler)),
            "federated": self._parties(),
        }
        no_data = empty_dataset(description.signature)
        groups = train_groups(no_data, problem.test, description.scaler, {})
        self._writer.create(attributes, row_dims(no_data, description.scaler), groups)
        return self

    def end_warmup(self, chains: Chains, seconds: float) -> None:
        """Record the end of warm-up, which took `seconds`. Call this method before `add`."""
        self._chains = chains
        self._seconds["warmup"] = seconds
        self._began = time.perf_counter()

    def add(self, positions: Float[Array, "chain dim"], steps: Sequence[Stats]) -> None:
        """Add one draw of each chain and the statistics of its steps."""
        self._draws.append(np.asarray(positions))
        self._stats.append({name: self._reduce_statistic(name, [step[name] for step in steps]) for name in steps[0]})
        if len(self._draws) >= _DRAWS or time.perf_counter() - self._written > _SECONDS:
            self._write()

    def finish(self, repeated_questions: Mapping[str, int], clipped_fractions: Mapping[str, float]) -> None:
        """Write the file of the complete run, with the validity findings. Issue a warning if there are findings.

        Args:
            repeated_questions: number of repeated questions to each party.
            clipped_fractions: fraction of clipped differences of each private party, with the noise of its answer.
        """
        clipped = {
            name: guard.Clipped(fraction, clipped_sd(self._terms[name])) for name, fraction in clipped_fractions.items()
        }
        self._write()
        assert self._chains is not None
        means = {name: np.array(sums) / self._done for name, sums in self._totals.items()}
        problems = guard.findings(means, self._chains.added_noise_variance, clipped)
        regime = sentence(problems[0]) if problems else ""
        recipe = self._problem.recipe
        step_size = [float(str(np.asarray(self._chains.step_size)))] * recipe.chains
        rows_per_step = 2.0 * sum(terms.batch_size for terms in self._terms.values())
        steps = recipe.warmup + recipe.draws * recipe.thin
        self._writer.update(
            {
                "regime_ok": chain_findings.regime_ok(self._problem.sampler, problems),
                "regime": regime,
                "findings": to_json(problems),
                "tuned": json.dumps({"step_size": step_size} if recipe.warmup else {}),
                "target_evaluations": rows_per_step * steps * recipe.chains,
                "clipped": json.dumps(
                    {
                        name: {"fraction": None if np.isnan(fraction) else fraction, "sd": sd}
                        for name, (fraction, sd) in clipped.items()
                    }
                ),
                "asked_again": json.dumps(dict(repeated_questions)),
                **self._counts(),
            }
        )
        num_bytes = recipe.chains * self._done * self._problem.posterior.layout.dim * 4
        self._writer.update(verdict.verdict(self._writer.out, num_bytes, self._done, None))
        self._writer.finish(complete=True)
        if regime:
            warnings.warn(f"the sampler's own check failed: {regime}", BnnzooWarning, stacklevel=4)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            with contextlib.suppress(BnnzooError):  # report only the first error
                self._write()
                self._writer.update(self._counts())
                if self._done:
                    self._writer.finish(complete=False)
                else:
                    self._writer.abandon()  # an unfinished run without draws would only block `out`
        self._writer.release()

    def _write(self) -> None:
        if not self._draws:
            return
        draws = self._problem.posterior.natural(np.stack(self._draws, 1))
        stats = {name: np.stack([draw_stats[name] for draw_stats in self._stats], 1) for name in self._stats[0]}
        self._writer.append({"posterior": draws, "sample_stats": stats})
        chain_findings.add_totals(self._totals, stats)
        self._done += len(self._draws)
        self._draws, self._stats = [], []
        self._written = time.perf_counter()
        self._seconds["sampling"] = self._written - self._began

    def _reduce_statistic(self, name: str, values: Sequence[np.ndarray]) -> np.ndarray:
        """Reduce a statistic over the steps of a draw to its mean or last value, as the sampler declares."""
        rule = self._reduce.get(name, "last")
        if len(values) == 1 or rule == "last":
            return values[-1]
        return np.stack(values).mean(0, dtype=np.float64).astype(np.float32)

    def _parties(self) -> str:
        """Return the sampling and the rows' fingerprint of each party, and the limits of each private party, as JSON.

        Equal texts of two runs mean that both used the same rows, so the text must not contain results of a run.
        """
        parties = {
            name: Stratum.of(terms)._asdict() | {"fingerprint": terms.fingerprint}
            for name, terms in self._terms.items()
        }
        for name, terms in self._terms.items():
            if terms.is_private:
                limits = {"epsilon": terms.epsilon, "delta": terms.delta, "clip": terms.clip, "neighbours": NEIGHBOURS}
                parties[name] |= limits
        return json.dumps(parties)

    def _counts(self) -> dict[str, Any]:
        return {"draws_done": self._done, **{f"seconds_{name}": value for name, value in self._seconds.items()}}
