"""The convergence test at the end of a run, for its file and its summary line."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from bnnzoo import store
from bnnzoo.errors import BnnzooWarning
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.convergence import diagnostics, findings, outcome, remaining_gain
from bnnzoo.evaluation.predictions import noise_scale
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.finding import Finding, Spelling, sentence, spell_settings
from bnnzoo.models import AbstractModel
from bnnzoo.plugins.discovery import one_line
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.sampling import chain_mixture
from bnnzoo.sampling.chain_mixture import ChainMixture
from bnnzoo.store import Attributes
from bnnzoo.store.schema import SAMPLE_STATS

_BYTES = 2**28
"""Largest size of all draws, in bytes, for which every draw is tested."""
_MIN_TESTED = 100
"""Smallest number of tested draws per chain, because the convergence test requires an ESS of 100 per chain."""

_ESS_TO_END = 400.0
"""Smallest bulk ESS, over all chains, that every tested quantity must have for `--until converged` to end a run.

See Vehtari et al. 2021."""


def stride(num_bytes: int, draws: int) -> int:
    """Return the number k if every k-th draw of a chain is tested; 0 if fewer than `_MIN_TESTED` would be tested.

    Args:
        num_bytes: size, in bytes, of the draws of all chains.
        draws: draws per chain.
    """
    every_kth = ceil(num_bytes / _BYTES)
    return every_kth if draws // every_kth >= _MIN_TESTED else 0


def reason_to_end(
    out: Path, every_kth: int, model: AbstractModel | AbstractPosterior | None, *, by_predictions: bool
) -> str:
    """Return "converged" or "predictions" if the run may end now; an empty string if it may not.

    The chains have converged if all limits of convergence are met, and the bulk ESS is at least 400. If the
    draws are not a Markov chain, the run does not end. Only every k-th draw is tested, with k = `every_kth`.

    Args:
        out: the file of the run.
        every_kth: stride k of the tested draws.
        model: the user's own model or posterior, see `Job.own_model`.
        by_predictions: whether the run may also end because more draws would hardly change its predictions.
    """
    diagnosed = _diagnose_parts(out, every_kth, model)
    if diagnosed is None or not diagnostics.is_chain(str(diagnosed[1]["exactness"])):
        return ""
    predictor, diagnosis, findings_so_far = diagnosed
    if diagnosis["ess_bulk"] >= _ESS_TO_END and not any(finding.topic == "convergence" for finding in findings_so_far):
        return "converged"
    gain = remaining_gain.of_run(predictor) if by_predictions else None
    return "predictions" if gain is not None and gain.is_negligible else ""


def verdict(out: Path, num_bytes: int, draws: int, model: AbstractModel | AbstractPosterior | None) -> Attributes:
    """Test the convergence of a finished run from its part files, and return the root attributes of the result file.

    Args:
        out: the file of the run.
        num_bytes: size, in bytes, of the draws of all chains.
        draws: draws per chain.
        model: the user's own model or posterior, see `Job.own_model`.

    Returns:
        `verdict` is one line for the command line. `verdict_in_python` is the same line with keywords instead of
        options. `continuation` is the option of `bnnzoo resume` that adds the missing draws, as JSON. `absurd` has
        the findings that chains did not move, or that predictions are far from the data. `noise_remark` is the remark
        about the noise scale. `converged` is 1 or 0, or `not-applicable` if the draws are not a Markov chain. `rhat`
        and `ess_bulk` are the worst values of all tested quantities. Both are missing if the draws are not a Markov
        chain. If the chains have different weights, the attributes of `ChainMixture` are added. In a large run only
        every k-th draw is tested (`stride`). The mapping is empty if a large run has too few draws for the test, or if
        the test fails with an error.
    """
    every_kth = 1 if num_bytes <= _BYTES else stride(num_bytes, draws)
    diagnosed = _diagnose_parts(out, every_kth, model) if every_kth else None
    if diagnosed is None:
        return {}
    predictor, diagnosis, run_findings = diagnosed
    try:
        mixture = chain_mixture.of_run(predictor, diagnosis, run_findings)
    except Exception as error:  # for the same reasons as in `_diagnose_parts`
        warnings.warn(
            f"the chains have equal weights, because the evaluation of their predictions failed: {one_line(error)}",
            BnnzooWarning,
            stacklevel=2,
        )
        mixture = chain_mixture.EQUAL
    return convergence_attributes(diagnosis, run_findings, mixture)


def convergence_attributes(
    diagnosis: Mapping[str, Any], run_findings: Sequence[Finding], mixture: ChainMixture = chain_mixture.EQUAL
) -> Attributes:
    """Return the same root attributes as `verdict`, from a diagnosis that has already been made.

    Args:
        diagnosis: the numbers of the diagnosis by name, such as `rhat`.
        run_findings: the findings of the run.
        mixture: the weights of the chains, and the text about them in the verdict.
    """
    exactness = str(diagnosis["exactness"])
    converged: int | str = int(not any(finding.topic == "convergence" for finding in run_findings))
    # `Record.doubt` shows only the first of these sentences. Predictions far from the data therefore come before chains
    # that do not move.
    kinds = ("remoteness", "deficit", "surprise", "still_chains")
    implausible = [sentence(finding) for kind in kinds for finding in run_findings if finding.kind == kind]
    remark = noise_scale.remark(diagnosis)

    def verdict_text(spelling: Spelling) -> str:
        text = outcome.verdict(diagnosis, run_findings, spelling)
        return "; ".join(filter(None, [text, mixture.describe(), spell_settings(remark, spelling)]))

    return {
        "verdict": verdict_text("options"),
        "verdict_in_python": verdict_text("keywords"),
        "absurd": "; ".join(implausible),
        "noise_remark": remark,
        "continuation": json.dumps(outcome.continuation(diagnosis, run_findings)),
        "converged": converged if diagnostics.is_chain(exactness) else "not-applicable",
        **({k: float(diagnosis[k]) for k in ("rhat", "ess_bulk")} if diagnostics.is_chain(exactness) else {}),
        **mixture.attributes(),
    }


def _diagnose_parts(
    out: Path, every_kth: int, model: AbstractModel | AbstractPosterior | None
) -> tuple[Predictor, dict[str, Any], tuple[Finding, ...]] | None:
    """Return a predictor with every k-th draw so far (k = `every_kth`), and the diagnosis and findings of the run.

    The result is None if the part files cannot be read, or if the diagnosis fails with an error.
    """
    try:
        tree = store.open_parts(out, every=every_kth)
    except OSError:
        return None  # a failing disk is reported when the file is written
    if every_kth > 1:  # the energy diagnostics need consecutive draws
        stats = tree[SAMPLE_STATS]
        stats.dataset = stats.to_dataset().drop_vars("energy", errors="ignore")
    try:
        predictor = Predictor(Record(tree, out), model)
        diagnosis = diagnostics.of_run(predictor)
        return predictor, diagnosis, findings.gate_findings(diagnosis, of_sampler=predictor.record.findings)
    except Exception as error:  # also errors of a plugin, and lack of memory: the draws must be kept in any case
        warnings.warn(f"the convergence of the draws cannot be tested: {one_line(error)}", BnnzooWarning, stacklevel=3)
        return None
