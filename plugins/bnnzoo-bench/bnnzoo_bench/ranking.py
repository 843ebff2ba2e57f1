"""Ranks of methods over problems, their critical difference, and paired differences over folds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from bnnzoo_bench.results import Line, distinct

_LEVEL = 0.05


class Ranking(NamedTuple):
    """Ranks of the methods on each problem; the method with the lowest mean score over folds has rank 1."""

    methods: list[str]
    """Names of the methods, best mean rank first."""
    problems: list[str]
    """Problems with at least one fold on which every method was tried."""
    ranks: np.ndarray
    """Ranks [problem, method]; methods that failed on a fold of a problem share the last ranks on it."""
    friedman_p: float | None
    """P-value of Friedman's test that all methods have the same distribution of ranks.

    The value is None with fewer than 3 methods or 2 problems, or if all methods have the same rank on all problems.
    """
    critical_difference: float | None
    """Nemenyi's critical difference of two mean ranks at the level 0.05; None with fewer than 2 problems or methods."""

    @property
    def mean_ranks(self) -> np.ndarray:
        """Mean rank of each method over the problems."""
        return self.ranks.mean(0) if len(self.problems) else np.full(len(self.methods), np.nan)

    def groups(self) -> list[tuple[int, int]]:
        """Return the groups of methods whose mean ranks do not differ significantly.

        A group is given by its first and last index in `methods`. The mean ranks in a group differ by at most
        `critical_difference`. A group that is part of a larger group is omitted.
        """
        if self.critical_difference is None:
            return []
        means, groups = self.mean_ranks, []
        for first in range(len(means)):
            last = int(np.searchsorted(means, means[first] + self.critical_difference + 1e-12, side="right")) - 1
            if last > first and (not groups or last > groups[-1][1]):
                groups.append((first, last))
        return groups


class Difference(NamedTuple):
    """A mean of scores, or of differences of scores, over folds or problems, with the standard error of the mean."""

    mean: float
    se: float | None
    count: int

    @property
    def is_clear(self) -> bool:
        """Whether the absolute value of the mean exceeds two standard errors."""
        return self.se is not None and abs(self.mean) > 2 * self.se


def by_fold(lines: Sequence[Line], problem: str, method: str) -> dict[int, Line]:
    """Return the results of a problem and a method, with the fold as key."""
    return {line["fold"]: line for line in lines if line["problem"] == problem and line["method"] == method}


def shared_lines(lines: Sequence[Line]) -> list[Line]:
    """Return the results of all folds on which every method was tried; each problem has its own such folds."""
    tried: dict[tuple[str, int], set[str]] = {}
    for line in lines:
        tried.setdefault((line["problem"], line["fold"]), set()).add(line["method"])
    methods = {line["method"] for line in lines}
    return [line for line in lines if tried[line["problem"], line["fold"]] == methods]


def rank_methods(lines: Sequence[Line], metric: str = "crps") -> Ranking:
    """Rank the methods on every problem by their mean scores over the folds on which all methods were tried.

    Args:
        lines: the results.
        metric: name of a metric for which lower values are better.
    """
    methods = distinct(line["method"] for line in lines)
    shared = shared_lines(lines)
    problems = distinct(line["problem"] for line in shared)
    rows = []
    for problem in problems:
        rows.append(stats.rankdata(mean_scores(shared, problem, methods, metric)))
    ranks = np.array(rows).reshape(len(problems), len(methods))
    order = np.argsort(ranks.mean(0), kind="stable") if problems else np.arange(len(methods))
    ranks, names = ranks[:, order], [methods[index] for index in order]
    friedman = len(methods) > 2 and len(problems) > 1 and np.ptp(ranks) > 0
    p = float(stats.friedmanchisquare(*ranks.T).pvalue) if friedman else None
    return Ranking(names, problems, ranks, p, critical_difference(len(methods), len(problems)))


def mean_scores(shared: Sequence[Line], problem: str, methods: Sequence[str], metric: str) -> list[float]:
    """Return the mean score of each method on a problem, over the folds in `shared`.

    Args:
        shared: the result of `shared_lines`.
        problem: the problem, with at least one fold on which all methods were tried.
        methods: the methods.
        metric: the metric.

    Returns:
        the scores, in the order of the methods; infinity for a method that failed on a fold.
    """
    return [_mean_score(list(by_fold(shared, problem, method).values()), metric) for method in methods]


def _mean_score(lines: Sequence[Line], metric: str) -> float:
    """Return the mean score of fits; infinity if a fit failed."""
    if any(line["status"] == "failed" for line in lines):
        return np.inf
    return float(np.mean([line["metrics"][metric] for line in lines]))


def critical_difference(methods: int, problems: int) -> float | None:
    """Return Nemenyi's critical difference of two mean ranks at the level 0.05 (Demsar 2006, JMLR 7).

    The result is None with fewer than 2 methods or problems.
    """
    if methods < 2 or problems < 2:
        return None
    q = stats.studentized_range.ppf(1 - _LEVEL, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * problems)))


def paired_difference(
    lines: Sequence[Line], problem: str, method: str, reference: str, metric: str
) -> Difference | None:
    """Return the mean of the method's score minus the reference's score, over the folds on which both succeeded.

    The result is None if there is no such fold.
    """
    fits, reference_fits = by_fold(lines, problem, method), by_fold(lines, problem, reference)
    folds = [f for f in fits if f in reference_fits and fits[f]["status"] == reference_fits[f]["status"] == "done"]
    return mean_difference([fits[f]["metrics"][metric] - reference_fits[f]["metrics"][metric] for f in folds])


class Wins(NamedTuple):
    """Numbers of problems on which a method is the best, and on which it is the best or tied with the best method."""

    best: int
    best_or_tied: int


def count_wins(lines: Sequence[Line], methods: Sequence[str], metric: str) -> dict[str, Wins]:
    """Count for each method the problems on which it is the best, and those on which it is the best or tied.

    The best method has the lowest mean score; of methods with equal scores, each is the best. Another method is tied
    with it if their mean paired difference over folds is at most two standard errors. With a single fold there is no
    standard error, and so no tie.
    """
    best, tied = dict.fromkeys(methods, 0), dict.fromkeys(methods, 0)
    shared = shared_lines(lines)
    for problem in distinct(line["problem"] for line in shared):
        scores = dict(zip(methods, mean_scores(shared, problem, methods, metric), strict=True))
        winner = min(scores, key=lambda method: scores[method])
        if not np.isfinite(scores[winner]):
            continue
        for method in methods:
            best[method] += scores[method] == scores[winner]
            difference = paired_difference(shared, problem, method, winner, metric)
            is_known = difference is not None and difference.se is not None and not difference.is_clear
            tied[method] += scores[method] == scores[winner] or (is_known and bool(np.isfinite(scores[method])))
    return {method: Wins(best[method], tied[method]) for method in methods}


def mean_difference(values: Sequence[float]) -> Difference | None:
    """Return the mean of differences and its standard error; None if there are no values."""
    if not values:
        return None
    se = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return Difference(float(np.mean(values)), se, len(values))
