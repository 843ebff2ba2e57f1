"""Repeat some fits of a benchmark and compare their metrics with the stored ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bnnzoo.errors import UsageError
from bnnzoo_bench.methods import Method, check_methods
from bnnzoo_bench.problems import Problem, digest, mask_digest
from bnnzoo_bench.results import Line, ProblemData, has_changed
from bnnzoo_bench.running import fit_in_child

COLUMNS = ("problem", "fold", "method", "metric", "expected", "got", "allowed", "agrees")


class Check(NamedTuple):
    """The comparison of one metric of a repeated fit with the stored value."""

    problem: str
    fold: int
    method: str
    metric: str
    expected: float
    got: float | None
    allowed: float
    agrees: bool
    reason: str = ""

    def cells(self) -> list[str]:
        """Return the comparison as the cells of one table row."""
        got = "failed" if self.got is None else f"{self.got:.5g}"
        numbers = [f"{self.expected:.5g}", got, f"{self.allowed:.2g}"]
        return [self.problem, str(self.fold), self.method, self.metric, *numbers, "yes" if self.agrees else "NO"]


def allowed_difference(metric: str, expected: float, tolerance: float, test_rows: int) -> float:
    """Return the largest accepted difference between a repeated metric and the stored value.

    Args:
        metric: the name of the metric.
        expected: the stored value of the metric.
        tolerance: the value of `--tolerance`.
        test_rows: the number of test rows.
    """
    if metric in ("nll", "nll_difference"):  # can be near zero, where a relative limit is too strict
        return tolerance * max(1.0, abs(expected))
    if metric == "coverage_90":  # a row on the edge of its interval may fall on either side
        return tolerance + 1 / test_rows
    return tolerance * abs(expected)


def verify_fits(
    lines: Sequence[Line],
    count: int,
    tolerance: float,
    seed: int | None = None,
    report: Callable[[str], None] | None = None,
    problems: Sequence[Problem] = (),
    methods: Sequence[str] = (),
) -> list[Check]:
    """Repeat randomly chosen fits and compare all their metrics with the stored values.

    A fit of bnnzoo repeats the stored recipe, which has numbers of steps instead of a time budget. On the same machine
    and with the same versions, the repeated fit therefore has the same draws.

    Args:
        lines: the results.
        count: the number of fits to repeat, or all if there are fewer.
        tolerance: the value of `--tolerance`, see `allowed_difference`.
        seed: the seed of the random choice.
        report: a function that shows progress.
        problems: the problems whose fits are repeated, with the paths of their data; if empty, all problems, with the
            paths in the results.
        methods: names of the methods whose fits are repeated; if empty, all methods.

    Raises:
        UsageError: if no fit of these problems and methods succeeded, if the data are missing or have changed, if a
            peer cannot be imported, or if the source of an own class has changed.
    """
    by_name = {problem.name: problem for problem in problems}
    done = [
        line
        for line in lines
        if line["status"] == "done"
        and (line["problem"] in by_name or not by_name)
        and (line["method"] in methods or not methods)
    ]
    if not done:
        raise UsageError(
            "no fit of these problems and methods succeeded, so no fit can be repeated; see the failed fits in "
            "bnnzoo bench table"
        )
    indices = np.random.default_rng(seed).choice(len(done), min(count, len(done)), replace=False)
    jobs = [(done[index], *_parts(done[index], by_name)) for index in indices]
    check_methods(method for _, _, method in jobs if method.kind == "peer")
    for line, _, method in jobs:
        if method.kind == "peer" and has_changed(line, method.kind, method.sha256):
            raise UsageError(
                f"{method.name}: the source of the method has changed since the fit; restore the earlier file, or "
                "repeat only fits of other methods with --methods"
            )
    checks: list[Check] = []
    for number, (line, problem, method) in enumerate(jobs, 1):
        if report:
            report(f"{number} of {len(jobs)}: {line['problem']}, fold {line['fold']}, {line['method']}")
        result = fit_in_child(problem, line["fold"], method, line["budget"], line["seed"], line["recipe"])
        checks += _compare(line, result.get("metrics"), tolerance, result["reason"])
    return checks


def _parts(line: Line, problems: Mapping[str, Problem]) -> tuple[Problem, Method]:
    name = line["problem"]
    path = problems[name].path if name in problems else Path(line["source"])
    problem = Problem(name, path, line["target"])
    if not problem.data.exists():
        raise UsageError(f"{problem.data}: no such file; give the path of the data with --problems")
    if not ProblemData(digest(problem), mask_digest(problem), problem.target).agrees(line):
        raise UsageError(f"{problem.path}: the data or the folds have changed since the fit; restore the earlier files")
    method = Method(line["method"], line["kind"], line["definition"])
    return problem, method


def _compare(line: Line, got: dict[str, float] | None, tolerance: float, reason: str) -> list[Check]:
    checks = []
    for metric, expected in line["metrics"].items():
        value = None if got is None else got[metric]
        allowed = allowed_difference(metric, expected, tolerance, line["test_rows"])
        agrees = value is not None and abs(value - expected) <= allowed
        place = (line["problem"], line["fold"], line["method"])
        checks.append(Check(*place, metric, expected, value, allowed, agrees, reason))
    return checks
