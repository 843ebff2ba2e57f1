"""What a run is worth, in plain words: did it run right, converge, is it calibrated, does it know its limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from bnnzoo.evaluation.diagnostics import Limits, failures

Answer = Literal["yes", "no", "unsure"]

CALIBRATION_MARGIN = 0.02
"""A gap that no one acts on, beyond two standard errors."""
OOD_AUROC = (0.6, 0.8)
"""Below: no better than a guess. From the second on: tells familiar rows from unfamiliar ones."""

RAN, CONVERGED = "Did it run right?", "Has it converged?"
CALIBRATED, KNOWS = "Is it calibrated?", "Does it know what it does not know?"

_DENIED = {
    RAN: "did not run right",
    CONVERGED: "has not converged",
    CALIBRATED: "is not calibrated",
    KNOWS: "does not know what it does not know",
}
_EXACTNESS = {
    "biased": "the sampler is biased: its draws are not from the posterior, by an amount that no number here shows",
    "approximate": "the draws are from an approximation of the posterior, how close no number here shows",
}
_CONVERGENCE = ("R-hat", "bulk ESS", "tail ESS", "E-BFMI")


class Finding(NamedTuple):
    """One question, its answer, and the numbers that it rests on."""

    question: str
    answer: Answer
    words: str


def ran(found: Mapping[str, Any], limits: Limits = Limits()) -> Finding:  # noqa: B008 (immutable)
    """Did it run right? From `Run.diagnose`: everything a gate holds against it but convergence."""
    said = [one for one in failures(found, limits) if not one.startswith(_CONVERGENCE)]
    if said:
        return Finding(RAN, "no", _sentence(said))
    good = ["finished, every chain moved"]
    if "acceptance_rate" in found:
        good.append(f"acceptance {found['acceptance_rate']:.2f}")
    if "sigma2" in found:
        good.append(f"regime ok (mean σ² {found['sigma2']:.2g})")
    if "diverging" in found:
        good.append("no divergence" if not found["diverging"] else f"{found['diverging']:.2%} of draws diverging")
    if found["exactness"] in _EXACTNESS:
        return Finding(RAN, "unsure", _sentence([", ".join(good), _EXACTNESS[found["exactness"]]]))
    return Finding(RAN, "yes", _sentence([", ".join(good)]))


def converged(found: Mapping[str, Any], limits: Limits = Limits()) -> Finding:  # noqa: B008 (immutable)
    """Has it converged? R-hat and effective sample size of predictions, as the gate judges them."""
    if found["exactness"] == "approximate":
        return Finding(CONVERGED, "unsure", "The draws are no Markov chain: R-hat and ESS say nothing of them.")
    said = [one for one in failures(found, limits) if one.startswith(_CONVERGENCE)]
    if said:
        few = f"only {found['draws']} draws a chain" if found["draws"] < 100 else ""
        return Finding(CONVERGED, "no", _sentence([few, *said]))
    return Finding(
        CONVERGED,
        "yes",
        f"R-hat of predictions is at most {found['rhat']:.3f} (limit {limits.rhat:g}), their effective draws at least "
        f"{found['ess_bulk']:.0f} (limit {limits.ess:g}).",
    )


def calibrated(scores: Mapping[str, Any]) -> Finding:
    """Is it calibrated? From `Run.evaluate`: the cover of 90 % intervals, or confidence against accuracy."""
    rows = int(scores["rows"])
    if "coverage_90" in scores:
        cover, claim = scores["coverage_90"], 0.9
        error = scores.get("coverage_90_se", math.sqrt(cover * (1 - cover) / rows))
        words = f"90 % intervals cover {_percent(cover, error)} of {rows} test targets"
        sides = (": too narrow", ": too wide")
    else:
        cover, claim = scores["accuracy"], scores["confidence"]
        error = scores.get("accuracy_se", math.sqrt(cover * (1 - cover) / rows))
        words = f"it is {claim:.1%} sure on average and right in {_percent(cover, error)} of {rows} test rows"
        sides = (": too sure", ": not sure enough")
    # The error that the share would have if the claim held, too: a share near 0 or 1 looks surer than it is.
    error = max(error, math.sqrt(claim * (1 - claim) / rows))
    if abs(cover - claim) <= 2 * error + CALIBRATION_MARGIN:
        if 2 * error > 0.1:
            return Finding(CALIBRATED, "unsure", f"Too few test rows to tell: {words}.")
        return Finding(CALIBRATED, "yes", _sentence([words]))
    return Finding(CALIBRATED, "no", _sentence([words + sides[cover > claim]]))


def knows(found: Mapping[str, Any]) -> Finding:
    """Does it know what it does not know? From `OodScores.summary`, on inputs of pure noise."""
    score = "epistemic_sd" if "ood_auroc_epistemic_sd" in found else "entropy"
    area = found[f"ood_auroc_{score}"]
    name = {"epistemic_sd": "the epistemic sd", "entropy": "the entropy"}[score]
    words = (
        f"{name} is {found[f'ood_{score}']:.2g} on pure noise and {found[f'test_{score}']:.2g} on test rows, and tells "
        f"them apart with AUROC {area:.2f}"
    )
    low, high = OOD_AUROC
    answer: Answer = "yes" if area >= high else "unsure" if area >= low else "no"
    return Finding(KNOWS, answer, _sentence([words]))


def unknown(question: str, reason: object) -> Finding:
    """A question that this run cannot answer, and why."""
    return Finding(question, "unsure", _sentence([f"not known: {reason}"]))


def overall(findings: list[Finding]) -> tuple[Answer, str]:
    """All findings in one sentence."""
    bad = [_DENIED[f.question] for f in findings if f.answer == "no"]
    if bad:
        return "no", f"Not to be trusted as it stands: it {_listed(bad)}."
    if left := [f.question for f in findings if f.answer == "unsure"]:
        return "unsure", f"Nothing found speaks against this run; not settled: {' '.join(left)}"
    return "yes", "It ran right, has converged, is calibrated, and knows what it does not know."


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _percent(share: float, error: float) -> str:
    digits = 0 if error >= 0.01 else 1
    return f"{100 * share:.{digits}f} ± {max(100 * error, 0.1 if digits else 1):.{digits}f} %"


def _sentence(parts: list[str]) -> str:
    text = "; ".join(part.rstrip(".") for part in parts if part)
    return text[:1].upper() + text[1:] + "."
