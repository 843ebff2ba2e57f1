"""The content of a benchmark's page: headings, paragraphs, tables and pictures, for Markdown and HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from bnnzoo.errors import UsageError
from bnnzoo_bench.pareto import ParetoPlot
from bnnzoo_bench.ranking import (
    Difference,
    Ranking,
    by_fold,
    count_wins,
    mean_difference,
    mean_scores,
    paired_difference,
    rank_methods,
    shared_lines,
)
from bnnzoo_bench.results import Line, distinct
from bnnzoo_bench.scores import METRICS

_TITLES = {
    "crps": "CRPS",
    "nll": "NLL",
    "rmse": "RMSE",
    "interval_score_90": "interval score",
    "coverage_90": "coverage",
}


class Cell(NamedTuple):
    """A cell of a table: its text, and the value by which the column is sorted."""

    text: str
    value: float | str
    tone: Literal["", "good", "bad"] = ""


class Table(NamedTuple):
    """A table with a header."""

    header: list[str]
    rows: list[list[Cell]]


class Heading(NamedTuple):
    """A heading of level 1 to 3."""

    level: int
    text: str


class Diagram(NamedTuple):
    """The critical-difference diagram."""

    ranking: Ranking


Part = Heading | Table | Diagram | ParetoPlot | str
"""A part of the page; a string is a paragraph."""


def sections(lines: Sequence[Line], metric: str = "crps", reference: str | None = None) -> list[Part]:
    """Return the parts of the page for the results.

    Args:
        lines: the results.
        metric: the metric of ranks and differences.
        reference: the method to which the others are compared; by default the method `default` if there are results for
            it, otherwise the best method.

    Raises:
        UsageError: if the metric or the reference is unknown, or there are no results.
    """
    if metric not in METRICS[:-1]:
        raise UsageError(f"--metric: unknown metric {metric!r}; use one of {', '.join(METRICS[:-1])}")
    if not lines:
        raise UsageError("the folder contains no results; bnnzoo bench run -o FOLDER writes them")
    ranking = rank_methods(lines, metric)
    if reference is None:
        reference = "default" if "default" in ranking.methods else ranking.methods[0]
    if reference not in ranking.methods:
        raise UsageError(f"--reference: unknown method {reference!r}; use one of {', '.join(ranking.methods)}")
    return [
        Heading(1, "Benchmark"),
        _summary(lines),
        Heading(2, f"Mean ranks by {_TITLES[metric]}"),
        _ranks(lines, ranking),
        *_significance(ranking),
        *_verdicts(lines, ranking.methods),
        *_differences(lines, ranking.methods, reference, metric),
        *_scores(lines, ranking.methods, metric),
        *_problems(lines, ranking.methods),
        *failures(lines),
        Heading(2, "Machine and versions"),
        *provenance(lines),
    ]


def _summary(lines: Sequence[Line]) -> str:
    problems, folds = distinct(line["problem"] for line in lines), distinct(line["fold"] for line in lines)
    failed = sum(line["status"] == "failed" for line in lines)
    budgets = " or ".join(f"{budget:g}" for budget in distinct(line["budget"] for line in lines))
    return (
        f"{_count(len(lines), 'fit')} of {_count(len(problems), 'problem')} and {_count(len(folds), 'fold')}, "
        f"{failed} failed; budget {budgets} s per fit, seed {lines[0]['seed']}; last fit on "
        f"{max(line['date'] for line in lines)[:10]}. CRPS, RMSE and the score of the 90 % interval are in standard "
        "deviations of the training targets. NLL is computed for the standardised target. For these "
        "four scores, lower is better. The coverage of the 90 % interval should be 0.9."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _ranks(lines: Sequence[Line], ranking: Ranking) -> Table:
    header = ["method", "mean rank", *_TITLES.values(), "fit (s)", "predict (s)", "failed"]
    shared, rows = shared_lines(lines) or lines, []
    for method, rank in zip(ranking.methods, ranking.mean_ranks, strict=True):
        done = [line for line in shared if line["method"] == method and _is_done(line)]
        failed = sum(line["method"] == method and line["status"] == "failed" for line in lines)
        means = [_mean_over_problems(done, lambda line, name=name: line["metrics"][name]) for name in METRICS]
        seconds = [_mean_over_problems(done, lambda line, n=n: line[f"seconds_{n}"]) for n in ("fit", "predict")]
        cells = [
            number_cell(rank, ".2f"),
            *map(number_cell, means),
            *map(seconds_cell, seconds),
            Cell(str(failed), failed),
        ]
        rows.append([text_cell(method), *cells])
    return Table(header, rows)


def _mean_over_problems(lines: Sequence[Line], value: Any) -> float:
    """Average `value(line)` over the folds of each problem, then over the problems; NaN if there are no lines."""
    problems = distinct(line["problem"] for line in lines)
    means = [np.mean([value(line) for line in lines if line["problem"] == problem]) for problem in problems]
    return float(np.mean(means)) if means else math.nan


def _significance(ranking: Ranking) -> list[Part]:
    if ranking.critical_difference is None:
        return [
            "A critical difference requires at least two methods, and two problems on which all methods were tried."
        ]
    p = ranking.friedman_p
    friedman = f" Friedman's test of equal ranks of all methods gives p = {p:.2g}." if p is not None else ""
    text = (
        f"Over {len(ranking.problems)} problems, two mean ranks differ significantly (Nemenyi's test, level 0.05) if "
        f"they are more than {ranking.critical_difference:.2f} apart.{friedman} Methods that failed on a fold of a "
        "problem share the last ranks on this problem."
    )
    return [text, Diagram(ranking)]


def _differences(lines: Sequence[Line], methods: list[str], reference: str, metric: str) -> list[Part]:
    others = [method for method in methods if method != reference]
    if not others:
        return []
    rows, columns = [], {method: [] for method in others}
    for problem in distinct(line["problem"] for line in lines):
        differences = [paired_difference(lines, problem, method, reference, metric) for method in others]
        for method, difference in zip(others, differences, strict=True):
            columns[method] += [difference.mean] if difference else []
        rows.append([text_cell(problem), *map(_difference, differences)])
    if len(rows) > 1:
        rows.append([text_cell("all problems"), *(_difference(mean_difference(columns[method])) for method in others)])
    text = (
        f"{_TITLES[metric]} of each method minus {_TITLES[metric]} of {reference}. A negative number means that the "
        f"method is better than {reference}. The standard error is computed over folds, and in the last row over "
        "problems. * marks a difference of more than two standard errors. Folds share training rows, so the standard "
        "errors over folds tend to be too small."
    )
    return [Heading(2, f"Differences to {reference}"), text, Table(["problem", *others], rows)]


def _verdicts(lines: Sequence[Line], methods: list[str]) -> list[Part]:
    """Return a heading, and for each method a sentence with its convergence verdicts; empty if no method has any."""
    counts = {method: _count_verdicts([line for line in lines if line["method"] == method]) for method in methods}
    sentences = [f"{method}: {text}." for method, text in counts.items() if text]
    return [Heading(2, "Verdicts"), *sentences] if sentences else []


def _scores(lines: Sequence[Line], methods: list[str], metric: str) -> list[Part]:
    """Return the heading and the table of a metric by problem and method, with the best methods marked.

    The best methods have the smallest mean over the folds that all methods tried. These folds also determine the ranks.
    A sentence with the numbers of wins follows the table. The result is empty with fewer than two methods.
    """
    if len(methods) < 2:
        return []
    rows, shared = [], shared_lines(lines)
    ranked_problems = {line["problem"] for line in shared}
    for problem in distinct(line["problem"] for line in lines):
        scores = mean_scores(shared, problem, methods, metric) if problem in ranked_problems else []
        smallest = min(filter(math.isfinite, scores), default=math.nan)
        is_best = [score == smallest for score in scores] or [False] * len(methods)
        sizes = [line["rows"] for line in lines if line["problem"] == problem and "rows" in line]
        done = [list(filter(_is_done, by_fold(lines, problem, method).values())) for method in methods]
        means = [mean_difference([line["metrics"][metric] for line in of_method]) for of_method in done]
        size = Cell(str(sizes[0]), sizes[0]) if sizes else text_cell("")
        rows.append([text_cell(problem), size, *map(_score, means, is_best)])
    text = (
        "Means and standard errors over folds. * marks the best method of each problem on the folds "
        "that all methods tried. A method that failed on one of these folds is not marked."
    )
    table = Table(["problem", "training rows", *methods], rows)
    return [Heading(2, f"{_TITLES[metric]} by problem"), text, table, _wins(lines, methods, metric)]


def _wins(lines: Sequence[Line], methods: list[str], metric: str) -> str:
    """Return a sentence with both numbers of `count_wins` for each method."""
    wins = count_wins(lines, methods, metric)
    counts = "; ".join(f"{method} {wins[method].best} and {wins[method].best_or_tied}" for method in methods)
    return (
        "Two numbers for each method: the problems on which it is the best method, and the problems on which it is the "
        "best method or differs from the best method by at most two standard errors of the paired difference over "
        f"folds: {counts}."
    )


def _score(mean: Difference | None, is_best: bool) -> Cell:
    if mean is None:
        return Cell("", math.inf)
    return Cell(with_error(mean.mean, mean.se) + " *" * is_best, mean.mean, "good" if is_best else "")


def _is_done(line: Line) -> bool:
    return line["status"] == "done"


def _difference(difference: Difference | None) -> Cell:
    if difference is None:
        return Cell("", math.inf)
    tone = "" if not difference.is_clear else "good" if difference.mean < 0 else "bad"
    text = with_error(difference.mean, difference.se, "+") + (" *" if tone else "")
    return Cell(text, difference.mean, tone)


def _problems(lines: Sequence[Line], methods: list[str]) -> list[Part]:
    parts: list[Part] = [Heading(2, "Problems")]
    header = ["method", *_TITLES.values(), "fit (s)", "memory (MB)", "folds", "verdict"]
    for problem in distinct(line["problem"] for line in lines):
        of_problem = [line for line in lines if line["problem"] == problem]
        sizes = [line for line in of_problem if "rows" in line]
        if sizes:
            size = (
                f"{sizes[0]['rows']} training rows, {sizes[0]['test_rows']} test rows, {sizes[0]['features']} inputs."
            )
        else:
            size = "No fit succeeded."
        parts += [Heading(3, problem), f"{size} SHA-256 of the data: {of_problem[0]['sha256'][:16]}"]
        rows = [_problem_row(of_problem, problem, m) for m in methods if by_fold(of_problem, problem, m)]
        has_verdicts = any(row[-1].text for row in rows)
        end = len(header) - (not has_verdicts)
        parts.append(Table(header[:end], [row[:end] for row in rows]))
    return parts


def _problem_row(lines: Sequence[Line], problem: str, method: str) -> list[Cell]:
    tried = list(by_fold(lines, problem, method).values())
    done = [line for line in tried if _is_done(line)]
    cells = []
    for metric in METRICS:
        mean = mean_difference([line["metrics"][metric] for line in done])
        cells.append(Cell(with_error(mean.mean, mean.se), mean.mean) if mean else Cell("failed", math.inf))
    seconds = float(np.mean([line["seconds_fit"] for line in done])) if done else math.nan
    memory = max(line.get("peak_memory_mb") or 0.0 for line in tried)
    folds = f"{len(done)} of {len(tried)}" if len(done) < len(tried) else str(len(done))
    return [
        text_cell(method),
        *cells,
        seconds_cell(seconds),
        number_cell(memory, ".0f"),
        Cell(folds, len(done)),
        text_cell(_count_verdicts(done)),
    ]


def _count_verdicts(lines: Sequence[Line]) -> str:
    """Return the number of finished fits with each verdict, such as `converged (2), not settled (1)`."""
    verdicts = [line["verdict"].partition(":")[0] for line in lines if _is_done(line) and line["verdict"]]
    return ", ".join(f"{name} ({verdicts.count(name)})" for name in distinct(verdicts))


def failures(lines: Sequence[Line]) -> list[Part]:
    """Return the heading and the table of the failed fits; empty if no fit failed."""
    failed = [line for line in lines if line["status"] == "failed"]
    if not failed:
        return []
    rows = [
        [
            text_cell(line["problem"]),
            Cell(str(line["fold"]), line["fold"]),
            text_cell(line["method"]),
            text_cell(line["reason"]),
        ]
        for line in failed
    ]
    return [Heading(2, "Failed fits"), Table(["problem", "fold", "method", "reason"], rows)]


def provenance(lines: Sequence[Line]) -> list[Part]:
    """Return a sentence about the machines and the dates, and the table of the package versions."""
    done = [line for line in lines if _is_done(line)]
    machines = distinct(f"{line['hardware']['cpu']}, {line['hardware']['cores']} cores" for line in done)
    devices = distinct(line["hardware"]["device"] for line in done)
    versions: dict[str, list[str]] = {}
    for line in done:
        for package, number in line["versions"].items():
            if number not in versions.setdefault(package, []):
                versions[package].append(number)
    rows = [[text_cell(package), text_cell(", ".join(numbers))] for package, numbers in versions.items()]
    dates = sorted(line["date"][:10] for line in lines)
    period = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    text = f"Processor: {'; '.join(machines) or 'unknown'}. Devices: {'; '.join(devices) or 'unknown'}. Date: {period}."
    return [text, Table(["package", "version"], rows)] if rows else [text]


def text_cell(text: str) -> Cell:
    """Return a cell with text."""
    return Cell(text, text)


def number_cell(value: float, form: str = ".3g") -> Cell:
    """Return a cell with a formatted number; an empty cell for NaN."""
    return Cell("", math.inf) if math.isnan(value) else Cell(format(value, form), value)


def seconds_cell(value: float) -> Cell:
    """Return a cell with a number of seconds."""
    return Cell("<0.01", value) if value < 0.01 else number_cell(value, ".2f" if value < 10 else ".0f")


def with_error(mean: float, se: float | None, sign: str = "") -> str:
    """Return a mean and its standard error as text, to two digits of the error. `sign` is "+" to show a plus sign."""
    if not se:
        return format(mean, f"{sign}.3g")
    digits = max(0, min(6, 1 - math.floor(math.log10(se))))
    return f"{mean:{sign}.{digits}f} ± {se:.{digits}f}"
