"""Verdict on a run in one line: converged, settled or not settled, with the reasons and the known bias."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bnnzoo.evaluation.convergence.diagnostics import is_chain
from bnnzoo.evaluation.formulas import settling
from bnnzoo.finding import RESUME, Finding, Spelling, sentences, setting, spell_settings
from bnnzoo.recipe import duration

_BETWEEN = {"rhat", "rhat_combination", "lp_rhat"}
"""Kinds of findings about an R-hat, which compares the chains with each other."""
_DISAGREEMENT = _BETWEEN | {"ess_bulk", "ess_tail"}
"""Kinds of findings that occur if chains are in different modes: a large R-hat, or a small ESS of all chains together.

The remedy for these findings is a longer run, unless the chains never leave their modes.
"""

_AGREEMENT = 0.1
"""Largest R-hat - 1 from which the necessary length of a run is computed; if it is larger, the chains disagree."""
_MIN_FACTOR = 1.2
"""Smallest factor by which a longer run is advised; a run that is only slightly longer may miss the limits again."""
_UNKNOWN_FACTOR = 2.0
"""Factor by which a longer run is advised if the necessary factor cannot be computed."""


def bias(diagnosis: Mapping[str, Any]) -> str:
    """Describe the bias that a sampler without a Metropolis test estimated for its draws; empty without an estimate."""
    if "variance_ratio" not in diagnosis:
        return ""
    error = f" ± {diagnosis['variance_ratio_se']:.1g}" if "variance_ratio_se" in diagnosis else ""
    return (
        "the variance of the draws in an average direction is "
        f"{diagnosis['variance_ratio']:.3g}{error} times the posterior variance, as estimated from step size, "
        "curvature and gradient noise"
    )


def verdict(diagnosis: Mapping[str, Any], run_findings: Sequence[Finding], spelling: Spelling = "options") -> str:
    """Return one line that begins with the outcome: converged, settled, or not settled.

    - Converged: no finding concerns convergence, and the sampler is not biased.
    - Settled: every chain has mixed within itself (`settling`), but the chains disagree or the sampler is biased.
    - Not settled: some chain still drifts, or there are too few draws.

    The line for an approximation begins with "not a chain". The reasons, other problems and the known bias follow.
    """
    problem_sentences, exactness = sentences(run_findings, spelling), diagnosis["exactness"]
    if not is_chain(exactness):
        return "; ".join(
            ["not a chain: the draws are from an approximation, so R-hat and ESS do not apply", *problem_sentences]
        )
    if any(finding.topic == "convergence" for finding in run_findings):
        if has_settled(diagnosis, run_findings):
            bias_sentences = [describe_bias(diagnosis)] if exactness == "biased" else []
            return f"settled in {'; '.join([describe_modes(diagnosis), *bias_sentences, *problem_sentences])}"
        return f"not settled: {describe_unsettled(diagnosis, run_findings, spelling)}"
    summary = f"settled: {describe_bias(diagnosis)}" if exactness == "biased" else "converged"
    return f"{summary}, but had problems: {'; '.join(problem_sentences)}" if problem_sentences else summary


def has_settled(diagnosis: Mapping[str, Any], run_findings: Sequence[Finding]) -> bool:
    """Whether every chain has mixed within itself, and all findings are due to the disagreement of the chains.

    The result is false if there is any other finding, because another problem can look like a mode: for example, a
    stuck chain also disagrees with the other chains.
    """
    kinds = {finding.kind for finding in run_findings}
    return (
        kinds <= _DISAGREEMENT
        and bool(kinds & _BETWEEN)
        and diagnosis.get("modes", 1) > 1
        and diagnosis.get("drift_p", 0.0) >= settling.LEVEL
        and diagnosis.get("within_ess", 0.0) >= settling.MIN_EFFECTIVE
    )


def describe_bias(diagnosis: Mapping[str, Any]) -> str:
    """Return the statement that the sampler is biased, with the size of the bias if it is known."""
    bias_text = bias(diagnosis)
    return f"the draws follow the distribution of a biased sampler{f': {bias_text}' if bias_text else ''}"


def describe_modes(diagnosis: Mapping[str, Any]) -> str:
    """Describe chains that have settled in different modes, and the effect of using more chains."""
    chains, modes = diagnosis["chains"], diagnosis["modes"]
    error = (diagnosis["between_share"] / chains) ** 0.5
    return (
        f"{modes} modes: every chain has mixed within itself, but the chains disagree; predictions are a mixture over "
        "the modes, but the draws do not determine the weights of the modes; the Monte Carlo error over chains is "
        f"{error:.2g} times the epistemic sd, and would be {error / 2:.2g} with {4 * chains} chains"
    )


def describe_unsettled(
    diagnosis: Mapping[str, Any], run_findings: Sequence[Finding], spelling: Spelling = "options"
) -> str:
    """Return the reasons why a run has not settled.

    Problems that a longer run does not solve come first. The advice to run longer follows, with the necessary length if
    it is known. The R-hats and effective sample sizes that a longer run should improve come last.
    """
    mixing = [finding._replace(advice="") for finding in run_findings if finding.kind in _DISAGREEMENT]
    others = [finding for finding in run_findings if finding.kind not in _DISAGREEMENT]
    if not mixing:
        return "; ".join(sentences(others, spelling))
    modes = diagnosis.get("modes", 1)
    groups = [f"the chains are in {modes} groups that predict differently"] if modes > 1 else []
    how_long = spell_settings(_how_long(diagnosis, mixing, spelling), spelling)
    return "; ".join([*sentences(others, spelling), how_long, *groups, *sentences(mixing, spelling)])


def continuation(diagnosis: Mapping[str, Any], run_findings: Sequence[Finding]) -> dict[str, str | int]:
    """Return the option of `bnnzoo resume` that adds the missing draws: `budget` or `draws`, with its value.

    The result is empty if more draws are not the remedy, or if the run cannot be extended. If the number of missing
    draws is unknown, the run becomes twice as long.
    """
    mixing = [finding for finding in run_findings if finding.kind in _DISAGREEMENT]
    is_remedy = bool(mixing) and len(mixing) == len(run_findings) and not has_settled(diagnosis, run_findings)
    if not is_remedy or not diagnosis.get("extensible"):
        return {}
    return _lengths(diagnosis, _necessary_factor(diagnosis, mixing) or _UNKNOWN_FACTOR)


def _how_long(diagnosis: Mapping[str, Any], mixing: Sequence[Finding], spelling: Spelling) -> str:
    """Return the advice to run longer, with the setting, and with the necessary factor if it is known."""
    factor = _necessary_factor(diagnosis, mixing)
    lengths = " ".join(setting(name, value) for name, value in _lengths(diagnosis, factor or _UNKNOWN_FACTOR).items())
    remedy = f"continue with {RESUME[spelling]} and {lengths}" if diagnosis.get("extensible") else f"use {lengths}"
    if factor is None:
        return (
            "the chains disagree too much to estimate how many draws they need, so first draw "
            f"{_UNKNOWN_FACTOR:g} times as many: {remedy}"
        )
    drifts = diagnosis.get("drift_p", 1.0) < settling.LEVEL
    subject = f"the chains still drift ({diagnosis['drift_of']}) and" if drifts else "the chains"
    return f"{subject} need about {factor:g} times as many draws, so {remedy}"


def _necessary_factor(diagnosis: Mapping[str, Any], mixing: Sequence[Finding]) -> float | None:
    """Return the factor by which the run must be longer; None if it is unknown.

    The factor is unknown, for example, if the chains disagree although each chain has mixed within itself.
    """
    drifts = diagnosis.get("drift_p", 1.0) < settling.LEVEL
    factors = [1.0, 2.0 if drifts else 1.0, *_factors_of_agreeing_chains(diagnosis, mixing)]
    if "within_ess" in diagnosis:
        factors.append(settling.MIN_EFFECTIVE / max(diagnosis["within_ess"], 1.0))
    return None if max(factors) == 1 else float(f"{max(*factors, _MIN_FACTOR):.2g}")


def _lengths(diagnosis: Mapping[str, Any], factor: float) -> dict[str, str | int]:
    """Return the length of a run that is longer by `factor`: a budget if the run had one, or else a number of draws.

    The budget of a run that can be extended is the additional time.
    """
    if not diagnosis.get("budget"):
        return {"draws": math.ceil(factor * diagnosis["draws"])}
    factor -= 1 if diagnosis.get("extensible") else 0
    return {"budget": duration.text(factor * duration.seconds(diagnosis["budget"]))}


def _factors_of_agreeing_chains(diagnosis: Mapping[str, Any], mixing: Sequence[Finding]) -> list[float]:
    """Return, for each finding, the factor by which the value misses the limit; empty if the chains disagree.

    If the chains agree, R-hat - 1 is inversely proportional to the number of draws, and the effective sample size is
    proportional to this number. The factor is therefore also the factor by which the run must be longer.
    """
    excess = [(finding.value - 1, finding.limit - 1) for finding in mixing if finding.kind in _BETWEEN]
    if diagnosis.get("modes", 1) > 1 or any(not value <= _AGREEMENT for value, _ in excess):
        return []
    sizes = [(finding.limit, finding.value) for finding in mixing if finding.kind not in _BETWEEN]
    return [top / bottom for top, bottom in [*excess, *sizes] if bottom > 0]
