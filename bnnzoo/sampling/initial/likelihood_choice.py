"""Selection of the noise model of a regression if the recipe names no likelihood.

Two questions are answered with held-out rows, one after the other. Do all rows have the same noise level, or does it
differ between rows? Is the noise normal or Student's t?
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, PRNGKeyArray
from scipy import stats

from bnnzoo.assembly import Problem
from bnnzoo.errors import UsageError
from bnnzoo.finding import spell_settings, spelling
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.recipe import Part
from bnnzoo.sampling.initial import held_out, positions

NOISE_BY_ROW = "heteroscedastic"
_DF = 4.0
"""Degrees of freedom of the candidates with Student's t, equal to the default of the likelihood `student-t`."""
_MAX_EQUAL = 0.25
"""Largest fraction of rows with the same target. If the fraction is larger, likelihoods are not compared.

With more equal targets, the likelihood can be unbounded if it is Student's t or has one noise level per row: the noise
scale of the rows with the same target shrinks towards 0. A low loss is then no evidence for a likelihood, and the
chains get stuck where the scale is tiny."""
_MIN_GAIN = 0.01
"""Smallest gain, in nats per held-out row, for which the second of two likelihoods is selected."""
_LEVEL = 0.005
"""Largest p value for which a likelihood with more parameters is selected.

The training rows of the networks overlap. The true standard error of the mean gain is therefore larger by the factor
(1 + 10 / 9)^(1/2) (Nadeau and Bengio 2003). The true level of the test is about 0.04."""


def is_likelihood_open(problem: Problem) -> bool:
    """Whether the run must select its noise model.

    The run selects it if the run is a regression with a time budget, and neither the recipe nor the model names a
    likelihood. The initial positions must also be trained, and the training must hold out rows.
    """
    description = problem.description
    return (
        description is not None
        and problem.recipe.likelihood is None
        and isinstance(description.parts.likelihood, Gaussian)
        and not description.parts.model.brings_likelihood
        and held_out.can_compare(problem)
    )


class Question(NamedTuple):
    """A choice between two likelihoods: their descriptions, and the keys of their losses in the run's file."""

    name: str
    first: str
    second: str
    second_subject: str
    keys: tuple[str, str]
    is_second_more_complex: bool
    """Whether the second likelihood has more parameters, so that it must be significantly better."""


LEVELS = Question(
    "levels", "one noise level", "one noise level per row", "one level per row", ("one_level", "by_row"), True
)
TAILS = Question(
    "tails", "normal noise", "noise with outliers (Student's t)", "Student's t", ("normal", "student_t"), False
)


class Comparison(NamedTuple):
    """Losses of pairs of networks, and the selected likelihood. The networks of a pair have different likelihoods."""

    first: Float[np.ndarray, " network"]
    """For each network with the first likelihood, the mean negative log density of its held-out rows, in nats."""
    second: Float[np.ndarray, " network"]
    """For each network with the second likelihood, the mean negative log density of its held-out rows, in nats."""
    question: Question = LEVELS

    @property
    def gain(self) -> Float[np.ndarray, " network"]:
        """Loss with the first likelihood minus loss with the second, in nats per held-out row."""
        return self.first - self.second

    @property
    def p(self) -> float:
        """The exact one-sided p value of Wilcoxon's signed-rank test; it is small if the gains are positive.

        The p value is 1 if a gain is NaN, or if no gain is finite.

        The test uses ranks, so that a single network with very poor predictions cannot decide the result.
        """
        if not np.isfinite(self.gain).any() or np.isnan(self.gain).any():
            return 1.0
        _, p = stats.wilcoxon(self.gain, alternative="greater", method="exact")
        return float(np.asarray(p).item())

    @property
    def prefers_second(self) -> bool:
        """Whether the second likelihood is selected.

        If the second likelihood has more parameters, it must be significantly better, and the median gain must be at
        least `_MIN_GAIN`. Otherwise the mean gain must be at least `_MIN_GAIN`, and the median gain must be
        positive. Then neither a single network nor a few unusual rows decide alone.
        """
        if not self.question.is_second_more_complex:
            return float(np.median(self.gain)) > 0 and float(np.mean(self.gain)) >= _MIN_GAIN
        return self.p <= _LEVEL and float(np.median(self.gain)) >= _MIN_GAIN

    @property
    def selected_losses(self) -> Float[np.ndarray, " network"]:
        """The losses of the networks with the selected likelihood."""
        return self.second if self.prefers_second else self.first

    @property
    def sentence(self) -> str:
        """A sentence that names the selected likelihood and summarises the losses."""
        num_better, count = int(np.sum(self.gain > 0)), len(self.gain)
        choice = self.question.second if self.prefers_second else self.question.first
        relation = "at most" if self.p <= _LEVEL else "above"
        test = (
            f"signed-rank test: p = {self.p:.2g}, {relation} the limit of {_LEVEL:g}"
            if self.question.is_second_more_complex
            else f"mean gain {np.mean(self.gain):.2g}"
        )
        text = (
            f"selected noise model: {choice}; in {num_better} of {count} pairs of trained networks, "
            f"{self.question.second_subject} predicts held-out rows better than {self.question.first}; the median gain "
            f"in log density is {np.median(self.gain):.2g} nats per row ({test}; a gain of at least {_MIN_GAIN:g} is "
            f"required); to choose yourself, use [[likelihood=gaussian]], student-t or {NOISE_BY_ROW}"
        )
        return spell_settings(text, spelling())

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as a dictionary that can be stored as JSON in an attribute of the file."""
        losses = zip(self.question.keys, (self.first, self.second), strict=True)
        finite_losses = {
            name: [loss if np.isfinite(loss) else None for loss in values.tolist()] for name, values in losses
        }
        return {**finite_losses, **({"p": self.p, "limit": _LEVEL} if self.question.is_second_more_complex else {})}


def to_json(comparisons: Sequence[Comparison]) -> str:
    """Return the comparisons as a JSON object, whose keys are the names of the questions."""
    return json.dumps({comparison.question.name: comparison.as_json() for comparison in comparisons})


def select_likelihood(
    problem: Problem, *, work: positions.StartWork, key: PRNGKeyArray
) -> tuple[Problem, tuple[Comparison, ...]]:
    """Select the likelihood under which networks predict held-out rows better.

    The first comparison is between one noise level for all rows and one level per row. One level for all rows is
    selected unless one level per row is significantly better. The second comparison is between normal noise and
    Student's t, both with the noise levels that the first comparison selected. All likelihoods are tested on the same
    held-out rows, so that a difference is not due to the rows.

    Nothing is compared if more than a quarter of the rows have the same target, if the budget is too small, or if the
    model or the sampler does not support one level per row. The noise is then normal, with one level for all rows.
    The second comparison is omitted if the budget is too small for it, or if Student's t is not supported.

    Returns:
        the problem with the selected likelihood, and the comparisons that were made.

    Raises:
        InterruptedRunError: if `work.stop` returned a signal.
    """
    if not is_likelihood_open(problem):
        return problem, ()
    by_row = _with_likelihood(problem, NOISE_BY_ROW)
    if by_row is None:
        work.note(
            "selected noise model: one noise level for all rows, because the model or the sampler does not support one "
            "noise level per row"
        )
        return problem, ()

    if equal := _describe_equal_targets(problem):
        work.note(spell_settings(equal, spelling()))
        return problem, ()

    def losses_of(candidate: Problem) -> np.ndarray:
        return held_out.losses_of(candidate, trained_part="networks to choose the likelihood", work=work, key=key)

    if not all(held_out.is_affordable(candidate, key=key) for candidate in (by_row, problem)):
        note = (
            "selected noise model: one noise level for all rows, because the budget leaves no time to compare it with "
            f"one noise level per row; to choose yourself, use [[likelihood=gaussian]] or {NOISE_BY_ROW}"
        )
        work.note(spell_settings(note, spelling()))
        return problem, ()
    levels = Comparison(losses_of(problem), losses_of(by_row), LEVELS)
    work.note(levels.sentence)
    if levels.prefers_second:
        normal, normal_losses, heavy = by_row, levels.second, _with_likelihood(problem, NOISE_BY_ROW, df=_DF)
    else:
        normal, normal_losses, heavy = problem, levels.first, _with_likelihood(problem, "student-t", df=_DF)
    if heavy is None or not held_out.is_affordable(heavy, key=key):
        return normal, (levels,)
    tails = Comparison(normal_losses, losses_of(heavy), TAILS)
    work.note(tails.sentence)
    return heavy if tails.prefers_second else normal, (levels, tails)


def _describe_equal_targets(problem: Problem) -> str:
    """Return the note that too many targets are equal to compare likelihoods; "" if enough targets differ."""
    targets = problem.train.y if problem.train is not None else np.zeros((0, 0))
    for column in targets.T if targets.ndim == 2 else ():
        values, counts = np.unique(column, return_counts=True)
        fraction = counts.max() / len(column)
        if fraction > _MAX_EQUAL:
            return (
                f"selected noise model: one noise level for all rows, because {fraction:.0%} of the rows have the "
                f"target {values[counts.argmax()]:.4g}, which a continuous distribution does not describe; for counts, "
                "use [[likelihood=poisson]] or negative-binomial; for codes of classes, use [[task=classification]]"
            )
    return ""


def _with_likelihood(problem: Problem, name: str, **fields: Any) -> Problem | None:
    """Return the problem with the likelihood `name`, or None if the model or the sampler does not support it."""
    try:
        return problem.with_part("likelihood", Part(name, fields))
    except UsageError:
        return None
