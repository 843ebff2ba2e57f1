"""What a run says of itself at its end: whether it has converged, in its file and in one line."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from bnnzoo import store
from bnnzoo.discovery import one_line
from bnnzoo.errors import BnnzooWarning
from bnnzoo.evaluation import diagnostics, findings, noise_scale
from bnnzoo.evaluation.predictor import Predictor
from bnnzoo.evaluation.record import Record
from bnnzoo.finding import Finding, Spelling, sentence
from bnnzoo.models import AbstractModel
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.store import Attributes
from bnnzoo.store.schema import SAMPLE_STATS

_BYTES = 2**28
"""Draws beyond this are not read again at the end of a run: `bnnzoo diagnose` judges them when it is asked to."""
_FEWEST = 100
"""Draws of a chain below which no look tells anything: the gate asks for as many effective ones."""

_ENOUGH = 400.0
"""The bulk ESS of predictions, over all chains, that `--until converged` asks for (Vehtari et al. 2021)."""


def stride(num_bytes: int, draws: int) -> int:
    """k, such that every k-th of so many draws of a chain can be looked at under way; 0 where these are too few.

    Args:
        num_bytes: what the draws of all chains take.
    """
    every = ceil(num_bytes / _BYTES)
    return every if draws // every >= _FEWEST else 0


def is_enough(out: Path, every: int, model: AbstractModel | AbstractPosterior | None) -> bool:
    """Whether a run under way has converged, by every k-th draw so far: as the gate has it, and an ESS of 400."""
    looked = _look(out, every, model)
    if looked is None:
        return False
    diagnosis, found = looked
    if not diagnostics.is_chain(str(diagnosis["exactness"])):
        return False
    return diagnosis["ess_bulk"] >= _ENOUGH and not any(finding.topic == "convergence" for finding in found)


def verdict(out: Path, num_bytes: int, draws: int, model: AbstractModel | AbstractPosterior | None) -> Attributes:
    """The root attributes that speak of convergence, of the parts of a run that has all its draws.

    Args:
        num_bytes: what the draws take. draws: of a chain.
        model: the model, where it is one that no registry knows; a posterior made by hand.

    Returns:
        `verdict` (one line), `verdict_in_python` (the same with keywords for options), `absurd` (of it, that chains
        stand still or predictions are far from the data: empty where they do not and are not), `converged` (1 or 0;
        `not-applicable` for draws that are no chain), and `rhat` and `ess_bulk` of predictions. Of a large run every
        k-th draw is looked at; nothing where these are too few, or judging them fails.
    """
    every = 1 if num_bytes <= _BYTES else stride(num_bytes, draws)
    looked = _look(out, every, model) if every else None
    return {} if looked is None else said(*looked)


def said(diagnosis: Mapping[str, Any], found: Sequence[Finding]) -> Attributes:
    """The same of a run that was looked at already."""
    exactness = str(diagnosis["exactness"])
    converged: int | str = int(not any(finding.topic == "convergence" for finding in found))
    wrong = [
        sentence(finding) for finding in found if finding.kind in ("remoteness", "deficit", "surprise", "still_chains")
    ]

    def words(spelling: Spelling) -> str:
        text = findings.verdict(exactness, found, findings.bias(diagnosis), spelling)
        return "; ".join(filter(None, [text, noise_scale.remark(diagnosis)]))

    return {
        "verdict": words("options"),
        "verdict_in_python": words("keywords"),
        "absurd": "; ".join(wrong),
        "converged": converged if diagnostics.is_chain(exactness) else "not-applicable",
        **({k: float(diagnosis[k]) for k in ("rhat", "ess_bulk")} if diagnostics.is_chain(exactness) else {}),
    }


def _look(
    out: Path, every: int, model: AbstractModel | AbstractPosterior | None
) -> tuple[dict[str, Any], tuple[Finding, ...]] | None:
    """Diagnosis and findings of every k-th draw of the parts so far; None where they cannot be read, or judged."""
    try:
        tree = store.open_parts(out, every=every)
    except OSError:
        return None  # a disk that fails is told of where the file is written
    if every > 1:  # energies are compared from step to step
        stats = tree[SAMPLE_STATS]
        stats.dataset = stats.to_dataset().drop_vars("energy", errors="ignore")
    try:
        predictor = Predictor(Record(tree, out), model)
        diagnosis = diagnostics.of_run(predictor)
        return diagnosis, findings.judged(diagnosis, of_sampler=predictor.record.findings)
    except Exception as error:  # a plugin's code, or no memory: the draws are worth more than what is said of them
        warnings.warn(f"the draws cannot be judged: {one_line(error)}", BnnzooWarning, stacklevel=3)
        return None
