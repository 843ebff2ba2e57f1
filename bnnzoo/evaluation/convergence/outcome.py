"""Outcome of a run as one line: converged, settled or not settled, with reasons and the known bias."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bnnzoo.evaluation.convergence.diagnostics import is_chain
from bnnzoo.evaluation.formulas import settling
from bnnzoo.finding import Finding, Spelling, sentences, setting, spell_settings
from bnnzoo.recipe import duration

_BETWEEN = {"rhat", "rhat_combination", "lp_rhat"}
_DISAGREEMENT = _BETWEEN | {"ess_bulk", "ess_tail"}
"""Kinds of findings that chains in different modes cause. The ESS over all chains is small wherever chains disagree.

A longer run is the remedy for all of them, unless the chains never leave their modes."""

_AGREEMENT = 0.1
"""Largest excess of R-hat over 1 from which a necessary length is computed; with a larger one the chains disagree."""
_LEAST_FACTOR = 1.2
"""Smallest factor that is advised; the numbers of a run that is hardly longer may miss their limits again."""


def bias(diagnosis: Mapping[str, Any]) -> str:
    """Describe the bias that a sampler without an accept step estimated for itself; empty if there is no estimate."""
    if "variance_ratio" not in diagnosis:
        return ""
    error = f" ± {diagnosis['variance_ratio_se']:.1g}" if "variance_ratio_se" in diagnosis else ""
    return (
        "from its step size, curvature and gradient noise, the variance of an average direction is "
        f"{diagnosis['variance_ratio']:.3g}{error} times that of the posterior"
    )


def verdict(diagnosis: Mapping[str, Any], run_findings: Sequence[Finding], spelling: Spelling = "options") -> str:
    """Return one line that begins with the outcome: converged, settled, or not settled.

    A run has converged if no finding concerns convergence and its sampler is unbiased. It has settled if every chain
    has mixed within itself (`settling`) but the chains disagree, or if the sampler is biased. Otherwise some chain
    still drifts, or there are too few draws. Reasons, other problems and the known bias follow.
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
        return f"not settled: {_describe_unsettled(diagnosis, run_findings, spelling)}"
    summary = f"settled: {describe_bias(diagnosis)}" if exactness == "biased" else "converged"
    return f"{summary}, but had problems: {'; '.join(problem_sentences)}" if problem_sentences else summary


def has_settled(diagnosis: Mapping[str, Any], run_findings: Sequence[Finding]) -> bool:
    """Whether every chain has mixed within itself, and the only findings are that chains disagree.

    Any other finding excludes this, including one on validity: a stuck chain disagrees with the others like a mode.
    """
    kinds = {finding.kind for finding in run_findings}
    return (
        kinds <= _DISAGREEMENT
        and bool(kinds & _BETWEEN)
        and diagnosis.get("modes", 1) > 1
        and diagnosis.get("drift_p", 0.0) >= settling.LEVEL
        and diagnosis.get("within_ess", 0.0) >= settling.FEWEST_EFFECTIVE
    )


def describe_bias(diagnosis: Mapping[str, Any]) -> str:
    """Return a sentence on the distribution of a biased sampler, with the size of the bias if it is known."""
    bias_text = bias(diagnosis)
    return f"the draws follow the distribution of a biased sampler{f': {bias_text}' if bias_text else ''}"


def describe_modes(diagnosis: Mapping[str, Any]) -> str:
    """Describe chains that have settled in different modes, and the use of more chains."""
    chains, modes = diagnosis["chains"], diagnosis["modes"]
    error = (diagnosis["between_share"] / chains) ** 0.5
    return (
        f"{modes} modes: every chain has mixed within itself, but the chains disagree; predictions are a mixture over "
        "the modes, whose relative weights the draws do not determine; the Monte Carlo error over chains is "
        f"{error:.2g} of the epistemic sd, and would be {error / 2:.2g} with {4 * chains} chains"
    )


def _describe_unsettled(diagnosis: Mapping[str, Any], run_findings: Sequence[Finding], spelling: Spelling) -> str:
    """Return the reasons of a run that has not settled.

    Reasons that a longer run does not remove come first, then the necessary length if it is known, then the R-hats and
    effective sample sizes, which the longer run is expected to improve.
    """
    mixing = [finding._replace(advice="") for finding in run_findings if finding.kind in _DISAGREEMENT]
    others = [finding for finding in run_findings if finding.kind not in _DISAGREEMENT]
    if not mixing:
        return "; ".join(sentences(others, spelling))
    modes = diagnosis.get("modes", 1)
    groups = [f"the chains are in {modes} groups that predict differently"] if modes > 1 else []
    how_long = spell_settings(_how_long(diagnosis, mixing), spelling)
    return "; ".join([*sentences(others, spelling), how_long, *groups, *sentences(mixing, spelling)])


def _how_long(diagnosis: Mapping[str, Any], mixing: Sequence[Finding]) -> str:
    """Return the factor by which chains must be longer, with the setting for it.

    The factor is omitted if it is unknown, as for chains that disagree although each has mixed within itself.
    """
    drifts = diagnosis.get("drift_p", 1.0) < settling.LEVEL
    factors = [1.0, 2.0 if drifts else 1.0, *_factors_of_agreeing_chains(diagnosis, mixing)]
    if "within_ess" in diagnosis:
        factors.append(settling.FEWEST_EFFECTIVE / max(diagnosis["within_ess"], 1.0))
    if max(factors) == 1:
        return f"the chains must run longer ({setting('draws')}, {setting('warmup')})"
    factor = float(f"{max(*factors, _LEAST_FACTOR):.2g}")
    subject = f"the chains still drift ({diagnosis['drift_of']}) and" if drifts else "the chains"
    if diagnosis.get("budget"):
        remedy = setting("budget", duration.text(factor * duration.seconds(diagnosis["budget"])))
    else:
        remedy = setting("draws", math.ceil(factor * diagnosis["draws"]))
    return f"{subject} need about {factor:g} times as many draws, so use {remedy}"


def _factors_of_agreeing_chains(diagnosis: Mapping[str, Any], mixing: Sequence[Finding]) -> list[float]:
    """Return the factor by which each finding's number misses its limit, if the chains agree.

    The excess of R-hat over 1 then falls, and the effective sample size grows, in proportion to the length.
    """
    excess = [(finding.value - 1, finding.limit - 1) for finding in mixing if finding.kind in _BETWEEN]
    if diagnosis.get("modes", 1) > 1 or any(not value <= _AGREEMENT for value, _ in excess):
        return []
    sizes = [(finding.limit, finding.value) for finding in mixing if finding.kind not in _BETWEEN]
    return [top / bottom for top, bottom in [*excess, *sizes] if bottom > 0]
