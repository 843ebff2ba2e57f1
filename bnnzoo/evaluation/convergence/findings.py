"""Findings of the gate, and answers to four questions about a run.

The gate is the set of limits that a run must satisfy. A finding is a measured value beyond its limit, identified by
topic and kind. The four questions are whether the run finished without problems, has converged, is calibrated, and
detects unfamiliar inputs. Only `outcome.verdict` and the four answers express findings in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from bnnzoo.evaluation.convergence import outcome
from bnnzoo.evaluation.convergence.diagnostics import is_chain
from bnnzoo.evaluation.formulas import calibration_distance
from bnnzoo.evaluation.formulas.calibration_distance import Calibration
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.evaluation.predictions import noise_scale
from bnnzoo.finding import RESUME, Finding, sentences, setting, spell_settings, spelling

_MIN_CHAINS = 4
"""A run with fewer chains needs the same total ESS as a run with this number of chains.

With a total ESS of only 100, the estimate of a standard deviation would have an error of 7 %.
"""
_NEARLY_ALL = 0.99
"""Variance fraction of the sampled directions above which the effect of the other directions counts as small."""
OOD_AUROC_LIMITS = (0.6, 0.8)
"""AUROC below which unfamiliar rows count as not detected, and AUROC above which they count as detected.

The standard error of the AUROC is taken into account.
"""

RAN, CONVERGED = "Did it run without problems?", "Has it converged?"
CALIBRATED, KNOWS = "Is it calibrated?", "Does it know what it does not know?"

_NOVELTY_SCORES = {
    "epistemic_sd": "the epistemic sd",
    "entropy": "the entropy",
    "nll": "minus the log density",
}
"""Scores that may separate unfamiliar from familiar rows, with names for texts; the first available one is used."""
_DENIED = {
    RAN: "had problems",
    CONVERGED: "has not converged",
    CALIBRATED: "is not calibrated",
    KNOWS: "does not know what it does not know",
}
_EXACTNESS = {
    "biased": (
        "the sampler is biased: its draws are not from the posterior, and no diagnostic of bnnzoo measures this bias"
    ),
    "approximate": (
        "the draws are from an approximation of the posterior, and no diagnostic of bnnzoo measures its error"
    ),
}


class Limits(NamedTuple):
    """Limits that the numbers of a run must satisfy; together they are the gate."""

    rhat: float = 1.01
    """Largest R-hat of the tested quantities (recommended by Vehtari et al. 2021)."""
    ess: float = 100.0
    """Smallest bulk and tail ESS of the tested quantities, per chain.

    With fewer than four chains, the total must be as large as for four chains.
    """
    variance_ratio: float = 1.1
    """Largest ratio of the variance of the draws to the posterior variance, in an average direction.

    A sampler without a Metropolis test estimates this ratio for its own draws.
    """
    variance_ratio_worst: float = 1.2
    """Largest ratio of both variances in the worst direction; at 1.2, the sd of the draws is 10 % too large."""
    diverging: float = 0.01
    """Largest fraction of divergent steps."""
    ebfmi: float = 0.3
    """Smallest energy Bayesian fraction of missing information (E-BFMI, Betancourt 2016)."""
    implausible: float = 100.0
    """Limit for each of the distances of the predictions from the data that `data_distance.distance_from_data` returns.

    If a distance is larger, the draws are not from the posterior, even if the chains agree.
    """


class Answer(NamedTuple):
    """Answer to one question: yes, no or unsure, and a text with the numbers that support the answer."""

    question: str
    outcome: Literal["yes", "no", "unsure"]
    text: str


def gate_findings(
    diagnosis: Mapping[str, Any],
    limits: Limits = Limits(),  # noqa: B008 (immutable)
    *,
    of_sampler: Iterable[Finding] = (),
) -> tuple[Finding, ...]:
    """Return the problems of a run: findings of the sampler, and values beyond the limits of the gate.

    Args:
        diagnosis: the numbers that `diagnostics.of_run` returns.
        limits: the limits of the gate.
        of_sampler: findings that the sampler itself stored in the file.
    """
    floors = ("ess_bulk", "ess_tail", "ebfmi", "draws")
    chain_only = () if is_chain(diagnosis["exactness"]) else ("convergence", "still_chains")
    gate_problems = []
    for topic, checks in _gate_checks(diagnosis, limits).items():
        for kind, (label, limit, advice) in checks.items():
            if kind not in diagnosis or topic in chain_only or kind in chain_only:
                continue
            value = diagnosis[kind]
            # The comparisons are negated so that NaN fails the check.
            if not (value >= limit if kind in floors else value <= limit):
                gate_problems.append(Finding(topic, kind, label, value, limit, advice))
    return (*of_sampler, *gate_problems)


def _gate_checks(
    diagnosis: Mapping[str, Any], limits: Limits
) -> dict[Literal["convergence", "validity"], dict[str, tuple[str, Any, str]]]:
    """Return the label, the limit and the advice of each number that the gate tests, by topic and kind."""
    run_longer, is_one_group = f"run longer ({setting('draws')}, {setting('warmup')})", diagnosis.get("modes", 1) < 2
    group_note = "" if is_one_group else f"the chains are in {diagnosis.get('modes')} groups that predict differently; "
    agree = group_note + run_longer
    min_ess = limits.ess * max(diagnosis["chains"], _MIN_CHAINS)
    smaller_step = f"use a smaller step size, or a longer {setting('warmup')}"
    at = diagnosis.get("unbiased_step_size", 0.0)
    # If chains have diverged, no step size makes the ratio close to 1 at their positions.
    step_size = setting("sampler.step_size", f"{at:.2g}") if at > 0 else f"a smaller {setting('sampler.step_size')}"
    unbiased = f"use {step_size} (or auto instead of a number), or an exact sampler such as nuts"
    variance_ratio = "variance ratio (predicted variance of the draws / posterior variance)"
    worst_direction = "variance ratio in the worst direction (predicted variance of the draws / posterior variance)"
    combination = (
        f"R-hat of a linear combination of the tested quantities (mostly {diagnosis.get('rhat_combination_of')})"
    )
    unmoving = f"number of sampled parameters that move at most once in a chain ({diagnosis.get('unmoving_of')})"
    stuck_advice = f"use a smaller step size, a longer {setting('warmup')}, or another sampler such as nuts"
    convergence = {
        "rhat": (f"R-hat of {diagnosis['rhat_of']}", limits.rhat, agree),
        "rhat_combination": (combination, _combination_limit(diagnosis, limits), agree),
        "unmoving": (unmoving, 0, stuck_advice),
        "variance_ratio": (variance_ratio, limits.variance_ratio, unbiased),
        "variance_ratio_worst": (worst_direction, limits.variance_ratio_worst, unbiased),
        "lp_rhat": ("R-hat of the log posterior density", limits.rhat, agree),
        "ess_bulk": (f"bulk ESS of {diagnosis['ess_bulk_of']}", min_ess, run_longer),
        "ess_tail": (f"tail ESS of {diagnosis['ess_tail_of']}", min_ess, run_longer),
        "ebfmi": ("E-BFMI", limits.ebfmi, "the energy mixes slowly: reparametrise the model"),
    }
    validity = {
        "still_chains": ("number of stuck chains (no move in half of the draws)", 0, smaller_step),
        "remoteness": ("distance of predictions from the data in sds of the target", limits.implausible, smaller_step),
        "deficit": (
            "log density of a training row under a constant prediction minus its log density under the draws, in nats,",
            limits.implausible,
            smaller_step,
        ),
        "surprise": (
            "negative log probability of the labels, divided by its value for random guessing,",
            limits.implausible,
            smaller_step,
        ),
        "noise_largest": ("largest draw of the noise scale in sds of the target", noise_scale.LARGEST, run_longer),
        "diverging": ("fraction of divergent steps", limits.diverging, "use a smaller step size"),
        "draws": ("finished draws per chain", diagnosis["draws_requested"], f"continue with {RESUME[spelling()]}"),
    }
    return {"convergence": convergence, "validity": validity}


def _combination_limit(diagnosis: Mapping[str, Any], limits: Limits) -> float:
    """Return the limit for the R-hat of the linear combination.

    The result is the larger of two limits: the general limit for R-hat, and the limit that mixed chains rarely exceed
    (`combination.Combination.limit`).
    """
    return max(limits.rhat, round(diagnosis.get("rhat_combination_limit", limits.rhat), 3))


def answer_ran(diagnosis: Mapping[str, Any], run_findings: Sequence[Finding]) -> Answer:
    """Answer whether the run finished without problems, from all findings with the topic validity."""
    problem_sentences = sentences([finding for finding in run_findings if finding.topic == "validity"])
    if problem_sentences:
        return Answer(RAN, "no", _sentence(problem_sentences))
    good_signs = ["finished, every chain moved" if is_chain(diagnosis["exactness"]) else "finished"]
    if "acceptance_rate" in diagnosis:
        good_signs.append(f"acceptance {diagnosis['acceptance_rate']:.2f}")
    if "sigma2" in diagnosis:
        assumptions = "the sampler's assumptions hold, " if diagnosis["regime_ok"] == 1 else ""
        good_signs.append(f"{assumptions}mean noise variance σ² {diagnosis['sigma2']:.2g}")
    good_signs += filter(None, [spell_settings(noise_scale.remark(diagnosis), spelling())])
    if "diverging" in diagnosis:
        diverging_fraction = diagnosis["diverging"]
        good_signs.append(
            "no divergent transition" if not diverging_fraction else f"{diverging_fraction:.2%} divergent transitions"
        )
    if diagnosis["exactness"] in _EXACTNESS:
        bias_text = outcome.bias(diagnosis)
        exactness_text = f"the sampler is biased: {bias_text}" if bias_text else _EXACTNESS[diagnosis["exactness"]]
        return Answer(RAN, "unsure", _sentence([", ".join(good_signs), exactness_text]))
    if "prior_from" in diagnosis:
        prior_text = (
            f"the prior is an approximation, a normal distribution with the moments of {diagnosis['prior_from']}, and "
            "no diagnostic of bnnzoo measures its error"
        )
        return Answer(RAN, "unsure", _sentence([", ".join(good_signs), prior_text]))
    if subspace_text := _describe_missing_directions(diagnosis):
        return Answer(RAN, "unsure", _sentence([", ".join(good_signs), subspace_text]))
    return Answer(RAN, "yes", _sentence([", ".join(good_signs)]))


def _describe_missing_directions(diagnosis: Mapping[str, Any]) -> str:
    """Describe how directions that were not sampled affect the predictions; empty if their effect is small."""
    fraction = diagnosis.get("variance_fraction", 1.0)
    if not fraction < _NEARLY_ALL:
        return ""
    text = f"the sampled directions contribute {fraction:.0%} of the variance of the network's function"
    if diagnosis.get("other_directions") == "linearised":
        return (
            f"{text}; predictions add an approximation of the other directions, and no diagnostic of bnnzoo measures "
            "its error"
        )
    return f"{text}; the other directions stay at the mode, so the epistemic uncertainty is too small"


def answer_converged(
    diagnosis: Mapping[str, Any],
    run_findings: Sequence[Finding],
    limits: Limits = Limits(),  # noqa: B008 (immutable)
) -> Answer:
    """Answer whether the run has converged, from all findings with the topic convergence."""
    if not is_chain(diagnosis["exactness"]):
        return Answer(CONVERGED, "unsure", "The draws are not a Markov chain, so R-hat and ESS do not apply.")
    problems = [finding for finding in run_findings if finding.topic == "convergence"]
    if problems:
        if outcome.has_settled(diagnosis, run_findings):
            return Answer(
                CONVERGED,
                "unsure",
                _sentence([f"Settled in {outcome.describe_modes(diagnosis)}", *sentences(problems)]),
            )
        too_few_draws = f"only {diagnosis['draws']} draws per chain" if diagnosis["draws"] < 100 else ""
        return Answer(CONVERGED, "no", _sentence([too_few_draws, outcome.describe_unsettled(diagnosis, problems)]))
    text = (
        f"R-hat is at most {diagnosis['rhat']:.3f} (of {diagnosis['rhat_of']}; limit {limits.rhat:g}), the bulk "
        f"ESS at least {diagnosis['ess_bulk']:.0f} (of {diagnosis['ess_bulk_of']}), the tail ESS at least "
        f"{diagnosis['ess_tail']:.0f} (limit {limits.ess * max(diagnosis['chains'], _MIN_CHAINS):g})"
    )
    if diagnosis["exactness"] == "biased":
        return Answer(CONVERGED, "unsure", _sentence([outcome.describe_bias(diagnosis), text]))
    return Answer(CONVERGED, "yes", _sentence([text]))


def answer_calibrated(curve: Calibration, rows: int) -> Answer:
    """Answer whether the run is calibrated, from the confidence interval of the calibration gap.

    The answer is "no" if the lower end of the interval exceeds `MARGIN`. Otherwise it is "unsure" if the upper end
    exceeds `COARSEST`, because there are too few test rows.
    """
    interval = f"{calibration_distance.LEVEL:.0%} interval {100 * curve.low:.1f} to {100 * curve.high:.1f} %"
    text = (
        f"predicted and observed frequencies in {rows} test rows differ by at most {100 * curve.gap:.1f} % "
        f"({interval}; calibrated if the lower end is at most {calibration_distance.MARGIN:.0%} and the upper end at "
        f"most {calibration_distance.COARSEST:.0%})"
    )
    if curve.low > calibration_distance.MARGIN:
        return Answer(CALIBRATED, "no", _sentence([curve.direction, text]))
    if curve.high > calibration_distance.COARSEST:
        return Answer(CALIBRATED, "unsure", f"There are too few test rows to decide: {text}.")
    return Answer(CALIBRATED, "yes", _sentence([text]))


def with_caveat(answer: Answer, caveat: str) -> Answer:
    """Change the answer to "no" because of another test, and put the caveat of that test before the text."""
    return answer._replace(outcome="no", text=_sentence([caveat, answer.text[:1].lower() + answer.text[1:]]))


def answer_knows(scores: Mapping[str, Estimate]) -> Answer:
    """Answer whether the run detects unfamiliar inputs, from its scores on test rows and on random inputs.

    Args:
        scores: the result of `OodScores.estimates` with random inputs as the unfamiliar rows.
    """
    score = next(name for name in _NOVELTY_SCORES if f"ood_auroc_{name}" in scores)
    auroc_value, outside, inside = (scores[f"{part}_{score}"].value for part in ("ood_auroc", "ood", "test"))
    mean_scores = f"{outside:.2g} for random inputs and {inside:.2g} for test rows"
    low, high = OOD_AUROC_LIMITS
    text = (
        f"{_NOVELTY_SCORES[score]} is on average {mean_scores}; it separates random inputs from test rows with an "
        f"AUROC of {auroc_value:.2f} (good above {high}, poor below {low})"
    )
    auroc = scores[f"ood_auroc_{score}"]
    # If all rows are separated, the standard error is zero. With few rows, the rule of three then bounds the error.
    min_error = 0.0 if auroc.influence is None else 6 / len(auroc.influence)
    error = max(2 * (auroc.se or 0.0), min_error)
    return Answer(
        KNOWS,
        "yes" if auroc_value - error >= high else "no" if auroc_value + error < low else "unsure",
        _sentence([text]),
    )


def answer_unknown(question: str, reason: object) -> Answer:
    """Return the answer "unsure", with the reason why the question cannot be answered."""
    return Answer(question, "unsure", _sentence([f"unknown: {reason}"]))


def combine_answers(answers: Sequence[Answer]) -> tuple[str, str]:
    """Combine the answers to all questions into one answer (yes, no or unsure) and one sentence."""
    denied = [_DENIED[answer.question] for answer in answers if answer.outcome == "no"]
    if denied:
        return "no", f"Do not trust this run yet: it {_join_words(denied)}."
    if unsure_questions := [answer.question for answer in answers if answer.outcome == "unsure"]:
        return "unsure", f"No problem was found, but these questions are open: {' '.join(unsure_questions)}"
    return "yes", "It ran without problems, has converged, is calibrated, and knows what it does not know."


def _join_words(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _sentence(parts: list[str]) -> str:
    text = "; ".join(part.rstrip(".") for part in parts if part)
    return text[:1].upper() + text[1:] + "."
